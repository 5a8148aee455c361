/* order.cuh - where each warp's entries go, so that all together come out in index order
 *
 * Warps hold adjacent stretches of the vector: a warp's first entry follows all entries of the
 * warps and blocks before it. */
#ifndef TW_CUDA_ORDER_CUH
#define TW_CUDA_ORDER_CUH

#include "backend/cuda/step.cuh"

#include <cooperative_groups.h>

namespace tw {

/* Adjacent things, first .. last - 1. */
struct Share {
    uint32_t first, last;
};

/* Part `part` of `parts` of them. */
__device__ inline Share share_of(Share all, uint32_t part, uint32_t parts) {
    uint32_t each = (all.last - all.first + parts - 1) / parts;
    uint32_t first = min(all.first + part * each, all.last);
    return Share{first, min(first + each, all.last)};
}

/* Blocks that work on one vector together: all of a grid, or some of them. */
struct Team {
    uint32_t block, blocks; /* the calling one's number among them, and how many they are */
    uint32_t *arrivals;     /* Scratch::arrivals of the vector; unused where the grid is the team */
};

/* As join left it. */
__device__ inline Team &team() {
    __shared__ Team of_block;
    return of_block;
}

/* The calling block is of this team from now on. Every thread of it calls, before all below. */
__device__ inline void join(const Team &joined) {
    __syncthreads(); /* nobody looks at the team before any more */
    if (threadIdx.x == 0)
        team() = joined;
    __syncthreads();
}

__device__ inline void join_grid() {
    join(Team{blockIdx.x, gridDim.x, nullptr});
}

/* Among the team's threads. */
__device__ inline uint32_t team_thread() {
    return team().block * CHOOSE_THREADS + threadIdx.x;
}

__device__ inline uint32_t team_threads() {
    return team().blocks * CHOOSE_THREADS;
}

__device__ inline Share block_share(uint32_t count) {
    return share_of(Share{0, count}, team().block, team().blocks);
}

/* Within the block's, this warp's. */
__device__ inline Share warp_share(uint32_t count) {
    return share_of(block_share(count), threadIdx.x / WARP, CHOOSE_WARPS);
}

/* Each block of a team adds to `arrivals` and waits until the top bit changes. Together they add
 * 2^31: the last one to arrive changes the top bit, and the other bits are then as before. So nobody
 * has to clear them, and the next launch may have another number of blocks. All blocks of the team
 * must run at the same time. */
__device__ inline void wait_for_arrivals() {
    constexpr uint32_t TOP = 1u << 31;
    __syncthreads();
    if (threadIdx.x == 0) {
        const Team &t = team();
        __threadfence();
        uint32_t before = atomicAdd(t.arrivals, t.block == 0 ? TOP - (t.blocks - 1) : 1u);
        while (((before ^ *static_cast<volatile uint32_t *>(t.arrivals)) & TOP) == 0) {
        }
        __threadfence();
    }
    __syncthreads();
}

/* What any block of the team wrote before, all of them see after. */
__device__ inline void wait_for_team() {
    if (team().blocks == 1)
        __syncthreads();
    else if (team().blocks == gridDim.x)
        cooperative_groups::this_grid().sync();
    else
        wait_for_arrivals();
}

/* Sum over the lanes before this one; *all over the warp. */
__device__ inline uint32_t sum_of_lanes_before(uint32_t mine, uint32_t *all) {
    int lane = threadIdx.x % WARP;
    uint32_t sum = mine;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
        uint32_t other = __shfl_up_sync(ALL_LANES, sum, distance);
        sum += lane >= distance ? other : 0;
    }
    *all = __shfl_sync(ALL_LANES, sum, WARP - 1);
    return sum - mine;
}

/* The sum over warps of a number that the lanes of each share. */
__device__ inline uint32_t sum_over_block(uint32_t of_warp) {
    __shared__ uint32_t sums[CHOOSE_WARPS];
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = of_warp;
    __syncthreads();
    uint32_t all = __reduce_add_sync(ALL_LANES, sums[threadIdx.x % WARP]);
    __syncthreads();
    return all;
}

/* Of a number that the lanes of a warp share: its sum over the warps of this block before the
 * calling one; *all over the block. */
__device__ inline uint32_t sum_of_warps_before(uint32_t of_warp, uint32_t *all) {
    __shared__ uint32_t sums[CHOOSE_WARPS];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0)
        sums[warp] = of_warp;
    __syncthreads();
    uint32_t other = sums[lane];
    __syncthreads();
    *all = __reduce_add_sync(ALL_LANES, other);
    return __reduce_add_sync(ALL_LANES, lane < warp ? other : 0);
}

/* The sum of what each thread of the block brings. */
__device__ inline uint32_t sum_over_threads(uint32_t mine) {
    return sum_over_block(__reduce_add_sync(ALL_LANES, mine));
}

/* Counts of the team's blocks before this one; *all over the team. */
__device__ inline uint32_t sum_of_blocks_before(const BlockTotal *totals, BlockTotal *all) {
    __shared__ uint32_t smallest;
    unsigned i = threadIdx.x;
    bool on = i < team().blocks; /* MOST_BLOCKS is not more than the threads of a block */
    uint32_t count = on ? __ldcg(&totals[i].count) : 0;
    uint32_t least = on ? __ldcg(&totals[i].smallest) : ~0u;
    if (i == 0)
        smallest = ~0u;
    __syncthreads();
    least = __reduce_min_sync(ALL_LANES, least);
    if (i % WARP == 0 && least != ~0u)
        atomicMin(&smallest, least);
    all->count = sum_over_threads(count);
    all->smallest = smallest;
    return sum_over_threads(i < team().block ? count : 0);
}

static_assert(MOST_BLOCKS <= CHOOSE_THREADS, "a thread looks at one block");

} // namespace tw

#endif
