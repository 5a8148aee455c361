/* choice.cuh - candidates in shared memory, and what it means to cut them
 *
 * Shared by the two ways of choosing: choose.cu's straight one, and choose_any.cuh's for all
 * cases. */
#ifndef TW_CUDA_CHOICE_CUH
#define TW_CUDA_CHOICE_CUH

#include "backend/cuda/rank.cuh"
#include "backend/cuda/refuse.cuh"
#include "backend/extent.h"

namespace tw {

/* ---- candidates */

/* What a warp knows of its stretch of the vector. */
struct Stretch {
    Share tiles;
    const int32_t *idx; /* [staged] candidates, in shared memory */
    const float *val;
    uint32_t staged;
    uint32_t staged_from; /* magnitude bits from which these are all; ~0 where they are too many */
};

/* Copies entries 0 .. sum-1 of `tiles` tiles from the first on; tile t has those from starts[t] on.
 * Every thread takes entries, not tiles, so that all loads are under way at once. */
__device__ inline void copy_tiles(const Step &s, uint32_t first, uint32_t tiles,
                                  const uint32_t *starts, uint32_t sum, int32_t *idx, float *val) {
    for (uint32_t entry = threadIdx.x; entry < sum; entry += CHOOSE_THREADS) {
        uint32_t low = 0, high = tiles; /* the last tile that starts at or before the entry */
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            if (starts[middle] <= entry)
                low = middle;
            else
                high = middle;
        }
        int64_t at = (int64_t)(first + low) * SLOTS + (entry - starts[low]);
        idx[entry] = s.slot_idx[at];
        val[entry] = s.slot_val[at];
    }
}

/* Takes the candidates of this block's tiles into shared memory, in order; room for as many. False
 * where they are more. Goes by as many tiles as there are threads. */
__device__ inline bool stage(const Step &s, Share tiles, uint32_t room, int32_t *idx, float *val,
                             uint32_t *staged) {
    typedef cub::BlockScan<uint32_t, CHOOSE_THREADS, cub::BLOCK_SCAN_WARP_SCANS> Scan;
    __shared__ typename Scan::TempStorage storage;
    __shared__ uint32_t starts[CHOOSE_THREADS];
    uint32_t total = 0;
#pragma unroll 1
    for (uint32_t first = tiles.first; first < tiles.last; first += CHOOSE_THREADS) {
        uint32_t tile = first + threadIdx.x;
        uint32_t mine = tile < tiles.last ? s.slot_count[tile] : 0, before, sum;
        Scan(storage).ExclusiveSum(mine, before, sum);
        starts[threadIdx.x] = before;
        if (__syncthreads_or(mine > SLOTS) || total + sum > room)
            return false;
        copy_tiles(s, first, min(tiles.last - first, CHOOSE_THREADS), starts, sum, idx + total,
                   val + total);
        total += sum;
        __syncthreads();
    }
    *staged = total;
    return true;
}

/* Of the block's candidates, this warp's; without any where they could not be staged. */
__device__ inline Stretch stretch_of_warp(const Learned &learned, Share tiles, bool is_staged,
                                          uint32_t staged, const int32_t *idx, const float *val) {
    uint32_t warp = threadIdx.x / WARP;
    Share mine = share_of(Share{0, is_staged ? staged : 0}, warp, CHOOSE_WARPS);
    return Stretch{share_of(tiles, warp, CHOOSE_WARPS), idx + mine.first, val + mine.first,
                   mine.last - mine.first, is_staged ? learned.guess : ~0u};
}

/* ---- the cut */

/* Chosen is what lies above `bits`, and of those with exactly these, up to index `tie`. */
struct Cut {
    uint32_t bits;
    int32_t tie;
};

__device__ inline bool is_chosen(const Cut &cut, uint32_t bits, int32_t index) {
    return bits > cut.bits || (bits == cut.bits && index <= cut.tie);
}

__device__ inline Cut cut_above(uint32_t threshold) {
    return Cut{threshold - 1, -1};
}

/* The rank-th of the standings that the threads bring where `on`. All lie in BINS bins of 2^shift
 * magnitudes from `low` on. A histogram tells in which bin the rank is. Then each thread with a
 * standing in that bin counts how many of the bin precede its own. */
__device__ inline Cut cut_standings(const Standing &mine, bool on, uint32_t low, uint32_t shift,
                                    uint32_t rank) {
    LocalBins &local = local_bins();
    __shared__ Standing others[GATHERED];
    __shared__ uint32_t nothers;
    __shared__ Cut cut;
    for (int i = threadIdx.x; i < BINS; i += CHOOSE_THREADS)
        local.bins[i] = 0;
    if (threadIdx.x == 0)
        nothers = 0;
    __syncthreads();
    uint32_t bin = (mine.bits - low) >> shift;
    if (on)
        atomicAdd(&local.bins[bin], 1u);
    __syncthreads();
    Place place = locate(scan(local), rank);
    bool inside = on && bin == place.bin;
    if (inside)
        others[atomicAdd(&nothers, 1u)] = mine;
    __syncthreads();
    uint32_t before = 0;
    for (uint32_t i = 0; inside && i < nothers; i++)
        before += is_chosen(Cut{mine.bits, mine.idx}, others[i].bits, others[i].idx);
    if (inside && before == rank - place.greater) /* it counts itself */
        cut = Cut{mine.bits, mine.idx};
    __syncthreads();
    return cut;
}

/* ---- what the next step should know; see select_exact.c, candidates.c and select_reuse.c */

/* What a step has seen of its candidates. */
struct Seen {
    Scanned counts; /* by magnitude, near the guess */
    uint32_t near;  /* the guess */
    uint32_t rescans;
    uint32_t chosen, smallest;
};

__device__ inline float clamp(float x, float low, float high) {
    return fminf(fmaxf(x, low), high);
}

/* How many candidates the next step wants over k, and how their number grows. */
__device__ inline void learn_margin(const Step &s, const Learned &l, const Seen &v, Learned *next) {
    constexpr float MOST = 2.0f, LEAST = 1.25f, GROWTH_LEAST = 0.8f;
    if (v.rescans > 0 || l.margin == 0.0f)
        next->margin = MOST;
    next->growth = 1.0f;
    if (v.rescans > 0 || l.rank == 0.0f)
        return;
    float seen = (float)v.counts.total;
    float surprise = fabsf(seen / (l.rank * l.growth) - 1.0f);
    float calm = 0.8f * l.margin + 0.2f * LEAST;
    float chance = 1.0f + 4.0f * rsqrtf((float)s.k);
    next->margin = clamp(fmaxf(calm, LEAST + 3.0f * surprise), chance, MOST);
    next->growth = clamp(seen / l.rank, GROWTH_LEAST,
                         fminf(1.5f * fmaxf(l.growth, 1.0f), (float)TW__GROWTH_MOST));
}

/* Somewhat below a magnitude: a fifth, but no more than half of what the bins near a guess span, or the
 * k-th largest would be above them in the next step too. */
__device__ inline float below_edge(const Step &s, float edge) {
    uint32_t half = (BINS / 2) << near_shift(s.next_k), bits = __float_as_uint(edge);
    return fmaxf(0.8f * edge, __uint_as_float(bits > half ? bits - half : 0));
}

/* Magnitude bits that `want` entries will probably reach, where the candidates do not tell. If they
 * end before that: on the power law through the last chosen and the last candidate. If it lies in
 * the last bin, which is open, or the guess let too few through: a little below the last chosen. */
__device__ inline uint32_t extrapolate(const Step &s, const Seen &v, float want) {
    float total = (float)v.counts.total;
    float end = __uint_as_float(v.near), edge = __uint_as_float(v.smallest),
          chosen = (float)v.chosen;
    float lower = 0.9f;
    if (chosen == 0.0f)
        return 1;
    if (v.rescans > 0) /* redsync wants 2k: its last chosen may be above the guess */
        return as_threshold(0.8f * fminf(edge, end));
    if (total >= want)
        return as_threshold(below_edge(s, edge));
    if (total > 1.1f * chosen && edge > 1.001f * end)
        lower = exp2f(log2f(total / want) * log2f(edge / end) / log2f(total / chosen));
    float least = edge * 0x1p-12f; /* else it would sink step by step where most entries are zero */
    return as_threshold(fmaxf(end * fmaxf(lower, 0.5f), least));
}

/* The guess that about factor * k will reach, and SPARE more: with k = 1 and n = 768, in 10 % of
 * 1,500 steps without it there was no candidate, and all elements were read again; with it, in none
 * (simulated, normally distributed gradients). Every thread of the block calls. */
__device__ inline uint32_t learn_guess(const Step &s, const Seen &v, float factor, float *rank) {
    constexpr float SPARE = 16.0f;
    float want = fminf(ceilf(factor * (float)s.next_k) + SPARE, (float)s.n);
    Place place = locate(v.counts, (uint32_t)want);
    *rank = 0.0f;
    /* Where non-zeros are few: collect them all, or each step would read all elements again. A guess
     * of 1 lets all of them through. With every method fewer than k chosen after a rescan are all. */
    if (v.near == 1 ? (float)place.total < want : v.rescans > 0 && v.chosen < s.k)
        return 1;
    if (v.rescans > 0 || (float)place.total < want || place.bin == BINS - 1)
        return extrapolate(s, v, want);
    *rank = (float)place.greater + (float)place.within;
    return v.near + (place.bin << near_shift(s.k));
}

__device__ inline bool reuse_due(const Step &s, const Learned &l, bool k_changed) {
    return k_changed || l.threshold == 0.0f || l.age >= s.rules.reuse_period;
}

__device__ inline bool far_off(uint32_t count, int64_t k) {
    return count > TW__MOST * k || (int64_t)TW__MOST * count < k;
}

/* Moves the threshold in use, and with it the guess for the next exact step. */
__device__ inline void nudge(const Step &s, const Learned &l, uint32_t chosen, Learned *next) {
    float factor = 1.0f, count = (float)chosen, k = (float)s.k;
    if (count < s.rules.reuse_low * k)
        factor -= s.rules.reuse_nudge;
    else if (count > s.rules.reuse_high * k)
        factor += s.rules.reuse_nudge;
    next->threshold = l.threshold * factor;
    next->exact_guess = as_threshold(__uint_as_float(l.exact_guess) * factor);
}

__device__ inline void learn_reuse(const Step &s, const Learned &l, bool exactly, const Seen &v,
                                   Learned *next) {
    bool in_turn = reuse_due(s, l, s.k_changed);
    next->age = (in_turn ? 0 : l.age) + 1;
    if (exactly) {
        next->threshold = v.chosen > 0 ? __uint_as_float(v.smallest) : 0.0f;
        next->exact_guess = next->guess;
    } else {
        nudge(s, l, v.chosen, next);
    }
    bool due = reuse_due(s, *next, s.k_changes);
    next->guess = due ? next->exact_guess : magnitude(next->threshold);
}

/* The first block ends the step for the next one and for the host. Every thread of it calls. */
template <int METHOD>
__device__ void conclude(const Step &s, const Learned &learned, const Seen &v, const Cut &cut,
                         bool exactly) {
    Learned next = learned;
    float factor = METHOD == REDSYNC ? 3.0f : 2.0f;
    if (METHOD == GAUSSIAN) /* at density 0.01 slots would overflow: 6.3 bare passes, not 4.0 */
        factor = tw__candidates_per_k(s.next_k, s.n / 25);
    if (METHOD == EXACT) {
        learn_margin(s, learned, v, &next);
        factor = next.margin / next.growth;
    }
    if (METHOD != REUSE || exactly)
        next.guess = learn_guess(s, v, factor, &next.rank);
    if (METHOD == REUSE)
        learn_reuse(s, learned, exactly, v, &next);
    next.leaving = cut.bits + 1;
    next.tie = cut.tie;
    if (threadIdx.x > 0)
        return;
    *s.next = next;
    report(s, v.chosen, v.counts.total, -1, v.rescans, v.smallest);
}

} // namespace tw

#endif
