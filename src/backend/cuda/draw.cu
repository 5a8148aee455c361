/* draw.cu - random: k indices by chance, the same ones as select_random.c draws
 *
 * There an index is drawn, and drawn again where it is marked already. The set that comes out does
 * not depend on the order of marking: so as many are drawn at once as are missing, which can never
 * be too many, until none is. */
#include "base/random.h"
#include "backend/cuda/order.cuh"
#include "backend/cuda/refuse.cuh"

namespace tw {

/* counters: [0], [1] and [2] take turns counting the new marks of a round; [SMALLEST] keeps how far
 * the smallest magnitude lies below infinity. */
constexpr int SMALLEST = 3;

__device__ void mark(const Step &s, uint32_t count) {
    uint64_t threads = team_threads(), thread = team_thread();
    uint64_t drawn = 0;
    for (int round = 0; count > 0; round++) {
        uint32_t *fresh = &s.scratch->counters[round % 3];
        uint32_t mine = 0;
        for (uint64_t draw = thread; draw < count; draw += threads) {
            uint64_t i = tw__random_below(s.key, drawn + draw, (uint64_t)s.n);
            uint32_t bit = 1u << (i % 32);
            mine += (atomicOr(&s.marks[i / 32], bit) & bit) == 0;
        }
        uint32_t of_block = sum_over_block(__reduce_add_sync(ALL_LANES, mine));
        if (threadIdx.x == 0)
            atomicAdd(fresh, of_block);
        wait_for_team();
        drawn += count;
        count -= __ldcg(fresh);
        if (thread == 0)
            s.scratch->counters[(round + 2) % 3] = 0; /* the one before: nobody reads it any more */
    }
}

/* Marks of the word, or what is not marked. */
__device__ uint32_t word_at(const Step &s, int64_t word, bool others) {
    int64_t left = s.n - 32 * word;
    if (left <= 0)
        return 0;
    uint32_t bits = others ? ~s.marks[word] : s.marks[word];
    return left < 32 ? bits & ((1u << left) - 1) : bits;
}

__device__ void write_marked(const Step &s, bool others, Share words, uint32_t to) {
    int lane = threadIdx.x % WARP;
    uint32_t smallest = TW__INFINITY_BITS;
    for (uint32_t i = words.first; i < words.last; i += WARP) {
        uint32_t word = i + lane;
        uint32_t bits = word < words.last ? word_at(s, word, others) : 0;
        uint32_t all, at = to + sum_of_lanes_before(__popc(bits), &all);
        for (; bits != 0; bits &= bits - 1) {
            int64_t index = 32 * (int64_t)word + __ffs(bits) - 1;
            s.chosen_idx[at] = (int32_t)index;
            s.chosen_val[at] = acc_after(s, index);
            smallest = min(smallest, magnitude(s.chosen_val[at++]));
        }
        if (word < words.last)
            s.marks[word] = 0;
        to += all;
    }
    smallest = __reduce_min_sync(ALL_LANES, smallest);
    if (lane == 0)
        atomicMax(&s.scratch->counters[SMALLEST], TW__INFINITY_BITS - smallest);
}

__device__ uint32_t count_marked(const Step &s, bool others, Share words) {
    uint32_t mine = 0;
    for (uint32_t word = words.first + threadIdx.x % WARP; word < words.last; word += WARP)
        mine += __popc(word_at(s, word, others));
    return __reduce_add_sync(ALL_LANES, mine);
}

__global__ void __launch_bounds__(CHOOSE_THREADS, 1) draw(const __grid_constant__ Step s) {
    join_grid();
    uint32_t bad = __ldcg(&s.scratch->bad);
    bool others = 2 * s.k > s.n;
    if (bad != 0) {
        refuse(s, bad);
    } else {
        mark(s, (uint32_t)(others ? s.n - s.k : s.k));
        Share words = warp_share((uint32_t)((s.n + 31) / 32));
        uint32_t of_block;
        uint32_t before = sum_of_warps_before(count_marked(s, others, words), &of_block);
        if (threadIdx.x == 0)
            s.totals[team().block] = BlockTotal{of_block, 0};
        wait_for_team();
        BlockTotal all;
        before += sum_of_blocks_before(s.totals, &all);
        write_marked(s, others, words, before);
    }
    wait_for_team();
    if (team().block > 0 || threadIdx.x >= WARP)
        return;
    uint32_t smallest = TW__INFINITY_BITS - __ldcg(&s.scratch->counters[SMALLEST]);
    __syncwarp();
    if (threadIdx.x <= SMALLEST)
        s.scratch->counters[threadIdx.x] = 0;
    if (threadIdx.x > 0)
        return;
    s.scratch->bad = 0;
    if (bad == 0) {
        *s.next = *s.learned;
        report(s, (uint32_t)s.k, 0, -1, 0, smallest);
    }
}

cudaError_t launch_draw(const Step &s, int blocks, cudaStream_t stream) {
    void *arguments[] = {const_cast<Step *>(&s)};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(draw), blocks, CHOOSE_THREADS,
                                       arguments, 0, stream);
}

} // namespace tw
