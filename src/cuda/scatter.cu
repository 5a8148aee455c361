/* scatter.cu - the end of a step: what was sent leaves the residual */
#include "cuda/step.cuh"

namespace tw {

constexpr int THREADS = 256;
constexpr int MOST_SCATTER_BLOCKS = 1024;

static unsigned blocks_of(int64_t count) {
    int64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks < MOST_SCATTER_BLOCKS ? blocks : MOST_SCATTER_BLOCKS);
}

/* Position of `index` in the ascending idx[count], or count. */
__device__ int64_t position_of(const int32_t *idx, int64_t count, int32_t index) {
    int64_t lo = 0, hi = count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (idx[middle] < index)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < count && idx[lo] == index ? lo : count;
}

__device__ int64_t thread_number() {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ int64_t thread_count() {
    return (int64_t)gridDim.x * blockDim.x;
}

__global__ void clear_velocity(const __grid_constant__ Step s, const int32_t *idx, int64_t count) {
    if (idx == nullptr) {
        idx = s.chosen_idx;
        count = s.scratch->chosen;
    }
    for (int64_t i = thread_number(); i < count; i += thread_count())
        s.source.next_velocity[idx[i]] = 0.0f;
}

cudaError_t launch_clear_velocity(const Step &s, const int32_t *idx, int64_t count,
                                  cudaStream_t stream) {
    clear_velocity<<<blocks_of(idx == nullptr ? s.k : count), THREADS, 0, stream>>>(s, idx, count);
    return cudaGetLastError();
}

/* One thread per entry says whether it is wrong; the first that is wins. */
__global__ void check_part(const __grid_constant__ Step s, const int32_t *idx, int64_t count) {
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        bool ascends = i == 0 || idx[i - 1] < idx[i];
        int64_t chosen = s.scratch->chosen;
        if (!ascends || position_of(s.chosen_idx, chosen, idx[i]) == chosen)
            atomicMax(&s.scratch->wrong, ~(uint32_t)i);
    }
}

__global__ void report_part(const __grid_constant__ Step s) {
    s.report->wrong_part = s.scratch->wrong != 0 ? (int64_t)~s.scratch->wrong : -1;
    s.scratch->wrong = 0;
}

cudaError_t launch_check_part(const Step &s, const int32_t *idx, int64_t count,
                              cudaStream_t stream) {
    check_part<<<blocks_of(count), THREADS, 0, stream>>>(s, idx, count);
    report_part<<<1, 1, 0, stream>>>(s);
    return cudaGetLastError();
}

__global__ void leave(const __grid_constant__ Step s, const int32_t *idx, int64_t count) {
    if (idx == nullptr) {
        idx = s.chosen_idx;
        count = s.scratch->chosen;
    }
    for (int64_t i = thread_number(); i < count && s.acc != nullptr; i += thread_count())
        s.acc[idx[i]] = 0.0f;
    if (thread_number() == 0)
        s.next->leaving = 0;
}

cudaError_t launch_leave(const Step &s, const int32_t *idx, int64_t count, cudaStream_t stream) {
    leave<<<blocks_of(idx == nullptr ? s.k : count), THREADS, 0, stream>>>(s, idx, count);
    return cudaGetLastError();
}

__global__ void settle(float *residual, int64_t n, const Learned *learned) {
    for (int64_t i = thread_number(); i < n && learned->leaving != 0; i += thread_count())
        residual[i] = remains(residual[i], i, learned->leaving, learned->tie);
}

cudaError_t launch_settle(float *residual, int64_t n, Learned *learned, cudaStream_t stream) {
    settle<<<blocks_of(n), THREADS, 0, stream>>>(residual, n, learned);
    return cudaMemsetAsync(&learned->leaving, 0, sizeof learned->leaving, stream);
}

} // namespace tw
