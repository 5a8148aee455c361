/* kernels_x86.h - what the AVX2 and the AVX-512 kernels share besides kernels_vector.h */
#ifndef TW_KERNELS_KERNELS_X86_H
#define TW_KERNELS_KERNELS_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

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

static inline void fence(void) {
    _mm_sfence();
}

#endif
