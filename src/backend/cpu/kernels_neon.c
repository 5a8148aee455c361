/* kernels_neon.c - 4 floats at a time; every 64-bit ARM has these instructions */
#include "backend/cpu/kernels_compress.h"
#include "backend/cpu/wire_kernels_loops.h"

#include <arm_neon.h>

#define WIDTH 4
#define DOUBLES 2
typedef float32x4_t floats;
typedef int32x4_t ints;
typedef int8x16_t bytes;
typedef float64x2_t doubles;
typedef uint8x16_t flags; /* 0 or 255 */

static inline floats load(const void *src, int64_t i) {
    return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)src + 4 * i));
}

static inline ints load_ints(const void *src, int64_t i) {
    return vreinterpretq_s32_u8(vld1q_u8((const uint8_t *)src + 4 * i));
}

static inline void store(float *dst, floats x) {
    vst1q_f32(dst, x);
}

static inline void store_ints(void *dst, ints x) {
    vst1q_s32(dst, x);
}

static inline void stream(float *dst, floats x) {
    vst1q_f32(dst, x);
}

static inline void fence(void) {
}

static inline floats all(float x) {
    return vdupq_n_f32(x);
}

static inline ints all_ints(int32_t x) {
    return vdupq_n_s32(x);
}

static inline floats add(floats x, floats y) {
    return vaddq_f32(x, y);
}

static inline floats sub(floats x, floats y) {
    return vsubq_f32(x, y);
}

static inline floats mul(floats x, floats y) {
    return vmulq_f32(x, y);
}

static inline floats divide(floats x, floats y) {
    return vdivq_f32(x, y);
}

static inline floats root(floats x) {
    return vsqrtq_f32(x);
}

static inline ints magnitude(floats x) {
    return vandq_s32(vreinterpretq_s32_f32(x), all_ints(TW__MAGNITUDE_MASK));
}

static inline ints bits_apart(floats x, floats y) {
    return vsubq_s32(vreinterpretq_s32_f32(x), vreinterpretq_s32_f32(y));
}

static inline unsigned lanes_of(uint32x4_t mask) {
    const uint32x4_t bit = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(mask, bit));
}

static inline unsigned lanes_above(ints x, ints bound) {
    return lanes_of(vcgtq_s32(x, bound));
}

/* The even bytes of even bytes: masks have equal ones. */
static inline flags reaching(const floats *x, ints below) {
    uint16x8_t above[4];
    for (int v = 0; v < 4; v++)
        above[v] = vreinterpretq_u16_u32(vcgtq_s32(magnitude(x[v]), below));
    return vuzp1q_u8(vreinterpretq_u8_u16(vuzp1q_u16(above[0], above[1])),
                     vreinterpretq_u8_u16(vuzp1q_u16(above[2], above[3])));
}

static inline uint8x16_t with_bits(flags f) {
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return vandq_u8(f, bit);
}

/* Adds neighbours until eight elements share a byte. */
static inline uint64_t word_of(const flags *f) {
    uint8x16_t low = vpaddq_u8(with_bits(f[0]), with_bits(f[1]));
    uint8x16_t high = vpaddq_u8(with_bits(f[2]), with_bits(f[3]));
    uint8x16_t both = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(both, both)), 0);
}

static inline unsigned far_lanes(ints difference) {
    return lanes_of(vorrq_u32(vcgeq_s32(difference, all_ints(TW__NEAR_HIGH)),
                              vcleq_s32(difference, all_ints(TW__NEAR_LOW))));
}

static inline uint8x16_t permutation(unsigned lanes) {
    uint8x8_t order = vcreate_u8(compress_order[lanes]);
    uint32x4_t lane = vmovl_u16(vget_low_u16(vmovl_u8(order)));
    return vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), lane, 0x04040404));
}

static inline floats compress(floats x, unsigned lanes) {
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(x), permutation(lanes)));
}

static inline ints compress_ints(ints x, unsigned lanes) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(x), permutation(lanes)));
}

static inline bytes saturate(const ints *x) {
    int16x8_t low = vqmovn_high_s32(vqmovn_s32(x[0]), x[1]);
    int16x8_t high = vqmovn_high_s32(vqmovn_s32(x[2]), x[3]);
    return vqmovn_high_s16(vqmovn_s16(low), high);
}

static inline floats keep_lanes(floats x, unsigned lanes) {
    const uint32x4_t bit = {1, 2, 4, 8};
    uint32x4_t kept = vtstq_u32(vdupq_n_u32(lanes), bit);
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), kept));
}

static inline int any_far(bytes near) {
    return vminvq_u8(vreinterpretq_u8_s8(vsubq_s8(near, vdupq_n_s8(TW__NEAR_HIGH)))) <= 1;
}

/* Eight bytes at a time. How many are set in each byte of the mask, times 1 + 2^8 + 2^16 ..., gives
 * how many are set in all up to it: where the next ones go. */
static inline uint64_t log_near(tw__undo *undo, const bytes *near) {
    flags set[4];
    for (int i = 0; i < 4; i++)
        set[i] = vtstq_s8(near[i], near[i]);
    const uint64_t lossy = word_of(set);
    const uint64_t counts = vget_lane_u64(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(lossy))), 0);
    const uint64_t ends = counts * UINT64_C(0x0101010101010101), starts = ends << 8;
    int8_t *at = undo->near + undo->near_count;
    for (int i = 0; i < 8; i++) {
        uint8x8_t order = vcreate_u8(compress_order[lossy >> 8 * i & 0xff]);
        order = vadd_u8(order, vdup_n_u8(i % 2 ? 8 : 0));
        vst1_s8(at + (starts >> 8 * i & 0xff), vqtbl1_s8(near[i / 2], order));
    }
    undo->near_count += (int64_t)(ends >> 56);
    return lossy;
}

static inline doubles load_doubles(const double *src) {
    return vld1q_f64(src);
}

static inline void store_doubles(double *dst, doubles x) {
    vst1q_f64(dst, x);
}

static inline doubles widen(const void *src, int64_t i) {
    return vcvt_f64_f32(vreinterpret_f32_u8(vld1_u8((const uint8_t *)src + 4 * i)));
}

static inline doubles add_doubles(doubles x, doubles y) {
    return vaddq_f64(x, y);
}

static inline doubles mul_doubles(doubles x, doubles y) {
    return vmulq_f64(x, y);
}

static inline doubles abs_doubles(doubles x) {
    return vabsq_f64(x);
}

#include "backend/cpu/kernels_vector.h"

static void neon_widen_f16(float *dst, const void *src, int64_t len) {
    int64_t i = 0;
    for (; i + WIDTH <= len; i += WIDTH)
        store(dst + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)src + 2 * i))));
    tw__kernels_ref.widen_f16(dst + i, (const char *)src + 2 * i, len - i);
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = loop_positions};

static const tw__kernels kernels = {
    .name = "neon",
    TW__VECTOR_KERNELS,
    .clear = loop_clear,
    .widen_f16 = neon_widen_f16,
    .wire = &wire,
};

const tw__kernels *tw__kernels_neon(void) {
    prepare_compress();
    return &kernels;
}
