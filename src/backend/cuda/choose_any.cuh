/* choose_any.cuh - the choice in all cases: any method, candidates too few or too many
 *
 *   cut     which is the k-th largest, or which threshold does the method say
 *   place   how many entries are chosen before each warp's, in index order
 *   write   them
 *
 * Entries come from the candidates, or where these do not go down far enough, from acc. For the
 * k-th largest, histograms narrow its magnitude down until few candidates are left, which are
 * gathered. */
#ifndef TW_CUDA_CHOOSE_ANY_CUH
#define TW_CUDA_CHOOSE_ANY_CUH

#include "backend/cuda/choice.cuh"
#include "select/normal.h"

#include <cfloat>

namespace tw {

/* What all threads know of the candidates. */
struct View {
    const Step &s;
    Stretch mine;
    uint32_t near; /* the guess: the pass collected all entries from here on */
    uint32_t from; /* the same, or 1 where that was too high */
    uint32_t rescans;
    Scanned counts; /* of candidates by magnitude, near the guess */
};

/* f(on, index, value) in whole warps, for entries first .. last-1 of a list, or without one of acc:
 * `on` for those with magnitude bits >= from. Indices ascend from lane to lane and call to call. */
template <typename F>
__device__ void visit_part(const Step &s, const int32_t *idx, const float *val, Share part,
                           uint32_t from, const F &f) {
    constexpr int AHEAD = 8;
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll 1
    for (uint32_t i = part.first; i < part.last; i += AHEAD * WARP) {
        float x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t at = i + a * WARP + lane;
            x[a] = at >= part.last ? 0.0f : val != nullptr ? val[at] : acc_after(s, at);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            uint32_t at = i + a * WARP + lane;
            int32_t index = val != nullptr && at < part.last ? idx[at] : (int32_t)at;
            f(magnitude(x[a]) >= from, index, x[a]);
        }
    }
}

/* The same for all entries of this warp's stretch with magnitude bits >= from >= 1: from the staged
 * candidates; where these were too many, from the slots; where those do not hold all, from acc. */
template <typename F> __device__ void visit(const View &v, uint32_t from, const F &f) {
    const Step &s = v.s;
    const Stretch &mine = v.mine;
    if (from >= mine.staged_from) {
        visit_part(s, mine.idx, mine.val, Share{0, mine.staged}, from, f);
        return;
    }
#pragma unroll 1
    for (uint32_t tile = mine.tiles.first; tile < mine.tiles.last; tile++) {
        uint32_t count = s.slot_count[tile];
        bool slots = from >= v.near && count <= SLOTS;
        int64_t at = (int64_t)tile * SLOTS;
        Share elements = {tile * TILE, (uint32_t)min((int64_t)(tile + 1) * TILE, s.n)};
        visit_part(s, slots ? s.slot_idx + at : nullptr, slots ? s.slot_val + at : nullptr,
                   slots ? Share{0, count} : elements, from, f);
    }
}

/* How many entries of the whole vector have magnitude bits >= threshold, up to `most`; any larger
 * number where they are more, as can be known from the candidates above it. */
__device__ __noinline__ uint32_t count_above(const View &v, uint32_t threshold, int64_t most,
                                             int counter) {
    if (threshold < v.from && v.counts.total > most)
        return v.counts.total;
    uint32_t mine = 0;
    visit(v, threshold,
          [&](bool on, int32_t, float) { mine += __popc(__ballot_sync(ALL_LANES, on)); });
    uint32_t block = sum_over_block(mine);
    if (threadIdx.x == 0)
        atomicAdd(&v.s.scratch->counters[counter], block);
    wait_for_team();
    return __ldcg(&v.s.scratch->counters[counter]);
}

__device__ Window near_guess(const View &v) {
    return Window{v.near, near_shift(v.s.k), ~0u};
}

/* Counts magnitudes in a window into a histogram; all blocks then wait for each other. */
__device__ __noinline__ Scanned count_bits_in(const View &v, const Window &w, int histogram) {
    count(w, v.s.scratch->histogram[histogram], [&](auto f) {
        visit(v, v.from, [&](bool on, int32_t, float x) { f(on, magnitude(x)); });
    });
    return scan(v.s.scratch->histogram[histogram]);
}

/* ---- cut */

/* How the chosen entries lie in the result, once that is known. */
struct Placement {
    bool known;
    uint32_t before; /* chosen by the blocks before this one */
    uint32_t chosen; /* by all */
    uint32_t smallest;
};

/* Of the entries in the window, which all blocks gather, the rank-th; those above it are only
 * counted. Every block then looks at the gathered ones for itself. */
__device__ __noinline__ Cut gather_best(const View &v, const Narrowed &n, uint32_t rank,
                                        Placement *placement) {
    const Step &s = v.s;
    uint32_t above = 0, below = (1u << threadIdx.x % WARP) - 1;
    visit(v, n.window.low, [&](bool on, int32_t index, float x) {
        uint32_t bits = magnitude(x);
        bool inside = on && bits - n.window.low < n.window.width;
        above += __popc(__ballot_sync(ALL_LANES, on && !inside));
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
    wait_for_team();

    bool on = threadIdx.x < n.within;
    const uint2 *list = reinterpret_cast<const uint2 *>(s.scratch->standings);
    uint2 raw = on ? __ldcg(&list[threadIdx.x]) : uint2{0, 0};
    Standing mine = {raw.x, (int32_t)raw.y};
    Cut cut = cut_standings(mine, on, n.window.low, 0, rank - n.greater);
    uint32_t first = block_share((uint32_t)s.tiles).first * TILE;
    bool before = on && is_chosen(cut, mine.bits, mine.idx) && (uint32_t)mine.idx < first;
    BlockTotal all;
    placement->known = true;
    placement->before = sum_of_blocks_before(s.totals, &all) + sum_over_threads(before);
    placement->chosen = rank;
    placement->smallest = cut.bits;
    return cut;
}

static_assert(GATHERED == CHOOSE_THREADS, "a thread compares one");

/* Of more equal magnitudes than can be gathered, the rank-th smallest index. */
__device__ __noinline__ Cut cut_ties(const View &v, const Narrowed &n, uint32_t rank) {
    uint32_t bits = n.window.low;
    int histogram = HISTOGRAMS - 3;
    auto count_indices = [&](const Window &w) {
        count(w, v.s.scratch->histogram[histogram], [&](auto f) {
            visit(v, bits, [&](bool on, int32_t index, float x) {
                f(on && magnitude(x) == bits, INT32_MAX - (uint32_t)index);
            });
        });
        return scan(v.s.scratch->histogram[histogram++]);
    };
    Window all = {0, COARSE_SHIFT, ALL_KEYS};
    Narrowed last = narrow(count_indices(all), all, rank - n.greater, 0, count_indices);
    return Cut{bits, (int32_t)(INT32_MAX - last.window.low)};
}

/* The cut that leaves the `most` largest. Looks at all elements where candidates are too few. */
__device__ __noinline__ Cut cut_best(View &v, uint32_t most, Placement *placement) {
    Scanned counts = v.counts;
    Window window = near_guess(v);
    int next = 2;
    if (counts.total < most && v.near > 1) {
        v.from = 1;
        v.rescans++;
        window = Window{1, COARSE_SHIFT, ALL_KEYS};
        counts = count_bits_in(v, window, next++);
    }
    most = min(most, counts.total);
    if (most == 0)
        return Cut{TW__INFINITY_BITS, -1};
    Narrowed n = narrow(counts, window, most, GATHERED,
                        [&](const Window &w) { return count_bits_in(v, w, next++); });
    bool few = n.within <= GATHERED && n.window.width <= BINS;
    return few ? gather_best(v, n, most, placement) : cut_ties(v, n, most);
}

/* ---- place and write */

/* Chosen entries of this warp. */
__device__ __noinline__ BlockTotal tally(const View &v, const Cut &cut) {
    BlockTotal mine = {0, TW__INFINITY_BITS};
    visit(v, max(cut.bits, 1u), [&](bool on, int32_t index, float x) {
        bool chosen = on && is_chosen(cut, magnitude(x), index);
        mine.count += __popc(__ballot_sync(ALL_LANES, chosen));
        if (chosen)
            mine.smallest = min(mine.smallest, magnitude(x));
    });
    mine.smallest = __reduce_min_sync(ALL_LANES, mine.smallest);
    return mine;
}

/* Where the cut alone is known, the blocks tell each other how many they have. */
__device__ __noinline__ void place(const View &v, const BlockTotal &of_warp, uint32_t of_block,
                                   Placement *placement) {
    __shared__ uint32_t smallest;
    if (threadIdx.x == 0)
        smallest = TW__INFINITY_BITS;
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        atomicMin(&smallest, of_warp.smallest);
    __syncthreads();
    if (threadIdx.x == 0)
        v.s.totals[team().block] = BlockTotal{of_block, smallest};
    wait_for_team();
    BlockTotal all;
    placement->before = sum_of_blocks_before(v.s.totals, &all);
    placement->chosen = all.count;
    placement->smallest = all.smallest;
}

__device__ __noinline__ void write_chosen(const View &v, const Cut &cut, uint32_t to) {
    uint32_t below = (1u << threadIdx.x % WARP) - 1;
    visit(v, max(cut.bits, 1u), [&](bool on, int32_t index, float x) {
        bool chosen = on && is_chosen(cut, magnitude(x), index);
        uint32_t all = __ballot_sync(ALL_LANES, chosen);
        uint32_t at = to + __popc(all & below);
        if (chosen) {
            v.s.chosen_idx[at] = index;
            v.s.chosen_val[at] = x;
        }
        to += __popc(all);
    });
}

/* ---- the methods: each returns the cut */

/* Where a normal distribution with these sums leaves k above. A block looks at POINTS places between
 * the bounds at once: four rounds, where halving takes 31. More would wait for the multiprocessor's
 * double precision. */
__device__ float gaussian_estimate(const Step &s) {
    constexpr uint64_t POINTS = 256;
    const Sums &sums = s.scratch->total;
    tw__normal normal = tw__normal_from(sums.sum, sums.square, (double)s.n, (double)s.k);
    uint32_t low = TW__NORMAL_LOW, high = TW__NORMAL_HIGH;
    while (high - low > 1) {
        uint64_t span = high - low;
        uint32_t bits = low + (uint32_t)(span * (threadIdx.x + 1) / (POINTS + 1));
        bool is_low = threadIdx.x < POINTS && (bits == low || tw__normal_is_low(&normal, bits));
        uint64_t lows = (uint64_t)__syncthreads_count(is_low);
        high = low + (uint32_t)(span * (lows + 1) / (POINTS + 1));
        low += (uint32_t)(span * lows / (POINTS + 1));
    }
    return __uint_as_float(high);
}

__device__ Cut choose_gaussian(View &v, Placement *p) {
    const Step &s = v.s;
    float threshold = gaussian_estimate(s);
    double k = (double)s.k;
    int round = 0;
    for (; round < s.rules.gaussian_rounds; round++) {
        double count = (double)count_above(v, as_threshold(threshold), 4 * s.k / 3, round);
        if (count < 2.0 * k / 3.0)
            threshold = __fmul_rn(threshold, 0.5f);
        else if (count > 4.0 * k / 3.0)
            threshold = fminf(__fmul_rn(1.5f, threshold), FLT_MAX);
        else
            break;
    }
    uint32_t count =
        count_above(v, as_threshold(threshold), TW__MOST * s.k, s.rules.gaussian_rounds);
    return far_off(count, s.k) ? cut_best(v, (uint32_t)s.k, p) : cut_above(as_threshold(threshold));
}

__device__ Cut choose_dgc(View &v, Placement *p) {
    uint32_t threshold = v.s.scratch->sample_threshold;
    uint32_t count = count_above(v, threshold, 4 * v.s.k / 3, 0);
    if (3 * (int64_t)count > 4 * v.s.k)
        return cut_best(v, (uint32_t)v.s.k, p);
    return cut_above(threshold);
}

__device__ float largest_magnitude(const Step &s, const View &v) {
    uint32_t mine = 0;
    visit(v, v.from, [&](bool on, int32_t, float x) { mine = max(mine, on ? magnitude(x) : 0); });
    mine = __reduce_max_sync(ALL_LANES, mine);
    if (threadIdx.x % WARP == 0)
        atomicMax(&s.scratch->counters[COUNTERS - 1], mine);
    wait_for_team();
    return __uint_as_float(__ldcg(&s.scratch->counters[COUNTERS - 1]));
}

__device__ Cut choose_redsync(View &v, Placement *p) {
    constexpr int ROUNDS = 32;
    const Step &s = v.s;
    double mean = s.scratch->total.magnitude / (double)s.n;
    if (v.counts.total < 2 * s.k + 1 && v.near > 1) {
        v.from = 1;
        v.rescans++;
    }
    double max = largest_magnitude(s, v), low = 0.0, high = 1.0;
    for (int round = 0; round < ROUNDS; round++) {
        double r = 0.5 * (low + high);
        uint32_t threshold = as_threshold((float)(mean + r * (max - mean)));
        uint32_t count = count_above(v, threshold, 2 * s.k, round);
        if (count < s.k)
            high = r;
        else if (count > 2 * s.k)
            low = r;
        else
            return cut_above(threshold);
    }
    return cut_best(v, (uint32_t)s.k, p);
}

/* Whether the threshold is found anew in this step; else *cut is at the one in use. */
__device__ bool reuse_exactly(View &v, Cut *cut) {
    const Step &s = v.s;
    if (reuse_due(s, *s.learned, s.k_changed))
        return true;
    uint32_t threshold = magnitude(s.learned->threshold);
    *cut = cut_above(threshold);
    return far_off(count_above(v, threshold, TW__MOST * s.k, 0), s.k);
}

template <int METHOD> __device__ Cut choose_cut(View &v, bool *exactly, Placement *p) {
    Cut cut;
    *exactly = METHOD == EXACT;
    if (METHOD == GAUSSIAN)
        return choose_gaussian(v, p);
    if (METHOD == DGC)
        return choose_dgc(v, p);
    if (METHOD == REDSYNC)
        return choose_redsync(v, p);
    if (METHOD == REUSE)
        *exactly = reuse_exactly(v, &cut);
    return *exactly ? cut_best(v, (uint32_t)v.s.k, p) : cut;
}

/* All threads of the team call; histograms from the second on are free, but for OF_A_BIN. */
template <int METHOD> __device__ __noinline__ void choose_any(const Step &s, const Stretch &mine) {
    uint32_t near = s.learned->guess;
    View v = {s, mine, near, near, 0};
    v.counts = count_bits_in(v, near_guess(v), 1);
    bool exactly;
    Placement placement = {};
    Cut cut = choose_cut<METHOD>(v, &exactly, &placement);
    BlockTotal of_warp = tally(v, cut);
    uint32_t of_block, before = sum_of_warps_before(of_warp.count, &of_block);
    if (!placement.known)
        place(v, of_warp, of_block, &placement);
    write_chosen(v, cut, placement.before + before);
    if (team().block == 0)
        conclude<METHOD>(s, *s.learned,
                         Seen{v.counts, near, v.rescans, placement.chosen, placement.smallest}, cut,
                         exactly);
}

} // namespace tw

#endif
