/* dense.c - the CPU's work on whole vectors, for the dense exchange; see exchange/job.h */
#include "backend/cpu/lists.h"

#include <assert.h>

static int load(void *context, float *to, const void *from, int type, int64_t n) {
    const tw__kernels *kernels = ((const tw__cpu_lists *)context)->kernels;
    if (type == TW_F32)
        memcpy(to, from, sizeof *to * (size_t)n);
    else if (type == TW_F16)
        kernels->widen_f16(to, from, n);
    else
        kernels->widen_bf16(to, from, n);
    return TW_OK;
}

static int store(void *context, void *to, const float *from, int64_t n) {
    (void)context;
    memcpy(to, from, sizeof *from * (size_t)n);
    return TW_OK;
}

static int sum(void *context, float *own, float *received, int64_t stride, int rank, int nranks,
               int64_t n, float divisor) {
    const tw__cpu_lists *cpu = context;
    float *all = rank == 0 ? own : received;
    assert(n <= stride && rank >= 0 && rank < nranks);
    for (int r = 1; r < nranks; r++)
        cpu->kernels->add(all, r == rank ? own : received + r * stride, n);
    for (int64_t i = 0; i < n; i++)
        own[i] = all[i] / divisor;
    return TW_OK;
}

/* Elements that are looked at together. */
#define BLOCK 2048

static int find_bad(void *context, const void *x, int type, int64_t n, int64_t *bad) {
    const tw__cpu_lists *cpu = context;
    const int64_t size = type == TW_F32 ? 4 : 2;
    float block[BLOCK];
    *bad = -1;
    for (int64_t lo = 0; lo < n && *bad < 0; lo += BLOCK) {
        int64_t len = n - lo < BLOCK ? n - lo : BLOCK;
        const void *at = (const char *)x + size * lo;
        if (type == TW_F32 && cpu->kernels->count(at, len, TW__INFINITY_BITS) == 0)
            continue;
        TW_TRY(load(context, block, at, type, len));
        if (cpu->kernels->count(block, len, TW__INFINITY_BITS) == 0)
            continue;
        for (int64_t i = len - 1; i >= 0; i--)
            *bad = tw__magnitude(block[i]) >= TW__INFINITY_BITS ? lo + i : *bad;
    }
    return TW_OK;
}

const tw__dense_calls tw__dense_cpu = {
    .load = load,
    .sum = sum,
    .store = store,
    .find_bad = find_bad,
    .slot_floats =
        250000, /* 1 MB, twice; see DEPTH in exchange_dense.c for pieces that are shorter */
};
