/* accumulate.c - the bare pass sum += add, the floor of every selection
 *
 * The same kernels, chunks and threads as the pass of error feedback, and nothing else in it. */
#include "base/pool.h"
#include "backend/cpu/kernels.h"
#include "backend/extent.h"
#include "base/error.h"

typedef struct pass {
    const tw__kernels *kernels;
    float *sum;
    const float *add;
    int64_t n;
} pass;

static void add_chunk(void *context, int worker, int64_t chunk) {
    const pass *p = context;
    (void)worker;
    int64_t lo = chunk * TW__CHUNK;
    int64_t len = p->n - lo < TW__CHUNK ? p->n - lo : TW__CHUNK;
    p->kernels->add((char *)p->sum + 4 * lo, (const char *)p->add + 4 * lo, len);
}

int tw_accumulate(float *sum, const float *add, int64_t n, int threads) {
    TW_REQUIRE(sum, "sum");
    TW_REQUIRE(add, "add");
    if (n < 1 || n > INT32_MAX)
        return tw__fail(TW_ERR_SIZE, "n: %lld; accepted is 1 .. %d", (long long)n, INT32_MAX);
    pass p = {.sum = sum, .add = add, .n = n};
    TW_TRY(tw__threads(threads, &threads));
    TW_TRY(tw__kernels_choose(&p.kernels));
    tw__pool_retain(threads);
    tw__pool_run(threads, tw__chunks(n), add_chunk, &p);
    tw__pool_release();
    return TW_OK;
}
