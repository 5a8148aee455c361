/* fold.cu - the pass over n: acc = g + e, candidates in index order, bad numbers; and sums
 *
 * A thread takes four runs of four elements; all its loads are under way before the first is used.
 * With moments these are too many for its registers: it takes two runs after two.
 * What the pass adds to the bare e += g is arithmetic, which is free here, and 8 bytes per
 * candidate. These go through shared memory, so that they are written side by side: in pieces of a
 * few bytes they cost up to a fifth of the pass. */
#include "backend/cuda/failure.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/order.cuh"
#include "backend/extent.h"

namespace tw {

constexpr int RUNS = PER_THREAD / 4;
constexpr int FOLD_WARPS = FOLD_THREADS / WARP;

/* Runs of a thread whose loads are under way at once. */
template <int BEFORE> constexpr int AT_ONCE = BEFORE == NOTHING ? RUNS : RUNS / 2;

/* Blocks on a multiprocessor. With 4, registers do not suffice for all runs at once. */
template <int BEFORE> constexpr int FOLD_BLOCKS = BEFORE == NOTHING ? 3 : 4;

/* Element of the tile at which this thread's run of four starts: a warp's are adjacent. */
__device__ int run_start(int run) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return (warp * RUNS + run) * WARP * 4 + lane * 4;
}

/* ---- loading and storing four elements; hints that they are not needed again cost 8 % */

__device__ float4 load4(const float *from) {
    return *reinterpret_cast<const float4 *>(from);
}

__device__ void store4(float *to, float4 x) {
    *reinterpret_cast<float4 *>(to) = x;
}

template <int TYPE> __device__ float4 load_gradient(const void *grad, int64_t i) {
    if (TYPE == TW_F32)
        return load4(static_cast<const float *>(grad) + i);
    uint2 raw = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(grad) + i);
    uint32_t half[4] = {raw.x & 0xffffu, raw.x >> 16, raw.y & 0xffffu, raw.y >> 16};
    float wide[4];
    for (int c = 0; c < 4; c++)
        wide[c] = TYPE == TW_F16 ? __half2float(__ushort_as_half((unsigned short)half[c]))
                                 : __uint_as_float(half[c] << 16);
    return make_float4(wide[0], wide[1], wide[2], wide[3]);
}

/* One by one, from memory that is misaligned. */
template <int TYPE> __device__ float4 load_each(const void *grad, int64_t i) {
    return make_float4(widen(grad, TYPE, i), widen(grad, TYPE, i + 1), widen(grad, TYPE, i + 2),
                       widen(grad, TYPE, i + 3));
}

/* Across the ends of pieces, and of the vector. */
template <int TYPE> __device__ float4 load_slowly(const Pieces &grad, int64_t i, int64_t n) {
    float x[4];
    Piece piece = {nullptr, 0};
    for (int c = 0; c < 4; c++) {
        if (i + c >= piece.end && i + c < n)
            piece = piece_of(grad, i + c);
        x[c] = i + c < n ? widen(piece.at, TYPE, i + c) : 0.0f;
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

__device__ float4 scale4(float scale, float4 x) {
    return make_float4(__fmul_rn(scale, x.x), __fmul_rn(scale, x.y), __fmul_rn(scale, x.z),
                       __fmul_rn(scale, x.w));
}

template <int BEFORE>
__device__ float4 update4(const Source &s, float4 g, float4 &first, float4 &second) {
    return make_float4(update_of<BEFORE>(s, g.x, &first.x, &second.x),
                       update_of<BEFORE>(s, g.y, &first.y, &second.y),
                       update_of<BEFORE>(s, g.z, &first.z, &second.z),
                       update_of<BEFORE>(s, g.w, &first.w, &second.w));
}

__device__ float4 add4(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                       __fadd_rn(a.w, b.w));
}

/* ---- candidates */

/* A tile's candidates on their way to its slots. */
struct Collected {
    uint32_t of_warp[FOLD_WARPS];
    int32_t idx[SLOTS];
    float val[SLOTS];
};

/* Bit 4 * run + c: that element reaches the guess. */
__device__ uint32_t candidates_among(const float4 (&acc)[RUNS], uint32_t guess) {
    uint32_t flags = 0;
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        flags |= (magnitude(acc[run].x) >= guess) << (4 * run);
        flags |= (magnitude(acc[run].y) >= guess) << (4 * run + 1);
        flags |= (magnitude(acc[run].z) >= guess) << (4 * run + 2);
        flags |= (magnitude(acc[run].w) >= guess) << (4 * run + 3);
    }
    return flags;
}

/* How many of each run: run r in byte r. A warp's sums, at most 128, fit too. */
__device__ uint32_t count_per_run(uint32_t flags) {
    uint32_t counts = 0;
#pragma unroll
    for (int run = 0; run < RUNS; run++)
        counts |= __popc(flags >> (4 * run) & 15) << (8 * run);
    return counts;
}

__device__ uint32_t sum_of_bytes(uint32_t bytes) {
    return (bytes & 255) + (bytes >> 8 & 255) + (bytes >> 16 & 255) + (bytes >> 24);
}

/* Candidates of the warps before; *all of the block. Every thread calls. */
__device__ uint32_t count_of_warps_before(uint32_t (&of_warp)[FOLD_WARPS], uint32_t mine,
                                          uint32_t *all) {
    int warp = threadIdx.x / WARP;
    uint32_t before = 0, sum = 0;
    if (threadIdx.x % WARP == 0)
        of_warp[warp] = mine;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < FOLD_WARPS; w++) {
        before += w < warp ? of_warp[w] : 0;
        sum += of_warp[w];
    }
    *all = sum;
    return before;
}

/* A bad number passes every threshold, so it is always a candidate; the first of all is kept. */
__device__ void collect(const Step &s, Collected &to, uint32_t position, uint32_t index, float x) {
    if (position < SLOTS) {
        to.idx[position] = (int32_t)index;
        to.val[position] = x;
    }
    if (magnitude(x) >= TW__INFINITY_BITS)
        atomicMax(&s.scratch->bad, ~index);
}

/* The tile's candidates, in order. Returns how many. */
__device__ uint32_t collect_all(const Step &s, Collected &to, const float4 (&acc)[RUNS],
                                uint32_t guess, uint32_t base) {
    uint32_t flags = candidates_among(acc, guess), of_warp = 0, before = 0, count;
    if (__any_sync(ALL_LANES, flags != 0))
        before = sum_of_lanes_before(count_per_run(flags), &of_warp);
    uint32_t start = count_of_warps_before(to.of_warp, sum_of_bytes(of_warp), &count);
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        const float x[4] = {acc[run].x, acc[run].y, acc[run].z, acc[run].w};
        uint32_t position = start + (before >> (8 * run) & 255);
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (flags >> (4 * run + c) & 1)
                collect(s, to, position++, base + run_start(run) + c, x[c]);
        start += of_warp >> (8 * run) & 255;
    }
    return count;
}

/* Into the tile's slots. */
__device__ void hand_over(const Step &s, int tile, const Collected &from, uint32_t count) {
    int64_t to = (int64_t)tile * SLOTS + threadIdx.x;
    __syncthreads();
    if (threadIdx.x < min(count, (uint32_t)SLOTS)) {
        s.slot_idx[to] = from.idx[threadIdx.x];
        s.slot_val[to] = from.val[threadIdx.x];
    }
    if (threadIdx.x == 0)
        s.slot_count[tile] = count;
}

static_assert(SLOTS == FOLD_THREADS, "a thread hands over one");

/* What was sent in the step before leaves here, without a byte moved for it. */
__device__ float4 remains4(float4 e, int64_t i, uint32_t leaving, int32_t tie) {
    return make_float4(remains(e.x, i, leaving, tie), remains(e.y, i + 1, leaving, tie),
                       remains(e.z, i + 2, leaving, tie), remains(e.w, i + 3, leaving, tie));
}

/* The gradient of some of this thread's runs, clipped. piece: that in which the tile begins. */
template <int TYPE, int COUNT>
__device__ void load_runs(const Step &s, const Piece &piece, int64_t base, int first_run,
                          float4 (&g)[COUNT]) {
    const Source &from = s.source;
    constexpr uintptr_t SIZE = TYPE == TW_F32 ? 4 : 2;
    if (base + TILE > min(s.n, piece.end)) {
#pragma unroll
        for (int r = 0; r < COUNT; r++)
            g[r] = load_slowly<TYPE>(from.grad, base + run_start(first_run + r), s.n);
    } else if (reinterpret_cast<uintptr_t>(piece.at) % (4 * SIZE) == 0) {
#pragma unroll
        for (int r = 0; r < COUNT; r++)
            g[r] = load_gradient<TYPE>(piece.at, base + run_start(first_run + r));
    } else {
#pragma unroll
        for (int r = 0; r < COUNT; r++)
            g[r] = load_each<TYPE>(piece.at, base + run_start(first_run + r));
    }
    if (from.scale == nullptr)
        return;
    float scale = *from.scale;
#pragma unroll
    for (int r = 0; r < COUNT; r++)
        g[r] = scale4(scale, g[r]);
}

/* acc of some of this thread's runs. All arrays but the gradient go up to whole tiles. */
template <int TYPE, int BEFORE, int COUNT>
__device__ void fold_runs(const Step &s, const Piece &piece, uint32_t leaving, int32_t tie,
                          int64_t base, int first_run, float4 (&acc)[COUNT]) {
    const Source &from = s.source;
    bool feedback = BEFORE != NOTHING || s.acc != nullptr;
    float4 e[COUNT], first[COUNT], second[COUNT];
#pragma unroll
    for (int r = 0; r < COUNT; r++) {
        int64_t i = base + run_start(first_run + r);
        if (feedback)
            e[r] = load4(s.residual + i);
        if (BEFORE != NOTHING)
            first[r] = load4(from.first + i);
        if (BEFORE == ADAMW)
            second[r] = load4(from.second + i);
    }
    load_runs<TYPE>(s, piece, base, first_run, acc);
    if (!feedback)
        return;
#pragma unroll
    for (int r = 0; r < COUNT; r++) {
        int64_t i = base + run_start(first_run + r);
        acc[r] = update4<BEFORE>(from, acc[r], first[r], second[r]);
        if (BEFORE != NOTHING)
            store4(from.next_first + i, first[r]);
        if (BEFORE == ADAMW)
            store4(from.next_second + i, second[r]);
        if (leaving != 0)
            e[r] = remains4(e[r], i, leaving, tie);
        acc[r] = add4(e[r], acc[r]);
        store4(s.acc + i, acc[r]);
    }
}

template <int TYPE, int BEFORE> __device__ __forceinline__ void fold_tile(const Step &s, int tile) {
    constexpr int COUNT = AT_ONCE<BEFORE>;
    __shared__ Collected collected;
    const Learned *l = s.learned;
    uint32_t leaving = l->leaving;
    int32_t tie = l->tie;
    int64_t base = (int64_t)tile * TILE;
    const Piece piece = piece_of(s.source.grad, base);
    float4 acc[RUNS];
#pragma unroll
    for (int first_run = 0; first_run < RUNS; first_run += COUNT) {
        float4 some[COUNT];
        fold_runs<TYPE, BEFORE>(s, piece, leaving, tie, base, first_run, some);
#pragma unroll
        for (int r = 0; r < COUNT; r++)
            acc[first_run + r] = some[r];
    }
    hand_over(s, tile, collected, collect_all(s, collected, acc, l->guess, (uint32_t)base));
}

template <int TYPE, int BEFORE>
__global__ void __launch_bounds__(FOLD_THREADS, FOLD_BLOCKS<BEFORE>)
    fold(const __grid_constant__ Step s) {
    fold_tile<TYPE, BEFORE>(s, (int)blockIdx.x);
}

/* The last step whose tiles begin at or before this one. */
__device__ int step_of_tile(const Steps &steps, int tile) {
    int low = 0, high = steps.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (steps.first_tile[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <int TYPE, int BEFORE>
__global__ void __launch_bounds__(FOLD_THREADS, FOLD_BLOCKS<BEFORE>)
    fold_each(const __grid_constant__ Steps steps) {
    int at = step_of_tile(steps, (int)blockIdx.x);
    fold_tile<TYPE, BEFORE>(steps.at[at], (int)blockIdx.x - steps.first_tile[at]);
}

__global__ void write_guess(const __grid_constant__ Step s, uint32_t guess) {
    s.learned->guess = guess;
}

cudaError_t set_guess(const Step &s, uint32_t guess, cudaStream_t stream) {
    write_guess<<<1, 1, 0, stream>>>(s, guess);
    return cudaGetLastError();
}

/* By type of gradients, and what happens before selection. */
template <typename T> using Kernels = void (*[3][3])(T);

#define KERNELS_OF(kernel, type)                                                                   \
    { kernel<type, NOTHING>, kernel<type, MOMENTUM>, kernel<type, ADAMW> }
#define KERNELS(kernel)                                                                            \
    { KERNELS_OF(kernel, TW_F32), KERNELS_OF(kernel, TW_F16), KERNELS_OF(kernel, TW_BF16) }

constexpr Kernels<const Step> folds = KERNELS(fold);
constexpr Kernels<const Steps> folds_each = KERNELS(fold_each);

cudaError_t launch_fold(const Step &s, cudaStream_t stream) {
    folds[s.source.type][s.source.before]<<<s.tiles, FOLD_THREADS, 0, stream>>>(s);
    return cudaGetLastError();
}

cudaError_t launch_fold_each(const Steps &steps, cudaStream_t stream) {
    const Source &first = steps.at[0].source;
    int tiles = steps.first_tile[steps.count];
    folds_each[first.type][first.before]<<<tiles, FOLD_THREADS, 0, stream>>>(steps);
    return cudaGetLastError();
}

/* ---- sums: 16 lanes of each block of elements, blocks of a chunk, chunks, all in the CPU's order */

enum Summed { ACC, GRADIENT };

constexpr int BLOCKS_OF_CHUNK = (int)(TW__CHUNK / TW__BLOCK);
constexpr int SUM_THREADS = BLOCKS_OF_CHUNK * TW__LANES;

/* A thread for each lane; all its loads of a round are under way at once. */
template <int SUMMED> __device__ Sums sum_of_lane(const Step &s, int64_t first, int64_t end) {
    constexpr int AHEAD = 16;
    Sums sums = {0.0, 0.0, 0.0};
    Piece piece = {nullptr, 0};
    for (int64_t i = first; i < end; i += (int64_t)AHEAD * TW__LANES) {
        float x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int64_t at = i + (int64_t)a * TW__LANES;
            if (SUMMED == GRADIENT && at >= piece.end && at < end)
                piece = piece_of(s.source.grad, at);
            x[a] = at >= end            ? 0.0f
                   : SUMMED == GRADIENT ? widen(piece.at, s.source.type, at)
                                        : acc_after(s, at);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            sums.sum += (double)x[a];
            sums.square += (double)x[a] * (double)x[a];
            sums.magnitude += fabs((double)x[a]);
        }
    }
    return sums;
}

__device__ void add(Sums *sums, const Sums *more, int count) {
    for (int i = 0; i < count; i++) {
        sums->sum += more[i].sum;
        sums->square += more[i].square;
        sums->magnitude += more[i].magnitude;
    }
}

template <int SUMMED>
__global__ void __launch_bounds__(SUM_THREADS) sum_chunk(const __grid_constant__ Step s) {
    __shared__ Sums lanes[SUM_THREADS], blocks[BLOCKS_OF_CHUNK];
    int block = threadIdx.x / TW__LANES, lane = threadIdx.x % TW__LANES;
    int64_t first = blockIdx.x * TW__CHUNK + block * TW__BLOCK;
    lanes[threadIdx.x] = sum_of_lane<SUMMED>(s, first + lane, min(first + TW__BLOCK, s.n));
    __syncthreads();
    if (lane == 0) {
        Sums sums = {0.0, 0.0, 0.0};
        add(&sums, lanes + threadIdx.x, TW__LANES);
        blocks[block] = sums;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        Sums sums = {0.0, 0.0, 0.0};
        add(&sums, blocks, BLOCKS_OF_CHUNK);
        s.sums[blockIdx.x] = sums;
    }
}

/* A norm that is not finite leaves the scale alone: the pass will find and name the element. */
__device__ float scale_of(const Sums &gradient, double most) {
    double norm = sqrt(gradient.square);
    return isfinite(norm) && norm > most ? (float)(most / norm) : 1.0f;
}

/* One block: all its threads fetch what the first one adds. */
template <int SUMMED>
__global__ void __launch_bounds__(SUM_THREADS) sum_chunks(const __grid_constant__ Step s) {
    __shared__ Sums fetched[SUM_THREADS];
    Sums total = {0.0, 0.0, 0.0};
    int chunks = (int)tw__chunks(s.n);
    for (int first = 0; first < chunks; first += SUM_THREADS) {
        int count = min(SUM_THREADS, chunks - first);
        if ((int)threadIdx.x < count)
            fetched[threadIdx.x] = s.sums[first + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            add(&total, fetched, count);
        __syncthreads();
    }
    if (threadIdx.x == 0 && SUMMED == ACC)
        s.scratch->total = total;
    if (threadIdx.x == 0 && SUMMED == GRADIENT)
        s.scratch->scale = scale_of(total, (double)s.rules.clip_norm);
}

template <int SUMMED> static cudaError_t launch_both(const Step &s, cudaStream_t stream) {
    sum_chunk<SUMMED><<<(unsigned)tw__chunks(s.n), SUM_THREADS, 0, stream>>>(s);
    sum_chunks<SUMMED><<<1, SUM_THREADS, 0, stream>>>(s);
    return cudaGetLastError();
}

cudaError_t launch_sums(const Step &s, cudaStream_t stream) {
    return launch_both<ACC>(s, stream);
}

cudaError_t launch_clip(const Step &s, cudaStream_t stream) {
    return launch_both<GRADIENT>(s, stream);
}

/* ---- decay: sum, multiply, sum again */

__global__ void multiply(float *x, int64_t n, float factor) {
    for (int64_t i = thread_number(); i < n; i += thread_count())
        x[i] = __fmul_rn(x[i], factor);
}

__global__ void report_sum(const __grid_constant__ Step s, bool after) {
    s.report->decayed = after ? s.report->decayed - s.scratch->total.sum : s.scratch->total.sum;
}

cudaError_t launch_decay(const Step &s, float factor, cudaStream_t stream) {
    cudaError_t error = launch_sums(s, stream);
    report_sum<<<1, 1, 0, stream>>>(s, false);
    multiply<<<blocks_of(s.n), LIST_THREADS, 0, stream>>>(s.acc, s.n, factor);
    if (error == cudaSuccess)
        error = launch_sums(s, stream);
    report_sum<<<1, 1, 0, stream>>>(s, true);
    return error != cudaSuccess ? error : cudaGetLastError();
}

} // namespace tw

/* ---- the bare passes */

/* Vectors that a bare pass adds to. */
struct Sinks {
    float *at[3];
};

template <int COUNT>
__global__ void accumulate(Sinks sinks, const float *add, int64_t n, bool aligned) {
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (aligned && i + 4 <= n) {
        float4 a = tw::load4(add + i), x[COUNT];
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            x[c] = tw::load4(sinks.at[c] + i);
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            tw::store4(sinks.at[c] + i, tw::add4(x[c], a));
        return;
    }
    for (int64_t at = i; at < n && at < i + 4; at++)
        for (int c = 0; c < COUNT; c++)
            sinks.at[c][at] = __fadd_rn(sinks.at[c][at], add[at]);
}

template <int COUNT>
static int bare_pass(const Sinks &sinks, const float *add, int64_t n, void *native) {
    constexpr int THREADS = 256;
    uintptr_t bits = reinterpret_cast<uintptr_t>(add);
    for (int c = 0; c < COUNT; c++)
        bits |= reinterpret_cast<uintptr_t>(sinks.at[c]);
    int64_t blocks = (n + 4 * THREADS - 1) / (4 * THREADS);
    accumulate<COUNT><<<(unsigned)blocks, THREADS, 0, static_cast<cudaStream_t>(native)>>>(
        sinks, add, n, bits % 16 == 0);
    return tw::failure(cudaGetLastError(), "the bare pass");
}

int tw__cuda_accumulate(float *sum, const float *add, int64_t n, void *native) {
    return bare_pass<1>(Sinks{{sum}}, add, n, native);
}

int tw__cuda_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n,
                              void *native) {
    return bare_pass<3>(Sinks{{e, m, v}}, g, n, native);
}
