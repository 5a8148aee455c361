/* kernels_avx512.c - 16 floats at a time; needs VBMI2 (Ice Lake, Zen 4) to compress bytes
 *
 * Bytes are compressed in the register: a compress that stores to memory is microcode on some CPUs. */
#include "backend/cpu/kernels_x86.h"
#include "backend/cpu/wire_kernels_loops.h"

#define WIDTH 16
#define DOUBLES 8
typedef __m512 floats;
typedef __m512i ints, bytes;
typedef __m512d doubles;
typedef uint64_t flags; /* bits: a group is a word */

static inline floats load(const void *src, int64_t i) {
    return _mm512_loadu_ps((const char *)src + 4 * i);
}

static inline ints load_ints(const void *src, int64_t i) {
    return _mm512_loadu_si512((const char *)src + 4 * i);
}

static inline void store(float *dst, floats x) {
    _mm512_storeu_ps(dst, x);
}

static inline void store_ints(void *dst, ints x) {
    _mm512_storeu_si512(dst, x);
}

static inline void stream(float *dst, floats x) {
    _mm512_stream_ps(dst, x);
}

static inline floats all(float x) {
    return _mm512_set1_ps(x);
}

static inline ints all_ints(int32_t x) {
    return _mm512_set1_epi32(x);
}

static inline floats add(floats x, floats y) {
    return _mm512_add_ps(x, y);
}

static inline floats sub(floats x, floats y) {
    return _mm512_sub_ps(x, y);
}

static inline floats mul(floats x, floats y) {
    return _mm512_mul_ps(x, y);
}

static inline floats divide(floats x, floats y) {
    return _mm512_div_ps(x, y);
}

static inline floats root(floats x) {
    return _mm512_sqrt_ps(x);
}

static inline ints magnitude(floats x) {
    return _mm512_and_si512(_mm512_castps_si512(x), all_ints(TW__MAGNITUDE_MASK));
}

static inline ints bits_apart(floats x, floats y) {
    return _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y));
}

/* A mask as 16 bits of a general register. gcc 12 may keep it in memory instead: it writes two bytes
 * and reads four (seen with -fsanitize=thread). */
static inline unsigned bits_of(__mmask16 mask) {
    unsigned bits = mask;
    __asm__("" : "+r"(bits));
    return bits;
}

static inline unsigned lanes_above(ints x, ints bound) {
    return bits_of(_mm512_cmpgt_epi32_mask(x, bound));
}

static inline flags reaching(const floats *x, ints below) {
    __mmask16 m[4];
    for (int v = 0; v < 4; v++)
        m[v] = _mm512_cmpgt_epi32_mask(magnitude(x[v]), below);
    return _cvtmask64_u64(
        _mm512_kunpackd(_mm512_kunpackw(m[3], m[2]), _mm512_kunpackw(m[1], m[0])));
}

static inline uint64_t word_of(const flags *f) {
    return f[0];
}

static inline unsigned far_lanes(ints difference) {
    return bits_of(
        _mm512_cmpgt_epu32_mask(_mm512_add_epi32(difference, all_ints(-TW__NEAR_LOW - 1)),
                                all_ints(TW__NEAR_HIGH - TW__NEAR_LOW - 2)));
}

static inline floats compress(floats x, unsigned lanes) {
    return _mm512_maskz_compress_ps((__mmask16)lanes, x);
}

static inline ints compress_ints(ints x, unsigned lanes) {
    return _mm512_maskz_compress_epi32((__mmask16)lanes, x);
}

static inline floats keep_lanes(floats x, unsigned lanes) {
    return _mm512_maskz_mov_ps((__mmask16)lanes, x);
}

/* Packing works within each quarter of a vector: the last step puts the quarters in order. */
static inline bytes saturate(const ints *d) {
    const ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(
        order, _mm512_packs_epi16(_mm512_packs_epi32(d[0], d[1]), _mm512_packs_epi32(d[2], d[3])));
}

static inline int any_far(bytes near) {
    return _mm512_cmple_epu8_mask(_mm512_sub_epi8(near, _mm512_set1_epi8(TW__NEAR_HIGH)),
                                  _mm512_set1_epi8(1)) != 0;
}

static inline uint64_t log_near(tw__undo *undo, const bytes *near) {
    __mmask64 lossy = _mm512_test_epi8_mask(near[0], near[0]);
    store_ints(undo->near + undo->near_count, _mm512_maskz_compress_epi8(lossy, near[0]));
    undo->near_count += __builtin_popcountll(lossy);
    return lossy;
}

static const uint8_t numbers[TW__WORD] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* The positions of the set bits, one to a byte. */
static inline bytes positions_of(uint64_t word) {
    return _mm512_maskz_compress_epi8(word, _mm512_loadu_si512(numbers));
}

static inline void store_positions(void *at, __m128i position, ints first) {
    _mm512_storeu_si512(at, _mm512_add_epi32(first, _mm512_cvtepu8_epi32(position)));
}

/* At the densities that matter a word has 0 to 4 set bits. */
static inline int64_t append_bits(int32_t *out, int64_t count, int32_t idx, uint64_t word) {
    const int64_t total = count + __builtin_popcountll(word);
    bytes set = positions_of(word);
    store_positions(out + count, _mm512_castsi512_si128(set), all_ints(idx));
    while (__builtin_expect((count += TW__LANES) < total, 0)) {
        set = _mm512_alignr_epi32(set, set, 4);
        store_positions(out + count, _mm512_castsi512_si128(set), all_ints(idx));
    }
    return total;
}

static inline doubles load_doubles(const double *src) {
    return _mm512_loadu_pd(src);
}

static inline void store_doubles(double *dst, doubles x) {
    _mm512_storeu_pd(dst, x);
}

static inline doubles widen(const void *src, int64_t i) {
    return _mm512_cvtps_pd(_mm256_loadu_ps((const void *)((const char *)src + 4 * i)));
}

static inline doubles add_doubles(doubles x, doubles y) {
    return _mm512_add_pd(x, y);
}

static inline doubles mul_doubles(doubles x, doubles y) {
    return _mm512_mul_pd(x, y);
}

static inline doubles abs_doubles(doubles x) {
    return _mm512_abs_pd(x);
}

#include "backend/cpu/kernels_vector.h"

static void avx512_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + WIDTH <= len; i += WIDTH)
        store(dst + i,
              _mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
}

/* ---- wire formats: only positions needs more than the compiler, a compress of the numbers 0 .. 63 */

/* Stores all of them: of a bitmap of gaps 40 to 60 % of the bits are set. */
static int avx512_positions(uint64_t word, uint32_t first, uint32_t *at) {
    const ints firsts = all_ints((int32_t)first);
    bytes set = positions_of(word);
    store_positions(at, _mm512_castsi512_si128(set), firsts);
    store_positions(at + 16, _mm512_extracti32x4_epi32(set, 1), firsts);
    store_positions(at + 32, _mm512_extracti32x4_epi32(set, 2), firsts);
    store_positions(at + 48, _mm512_extracti32x4_epi32(set, 3), firsts);
    return __builtin_popcountll(word);
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = avx512_positions};

static const tw__kernels kernels = {
    .name = "avx512",
    TW__VECTOR_KERNELS,
    .clear = stream_zeros,
    .widen_f16 = avx512_widen_f16,
    .wire = &wire,
};

const tw__kernels *tw__kernels_avx512(void) {
    return &kernels;
}
