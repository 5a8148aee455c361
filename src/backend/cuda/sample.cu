/* sample.cu - the magnitude of a rank, estimated from a sample of acc
 *
 * Runs of 16 elements at random places, one in each of equally long parts: the very ones that
 * candidates.c takes, since dgc selects by them. */
#include "base/random.h"
#include "backend/cuda/choice.cuh"
#include "backend/extent.h"

namespace tw {

/* Element i of the sample; false past the end of the vector. */
__device__ bool sampled_index(const Step &s, int64_t sample, int64_t i, int64_t *index) {
    int64_t runs = sample / TW__LANES, run = i / TW__LANES, part = s.n / runs;
    int64_t room = part > TW__LANES ? part - TW__LANES + 1 : 1;
    *index = run * part + (int64_t)tw__random_below(s.key, (uint64_t)run, (uint64_t)room) +
             i % TW__LANES;
    return *index < s.n;
}

/* A loaded state may bring a threshold that is to be reused: then all from there on are chosen. */
__device__ void set_first_guess(const Step &s, uint32_t guess) {
    const Learned &l = *s.learned;
    bool reused = l.threshold != 0.0f && !reuse_due(s, l, s.k_changed);
    s.learned->exact_guess = guess;
    s.learned->guess = reused ? magnitude(l.threshold) : guess;
}

__global__ void __launch_bounds__(CHOOSE_THREADS, 1)
    take_sample(const __grid_constant__ Step s, int64_t sample, uint32_t rank, bool after,
                uint32_t *values) {
    join_grid();
    int64_t threads = team_threads(), thread = team_thread();
    Scratch *scratch = s.scratch;
    for (int64_t i = thread; i < sample; i += threads) {
        int64_t index;
        bool on = sampled_index(s, sample, i, &index);
        values[i] = on ? magnitude(after ? acc_after(s, index) : acc_before(s, index)) : ~0u;
    }
    int histogram = 0;
    auto count_values = [&](const Window &w) {
        count(w, scratch->sample_histogram[histogram], [&](auto f) {
            for (int64_t i = thread; i < sample; i += threads)
                f(values[i] != ~0u, values[i]);
        });
        return scan(scratch->sample_histogram[histogram++]);
    };
    Window all = {0, COARSE_SHIFT, ALL_KEYS};
    uint32_t bits = narrow(count_values(all), all, rank, 0, count_values).window.low;
    wait_for_team();
    for (int64_t i = thread; i < SAMPLE_HISTOGRAMS * BINS; i += threads)
        scratch->sample_histogram[0][i] = 0;
    if (thread > 0)
        return;
    uint32_t threshold = min(max(bits, 1u), TW__INFINITY_BITS);
    if (after)
        scratch->sample_threshold = threshold;
    else
        set_first_guess(s, threshold);
}

cudaError_t launch_sample(const Step &s, int64_t sample, int64_t at, bool after, int blocks,
                          uint32_t *values, cudaStream_t stream) {
    uint32_t rank = (uint32_t)at;
    void *arguments[] = {const_cast<Step *>(&s), &sample, &rank, &after, &values};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(take_sample), blocks,
                                       CHOOSE_THREADS, arguments, 0, stream);
}

} // namespace tw
