/* float_bits.h - a float32 as its bits, and back */
#ifndef CLI_FLOAT_BITS_H
#define CLI_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
