/* kernels_compress.h - for vector units that have no compress instruction */
#ifndef TW_KERNELS_KERNELS_COMPRESS_H
#define TW_KERNELS_KERNELS_COMPRESS_H

#include <pthread.h>
#include <stdint.h>

/* Byte j of row m: the position of the j-th set bit of m. */
static uint64_t compress_order[256];

static void fill_compress_order(void) {
    for (unsigned mask = 0; mask < 256; mask++) {
        unsigned at = 0;
        for (unsigned bit = 0; bit < 8; bit++)
            if (mask >> bit & 1)
                compress_order[mask] |= (uint64_t)bit << (8 * at++);
    }
}

/* To be called before the kernels are. */
static inline void prepare_compress(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fill_compress_order);
}

/* Appends idx + j for each set bit j of word. Four are written in any case: at the densities that
 * matter a word has 0 to 4 bits, and a branch on how many would be guessed wrong so often that the
 * reads ahead suffer: at 2 % candidates on one core 1.9x the bare pass with it, 1.3x without. */
static inline int64_t append_bits(int32_t *out, int64_t count, int32_t idx, uint64_t word) {
    int64_t total = count + __builtin_popcountll(word);
    do {
        for (int j = 0; j < 4; j++) {
            out[count++] = idx + (int32_t)__builtin_ctzll(word | UINT64_C(1) << 63);
            word &= word - 1;
        }
    } while (count < total);
    return total;
}

#endif
