/* fuzz.h - what the fuzz targets share: their input as a stream of bytes, and REQUIRE */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "thinwire.h"

/* The target: libFuzzer calls it, or fuzz_main.c. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: violated: %s\nlast error: %s\n", __FILE__, __LINE__,           \
                    #condition, tw_last_error());                                                  \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

/* The next bytes; zeros behind the end. */
static inline uint32_t take(input *in, int bytes) {
    uint32_t value = 0;
    for (; bytes > 0; bytes--) {
        value = value << 8 | (in->left ? *in->data : 0);
        if (in->left) {
            in->data++;
            in->left--;
        }
    }
    return value;
}

/* Rows of the library's tables. */
static inline int count_methods(void) {
    int count = 0;
    while (tw_select_method(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

static inline int count_exchanges(void) {
    int count = 0;
    while (tw_exchange(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

static inline int count_wires(void) {
    int count = 0;
    while (tw_wire(count, NULL, NULL) == TW_OK)
        count++;
    return count;
}

/* One of `count` rows. */
static inline int take_row(input *in, int count) {
    REQUIRE(count > 0);
    return (int)(take(in, 1) % (uint32_t)count);
}

#endif
