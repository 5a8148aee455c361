/* kernels_ref.c - what every kernel does, in plain C
 *
 * The definition that the vector kernels are tested against, and the code that runs where there
 * are none. */
#include "backend/cpu/kernels_loops.h"
#include "backend/cpu/wire_kernels_loops.h"

static void append(tw__entries *entries, int32_t idx, float val) {
    entries->idx[entries->count] = idx;
    entries->val[entries->count] = val;
    entries->count++;
}

static void collect(tw__collector *collector, int32_t idx, float val) {
    uint32_t bits = tw__magnitude(val);
    if (bits < collector->threshold)
        return;
    append(&collector->found, idx, val);
    if (bits > collector->max_bits)
        collector->max_bits = bits;
}

static void log_difference(tw__undo *undo, int32_t difference, float old) {
    if (difference > TW__NEAR_LOW && difference < TW__NEAR_HIGH) {
        undo->near[undo->near_count++] = (int8_t)difference;
    } else {
        undo->near[undo->near_count++] = TW__NEAR_HIGH;
        undo->far[undo->far_count++] = old;
    }
}

static void ref_fold(const void *src, float *acc, int64_t len, int32_t base, const uint8_t *keep,
                     tw__undo *undo, tw__collector *collector) {
    for (int64_t i = 0; i < len; i++) {
        float old = keep[i / 8] >> (i % 8) & 1 ? acc[i] : 0.0f;
        float add = load_f32(src, i);
        acc[i] = old + add;
        if (i % 8 == 0)
            undo->lossy[i / 8] = 0;
        int32_t difference = (int32_t)(tw__to_bits(old) - tw__to_bits(acc[i] - add));
        if (difference != 0) {
            undo->lossy[i / 8] |= (uint8_t)(1u << (i % 8));
            log_difference(undo, difference, old);
        }
        collect(collector, base + (int32_t)i, acc[i]);
    }
}

static void ref_scan(const void *src, int64_t len, int32_t base, tw__collector *collector) {
    for (int64_t i = 0; i < len; i++)
        collect(collector, base + (int32_t)i, load_f32(src, i));
}

static void ref_fold_update(const void *src, const tw__moment *moment, const tw__adamw *a,
                            float *acc, int64_t len, int32_t base, const uint8_t *keep,
                            tw__undo *undo, tw__collector *collector) {
    fold_updates(&tw__kernels_ref, src, moment, a, acc, len, base, keep, undo, collector);
}

static int64_t ref_between(const float *val, int64_t len, uint32_t low, uint32_t high,
                           uint32_t *out, int64_t cap, int64_t *above) {
    int64_t count = 0;
    *above = 0;
    for (int64_t i = 0; i < len; i++) {
        uint32_t bits = tw__magnitude(val[i]);
        if (bits > high)
            ++*above;
        else if (bits >= low && count < cap)
            out[count++] = bits;
    }
    return count;
}

static void ref_pick(const int32_t *idx, const float *val, int64_t len, uint32_t threshold,
                     tw__entries *out) {
    for (int64_t i = 0; i < len; i++)
        if (tw__magnitude(val[i]) >= threshold)
            append(out, idx[i], val[i]);
}

static const tw__wire_kernels wire = {TW__WIRE_LOOPS, .positions = loop_positions};

const tw__kernels tw__kernels_ref = {
    .name = "ref",
    TW__LOOPS,
    .fold = ref_fold,
    .fold_uncached = ref_fold,
    .fold_update = ref_fold_update,
    .scan = ref_scan,
    .clear = loop_clear,
    .widen_f16 = loop_widen_f16,
    .moments = loop_moments,
    .between = ref_between,
    .pick = ref_pick,
    .wire = &wire,
};
