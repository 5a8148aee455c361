/* layout.c - prints the sizes of thinwire.h's structures and the offsets of their last fields;
 * test_layout.py compares them with the package's copies */
#include <stddef.h>
#include <stdio.h>

#include "thinwire.h"

#define PRINT(type, name, last) printf("%s %zu %zu\n", name, sizeof(type), offsetof(type, last))

int main(void) {
    PRINT(tw_select_params, "SelectParams", reserved);
    PRINT(tw_group_params, "GroupParams", reserved);
    PRINT(tw_memory, "Memory", reserved);
    PRINT(tw_traffic, "Traffic", reserved);
    PRINT(tw_step_info, "StepInfo", reserved);
    PRINT(tw_lost_rank, "LostRank", reserved);
    PRINT(tw_members, "Members", reserved);
    PRINT(tw_missing, "Missing", reserved);
    return 0;
}
