/* refuse.cuh - a step whose gradient holds a bad number: everything stays as it was
 *
 * The host may commit such a step before it knows, so the new copies become copies of the old. */
#ifndef TW_CUDA_REFUSE_CUH
#define TW_CUDA_REFUSE_CUH

#include "backend/cuda/order.cuh"

namespace tw {

/* What the host will read, but for `refused`. */
__device__ inline void report(const Step &s, uint32_t count, uint32_t candidates, int64_t bad_index,
                              uint32_t rescans, uint32_t smallest) {
    s.scratch->chosen = count;
    s.report->count = count;
    s.report->candidates = candidates;
    s.report->bad_index = bad_index;
    s.report->rescans = (int32_t)rescans;
    s.report->smallest = count > 0 ? smallest : 0;
}

/* All threads of the team call. */
__device__ __noinline__ static void refuse(const Step &s, uint32_t bad) {
    int64_t threads = team_threads(), thread = team_thread();
    wait_for_team(); /* all have seen `bad` */
    for (int64_t i = thread; i < (int64_t)s.tiles * TILE && s.acc != nullptr; i += threads) {
        s.acc[i] = s.residual[i];
        if (s.source.first != nullptr)
            s.source.next_first[i] = s.source.first[i];
        if (s.source.second != nullptr)
            s.source.next_second[i] = s.source.second[i];
    }
    if (thread == 0) {
        *s.next = *s.learned;
        s.report->refused = ++s.scratch->refused;
        report(s, 0, 0, ~bad, 0, 0);
    }
}

} // namespace tw

#endif
