/* batch_words.c - one row of a word model's batch: a window of the text and what comes after */
#include <string.h>

#include "parts.h"

void batch_window(const dataset *set, const batch_plan *plan, int64_t window,
                  const batch_buffers *buffers, int64_t row) {
    const int64_t length = plan->length;
    const int32_t *from = set->text[plan->split].tokens + window * length; /* [length + 1] */
    const size_t size = (size_t)length * sizeof *from;
    memcpy(buffers->tokens + row * length, from, size);
    memcpy(buffers->labels + row * length, from + 1, size);
}
