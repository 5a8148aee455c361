/* dense.cu - whole vectors of a group on a GPU: as floats, looked at, summed over ranks */
#include "backend/cuda/lists.cuh"

using namespace tw;

namespace {

constexpr int MOST_DENSE_BLOCKS = 4096;

unsigned some_blocks(int64_t n) {
    int64_t blocks = blocks_of(n);
    return (unsigned)(blocks < MOST_DENSE_BLOCKS ? blocks : MOST_DENSE_BLOCKS);
}

__device__ float as_float(const void *x, int type, int64_t i) {
    return type == TW_F32   ? static_cast<const float *>(x)[i]
           : type == TW_F16 ? __half2float(static_cast<const __half *>(x)[i])
                            : __bfloat162float(static_cast<const __nv_bfloat16 *>(x)[i]);
}

__global__ void widen(float *to, const void *from, int type, int64_t n) {
    for (int64_t i = thread_number(); i < n; i += thread_count())
        to[i] = as_float(from, type, i);
}

__global__ void look_for_bad(const void *x, int type, int64_t n, unsigned long long *first) {
    for (int64_t i = thread_number(); i < n; i += thread_count())
        if (magnitude(as_float(x, type, i)) >= TW__INFINITY_BITS)
            atomicMin(first, (unsigned long long)i);
}

/* In the order of ranks, as the CPU's dense exchange; received[rank] is not looked at. */
__global__ void sum(float *own, const float *received, int64_t stride, int rank, int nranks,
                    int64_t n, float divisor) {
    for (int64_t i = thread_number(); i < n; i += thread_count()) {
        float all = rank == 0 ? own[i] : received[i];
        for (int r = 1; r < nranks; r++)
            all = __fadd_rn(all, r == rank ? own[i] : received[r * stride + i]);
        own[i] = __fdiv_rn(all, divisor);
    }
}

int load(void *context, float *to, const void *from, int type, int64_t n) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    if (n == 0)
        return TW_OK;
    widen<<<some_blocks(n), LIST_THREADS, 0, stream_of(d)>>>(to, from, type, n);
    return finish(d, cudaSuccess, "copying a vector");
}

int store(void *context, void *to, const float *from, int64_t n) {
    return load(context, static_cast<float *>(to), from, TW_F32, n);
}

int find_bad(void *context, const void *x, int type, int64_t n, int64_t *bad) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    cudaError_t error = cudaMemsetAsync(d->counts, 0xff, sizeof *d->counts, stream_of(d));
    look_for_bad<<<some_blocks(n), LIST_THREADS, 0, stream_of(d)>>>(x, type, n, d->counts);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, sizeof *d->counts, cudaMemcpyDefault,
                                stream_of(d));
    TW_TRY(finish(d, error, "looking at a gradient"));
    *bad = (int64_t)d->answer->number; /* -1: none */
    return TW_OK;
}

int sum_ranks(void *context, float *own, float *received, int64_t stride, int rank, int nranks,
              int64_t n, float divisor) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    if (n == 0)
        return TW_OK;
    sum<<<some_blocks(n), LIST_THREADS, 0, stream_of(d)>>>(own, received, stride, rank, nranks, n,
                                                           divisor);
    return finish(d, cudaSuccess, "summing over ranks");
}

} // namespace

/* A device has room for all values of a rank and all that it gets, and its transfers cut long
 * messages themselves. */
const tw__dense_calls tw__dense_cuda = {load, sum_ranks, store, find_bad, 0};
