/* fold.c - the fold of each kind of kernels beside the bare pass, by the CPU time of one core
 *
 *   fold [density]      2 * density of the elements are candidates; density (0.001) leave the residual
 *
 * n = 14,728,266 Gaussian elements, residuals four times as large as gradients. The best of ten passes
 * over memory, and of a hundred series over one block, which stays in the cache. Other processes disturb
 * CPU time less than the times of `thinwire bench select`, which measures whole steps on all cores. */
#include "backend/extent.h"
#include "base/clock.h"
#include "base/random.h"
#include "thinwire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 14728266 / (1 << 11) * (1 << 11) };

static float *residual, *acc, *grad, *far, *val;
static int32_t *idx;
static int8_t *near;
static uint8_t *keep, *lossy;

static float gaussian(uint64_t i) {
    double u = ((double)(tw__random(1, i) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(tw__random(2, i) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static void *room(size_t size) {
    void *memory = calloc((size_t)N + TW__LANES, size);
    if (memory == NULL)
        exit(1);
    return memory;
}

static void fill(double density) {
    for (int64_t i = 0; i < N; i++) {
        residual[i] = 4.0f * gaussian((uint64_t)i);
        grad[i] = gaussian((uint64_t)i + N);
        if ((double)(tw__random(3, (uint64_t)i) >> 11) * 0x1p-53 >= density)
            keep[i / 8] |= (uint8_t)(1u << i % 8);
    }
}

static double time_fold(const tw__kernels *kernels, uint32_t threshold) {
    tw__undo undo = {lossy, near, far, 0, 0};
    tw__collector collector = {{idx, val, 0, N}, threshold, 0};
    memcpy(acc, residual, sizeof *acc * N);
    double start = tw__cpu_seconds();
    for (int64_t i = 0; i < N; i += TW__BLOCK) {
        kernels->fold_uncached(grad + i, acc + i, TW__BLOCK, (int32_t)i, keep + i / 8, &undo,
                               &collector);
        undo.lossy += TW__BLOCK / 8;
    }
    return tw__cpu_seconds() - start;
}

/* One block; every other time its negative, so that the residual stays as large as it is. */
static double time_block(const tw__kernels *kernels, uint32_t threshold) {
    enum { TIMES = 100 };
    float minus[TW__BLOCK];
    for (int64_t i = 0; i < TW__BLOCK; i++)
        minus[i] = -grad[i];
    memcpy(acc, residual, sizeof *acc * TW__BLOCK);
    double start = tw__cpu_seconds();
    for (int i = 0; i < TIMES; i++) {
        tw__undo undo = {lossy, near, far, 0, 0};
        tw__collector collector = {{idx, val, 0, N}, threshold, 0};
        kernels->fold(i % 2 ? minus : grad, acc, TW__BLOCK, 0, keep, &undo, &collector);
    }
    return (tw__cpu_seconds() - start) / TIMES;
}

static double time_add(const tw__kernels *kernels) {
    double start = tw__cpu_seconds();
    for (int64_t i = 0; i < N; i += TW__BLOCK)
        kernels->add(acc + i, grad + i, TW__BLOCK);
    return tw__cpu_seconds() - start;
}

static void report(const char *name, uint32_t threshold) {
    const tw__kernels *kernels;
    double fold = 1.0, add = 1.0, block = 1.0;
    setenv("THINWIRE_KERNELS", name, 1);
    if (tw__kernels_choose(&kernels) != TW_OK)
        return;
    for (int i = 0; i < 10; i++) {
        fold = fmin(fold, time_fold(kernels, threshold));
        add = fmin(add, time_add(kernels));
    }
    for (int i = 0; i < 100; i++)
        block = fmin(block, time_block(kernels, threshold));
    printf(
        "%-8s fold %6.2f ms, bare pass %5.2f ms, %5.2fx; in the cache %6.2f ns for 16 elements\n",
        name, 1e3 * fold, 1e3 * add, fold / add, 1e9 * block * 16 / TW__BLOCK);
}

int main(int argc, char **argv) {
    double density = argc > 1 ? atof(argv[1]) : 0.001;
    residual = room(4), acc = room(4), grad = room(4), far = room(4), val = room(4), idx = room(4);
    near = room(1), keep = room(1), lossy = room(1);
    fill(density);
    /* Of Gaussian numbers of deviation sqrt(17): 0.2 % are above 3.09 times it, 2 % above 2.33. */
    uint32_t threshold = tw__threshold((float)(sqrt(17.0) * (density < 0.005 ? 3.09 : 2.33)));
    const char *name;
    int usable;
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++)
        if (usable)
            report(name, threshold);
    return 0;
}
