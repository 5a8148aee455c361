/* kernels_x86.h - what the AVX2 and the AVX-512 kernels share: the ends of their loops */
#ifndef TW_KERNELS_KERNELS_X86_H
#define TW_KERNELS_KERNELS_X86_H

#include "backend/cpu/kernels_loops.h"

#include <immintrin.h>

static inline int64_t ones(unsigned mask) {
    return __builtin_popcount(mask);
}

/* Appends idx + j for each set bit j of word. Four are written in any case: at the densities that
 * matter a word has 0 to 4 bits, and a branch on how many would be guessed wrong so often that the
 * reads ahead suffer: at 2 % candidates on one core 1.9x the bare pass with it, 1.3x without. */
static inline int64_t append_bits(int32_t *out, int64_t count, int32_t idx, uint64_t word) {
    int64_t total = count + (int64_t)_mm_popcnt_u64(word);
    do {
        for (int j = 0; j < 4; j++) {
            out[count++] = idx + (int32_t)_tzcnt_u64(word); /* 64 once there are no more */
            word = _blsr_u64(word);
        }
    } while (count < total);
    return total;
}

/* From here on zeros go past the caches: half the traffic, as lines are not read before they are
 * overwritten, and what is in the caches stays there. */
#define CLEAR_PAST_CACHES ((int64_t)1 << 18)

static inline void stream_zeros(void *dst, int64_t bytes) {
    const __m128i zeros = _mm_setzero_si128();
    char *at = dst, *end = at + bytes;
    int64_t lead = -(intptr_t)at & 63;
    if (bytes >= CLEAR_PAST_CACHES) {
        memset(at, 0, (size_t)lead);
        for (at += lead; end - at >= 64; at += 64)
            for (int i = 0; i < 4; i++)
                _mm_stream_si128((__m128i *)(void *)at + i, zeros);
        _mm_sfence();
    }
    memset(at, 0, (size_t)(end - at));
}

/* What is left of a vector loop that did the first `done` elements: the reference does it. */
static inline void fold_rest(int64_t done, const void *src, float *acc, int64_t len, int32_t base,
                             const uint8_t *keep, tw__undo *undo, tw__collector *collector) {
    tw__undo rest = *undo;
    rest.lossy += done / 8;
    tw__kernels_ref.fold((const char *)src + 4 * done, acc + done, len - done, base + (int32_t)done,
                         keep + done / 8, &rest, collector);
    undo->near_count = rest.near_count;
    undo->far_count = rest.far_count;
}

static inline void scan_rest(int64_t done, const void *src, int64_t len, int32_t base,
                             tw__collector *collector) {
    tw__kernels_ref.scan((const char *)src + 4 * done, len - done, base + (int32_t)done, collector);
}

static inline void fold_update_rest(int64_t done, const void *src, const tw__moment *moment,
                                    const tw__adamw *a, float *acc, int64_t len, int32_t base,
                                    const uint8_t *keep, tw__undo *undo, tw__collector *collector) {
    const tw__moment rest = {moment->m + done, moment->v + done, moment->next_m + done,
                             moment->next_v + done};
    tw__undo log = *undo;
    log.lossy += done / 8;
    tw__kernels_ref.fold_update((const char *)src + 4 * done, &rest, a, acc + done, len - done,
                                base + (int32_t)done, keep + done / 8, &log, collector);
    undo->near_count = log.near_count;
    undo->far_count = log.far_count;
}

/* The vectors may have written a few more than cap. */
static inline int64_t between_rest(int64_t done, const float *val, int64_t len, uint32_t low,
                                   uint32_t high, uint32_t *out, int64_t cap, int64_t *above) {
    *above = 0;
    return cap > 0 ? tw__kernels_ref.between(val + done, len - done, low, high, out, cap, above)
                   : 0;
}

#endif
