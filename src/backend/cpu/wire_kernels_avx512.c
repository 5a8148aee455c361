/* wire_kernels_avx512.c - the loops of the wire formats, 16 floats at a time
 *
 * Only positions needs more than the compiler: a compress of the numbers 0 .. 63. */
#include "backend/cpu/wire_kernels_loops.h"

#include <immintrin.h>

static inline void store_positions(uint32_t *at, __m128i position, __m512i first) {
    _mm512_storeu_si512(at, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(position)));
}

static int avx512_positions(uint64_t word, uint32_t first, uint32_t *at) {
    static const uint8_t numbers[TW__WIRE_WORD] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const __m512i firsts = _mm512_set1_epi32((int)first);
    int count = __builtin_popcountll(word);
    __m512i set = _mm512_maskz_compress_epi8(word, _mm512_loadu_si512(numbers));
    store_positions(at, _mm512_castsi512_si128(set), firsts);
    store_positions(at + 16, _mm512_extracti32x4_epi32(set, 1), firsts);
    if (count > 32) { /* seldom: Elias and Fano's bitmaps are a third to half full */
        store_positions(at + 32, _mm512_extracti32x4_epi32(set, 2), firsts);
        store_positions(at + 48, _mm512_extracti32x4_epi32(set, 3), firsts);
    }
    return count;
}

const tw__wire_kernels tw__wire_kernels_avx512 = {
    .positions = avx512_positions,
    .pack = loop_pack,
    .unpack = loop_unpack,
    .narrow_f16 = loop_narrow_f16,
    .narrow_bf16 = loop_narrow_bf16,
    .quantize = loop_quantize,
    .dequantize = loop_dequantize,
};
