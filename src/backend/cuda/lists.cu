/* lists.cu - work on lists of entries in a GPU's memory; see entries.h
 *
 * Every call queues its kernels on the group's stream, has them write what the host needs to know
 * into an answer in the host's memory, and waits. So exchanges, which live on the host, go from
 * call to call as they do with lists of their own.
 *
 * An entry is sorted and moved as one word of 64 bits, whose lower half is the index. A stable sort
 * by index of runs laid end to end keeps the order of runs where indices agree: whoever finds the
 * first of an index adds up the others behind it, in that order. */
#include "backend/cuda/lists.cuh"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include <cstdlib>

using namespace tw;

namespace {

constexpr int INDEX_BITS = 31; /* that are sorted by */

Word *words_of(const tw__entry *entries) {
    return reinterpret_cast<Word *>(const_cast<tw__entry *>(entries));
}

/* ---- looking */

__global__ void look_up(const tw__entry *entries, int64_t count, const int64_t *bounds,
                        int64_t nbounds, int64_t *positions) {
    int64_t i = thread_number();
    if (i < nbounds)
        positions[i] = below(entries, count, bounds[i]);
}

int cut(void *context, const tw__list *list, const int64_t *bounds, int64_t count,
        int64_t *positions) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    for (int64_t done = 0; done < count; done += MOST_CUTS) {
        int64_t some = count - done < MOST_CUTS ? count - done : MOST_CUTS;
        memcpy(d->answer->bounds, bounds + done, sizeof *bounds * (size_t)some);
        if (list->count > 0)
            look_up<<<blocks_of(some), LIST_THREADS, 0, stream_of(d)>>>(
                list->at, list->count, d->answer->bounds, some, d->answer->positions);
        else
            memset(d->answer->positions, 0, sizeof *positions * (size_t)some);
        TW_TRY(finish(d, cudaSuccess, "cutting a list"));
        memcpy(positions + done, d->answer->positions, sizeof *positions * (size_t)some);
    }
    return TW_OK;
}

/* The least position of an entry out of order; `none` if there is none. */
__global__ void look_for_misfit(const tw__entry *entries, int64_t count, int64_t lo, int64_t hi,
                                unsigned long long *first) {
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        int64_t least = i == 0 ? lo : (int64_t)entries[i - 1].idx + 1;
        if (entries[i].idx < least || entries[i].idx < lo || entries[i].idx >= hi)
            atomicMin(first, (unsigned long long)i);
    }
}

__global__ void tell_misfit(const tw__entry *entries, const unsigned long long *first,
                            Answer *answer) {
    answer->misfit = (int64_t)*first;
    if (*first == ~0ull)
        return;
    answer->at = entries[*first];
    if (*first > 0)
        answer->before = entries[*first - 1];
}

int find_misfit(void *context, const tw__list *list, int64_t lo, int64_t hi,
                tw__bad_entry *misfit) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    cudaError_t error = cudaMemsetAsync(d->counts, 0xff, sizeof *d->counts, stream_of(d));
    look_for_misfit<<<COUNT_BLOCKS, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, lo, hi,
                                                                     d->counts);
    tell_misfit<<<1, 1, 0, stream_of(d)>>>(list->at, d->counts, d->answer);
    TW_TRY(finish(d, error, "checking a list"));
    const Answer *a = d->answer;
    misfit->at = a->misfit;
    if (a->misfit < 0)
        return TW_OK;
    misfit->idx = a->at.idx;
    misfit->least = a->misfit == 0 ? lo : (int64_t)a->before.idx + 1;
    return TW_OK;
}

/* ---- counting */

__global__ void count_around(const tw__entry *entries, int64_t count, uint32_t bits,
                             unsigned long long *counts) {
    unsigned long long above = 0, equal = 0;
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        uint32_t here = magnitude(entries[i].val);
        above += here > bits;
        equal += here == bits;
    }
    for (int lane = WARP / 2; lane > 0; lane /= 2) {
        above += __shfl_down_sync(ALL_LANES, above, lane);
        equal += __shfl_down_sync(ALL_LANES, equal, lane);
    }
    if (threadIdx.x % WARP == 0 && (above | equal) != 0) {
        atomicAdd(&counts[0], above);
        atomicAdd(&counts[1], equal);
    }
}

int count(void *context, const tw__list *list, uint32_t bits, int64_t *above, int64_t *equal) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    *above = *equal = 0;
    if (list->count == 0)
        return TW_OK;
    cudaError_t error = cudaMemsetAsync(d->counts, 0, 2 * sizeof *d->counts, stream_of(d));
    count_around<<<COUNT_BLOCKS, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, bits,
                                                                  d->counts);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, 2 * sizeof *d->counts,
                                cudaMemcpyDefault, stream_of(d));
    TW_TRY(finish(d, error, "counting entries"));
    *above = (int64_t)d->answer->number;
    *equal = (int64_t)d->answer->other;
    return TW_OK;
}

__global__ void count_all_bins(const tw__entry *entries, int64_t count, tw__bins bins,
                               uint32_t *counts) {
    __shared__ uint32_t own[TW__BINS];
    own[threadIdx.x] = 0; /* as many threads as bins */
    __syncthreads();
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        uint32_t bits = magnitude(entries[i].val);
        if (bits >= bins.lo && bits < bins.hi)
            atomicAdd(&own[tw__bin_of(&bins, bits)], 1);
    }
    __syncthreads();
    if (own[threadIdx.x] != 0)
        atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}

int count_bins(void *context, const tw__list *list, const tw__bins *bins, uint32_t *counts) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    size_t bytes = TW__BINS * sizeof *counts;
    memset(counts, 0, bytes);
    if (list->count == 0)
        return TW_OK;
    static_assert(LIST_THREADS == TW__BINS, "a thread for each bin");
    cudaError_t error = cudaMemsetAsync(d->bins, 0, bytes, stream_of(d));
    count_all_bins<<<COUNT_BLOCKS, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, *bins,
                                                                    d->bins);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(d->answer->bins, d->bins, bytes, cudaMemcpyDefault, stream_of(d));
    TW_TRY(finish(d, error, "counting magnitudes"));
    memcpy(counts, d->answer->bins, bytes);
    return TW_OK;
}

__global__ void pick_all(const tw__entry *entries, int64_t count, uint32_t lo, uint32_t hi,
                         uint32_t room, uint32_t *bits, unsigned long long *many) {
    for (int64_t i = thread_number(); i < count; i += thread_count()) {
        uint32_t here = magnitude(entries[i].val);
        if (here < lo || here >= hi)
            continue;
        unsigned long long at = atomicAdd(many, 1);
        if (at < room)
            bits[at] = here;
    }
}

int pick(void *context, const tw__list *list, uint32_t lo, uint32_t hi, int64_t room,
         uint32_t *bits, int64_t *many) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    *many = 0;
    if (list->count == 0)
        return TW_OK;
    int64_t most = room < list->count ? room : list->count;
    cudaError_t error = cudaMemsetAsync(d->counts, 0, sizeof *d->counts, stream_of(d));
    pick_all<<<COUNT_BLOCKS, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, lo, hi,
                                                              (uint32_t)most, d->orders, d->counts);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, sizeof *d->counts, cudaMemcpyDefault,
                                stream_of(d));
    TW_TRY(finish(d, error, "picking magnitudes"));
    *many = (int64_t)d->answer->number;
    most = most < *many ? most : *many;
    if (most > 0)
        error = cudaMemcpyAsync(bits, d->orders, sizeof *bits * (size_t)most,
                                cudaMemcpyDeviceToHost, stream_of(d));
    return finish(d, error, "picking magnitudes");
}

/* ---- the largest */

/* The best-th largest magnitude: 256 bins of an interval, then of the bin that has it, and so on. */
int find_edge(void *context, const tw__list *list, int64_t best, tw__edge *edge) {
    uint32_t counts[TW__BINS];
    tw__bins bins = {0, (uint32_t)1 << 31, 0, 0};
    edge->ties = best;
    for (int bits = 31; bits > 0; bits -= 8) {
        bins.shift = bits > 8 ? bits - 8 : 0;
        bins.base = bins.lo + ((uint32_t)1 << bins.shift);
        TW_TRY(count_bins(context, list, &bins, counts));
        uint32_t bin = TW__BINS - 1;
        while (bin > 0 && edge->ties > counts[bin])
            edge->ties -= counts[bin--];
        bins.lo += bin << bins.shift;
        bins.hi = bins.lo + ((uint32_t)1 << bins.shift);
    }
    edge->bits = bins.lo;
    return TW_OK;
}

__global__ void flag_ties(const tw__entry *entries, int64_t count, uint32_t bits, uint32_t *flags) {
    int64_t i = thread_number();
    if (i < count)
        flags[i] = magnitude(entries[i].val) == bits;
}

/* orders[i]: ties before i. */
__global__ void flag_taken(const tw__entry *entries, int64_t count, tw__edge edge,
                           const uint32_t *orders, bool inverse, uint8_t *flags) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    uint32_t here = magnitude(entries[i].val);
    bool taken = here > edge.bits || (here == edge.bits && (int64_t)orders[i] < edge.ties);
    flags[i] = taken != inverse;
}

/* The flagged ones, in order, by way of a buffer: to may overlap with from. */
int gather_flagged(tw__cuda_lists *d, const Word *from, int64_t count, tw__entry *to,
                   int64_t *many) {
    cudaError_t error =
        cub::DeviceSelect::Flagged(d->temporary, d->temporary_bytes, from, d->flags, d->words[1],
                                   d->counts, (int)count, stream_of(d));
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, sizeof *d->counts, cudaMemcpyDefault,
                                stream_of(d));
    TW_TRY(finish(d, error, "picking entries"));
    *many = (int64_t)d->answer->number;
    if (*many > 0)
        error = cudaMemcpyAsync(to, d->words[1], sizeof(Word) * (size_t)*many,
                                cudaMemcpyDeviceToDevice, stream_of(d));
    return failure(error, "picking entries");
}

int take(void *context, const tw__list *list, tw__edge edge, tw__entry *kept, tw__entry *dropped,
         int64_t *nkept) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    const Word *words = words_of(list->at);
    unsigned blocks = blocks_of(list->count);
    int64_t ndropped;
    flag_ties<<<blocks, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, edge.bits,
                                                         d->orders);
    cudaError_t error = cub::DeviceScan::ExclusiveSum(d->temporary, d->temporary_bytes, d->orders,
                                                      d->orders, (int)list->count, stream_of(d));
    TW_TRY(failure(error, "parting a list"));
    if (dropped != nullptr) { /* first: kept may be the list's own place */
        flag_taken<<<blocks, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, edge,
                                                              d->orders, true, d->flags);
        TW_TRY(gather_flagged(d, words, list->count, dropped, &ndropped));
    }
    flag_taken<<<blocks, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, edge, d->orders,
                                                          false, d->flags);
    TW_TRY(gather_flagged(d, words, list->count, kept, nkept));
    return finish(d, cudaSuccess, "parting a list");
}

/* ---- several lists */

/* The first of an index adds up all of them; zero sums are left out. */
__global__ void add_up(const Word *sorted, int64_t count, Word *sums, uint8_t *flags) {
    const tw__entry *entries = reinterpret_cast<const tw__entry *>(sorted);
    int64_t i = thread_number();
    if (i >= count)
        return;
    bool first = i == 0 || entries[i - 1].idx != entries[i].idx;
    flags[i] = 0;
    if (!first)
        return;
    float sum = 0.0f;
    for (int64_t j = i; j < count && entries[j].idx == entries[i].idx; j++)
        sum = __fadd_rn(sum, entries[j].val);
    reinterpret_cast<tw__entry *>(sums)[i] = tw__entry{entries[i].idx, sum};
    flags[i] = sum != 0.0f;
}

int reduce(void *context, const tw__list *runs, int nruns, tw__list *out) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    cudaError_t error = cudaSuccess;
    int64_t total = 0;
    for (int r = 0; r < nruns && error == cudaSuccess; r++) {
        if (runs[r].count > 0)
            error = cudaMemcpyAsync(d->words[0] + total, runs[r].at,
                                    sizeof(Word) * (size_t)runs[r].count, cudaMemcpyDeviceToDevice,
                                    stream_of(d));
        total += runs[r].count;
    }
    out->count = 0;
    if (total == 0)
        return TW_OK;
    cub::DoubleBuffer<Word> words(d->words[0], d->words[1]);
    if (error == cudaSuccess)
        error = cub::DeviceRadixSort::SortKeys(d->temporary, d->temporary_bytes, words, (int)total,
                                               0, INDEX_BITS, stream_of(d));
    if (error != cudaSuccess)
        return finish(d, error, "sorting entries");
    const Word *sorted = words.Current();
    Word *sums = words.Alternate();
    add_up<<<blocks_of(total), LIST_THREADS, 0, stream_of(d)>>>(sorted, total, sums, d->flags);
    error = cub::DeviceSelect::Flagged(d->temporary, d->temporary_bytes, sums, d->flags,
                                       words_of(out->at), d->counts, (int)total, stream_of(d));
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, sizeof *d->counts, cudaMemcpyDefault,
                                stream_of(d));
    TW_TRY(finish(d, error, "summing entries"));
    out->count = (int64_t)d->answer->number;
    return TW_OK;
}

__global__ void flag_shared(const tw__entry *a, int64_t na, const tw__entry *b, int64_t nb,
                            uint8_t *flags) {
    int64_t i = thread_number();
    if (i < na)
        flags[i] = has(b, nb, a[i].idx);
}

int intersect(void *context, const tw__list *a, const tw__list *b, tw__list *out) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    out->count = 0;
    if (a->count == 0 || b->count == 0)
        return TW_OK;
    flag_shared<<<blocks_of(a->count), LIST_THREADS, 0, stream_of(d)>>>(a->at, a->count, b->at,
                                                                        b->count, d->flags);
    TW_TRY(gather_flagged(d, words_of(a->at), a->count, out->at, &out->count));
    return finish(d, cudaSuccess, "intersecting lists");
}

/* Adds the weight of one run to the divisors of the entries that it has. */
__global__ void add_weight(const tw__entry *entries, int64_t count, const tw__entry *run,
                           int64_t nrun, float weight, float *divisors) {
    int64_t i = thread_number();
    if (i < count && has(run, nrun, entries[i].idx))
        divisors[i] = __fadd_rn(divisors[i], weight);
}

__global__ void divide_values(tw__entry *entries, int64_t count, const float *divisors) {
    int64_t i = thread_number();
    if (i < count)
        entries[i].val = __fdiv_rn(entries[i].val, divisors[i]);
}

int divide(void *context, const tw__list *list, const tw__list *runs, int nruns,
           const float *weights) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    float *divisors = reinterpret_cast<float *>(d->words[0]);
    if (list->count == 0)
        return TW_OK;
    unsigned blocks = blocks_of(list->count);
    cudaError_t error =
        cudaMemsetAsync(divisors, 0, sizeof *divisors * (size_t)list->count, stream_of(d));
    if (error != cudaSuccess)
        return finish(d, error, "dividing sums");
    for (int r = 0; r < nruns; r++)
        add_weight<<<blocks, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, runs[r].at,
                                                              runs[r].count, weights[r], divisors);
    divide_values<<<blocks, LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, divisors);
    return finish(d, cudaGetLastError(), "dividing sums");
}

/* ---- plain memory */

int move(void *context, tw__entry *to, const tw__entry *from, int64_t count) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    size_t bytes = sizeof *to * (size_t)count;
    cudaError_t error = cudaSuccess;
    if (count == 0 || to == from)
        return TW_OK;
    if (from < to + count && to < from + count) { /* they overlap */
        error = cudaMemcpyAsync(d->words[1], from, bytes, cudaMemcpyDeviceToDevice, stream_of(d));
        from = reinterpret_cast<const tw__entry *>(d->words[1]);
    }
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(d));
    return finish(d, error, "moving entries");
}

__global__ void copy_values(const tw__entry *entries, int64_t count, float *val) {
    int64_t i = thread_number();
    if (i < count)
        val[i] = entries[i].val;
}

int get_values(void *context, const tw__list *list, float *val) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    if (list->count == 0)
        return TW_OK;
    copy_values<<<blocks_of(list->count), LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count,
                                                                           val);
    return finish(d, cudaSuccess, "copying values");
}

__global__ void replace_values(tw__entry *entries, int64_t count, const float *val) {
    int64_t i = thread_number();
    if (i < count)
        entries[i].val = val[i];
}

int set_values(void *context, const tw__list *list, const float *val) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    if (list->count == 0)
        return TW_OK;
    replace_values<<<blocks_of(list->count), LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count,
                                                                              val);
    return finish(d, cudaSuccess, "rounding values");
}

__global__ void flag_rest(const tw__entry *entries, int64_t count, const float *val, Word *words,
                          uint8_t *flags) {
    int64_t i = thread_number();
    if (i >= count)
        return;
    float rest = __fsub_rn(entries[i].val, val[i]);
    reinterpret_cast<tw__entry *>(words)[i] = tw__entry{entries[i].idx, rest};
    flags[i] = rest != 0.0f;
}

int subtract(void *context, const tw__list *list, const float *val, tw__list *out) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    int64_t many = 0;
    if (list->count == 0)
        return TW_OK;
    flag_rest<<<blocks_of(list->count), LIST_THREADS, 0, stream_of(d)>>>(list->at, list->count, val,
                                                                         d->words[0], d->flags);
    TW_TRY(gather_flagged(d, d->words[0], list->count, out->at + out->count, &many));
    TW_TRY(finish(d, cudaSuccess, "keeping what rounding took"));
    out->count += many;
    return TW_OK;
}

int peek(void *context, const void *from, size_t bytes, void *to) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    return finish(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_of(d)),
                  "looking at a message");
}

int poke(void *context, void *to, const void *from, size_t bytes) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    return finish(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(d)),
                  "beginning a message");
}

__global__ void make_nan(tw__entry *entry) {
    entry->val = __uint_as_float(TW__MAGNITUDE_MASK);
}

int spoil(void *context, tw__entry *entry) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    make_nan<<<1, 1, 0, stream_of(d)>>>(entry);
    return finish(d, cudaSuccess, "refusing a step");
}

__global__ void put_in_place(const tw__entry *entries, int64_t count, int64_t lo, float *plain) {
    int64_t i = thread_number();
    if (i < count)
        plain[entries[i].idx - lo] = entries[i].val;
}

int spread(void *context, const tw__list *list, int64_t lo, float *plain, int64_t range) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    cudaError_t error = cudaMemsetAsync(plain, 0, sizeof *plain * (size_t)range, stream_of(d));
    if (list->count > 0)
        put_in_place<<<blocks_of(list->count), LIST_THREADS, 0, stream_of(d)>>>(
            list->at, list->count, lo, plain);
    return finish(d, error, "writing a plain vector");
}

__global__ void flag_entries(const float *plain, int64_t lo, int64_t range, Word *words,
                             uint8_t *flags) {
    int64_t i = thread_number();
    if (i >= range)
        return;
    reinterpret_cast<tw__entry *>(words)[i] = tw__entry{(int32_t)(lo + i), plain[i]};
    flags[i] = plain[i] != 0.0f;
}

/* A range is no longer than what the calls work on: dsa sends it plain where it is shorter. */
int collect(void *context, const float *plain, int64_t lo, int64_t range, int64_t room,
            tw__entry *to, int64_t *count) {
    tw__cuda_lists *d = of(context);
    Guard guard(d->stream->ordinal);
    *count = 0;
    if (range == 0)
        return TW_OK;
    flag_entries<<<blocks_of(range), LIST_THREADS, 0, stream_of(d)>>>(plain, lo, range, d->words[0],
                                                                      d->flags);
    cudaError_t error =
        cub::DeviceSelect::Flagged(d->temporary, d->temporary_bytes, d->words[0], d->flags,
                                   d->words[1], d->counts, (int)range, stream_of(d));
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&d->answer->number, d->counts, sizeof *d->counts, cudaMemcpyDefault,
                                stream_of(d));
    TW_TRY(finish(d, error, "reading a plain vector"));
    *count = (int64_t)d->answer->number;
    return *count > room ? TW_OK
                         : move(context, to, reinterpret_cast<tw__entry *>(d->words[1]), *count);
}

/* ---- create and free */

/* CUB's own memory, at its most. */
cudaError_t temporary_of(int64_t most, size_t *bytes) {
    cub::DoubleBuffer<Word> words;
    size_t need = 0;
    *bytes = 1;
    cudaError_t error =
        cub::DeviceRadixSort::SortKeys(nullptr, need, words, (int)most, 0, INDEX_BITS);
    *bytes = need > *bytes ? need : *bytes;
    if (error == cudaSuccess)
        error =
            cub::DeviceSelect::Flagged(nullptr, need, (const Word *)nullptr, (uint8_t *)nullptr,
                                       (Word *)nullptr, (unsigned long long *)nullptr, (int)most);
    *bytes = need > *bytes ? need : *bytes;
    if (error == cudaSuccess)
        error = cub::DeviceScan::ExclusiveSum(nullptr, need, (uint32_t *)nullptr,
                                              (uint32_t *)nullptr, (int)most);
    *bytes = need > *bytes ? need : *bytes;
    if (error == cudaSuccess)
        error = cub::DeviceScan::InclusiveSum(nullptr, need, (uint32_t *)nullptr,
                                              (uint32_t *)nullptr, (int)most);
    *bytes = need > *bytes ? need : *bytes;
    if (error == cudaSuccess)
        error = cub::DeviceScan::InclusiveSum(nullptr, need, (Word *)nullptr, (Word *)nullptr,
                                              (int)most);
    *bytes = need > *bytes ? need : *bytes;
    return error;
}

template <typename T> cudaError_t obtain(cudaError_t error, T **array, int64_t count) {
    if (error != cudaSuccess)
        return error;
    return cudaMalloc(reinterpret_cast<void **>(array), sizeof(T) * (size_t)count);
}

} // namespace

size_t tw__cuda_lists_memory(int64_t most, int runs) {
    (void)runs;
    return (size_t)most * (2 * sizeof(Word) + sizeof(uint8_t) + sizeof(uint32_t)) +
           (size_t)most * sizeof(Word); /* CUB's, about */
}

int tw__cuda_lists_create(void **context, tw__stream *stream, int64_t most, int runs) {
    (void)runs;
    Guard guard(stream->ordinal);
    if (most > INT32_MAX)
        return tw__fail(TW_ERR_SIZE,
                        "a step would have %lld entries on the GPU; lower k, or merge "
                        "fewer tensors into a bucket",
                        (long long)most);
    tw__cuda_lists *d = static_cast<tw__cuda_lists *>(calloc(1, sizeof *d));
    if (d == nullptr)
        return tw__fail(TW_ERR_MEMORY, "no memory for work on lists");
    *context = d;
    d->stream = stream;
    d->most = most;
    cudaError_t error = temporary_of(most, &d->temporary_bytes);
    error = obtain(error, &d->words[0], most);
    error = obtain(error, &d->words[1], most);
    error = obtain(error, &d->flags, most);
    error = obtain(error, &d->orders, most);
    error = obtain(error, &d->bins, TW__BINS);
    error = obtain(error, &d->counts, 2);
    error = obtain(error, reinterpret_cast<char **>(&d->temporary), (int64_t)d->temporary_bytes);
    if (error == cudaSuccess)
        error = cudaHostAlloc(reinterpret_cast<void **>(&d->answer), sizeof(Answer),
                              cudaHostAllocMapped | cudaHostAllocPortable);
    return failure(error, "the workspace of an exchange");
}

void tw__cuda_lists_free(void *context) {
    tw__cuda_lists *d = of(context);
    if (d == nullptr)
        return;
    if (is_at_work(d->stream)) {
        free(d);
        return;
    }
    Guard guard(d->stream->ordinal);
    (void)cudaFree(d->words[0]);
    (void)cudaFree(d->words[1]);
    (void)cudaFree(d->flags);
    (void)cudaFree(d->orders);
    (void)cudaFree(d->bins);
    (void)cudaFree(d->counts);
    (void)cudaFree(d->temporary);
    (void)cudaFreeHost(d->answer);
    free(d);
}

const tw__list_calls tw__lists_cuda = {
    cut,        find_misfit, find_edge, take, reduce, intersect, count,  count_bins, pick,   move,
    get_values, set_values,  subtract,  peek, poke,   spoil,     spread, collect,    divide,
};
