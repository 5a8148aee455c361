/* layout.c - the sizes of thinwire.h's structures and the places of their last fields, for
 * test_layout.py to compare with the package's copies */
#include <stddef.h>
#include <stdio.h>

#include "thinwire.h"

#define TELL(type, name, last) printf("%s %zu %zu\n", name, sizeof(type), offsetof(type, last))

int main(void) {
    TELL(tw_select_params, "SelectParams", reserved);
    TELL(tw_group_params, "GroupParams", reserved);
    TELL(tw_memory, "Memory", total);
    TELL(tw_traffic, "Traffic", messages_sent);
    TELL(tw_step_info, "StepInfo", apply_seconds);
    return 0;
}
