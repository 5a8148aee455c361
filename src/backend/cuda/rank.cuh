/* rank.cuh - all threads of a team find an exact rank among magnitudes, by histograms
 *
 * The caller has a way to visit the magnitudes. Each histogram narrows the answer by 12 bits; the
 * blocks fill it together, wait for each other, and then each reads it for itself, so that all know
 * the same without being told. */
#ifndef TW_CUDA_RANK_CUH
#define TW_CUDA_RANK_CUH

#include "backend/cuda/order.cuh"

#include <cub/block/block_scan.cuh>

namespace tw {

/* Where a rank lies in a histogram, counted from the largest. */
struct Place {
    uint32_t total;   /* in all bins */
    uint32_t bin;     /* that holds the rank, where total reaches it */
    uint32_t greater; /* in bins above it */
    uint32_t within;  /* in it */
};

constexpr uint32_t ALL_KEYS = 1u << 31;

/* A range of magnitudes: bins of 2^shift from `low` on, `width` of them at most. */
struct Window {
    uint32_t low, shift, width;
};

constexpr uint32_t BITS_OF_BINS = 12;
static_assert(BINS == 1 << BITS_OF_BINS, "what a histogram narrows down");
static_assert(BINS == 4 * CHOOSE_THREADS, "a thread scans four bins");

/* A histogram as the threads of a block hold it: each four adjacent bins, the first thread those at
 * the top. */
struct Scanned {
    static constexpr int EACH = 4;
    uint32_t last;        /* the largest of this thread's bins */
    uint32_t bins[EACH];  /* downwards from there */
    uint32_t before, sum; /* in bins of threads before, in this thread's */
    uint32_t total;
};

/* Of the bins that this thread is to hold. Every thread of a block of CHOOSE_THREADS calls this, and
 * the next ones. */
__device__ inline Scanned scan_bins(uint32_t last, uint4 bins) {
    typedef cub::BlockScan<uint32_t, CHOOSE_THREADS, cub::BLOCK_SCAN_WARP_SCANS> Scan;
    __shared__ typename Scan::TempStorage storage;
    Scanned s = {last, {bins.w, bins.z, bins.y, bins.x}};
    s.sum = bins.x + bins.y + bins.z + bins.w;
    Scan(storage).ExclusiveSum(s.sum, s.before, s.total);
    __syncthreads(); /* storage may be used again */
    return s;
}

__device__ inline uint32_t last_bin() {
    return BINS - 1 - Scanned::EACH * threadIdx.x;
}

/* A histogram that all blocks wrote, past this multiprocessor's own cache. */
__device__ inline Scanned scan(const uint32_t *histogram) {
    const uint4 *fours = reinterpret_cast<const uint4 *>(histogram);
    return scan_bins(last_bin(), __ldcg(&fours[last_bin() / Scanned::EACH]));
}

__device__ inline Place locate(const Scanned &s, uint32_t rank) {
    __shared__ Place found;
    if (s.before < rank && rank <= s.before + s.sum) {
        Place place = {s.total, s.last, s.before, s.bins[0]};
#pragma unroll
        for (int i = 1; i < Scanned::EACH; i++)
            if (rank > place.greater + place.within)
                place = Place{s.total, s.last - i, place.greater + place.within, s.bins[i]};
        found = place;
    }
    __syncthreads();
    Place place = s.total >= rank && rank > 0 ? found : Place{s.total, 0, 0, 0};
    __syncthreads();
    return place;
}

/* The calling block's share of a histogram, in shared memory until all of it is counted. */
struct alignas(16) LocalBins {
    uint32_t bins[BINS];
};

__device__ inline Scanned scan(const LocalBins &local) {
    const uint4 *fours = reinterpret_cast<const uint4 *>(local.bins);
    return scan_bins(last_bin(), fours[last_bin() / Scanned::EACH]);
}

__device__ inline LocalBins &local_bins() {
    __shared__ LocalBins local;
    return local;
}

/* Counts keys in a window: visit(f) calls f(on, key), once for every key where `on`. Then all blocks
 * wait for each other. An open window, of all widths, has everything above it in its last bin. */
template <typename Visit>
__device__ void count(const Window &w, uint32_t *histogram, const Visit &visit) {
    LocalBins &mine = local_bins();
    for (int i = threadIdx.x; i < BINS; i += CHOOSE_THREADS)
        mine.bins[i] = 0;
    __syncthreads();
    visit([&](bool on, uint32_t key) {
        uint32_t at = key - w.low;
        if (on && key >= w.low && at < w.width)
            atomicAdd(&mine.bins[min(at >> w.shift, BINS - 1u)], 1u);
    });
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += CHOOSE_THREADS)
        if (mine.bins[i] != 0)
            atomicAdd(&histogram[i], mine.bins[i]);
    wait_for_team();
}

/* Where a rank was narrowed down to: `within` keys lie in `window`, `greater` above it. */
struct Narrowed {
    Window window;
    uint32_t greater, within;
};

/* From the counts in window w, until at most `few` keys of BINS values are left, or one value.
 * counts_in(window) counts again. */
template <typename CountsIn>
__device__ Narrowed narrow(Scanned counts, Window w, uint32_t rank, uint32_t few,
                           const CountsIn &counts_in) {
    Narrowed n = {w, 0, counts.total};
    for (;;) {
        Place place = locate(counts, rank - n.greater);
        bool open = w.width == ~0u && place.bin == BINS - 1;
        n.window.low = w.low + (place.bin << w.shift);
        n.window.width = open ? ~0u : 1u << w.shift;
        n.greater += place.greater;
        n.within = place.within;
        if ((n.within <= few && n.window.width <= BINS) || (w.shift == 0 && !open))
            return n;
        w = Window{n.window.low, open ? COARSE_SHIFT : w.shift - min(w.shift, BITS_OF_BINS),
                   open ? ALL_KEYS : n.window.width};
        counts = counts_in(w);
    }
}

} // namespace tw

#endif
