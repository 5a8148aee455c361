/* choose.cu - the choice among the candidates: one kernel, whose blocks wait for each other
 *
 * Mostly it goes straight, with all candidates in shared memory:
 *
 *   count   candidates by magnitude: in which narrow bin lies the k-th largest?       wait
 *           and by the magnitudes of that bin, if there are too many to gather        wait
 *   gather  the few of that bin; count those above it                                 wait
 *   write   every block finds the k-th among the gathered for itself, and so knows
 *           which of its entries are chosen and how many come before them
 *
 * The kernel takes some 10 us, in which every trip to memory counts. Where something is unusual, or
 * another method is asked for, choose_any does it, at leisure. The entries stay in acc: the next
 * pass knows them by the cut and leaves them out. */
#include "backend/cuda/choose_any.cuh"

#include <cassert>
#include <cstring>

namespace tw {

/* f(on, index, value) in whole warps, over this warp's candidates, in order. */
template <typename F> __device__ void visit_staged(const Stretch &mine, const F &f) {
    uint32_t lane = threadIdx.x % WARP;
    for (uint32_t i = 0; i < mine.staged; i += WARP) {
        bool on = i + lane < mine.staged;
        f(on, on ? mine.idx[i + lane] : 0, on ? mine.val[i + lane] : 0.0f);
    }
}

/* Writes the chosen candidates of this warp from position `to` on. */
__device__ void write_staged(const Step &s, const Stretch &mine, const Cut &cut, uint32_t to) {
    uint32_t below = (1u << threadIdx.x % WARP) - 1;
    visit_staged(mine, [&](bool on, int32_t index, float x) {
        bool chosen = on && is_chosen(cut, magnitude(x), index);
        uint32_t all = __ballot_sync(ALL_LANES, chosen);
        if (chosen) {
            s.chosen_idx[to + __popc(all & below)] = index;
            s.chosen_val[to + __popc(all & below)] = x;
        }
        to += __popc(all);
    });
}

__device__ uint32_t count_staged(const Stretch &mine, const Cut &cut) {
    uint32_t count = 0;
    visit_staged(mine, [&](bool on, int32_t index, float x) {
        count += __popc(__ballot_sync(ALL_LANES, on && is_chosen(cut, magnitude(x), index)));
    });
    return count;
}

/* Gathers the candidates of the window, and tells the other blocks how many are above it here. */
__device__ void gather(const Step &s, const Stretch &mine, const Window &window) {
    uint32_t above = 0, below = (1u << threadIdx.x % WARP) - 1;
    visit_staged(mine, [&](bool on, int32_t index, float x) {
        uint32_t bits = magnitude(x);
        bool inside = on && bits - window.low < window.width;
        above += __popc(__ballot_sync(ALL_LANES, on && !inside && bits >= window.low));
        uint32_t insiders = __ballot_sync(ALL_LANES, inside);
        if (insiders == 0)
            return;
        uint32_t at =
            threadIdx.x % WARP == 0 ? atomicAdd(&s.scratch->gathered, __popc(insiders)) : 0;
        at = __shfl_sync(ALL_LANES, at, 0) + __popc(insiders & below);
        if (inside)
            s.scratch->standings[at] = Standing{bits, index};
    });
    uint32_t of_block = sum_over_block(above);
    if (threadIdx.x == 0)
        s.totals[team().block] = BlockTotal{of_block, 0};
}

/* Where a rank lies among the candidates, and the bin itself. */
struct Found {
    uint32_t bin;
    Window window; /* the bin's magnitudes */
    uint32_t greater, within;
};

__device__ Found find_in(const Window &w, const Scanned &counts, uint32_t rank) {
    Place place = locate(counts, rank);
    Window bin = {w.low + (place.bin << w.shift), w.shift - min(w.shift, BITS_OF_BINS),
                  1u << w.shift};
    return Found{place.bin, bin, place.greater, place.within};
}

__device__ Scanned count_staged_in(const Step &s, const Window &w, const Stretch &mine,
                                   int histogram) {
    count(w, s.scratch->histogram[histogram], [&](auto f) {
        visit_staged(mine, [&](bool on, int32_t, float x) { f(on, magnitude(x)); });
    });
    return scan(s.scratch->histogram[histogram]);
}

/* The k largest. Returns how many histograms are to be cleared; 0 where it does not go straight, on all
 * blocks alike: then nothing is chosen yet. Under error feedback entries gather just below the k-th
 * largest. One bin may then hold too many, and is counted once more. */
template <int METHOD>
__device__ int choose_best(const Step &s, const Learned &learned, const Stretch &mine,
                           uint32_t first_element) {
    uint32_t near = learned.guess, k = (uint32_t)s.k;
    Window all = {near, near_shift(s.k), ~0u};
    Scanned counts = count_staged_in(s, all, mine, 0);
    bool crowded = __ldcg(&s.scratch->crowded) != 0;
    if (crowded || counts.total < k)
        return 0;
    Found found = find_in(all, counts, k);
    if (found.bin == BINS - 1) /* which is open */
        return 0;
    bool steep = found.within > GATHERED;
    if (steep) {
        uint32_t greater = found.greater;
        Scanned inner = count_staged_in(s, found.window, mine, OF_A_BIN);
        found = find_in(found.window, inner, k - greater);
        found.greater += greater;
    }
    if (found.within > GATHERED)
        return 0;
    const Window &window = found.window;
    gather(s, mine, window);
    wait_for_team();

    bool on = threadIdx.x < found.within;
    const uint2 *list = reinterpret_cast<const uint2 *>(s.scratch->standings);
    uint2 raw = on ? __ldcg(&list[threadIdx.x]) : uint2{0, 0};
    Standing own = {raw.x, (int32_t)raw.y};
    uint32_t before = threadIdx.x < team().block ? __ldcg(&s.totals[threadIdx.x].count) : 0;
    Cut cut = cut_standings(own, on, window.low, window.shift, k - found.greater);
    before += on && is_chosen(cut, own.bits, own.idx) && (uint32_t)own.idx < first_element;
    uint32_t of_block, of_warps = sum_of_warps_before(count_staged(mine, cut), &of_block);
    before = sum_over_threads(before) + of_warps;
    write_staged(s, mine, cut, before);
    if (team().block == 0)
        conclude<METHOD>(s, learned, Seen{counts, near, 0, k, cut.bits}, cut, true);
    return steep ? OF_A_BIN + 1 : 1;
}

/* All candidates, which are those from the threshold in use on. False as above. A block that could
 * not stage its own says so by a smallest one of 0. */
__device__ bool choose_reused(const Step &s, const Learned &learned, const Stretch &mine,
                              bool is_staged, uint32_t staged) {
    uint32_t least = is_staged ? TW__INFINITY_BITS : 0;
    visit_staged(mine, [&](bool on, int32_t, float x) {
        least = min(least, on ? magnitude(x) : TW__INFINITY_BITS);
    });
    __shared__ uint32_t smallest;
    if (threadIdx.x == 0)
        smallest = TW__INFINITY_BITS;
    __syncthreads();
    least = __reduce_min_sync(ALL_LANES, least);
    if (threadIdx.x % WARP == 0)
        atomicMin(&smallest, least);
    __syncthreads();
    if (threadIdx.x == 0)
        s.totals[team().block] = BlockTotal{staged, smallest};
    wait_for_team();
    BlockTotal all;
    uint32_t of_block, before = sum_of_blocks_before(s.totals, &all);
    if (all.smallest == 0 || far_off(all.count, s.k))
        return false;
    Cut cut = cut_above(learned.guess);
    write_staged(s, mine, cut, before + sum_of_warps_before(mine.staged, &of_block));
    if (team().block == 0) {
        Seen seen = {};
        seen.chosen = seen.counts.total = all.count;
        seen.smallest = all.smallest;
        conclude<REUSE>(s, learned, seen, cut, false);
    }
    return true;
}

/* After the last wait nobody looks at these any more. */
__device__ void clear(Scratch *scratch, uint32_t histograms) {
    uint32_t *words = &scratch->histogram[0][0];
    uint32_t threads = team_threads(), thread = team_thread();
    for (uint32_t i = thread; i < histograms * BINS; i += threads)
        words[i] = 0;
    if (thread < COUNTERS)
        scratch->counters[thread] = 0;
    if (thread == 0)
        scratch->bad = scratch->gathered = scratch->crowded = 0;
}

/* room: candidates that shared memory holds */
template <int METHOD> __device__ __forceinline__ void choose_from(const Step &s, uint32_t room) {
    extern __shared__ int32_t shared[];
    float *val = reinterpret_cast<float *>(shared + room);
    __shared__ Learned learned; /* read once, while the candidates come */
    if (threadIdx.x == 0)
        learned = *s.learned;
    uint32_t bad = __ldcg(&s.scratch->bad), staged = 0;
    Share tiles = block_share((uint32_t)s.tiles);
    bool is_staged = stage(s, tiles, room, shared, val, &staged);
    __syncthreads();
    if (bad != 0) { /* looked at only here, so that nobody waits for it before */
        refuse(s, bad);
        clear(s.scratch, 0);
        return;
    }
    if (!is_staged && threadIdx.x == 0)
        s.scratch->crowded = 1;
    Stretch mine = stretch_of_warp(learned, tiles, is_staged, staged, shared, val);
    int used = 0; /* histograms */
    if (METHOD == EXACT || (METHOD == REUSE && reuse_due(s, learned, s.k_changed)))
        used = choose_best<METHOD>(s, learned, mine, tiles.first * TILE);
    else if (METHOD == REUSE)
        used = choose_reused(s, learned, mine, is_staged, staged);
    if (used == 0)
        choose_any<METHOD>(s, mine);
    clear(s.scratch, used > 0 ? used : HISTOGRAMS);
}

template <int METHOD>
__global__ void __launch_bounds__(CHOOSE_THREADS, 1)
    choose(const __grid_constant__ Step s, uint32_t room) {
    join_grid();
    choose_from<METHOD>(s, room);
}

/* Of the steps first .. end-1, the first that this block has a part in: blocks ascend with steps. */
__device__ int first_of_block(const Steps &steps, int first, int end, int block) {
    while (first < end) {
        int middle = (first + end) / 2;
        if (steps.blocks[middle].last < block)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* A block chooses with others for one step, or alone for several. */
template <int METHOD>
__global__ void __launch_bounds__(CHOOSE_THREADS, 1)
    choose_each(const __grid_constant__ Steps steps, int first, int end, uint32_t room) {
    int block = (int)blockIdx.x;
#pragma unroll 1
    for (int at = first_of_block(steps, first, end, block);
         at < end && steps.blocks[at].first <= block; at++) {
        uint32_t before = steps.blocks[at].first, blocks = steps.blocks[at].last + 1 - before;
        join(Team{block - before, blocks, &steps.at[at].scratch->arrivals});
        choose_from<METHOD>(steps.at[at], room);
    }
}

struct Row {
    const char *name;
    void (*kernel)(const Step, uint32_t);          /* nullptr: see draw.cu */
    void (*each)(const Steps, int, int, uint32_t); /* nullptr: steps do not run side by side */
};

/* By Method. */
constexpr Row rows[] = {
    {"exact", choose<EXACT>, choose_each<EXACT>}, {"reuse", choose<REUSE>, choose_each<REUSE>},
    {"gaussian", choose<GAUSSIAN>, nullptr},      {"dgc", choose<DGC>, nullptr},
    {"redsync", choose<REDSYNC>, nullptr},        {"random", nullptr, nullptr}};
constexpr int METHODS = sizeof rows / sizeof *rows;
static_assert(METHODS == RANDOM + 1, "a row for each method");

int method_named(const char *name) {
    int method = 0;
    while (method < METHODS && strcmp(rows[method].name, name) != 0)
        method++;
    assert(method < METHODS); /* its row in select/ says that the GPU has it */
    return method;
}

bool goes_with_others(int method) {
    return rows[method].each != nullptr;
}

static size_t stage_bytes(int64_t stage) {
    return (size_t)stage * (sizeof(int32_t) + sizeof(float));
}

/* All shared memory that the kernels do not use otherwise. */
cudaError_t prepare_choose(int ordinal, int64_t *stage) {
    int most = 0;
    cudaError_t error =
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
    size_t used = 0;
    auto each_kernel = [&](auto call) {
        for (const Row &row : rows)
            for (const void *kernel : {reinterpret_cast<const void *>(row.kernel),
                                       reinterpret_cast<const void *>(row.each)})
                if (error == cudaSuccess && kernel != nullptr)
                    error = call(kernel);
    };
    each_kernel([&](const void *kernel) {
        cudaFuncAttributes attributes = {};
        cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
        used = attributes.sharedSizeBytes > used ? attributes.sharedSizeBytes : used;
        return status;
    });
    *stage = ((int64_t)most - (int64_t)used) / (int64_t)stage_bytes(1);
    each_kernel([&](const void *kernel) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)stage_bytes(*stage));
    });
    return error;
}

cudaError_t launch_choose(const Step &s, int blocks, int64_t stage, cudaStream_t stream) {
    uint32_t room = (uint32_t)stage;
    void *arguments[] = {const_cast<Step *>(&s), &room};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(rows[s.method].kernel),
                                       blocks, CHOOSE_THREADS, arguments, stage_bytes(stage),
                                       stream);
}

cudaError_t launch_choose_each(const Steps &steps, int first, int end, int64_t stage,
                               cudaStream_t stream) {
    uint32_t room = (uint32_t)stage;
    void *arguments[] = {const_cast<Steps *>(&steps), &first, &end, &room};
    return cudaLaunchCooperativeKernel(
        reinterpret_cast<const void *>(rows[steps.at[first].method].each),
        steps.blocks[end - 1].last + 1, CHOOSE_THREADS, arguments, stage_bytes(stage), stream);
}

} // namespace tw
