/* selector.cu - a selector on a GPU, the host's side: its memory and its state; queue.cu has its steps */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/selector.cuh"
#include "select/selector.h"

#include <cstdlib>

using namespace tw;

/* ---- memory: what a selector needs, in elements */

struct Extents {
    int64_t tiles, padded, chunks, chosen, sample, marks, pieces;
};

static bool takes_sums(int method, const tw_select_params &p) {
    return wants_sums(method) || p.clip_norm != 0.0f || p.decay != 0.0f;
}

static Extents extents_of(int64_t n, int pieces, int64_t k_max, int method,
                          const tw_select_params &p) {
    Extents e = {};
    e.tiles = (n + TILE - 1) / TILE;
    e.padded = e.tiles * TILE;
    e.chunks = tw__chunks(n);
    e.chosen = tw__at_most(TW__MOST * k_max, n);
    e.sample = tw__sample_of(n, method == DGC ? p.dgc_sample : 0.0);
    e.marks = method == RANDOM ? n / 32 + 1 : 0;
    e.pieces = pieces > 1 ? pieces : 0;
    return e;
}

/* Obtains arrays, or only counts their bytes. */
class Supply {
  public:
    Supply(bool counting, cudaStream_t stream) : counting_(counting), stream_(stream) {
    }
    template <typename T> size_t take(T **array, int64_t count) {
        size_t size = (size_t)count * sizeof(T);
        if (count == 0 || counting_ || error != cudaSuccess)
            return size;
        error = cudaMalloc(reinterpret_cast<void **>(array), size);
        if (error == cudaSuccess)
            error = cudaMemsetAsync(*array, 0, size, stream_);
        return size;
    }
    cudaError_t error = cudaSuccess;

  private:
    bool counting_;
    cudaStream_t stream_; /* on which it is cleared, before all that uses it */
};

/* All device memory of a selector whose method is known; *memory gets its bytes. */
static cudaError_t supply(tw__cuda_selector *d, const Extents &e, const tw_select_params &p,
                          bool counting, tw_memory *memory) {
    Supply from(counting, d->stream);
    bool feedback = p.feedback == TW_FEEDBACK_ON;
    int64_t second = p.before == TW_BEFORE_ADAMW ? e.padded : 0;
    int64_t first = p.momentum != 0.0f ? e.padded : second;
    Step &s = d->step;
    memory->residual = from.take(&d->residual[0], feedback ? e.padded : 0);
    memory->undo = from.take(&d->residual[1], feedback ? e.padded : 0);
    memory->moments = from.take(&d->first[0], first) + from.take(&d->first[1], first) +
                      from.take(&d->second[0], second) + from.take(&d->second[1], second);
    memory->workspace =
        from.take(&d->learned[0], 1) + from.take(&d->learned[1], 1) + from.take(&s.scratch, 1) +
        from.take(&s.slot_idx, e.tiles * SLOTS) + from.take(&s.slot_val, e.tiles * SLOTS) +
        from.take(&s.slot_count, e.tiles) +
        from.take(&s.sums, takes_sums(s.method, p) ? e.chunks : 0) +
        from.take(&s.totals, MOST_BLOCKS) + from.take(&s.marks, e.marks) +
        from.take(&d->sample_values, e.sample) + from.take(&s.chosen_idx, e.chosen) +
        from.take(&s.chosen_val, e.chosen) + from.take(&d->entries, e.chosen) +
        from.take(&d->tables[GRADIENTS], e.pieces) + from.take(&d->tables[FLOATS], e.pieces) +
        from.take(&d->piece_of_tile, e.pieces > 0 ? e.tiles + 1 : 0);
    memory->total = memory->residual + memory->undo + memory->moments + memory->workspace;
    return from.error;
}

int tw__cuda_selector_memory(int64_t n, int pieces, const tw_select_params *params,
                             const struct tw__method *method, tw_memory *memory, size_t *scratch) {
    tw__cuda_selector none = {};
    (void)method;
    *scratch = 0;
    none.step.method = method_named(params->method);
    (void)supply(&none, extents_of(n, pieces, tw__k_max(params, n), none.step.method, *params),
                 *params, true, memory);
    return TW_OK;
}

/* ---- create and free */

static Rules rules_of(const tw_select_params &p) {
    return Rules{p.reuse_low,    p.reuse_high,      p.reuse_nudge,
                 p.reuse_period, p.gaussian_rounds, p.clip_norm};
}

/* Tables of pieces, for gradients and outs that lie in several. */
static cudaError_t fill_tables(tw__cuda_selector *d, const Extents &e) {
    if (e.pieces == 0)
        return cudaSuccess;
    size_t bytes = sizeof(int32_t) * (size_t)(e.tiles + 1);
    int32_t *of_tile = static_cast<int32_t *>(malloc(bytes));
    if (of_tile == nullptr)
        return cudaErrorMemoryAllocation;
    for (int64_t tile = 0; tile < e.tiles; tile++)
        of_tile[tile] = tw__piece_of(d->pieces, tile * TILE);
    of_tile[e.tiles] = d->pieces->count - 1;
    cudaError_t error = /* after it was cleared */
        cudaMemcpyAsync(d->piece_of_tile, of_tile, bytes, cudaMemcpyHostToDevice, d->stream);
    free(of_tile);
    d->host_tables = static_cast<Piece *>(calloc(2 * (size_t)e.pieces, sizeof *d->host_tables));
    return d->host_tables == nullptr ? cudaErrorMemoryAllocation : error;
}

static cudaError_t fill(tw__cuda_selector *d, const Extents &e, int64_t k_max,
                        const tw_select_params &p) {
    tw_memory memory;
    int multiprocessors = 0;
    void *report = nullptr;
    cudaError_t error =
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, p.ordinal);
    if (error == cudaSuccess)
        error = prepare_choose(p.ordinal, &d->stage);
    if (error == cudaSuccess)
        error = cudaHostAlloc(&report, sizeof(Report), cudaHostAllocMapped);
    if (error == cudaSuccess)
        error = supply(d, e, p, false, &memory);
    if (error == cudaSuccess)
        error = fill_tables(d, e);
    d->step.report = static_cast<Report *>(report);
    if (report != nullptr)
        *d->step.report = Report{0, 0, 0, -1, 0, 0, -1, 0.0};
    d->blocks = blocks_for(e.padded, k_max, 256, multiprocessors);
    /* What its tiles can have at most: other kernels find room beside it then. */
    d->stage = tw__at_most(d->stage, (e.tiles + d->blocks - 1) / d->blocks * SLOTS);
    return error;
}

int tw__cuda_selector_create(void **state, const tw__pieces *pieces, const tw_select_params *params,
                             const struct tw__method *method, tw__stream *stream,
                             const tw__scratch *scratch) {
    int64_t n = pieces->starts[pieces->count], k_max = tw__k_max(params, n);
    (void)method, (void)scratch;
    TW_TRY(tw__cuda_check_device(params->ordinal));
    TW_TRY(failure(retain_context(params->ordinal), "ordinal"));
    Guard guard(params->ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    tw__cuda_selector *d = static_cast<tw__cuda_selector *>(calloc(1, sizeof *d));
    if (d == nullptr)
        return tw__fail(TW_ERR_MEMORY, "no memory for a selector");
    d->step.method = method_named(params->method);
    Extents e = extents_of(n, pieces->count, k_max, d->step.method, *params);
    d->params = *params;
    d->pieces = pieces;
    d->group = stream;
    d->stream = stream != nullptr ? stream->native : static_cast<cudaStream_t>(params->stream);
    d->sample = e.sample;
    d->nentries = e.chosen;
    d->cold = true;
    d->step.n = n;
    d->step.tiles = (int)e.tiles;
    d->step.rules = rules_of(*params);
    cudaError_t error = fill(d, e, k_max, *params);
    if (error != cudaSuccess) {
        tw__cuda_selector_free(d);
        return failure(error, "creating a selector");
    }
    *state = d;
    return TW_OK;
}

void tw__cuda_selector_free(void *state) {
    tw__cuda_selector *d = selector_of(state);
    if (d == nullptr)
        return;
    Step &s = d->step;
    if (d->group != nullptr && is_at_work(d->group)) {
        free(d);
        return;
    }
    Guard guard(d->params.ordinal);
    if (d->group == nullptr)
        (void)cudaStreamSynchronize(d->stream);
    void *arrays[] = {d->residual[0],   d->residual[1],  d->first[0],   d->first[1], d->second[0],
                      d->second[1],     d->learned[0],   d->learned[1], s.scratch,   s.slot_idx,
                      s.slot_val,       s.slot_count,    s.sums,        s.totals,    s.marks,
                      d->sample_values, s.chosen_idx,    s.chosen_val,  d->entries,  d->tables[0],
                      d->tables[1],     d->piece_of_tile};
    for (void *array : arrays)
        (void)cudaFree(array);
    (void)cudaFreeHost(s.report);
    free(d->host_tables);
    (void)cudaGetLastError();
    free(d);
}

/* ---- waits: of a group in a step, with its deadline; else for the caller's stream */

static int await_stream(cudaStream_t stream) {
    return failure(cudaStreamSynchronize(stream), "waiting for the stream");
}

int tw::await_selector(const tw__cuda_selector *d) {
    return d->group != nullptr ? await(d->group) : await_stream(d->stream);
}

/* Between steps. */
static int await_state(const tw__cuda_selector *d) {
    return d->group != nullptr ? await_outside(d->group) : await_stream(d->stream);
}

/* ---- state */

static float *vector_of(tw__cuda_selector *d, tw__vector which) {
    float *const *copies = which == TW__RESIDUAL ? d->residual
                           : which == TW__FIRST  ? d->first
                                                 : d->second;
    return copies[d->now];
}

static int copy(tw__cuda_selector *d, float *to, const float *from, int64_t count,
                cudaMemcpyKind kind) {
    size_t bytes = sizeof(float) * (size_t)count;
    TW_TRY(failure(cudaMemcpyAsync(to, from, bytes, kind, d->stream), "copying a residual"));
    return await_state(d);
}

/* Entries that the last step has sent leave the residual now, and not in the next step's pass. */
static int settle(tw__cuda_selector *d) {
    return failure(launch_settle(d->residual[d->now], d->step.n, d->learned[d->now], d->stream),
                   "settling a residual");
}

int tw__cuda_get(void *state, tw__vector which, int64_t first, int64_t count, float *to) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    TW_TRY(await_state(d));                  /* to copy would wait without a deadline */
    if (which == TW__RESIDUAL && first == 0) /* once for all pieces of it */
        TW_TRY(settle(d));
    return copy(d, to, vector_of(d, which) + first, count, cudaMemcpyDeviceToHost);
}

int tw__cuda_set(void *state, tw__vector which, const float *from) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    if (which == TW__RESIDUAL) /* or what replaces entries that were sent would leave with them */
        TW_TRY(settle(d));
    return copy(d, vector_of(d, which), from, d->step.n, cudaMemcpyHostToDevice);
}

static int clear(tw__cuda_selector *d, void *memory, size_t bytes) {
    return failure(cudaMemsetAsync(memory, 0, bytes, d->stream), "clearing memory");
}

int tw__cuda_reset(void *state) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    size_t bytes = sizeof(float) * (size_t)d->step.n;
    for (float *vector : {d->residual[d->now], d->first[d->now], d->second[d->now]})
        if (vector != nullptr)
            TW_TRY(clear(d, vector, bytes));
    d->cold = true;
    return clear(d, d->learned[d->now], sizeof(Learned));
}

/* Guesses are the GPU's own; what reuse goes by is common to all backends. */
int tw__cuda_get_learned(void *state, tw__learned *learned) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    Learned from = {};
    TW_TRY(await_state(d));
    TW_TRY(failure(
        cudaMemcpyAsync(&from, d->learned[d->now], sizeof from, cudaMemcpyDeviceToHost, d->stream),
        "reading thresholds"));
    TW_TRY(await_state(d));
    *learned = tw__learned{};
    learned->threshold = from.threshold;
    learned->age = from.age;
    return TW_OK;
}

/* The first guess is made anew: from a sample, or from the threshold where that is reused. */
int tw__cuda_set_learned(void *state, const tw__learned *learned) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    Learned to = {};
    to.threshold = learned->threshold;
    to.age = learned->age;
    d->cold = true;
    /* What was sent is known by what is overwritten here. */
    if (d->residual[d->now] != nullptr)
        TW_TRY(settle(d));
    TW_TRY(failure(
        cudaMemcpyAsync(d->learned[d->now], &to, sizeof to, cudaMemcpyHostToDevice, d->stream),
        "writing thresholds"));
    return await_state(d);
}
