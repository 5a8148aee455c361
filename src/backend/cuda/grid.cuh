/* grid.cuh - kernels over lists: a thread for each entry, and where an index is among them */
#ifndef TW_CUDA_GRID_CUH
#define TW_CUDA_GRID_CUH

#include "exchange/entries.h"

#include <cuda_runtime.h>

namespace tw {

constexpr int LIST_THREADS = 256; /* of a block */

inline unsigned blocks_of(int64_t count) {
    return (unsigned)((count + LIST_THREADS - 1) / LIST_THREADS);
}

__device__ inline int64_t thread_number() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline int64_t thread_count() {
    return (int64_t)gridDim.x * blockDim.x;
}

__device__ inline int32_t index_of(int32_t idx) {
    return idx;
}

__device__ inline int32_t index_of(const tw__entry &entry) {
    return entry.idx;
}

/* How many of list[count], ascending indices or entries, lie below the bound. */
template <typename T> __device__ int64_t below(const T *list, int64_t count, int64_t bound) {
    int64_t lo = 0, hi = count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (index_of(list[middle]) < bound)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* Whether they have this one. */
template <typename T> __device__ bool has(const T *list, int64_t count, int64_t index) {
    int64_t at = below(list, count, index);
    return at < count && index_of(list[at]) == index;
}

} // namespace tw

#endif
