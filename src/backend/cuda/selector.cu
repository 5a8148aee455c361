/* selector.cu - a selector on a GPU, the host's side: memory, and the launches of a step
 *
 *   run     clip -> sample (first step) -> fold -> sums -> choose      all queued on the stream
 *   wait    the report of the last step, which choose wrote into the host's memory
 *   commit  the other copies of residual, velocity and thresholds become the current ones
 *   undo    they do not
 */
#include "base/random.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/selector.cuh"
#include "backend/cpu/extent.h"

#include <cmath>
#include <cstdlib>

using namespace tw;

/* ---- memory: what a selector needs, in elements */

struct Extents {
    int64_t tiles, padded, chunks, chosen, sample, marks;
};

static bool is(const tw_select_params &p, const char *method) {
    return strcmp(p.method, method) == 0;
}

/* Of acc, for the method; clipping takes sums of the gradient before the pass. */
static bool wants_sums(const tw_select_params &p) {
    return is(p, "gaussian") || is(p, "redsync");
}

static Extents extents_of(int64_t n, int64_t k_max, const tw_select_params &p) {
    Extents e = {};
    e.tiles = (n + TILE - 1) / TILE;
    e.padded = e.tiles * TILE;
    e.chunks = tw__chunks(n);
    e.chosen = tw__at_most(TW__MOST * k_max, n);
    e.sample = tw__sample_of(n, is(p, "dgc") ? p.dgc_sample : 0.0);
    e.marks = is(p, "random") ? n / 32 + 1 : 0;
    return e;
}

/* Obtains arrays, or only counts their bytes. */
class Supply {
  public:
    Supply(bool counting) : counting_(counting) {
    }
    template <typename T> size_t take(T **array, int64_t count) {
        size_t size = (size_t)count * sizeof(T);
        if (count == 0 || counting_ || error != cudaSuccess)
            return size;
        error = cudaMalloc(reinterpret_cast<void **>(array), size);
        if (error == cudaSuccess)
            error = cudaMemset(*array, 0, size);
        return size;
    }
    cudaError_t error = cudaSuccess;

  private:
    bool counting_;
};

/* All device memory of a selector; *memory gets its bytes. */
static cudaError_t supply(tw__device_selector *d, const Extents &e, const tw_select_params &p,
                          bool counting, tw_memory *memory) {
    Supply from(counting);
    bool feedback = p.feedback == TW_FEEDBACK_ON;
    int64_t velocity = p.momentum != 0.0f ? e.padded : 0;
    Step &s = d->step;
    memory->residual = from.take(&d->residual[0], feedback ? e.padded : 0);
    memory->undo = from.take(&d->residual[1], feedback ? e.padded : 0);
    memory->velocity = from.take(&d->velocity[0], velocity) + from.take(&d->velocity[1], velocity);
    memory->workspace =
        from.take(&d->learned[0], 1) + from.take(&d->learned[1], 1) + from.take(&s.scratch, 1) +
        from.take(&s.slot_idx, e.tiles * SLOTS) + from.take(&s.slot_val, e.tiles * SLOTS) +
        from.take(&s.slot_count, e.tiles) +
        from.take(&s.sums, wants_sums(p) || p.clip_norm != 0.0f ? e.chunks : 0) +
        from.take(&s.totals, MOST_BLOCKS) + from.take(&s.marks, e.marks) +
        from.take(&d->sample_values, e.sample) + from.take(&s.chosen_idx, e.chosen) +
        from.take(&s.chosen_val, e.chosen) + from.take(&d->entries, e.chosen);
    memory->total = memory->residual + memory->undo + memory->velocity + memory->workspace;
    return from.error;
}

int tw__device_memory(int64_t n, int64_t k_max, const tw_select_params *params, tw_memory *memory) {
    tw__device_selector none = {};
    (void)supply(&none, extents_of(n, k_max, *params), *params, true, memory);
    return TW_OK;
}

/* ---- create and free */

int tw__device_check(int ordinal) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return tw__fail(TW_ERR_DEVICE, "device: no GPU can be used here: %s",
                        error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    }
    if (ordinal < 0 || ordinal >= count)
        return tw__fail(TW_ERR_DEVICE, "ordinal: %d; accepted is 0 .. %d", ordinal, count - 1);
    return TW_OK;
}

/* Few where there is little to choose from, since they wait for each other; but reading all elements
 * again, where that is needed, must not take too long. */
static int blocks_for(int64_t n, int64_t k_max, int multiprocessors) {
    const int64_t CANDIDATES = 256, ELEMENTS = 512 * 1024; /* of a block */
    int64_t wanted = 1 + 2 * k_max / CANDIDATES, least = 1 + n / ELEMENTS;
    return (int)tw__at_most(wanted > least ? wanted : least,
                            tw__at_most(multiprocessors, MOST_BLOCKS));
}

static cudaError_t fill(tw__device_selector *d, const Extents &e, int64_t k_max,
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
        error = cudaDeviceSynchronize(); /* memory was cleared on another stream */
    d->step.report = static_cast<Report *>(report);
    if (report != nullptr)
        *d->step.report = Report{0, 0, 0, -1, 0, 0, -1};
    d->blocks = blocks_for(e.padded, k_max, multiprocessors);
    /* What its tiles can have at most: other kernels find room beside it then. */
    d->stage = tw__at_most(d->stage, (e.tiles + d->blocks - 1) / d->blocks * SLOTS);
    return error;
}

int tw__device_create(tw__device_selector **selector, int64_t n, int64_t k_max,
                      const tw_select_params *params) {
    TW_TRY(tw__device_check(params->ordinal));
    Guard guard(params->ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    tw__device_selector *d = static_cast<tw__device_selector *>(calloc(1, sizeof *d));
    if (d == nullptr)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are not to be had", sizeof *d);
    Extents e = extents_of(n, k_max, *params);
    d->params = *params;
    d->stream = static_cast<cudaStream_t>(params->stream);
    d->sample = e.sample;
    d->nentries = e.chosen;
    d->cold = true;
    d->step.n = n;
    d->step.tiles = (int)e.tiles;
    d->step.params = *params;
    cudaError_t error = fill(d, e, k_max, *params);
    if (error != cudaSuccess) {
        tw__device_free(d);
        return failure(error, "creating a selector");
    }
    *selector = d;
    return TW_OK;
}

void tw__device_free(tw__device_selector *d) {
    if (d == nullptr)
        return;
    Guard guard(d->params.ordinal);
    Step &s = d->step;
    (void)cudaStreamSynchronize(d->stream);
    void *arrays[] = {d->residual[0], d->residual[1],   d->velocity[0], d->velocity[1],
                      d->learned[0],  d->learned[1],    s.scratch,      s.slot_idx,
                      s.slot_val,     s.slot_count,     s.sums,         s.totals,
                      s.marks,        d->sample_values, s.chosen_idx,   s.chosen_val,
                      d->entries};
    for (void *array : arrays)
        (void)cudaFree(array);
    (void)cudaFreeHost(s.report);
    (void)cudaGetLastError();
    free(d);
}

/* ---- steps of a group's small tensors are queued together */

static bool goes_together(const tw__device_selector *d) {
    constexpr int MOST_TILES = 16; /* a block chooses among their candidates in no time */
    return d->lane != nullptr && d->step.tiles <= MOST_TILES &&
           (is(d->params, "exact") || is(d->params, "reuse"));
}

static cudaError_t queue_waiting(tw__device_stream *l) {
    Steps &steps = l->waiting;
    cudaError_t error = cudaSuccess;
    if (steps.count > 0)
        error = launch_fold_each(steps, l->stream);
    if (steps.count > 0 && error == cudaSuccess)
        error = launch_choose_each(steps, l->stream);
    steps.count = 0;
    return error;
}

static cudaError_t let_wait(tw__device_stream *l, const Step &s) {
    Steps &steps = l->waiting;
    const Step &first = steps.at[0];
    bool alike = steps.count == 0 || (first.source.type == s.source.type &&
                                      strcmp(first.params.method, s.params.method) == 0);
    cudaError_t error = cudaSuccess;
    if (steps.count == TOGETHER || !alike)
        error = queue_waiting(l);
    steps.at[steps.count++] = s;
    return error;
}

void tw__device_join(tw__device_selector *d, tw__device_stream *l) {
    d->lane = l;
}

int tw__stream_begin(tw__device_stream *l) {
    Guard guard(l->ordinal);
    l->waiting.count = 0;
    return failure(cudaEventRecord(l->begin, l->stream), "measuring time");
}

int tw__stream_end(tw__device_stream *l) {
    Guard guard(l->ordinal);
    TW_TRY(failure(queue_waiting(l), "queueing steps on the stream"));
    return failure(cudaEventRecord(l->end, l->stream), "measuring time");
}

int tw__stream_took(tw__device_stream *l, double *seconds) {
    Guard guard(l->ordinal);
    float milliseconds = 0.0f;
    TW_TRY(failure(cudaEventElapsedTime(&milliseconds, l->begin, l->end), "measuring time"));
    *seconds = 1e-3 * (double)milliseconds;
    return TW_OK;
}

/* ---- one step */

int tw__device_pointer(const void *pointer, const char *name, int ordinal, size_t element) {
    cudaPointerAttributes at = {};
    if (cudaPointerGetAttributes(&at, pointer) != cudaSuccess) {
        (void)cudaGetLastError();
        at.type = cudaMemoryTypeUnregistered;
    }
    if (at.type != cudaMemoryTypeDevice && at.type != cudaMemoryTypeManaged)
        return tw__fail(TW_ERR_DEVICE, "%s: is memory of the host; give memory of GPU %d", name,
                        ordinal);
    if (at.type == cudaMemoryTypeDevice && at.device != ordinal)
        return tw__fail(TW_ERR_DEVICE, "%s: is memory of GPU %d; give memory of GPU %d", name,
                        at.device, ordinal);
    if (reinterpret_cast<uintptr_t>(pointer) % element != 0)
        return tw__fail(TW_ERR_DEVICE, "%s: is not aligned to its elements of %zu bytes", name,
                        element);
    return TW_OK;
}

/* The current copies are read, the others written. */
static void aim(tw__device_selector *d, const void *grad) {
    Step &s = d->step;
    size_t element = d->params.type == TW_F32 ? 4 : 2;
    s.residual = d->residual[d->now];
    s.acc = d->residual[1 - d->now];
    s.learned = d->learned[d->now];
    s.next = d->learned[1 - d->now];
    s.source = Source{};
    s.source.grad = grad;
    s.source.velocity = d->velocity[d->now];
    s.source.next_velocity = d->velocity[1 - d->now];
    s.source.scale = d->params.clip_norm != 0.0f ? &s.scratch->scale : nullptr;
    s.source.momentum = d->params.momentum;
    s.source.type = d->params.type;
    s.source.aligned = reinterpret_cast<uintptr_t>(grad) % (4 * element) == 0;
}

/* The rank in the sample that corresponds to `rank` among n. */
static int64_t rank_in_sample(const tw__device_selector *d, double rank) {
    double count = (double)tw__at_most(d->sample, d->step.n);
    double at = rank * count / (double)d->step.n;
    return at < 1.0 ? 1 : at > count ? (int64_t)count : (int64_t)at;
}

/* The first guess lets 2k pass, and more where the sample is too small to tell. */
static cudaError_t guess_first(tw__device_selector *d) {
    double expected = 2.0 * (double)d->step.k * (double)d->sample / (double)d->step.n;
    double rank = (expected + 2.0 * sqrt(expected)) * (double)d->step.n / (double)d->sample;
    return launch_sample(d->step, d->sample, rank_in_sample(d, rank), false, d->blocks,
                         d->sample_values, d->stream);
}

/* Every step of a method starts from the pass; random collects nothing in it but bad numbers. */
static cudaError_t queue(tw__device_selector *d) {
    const Step &s = d->step;
    bool draws = is(d->params, "random");
    cudaError_t error = cudaSuccess;
    if (d->params.clip_norm != 0.0f)
        error = launch_clip(s, d->stream);
    if (error == cudaSuccess && d->cold)
        error = draws ? set_guess(s, TW__INFINITY_BITS, d->stream) : guess_first(d);
    if (error == cudaSuccess && goes_together(d))
        return let_wait(d->lane, s);
    if (error == cudaSuccess)
        error = launch_fold(s, d->stream);
    if (error == cudaSuccess && wants_sums(d->params))
        error = launch_sums(s, d->stream);
    if (error == cudaSuccess && is(d->params, "dgc"))
        error = launch_sample(s, d->sample, rank_in_sample(d, (double)s.k), true, d->blocks,
                              d->sample_values, d->stream);
    if (error == cudaSuccess)
        error = draws ? launch_draw(s, d->blocks, d->stream)
                      : launch_choose(s, d->blocks, d->stage, d->stream);
    return error;
}

int tw__device_run(tw__device_selector *d, const void *grad, const tw__device_plan *plan,
                   tw_sparse *sparse) {
    Guard guard(d->params.ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    TW_TRY(tw__device_pointer(grad, "grad", d->params.ordinal, d->params.type == TW_F32 ? 4 : 2));
    aim(d, grad);
    d->step.k = plan->k;
    d->step.next_k = plan->next_k;
    d->step.k_changed = plan->k_changed;
    d->step.k_changes = plan->k_changes;
    d->step.key = tw__random(d->params.seed, (uint64_t)plan->step);
    TW_TRY(failure(queue(d), "queueing a step on the stream"));
    *sparse = tw_sparse{-1, d->step.chosen_idx, d->step.chosen_val};
    return TW_OK;
}

int tw__device_wait(tw__device_selector *d, tw_select_info *info) {
    Guard guard(d->params.ordinal);
    TW_TRY(failure(cudaStreamSynchronize(d->stream), "waiting for the stream"));
    const Report &r = *d->step.report;
    info->count = r.count;
    info->candidates = r.candidates;
    info->rescans = r.rescans;
    info->bad_index = r.bad_index;
    info->refused = r.refused;
    memcpy(&info->threshold, &r.smallest, sizeof info->threshold);
    return TW_OK;
}

int tw__device_commit(tw__device_selector *d) {
    Guard guard(d->params.ordinal);
    if (is(d->params, "random")) /* no threshold tells the next pass what was sent */
        TW_TRY(failure(launch_leave(d->step, nullptr, 0, d->stream), "ending a step"));
    if (d->velocity[0] != nullptr)
        TW_TRY(failure(launch_clear_velocity(d->step, nullptr, 0, d->stream), "ending a step"));
    d->now = 1 - d->now;
    d->cold = false;
    return TW_OK;
}

int tw__device_commit_part(tw__device_selector *d, const int32_t *idx, int64_t count) {
    Guard guard(d->params.ordinal);
    if (count > 0)
        TW_TRY(tw__device_pointer(idx, "idx", d->params.ordinal, sizeof *idx));
    TW_TRY(failure(launch_check_part(d->step, idx, count, d->stream), "ending a step"));
    TW_TRY(failure(cudaStreamSynchronize(d->stream), "waiting for the stream"));
    if (d->step.report->wrong_part >= 0)
        return tw__fail(TW_ERR_INDEX, "idx: entry %lld is not an ascending part of the selection",
                        (long long)d->step.report->wrong_part);
    TW_TRY(failure(launch_leave(d->step, idx, count, d->stream), "ending a step"));
    if (d->velocity[0] != nullptr && count > 0)
        TW_TRY(failure(launch_clear_velocity(d->step, idx, count, d->stream), "ending a step"));
    d->now = 1 - d->now;
    d->cold = false;
    return TW_OK;
}

/* ---- state */

static float *vector_of(tw__device_selector *d, tw__device_vector which) {
    return which == TW__RESIDUAL ? d->residual[d->now] : d->velocity[d->now];
}

static int settle(tw__device_selector *d) {
    Guard guard(d->params.ordinal);
    return failure(launch_settle(d->residual[d->now], d->step.n, d->learned[d->now], d->stream),
                   "settling a residual");
}

static int copy(tw__device_selector *d, float *to, const float *from, cudaMemcpyKind kind) {
    Guard guard(d->params.ordinal);
    size_t bytes = sizeof(float) * (size_t)d->step.n;
    TW_TRY(failure(cudaMemcpyAsync(to, from, bytes, kind, d->stream), "copying a residual"));
    return failure(cudaStreamSynchronize(d->stream), "waiting for the stream");
}

int tw__device_get(tw__device_selector *d, tw__device_vector which, float *to) {
    if (which == TW__RESIDUAL)
        TW_TRY(settle(d));
    return copy(d, to, vector_of(d, which), cudaMemcpyDeviceToHost);
}

int tw__device_set(tw__device_selector *d, tw__device_vector which, const float *from) {
    return copy(d, vector_of(d, which), from, cudaMemcpyHostToDevice);
}

static int clear(tw__device_selector *d, void *memory, size_t bytes) {
    Guard guard(d->params.ordinal);
    return failure(cudaMemsetAsync(memory, 0, bytes, d->stream), "clearing memory");
}

int tw__device_forget(tw__device_selector *d) {
    d->cold = true;
    return clear(d, d->learned[d->now], sizeof(Learned));
}

int tw__device_reset(tw__device_selector *d) {
    size_t bytes = sizeof(float) * (size_t)d->step.n;
    if (d->residual[d->now] != nullptr)
        TW_TRY(clear(d, d->residual[d->now], bytes));
    if (d->velocity[d->now] != nullptr)
        TW_TRY(clear(d, d->velocity[d->now], bytes));
    return tw__device_forget(d);
}

int tw__device_learned(tw__device_selector *d, float *threshold, int64_t *age) {
    Guard guard(d->params.ordinal);
    Learned learned = {};
    TW_TRY(failure(cudaMemcpyAsync(&learned, d->learned[d->now], sizeof learned,
                                   cudaMemcpyDeviceToHost, d->stream),
                   "reading thresholds"));
    TW_TRY(failure(cudaStreamSynchronize(d->stream), "waiting for the stream"));
    *threshold = learned.threshold;
    *age = learned.age;
    return TW_OK;
}

/* The first guess stays to be made: from it, or from the threshold where that is reused. */
int tw__device_learn(tw__device_selector *d, float threshold, int64_t age) {
    Guard guard(d->params.ordinal);
    Learned *to = d->learned[d->now];
    TW_TRY(failure(cudaMemcpyAsync(&to->threshold, &threshold, sizeof threshold,
                                   cudaMemcpyHostToDevice, d->stream),
                   "writing thresholds"));
    TW_TRY(failure(cudaMemcpyAsync(&to->age, &age, sizeof age, cudaMemcpyHostToDevice, d->stream),
                   "writing thresholds"));
    return failure(cudaStreamSynchronize(d->stream), "waiting for the stream");
}

int tw_cuda_device(int ordinal, const char **name) {
    static thread_local cudaDeviceProp properties;
    TW_TRY(tw__device_check(ordinal));
    TW_TRY(failure(cudaGetDeviceProperties(&properties, ordinal), "ordinal"));
    if (name != nullptr)
        *name = properties.name;
    return TW_OK;
}
