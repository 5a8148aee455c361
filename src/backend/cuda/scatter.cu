/* scatter.cu - the end of a step: what was sent leaves the residual */
#include "backend/cuda/grid.cuh"
#include "backend/cuda/step.cuh"

namespace tw {

constexpr int MOST_SCATTER_BLOCKS = 1024;

static unsigned some_blocks(int64_t count) {
    int64_t blocks = blocks_of(count);
    return (unsigned)(blocks < 1 ? 1 : blocks < MOST_SCATTER_BLOCKS ? blocks : MOST_SCATTER_BLOCKS);
}

__global__ void clear_velocity(const __grid_constant__ Step s, const int32_t *idx, int64_t count) {
    if (idx == nullptr) {
        idx = s.chosen_idx;
        count = s.scratch->chosen;
    }
    for (int64_t i = thread_number(); i < count; i += thread_count())
        s.source.next_first[idx[i]] = 0.0f;
}

cudaError_t launch_clear_velocity(const Step &s, const int32_t *idx, int64_t count,
                                  cudaStream_t stream) {
    clear_velocity<<<some_blocks(idx == nullptr ? s.k : count), LIST_THREADS, 0, stream>>>(s, idx,
                                                                                           count);
    return cudaGetLastError();
}

/* One thread per entry says whether it is wrong; the first that is wins. */
__global__ void check_part(const __grid_constant__ Step s, const int32_t *idx, int64_t count) {
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        bool ascends = i == 0 || idx[i - 1] < idx[i];
        if (!ascends || !has(s.chosen_idx, s.scratch->chosen, idx[i]))
            atomicMax(&s.scratch->wrong, ~(uint32_t)i);
    }
}

__global__ void report_part(const __grid_constant__ Step s) {
    s.report->wrong_part = s.scratch->wrong != 0 ? (int64_t)~s.scratch->wrong : -1;
    s.scratch->wrong = 0;
}

cudaError_t launch_check_part(const Step &s, const int32_t *idx, int64_t count,
                              cudaStream_t stream) {
    check_part<<<some_blocks(count), LIST_THREADS, 0, stream>>>(s, idx, count);
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
    leave<<<some_blocks(idx == nullptr ? s.k : count), LIST_THREADS, 0, stream>>>(s, idx, count);
    return cudaGetLastError();
}

__global__ void settle(float *residual, int64_t n, const Learned *learned) {
    for (int64_t i = thread_number(); i < n && learned->leaving != 0; i += thread_count())
        residual[i] = remains(residual[i], i, learned->leaving, learned->tie);
}

cudaError_t launch_settle(float *residual, int64_t n, Learned *learned, cudaStream_t stream) {
    settle<<<some_blocks(n), LIST_THREADS, 0, stream>>>(residual, n, learned);
    cudaError_t error = cudaGetLastError();
    return error != cudaSuccess
               ? error
               : cudaMemsetAsync(&learned->leaving, 0, sizeof learned->leaving, stream);
}

} // namespace tw
