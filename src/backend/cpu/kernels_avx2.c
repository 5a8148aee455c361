/* kernels_avx2.c - 8 floats at a time */
#include "backend/cpu/kernels_compress.h"
#include "backend/cpu/kernels_x86.h"
#include "backend/cpu/wire_kernels_loops.h"

#define WIDTH 8
#define DOUBLES 4
typedef __m256 floats;
typedef __m256i ints, bytes;
typedef __m256d doubles;
typedef __m256i flags; /* bytes, 0 or -1 */

static inline floats load(const void *src, int64_t i) {
    return _mm256_loadu_ps((const void *)((const char *)src + 4 * i));
}

static inline ints load_ints(const void *src, int64_t i) {
    return _mm256_loadu_si256((const void *)((const char *)src + 4 * i));
}

static inline void store(float *dst, floats x) {
    _mm256_storeu_ps(dst, x);
}

static inline void store_ints(void *dst, ints x) {
    _mm256_storeu_si256(dst, x);
}

static inline void stream(float *dst, floats x) {
    _mm256_stream_ps(dst, x);
}

static inline floats all(float x) {
    return _mm256_set1_ps(x);
}

static inline ints all_ints(int32_t x) {
    return _mm256_set1_epi32(x);
}

static inline floats add(floats x, floats y) {
    return _mm256_add_ps(x, y);
}

static inline floats sub(floats x, floats y) {
    return _mm256_sub_ps(x, y);
}

static inline floats mul(floats x, floats y) {
    return _mm256_mul_ps(x, y);
}

static inline floats divide(floats x, floats y) {
    return _mm256_div_ps(x, y);
}

static inline floats root(floats x) {
    return _mm256_sqrt_ps(x);
}

static inline ints magnitude(floats x) {
    return _mm256_and_si256(_mm256_castps_si256(x), all_ints(TW__MAGNITUDE_MASK));
}

static inline ints bits_apart(floats x, floats y) {
    return _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_castps_si256(y));
}

static inline unsigned lanes_of(ints mask) {
    return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(mask));
}

static inline unsigned lanes_above(ints x, ints bound) {
    return lanes_of(_mm256_cmpgt_epi32(x, bound));
}

/* Packing works within each half of a vector: the last step puts the halves in order. */
static inline bytes saturate(const ints *x) {
    const ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3])), order);
}

static inline flags reaching(const floats *x, ints below) {
    ints above[4];
    for (int v = 0; v < 4; v++)
        above[v] = _mm256_cmpgt_epi32(magnitude(x[v]), below);
    return saturate(above);
}

static inline uint64_t word_of(const flags *f) {
    return (uint32_t)_mm256_movemask_epi8(f[0]) | (uint64_t)(uint32_t)_mm256_movemask_epi8(f[1])
                                                      << 32;
}

static inline unsigned far_lanes(ints difference) {
    ints high = _mm256_cmpgt_epi32(difference, all_ints(TW__NEAR_HIGH - 1));
    ints low = _mm256_cmpgt_epi32(all_ints(TW__NEAR_LOW + 1), difference);
    return lanes_of(_mm256_or_si256(high, low));
}

static inline ints permutation(unsigned lanes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)compress_order[lanes]));
}

static inline floats compress(floats x, unsigned lanes) {
    return _mm256_permutevar8x32_ps(x, permutation(lanes));
}

static inline ints compress_ints(ints x, unsigned lanes) {
    return _mm256_permutevar8x32_epi32(x, permutation(lanes));
}

static inline floats keep_lanes(floats x, unsigned lanes) {
    const ints bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    ints kept = _mm256_cmpeq_epi32(_mm256_and_si256(all_ints((int32_t)lanes), bit), bit);
    return _mm256_and_ps(x, _mm256_castsi256_ps(kept));
}

static inline int any_far(bytes near) {
    __m256i above_high = _mm256_sub_epi8(near, _mm256_set1_epi8(TW__NEAR_HIGH)); /* 0 or 1 if far */
    __m256i far = _mm256_cmpeq_epi8(_mm256_min_epu8(above_high, _mm256_set1_epi8(1)), above_high);
    return !_mm256_testz_si256(far, far);
}

/* Appends those of the bytes first .. first + 7 of x whose bits are set in `lossy`. */
static inline int8_t *log_eight(int8_t *near, __m128i x, int first, unsigned lossy) {
    __m128i order = _mm_cvtsi64_si128((long long)compress_order[lossy]);
    order = _mm_add_epi8(order, _mm_set1_epi8((char)first));
    _mm_storel_epi64((void *)near, _mm_shuffle_epi8(x, order));
    return near + _mm_popcnt_u32(lossy);
}

static inline uint64_t log_near(tw__undo *undo, const bytes *near) {
    const flags equal[2] = {_mm256_cmpeq_epi8(near[0], _mm256_setzero_si256()),
                            _mm256_cmpeq_epi8(near[1], _mm256_setzero_si256())};
    const uint64_t lossy = ~word_of(equal);
    int8_t *at = undo->near + undo->near_count;
    for (int i = 0; i < 4; i++) {
        __m128i x =
            i % 2 ? _mm256_extracti128_si256(near[i / 2], 1) : _mm256_castsi256_si128(near[i / 2]);
        at = log_eight(at, x, 0, lossy >> 16 * i & 0xff);
        at = log_eight(at, x, 8, lossy >> (16 * i + 8) & 0xff);
    }
    undo->near_count = at - undo->near;
    return lossy;
}

static inline doubles load_doubles(const double *src) {
    return _mm256_loadu_pd(src);
}

static inline void store_doubles(double *dst, doubles x) {
    _mm256_storeu_pd(dst, x);
}

static inline doubles widen(const void *src, int64_t i) {
    return _mm256_cvtps_pd(_mm_loadu_ps((const void *)((const char *)src + 4 * i)));
}

static inline doubles add_doubles(doubles x, doubles y) {
    return _mm256_add_pd(x, y);
}

static inline doubles mul_doubles(doubles x, doubles y) {
    return _mm256_mul_pd(x, y);
}

static inline doubles abs_doubles(doubles x) {
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
}

#include "backend/cpu/kernels_vector.h"

static void avx2_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + WIDTH <= len; i += WIDTH)
        store(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const char *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = loop_positions};

static const tw__kernels kernels = {
    .name = "avx2",
    TW__VECTOR_KERNELS,
    .clear = stream_zeros,
    .widen_f16 = avx2_widen_f16,
    .wire = &wire,
};

const tw__kernels *tw__kernels_avx2(void) {
    prepare_compress();
    return &kernels;
}
