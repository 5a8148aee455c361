/* selector.cu - a selector on a GPU, the host's side: memory, and the launches of a step
 *
 *   run     clip -> sample (first step) -> fold -> sums -> choose      all queued on the stream
 *   wait    the report of the last step, which choose wrote into the host's memory
 *   commit  the other copies of residual, moments and thresholds become the current ones
 *   undo    they do not
 */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/selector.cuh"
#include "backend/extent.h"
#include "base/random.h"
#include "select/selector.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace tw;

/* ---- memory: what a selector needs, in elements */

struct Extents {
    int64_t tiles, padded, chunks, chosen, sample, marks, pieces;
};

/* Of acc, for the method; clipping takes sums of the gradient before the pass. */
static bool wants_sums(int method) {
    return method == GAUSSIAN || method == REDSYNC;
}

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

/* Few where there is little to choose from, since they wait for each other; but reading all elements
 * again, where that is needed, must not take too long. */
static int blocks_for(int64_t n, int64_t k, int64_t candidates, int multiprocessors) {
    const int64_t ELEMENTS = 512 * 1024; /* of a block */
    int64_t wanted = 1 + 2 * k / candidates, least = 1 + n / ELEMENTS;
    return (int)tw__at_most(wanted > least ? wanted : least,
                            tw__at_most(multiprocessors, MOST_BLOCKS));
}

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

/* ---- steps of a group's tensors are queued together */

/* Fewer blocks than a step has alone, so that more steps run side by side: one for CHOOSE_THREADS
 * candidates, if these are 2k. But candidates must fit, with room for 3k. These numbers were not
 * tuned. */
static tw__need need_of(const Step &s, const tw__stream *stream) {
    constexpr int FEW = 16; /* tiles, whose slots hold four candidates for each thread of a block */
    tw__need need = {s.n, 1, 1};
    if (s.tiles > FEW)
        need.most = blocks_for((int64_t)s.tiles * TILE, s.k, CHOOSE_THREADS, stream->blocks);
    need.least = (int)tw__at_most(1 + 3 * s.k / stream->stage, need.most);
    return need;
}

/* One of `count`: alone it needs no launch that takes many along. */
static bool goes_together(const tw__cuda_selector *d, int count) {
    return count > 1 && goes_with_others(d->step.method);
}

/* Candidates that a block must have room for, if all slots of its tiles are full. */
static int64_t room_of(const Step &s, const tw__blocks &blocks) {
    int64_t count = blocks.last - blocks.first + 1;
    return (s.tiles + count - 1) / count * SLOTS;
}

/* For the steps from the first on whose blocks can run at the same time; their number in *count. */
static cudaError_t choose_some(tw__stream *stream, int first, int *count) {
    Steps &steps = stream->waiting;
    tw__need needs[TOGETHER];
    int64_t room = 0;
    for (int i = first; i < steps.count; i++)
        needs[i - first] = need_of(steps.at[i], stream);
    *count = tw__divide_blocks(needs, steps.count - first, stream->blocks, steps.blocks + first);
    for (int i = first; i < first + *count; i++) {
        int64_t of_step = room_of(steps.at[i], steps.blocks[i]);
        room = of_step > room ? of_step : room;
    }
    return launch_choose_each(steps, first, first + *count, tw__at_most(room, stream->stage),
                              stream->native);
}

static cudaError_t queue_waiting(tw__stream *stream) {
    Steps &steps = stream->waiting;
    cudaError_t error = cudaSuccess;
    if (steps.count > 0) {
        for (int i = 0; i < steps.count; i++)
            steps.first_tile[i + 1] = steps.first_tile[i] + steps.at[i].tiles;
        error = launch_fold_each(steps, stream->native);
    }
    for (int first = 0, count; first < steps.count && error == cudaSuccess; first += count)
        error = choose_some(stream, first, &count);
    steps.count = steps.singles = 0;
    return error;
}

static cudaError_t let_wait(tw__stream *stream, const Step &s) {
    Steps &steps = stream->waiting;
    const Step &first = steps.at[0];
    bool alike =
        steps.count == 0 || (first.source.type == s.source.type &&
                             first.source.before == s.source.before && first.method == s.method);
    cudaError_t error = cudaSuccess;
    if (steps.count == TOGETHER || !alike)
        error = queue_waiting(stream);
    steps.at[steps.count] = s;
    if (need_of(s, stream).most == 1) { /* comes first: it changes places with one of the others */
        steps.at[steps.count] = steps.at[steps.singles];
        steps.at[steps.singles++] = s;
    }
    steps.count++;
    return error;
}

int tw__cuda_batch_begin(tw__stream *stream) {
    Guard guard(stream->ordinal);
    return failure(cudaEventRecord(stream->begin, stream->native), "measuring time");
}

int tw__cuda_batch_end(tw__stream *stream) {
    Guard guard(stream->ordinal);
    return failure(cudaEventRecord(stream->end, stream->native), "measuring time");
}

int tw__cuda_batch_seconds(tw__stream *stream, double *seconds) {
    Guard guard(stream->ordinal);
    float milliseconds = 0.0f;
    TW_TRY(
        failure(cudaEventElapsedTime(&milliseconds, stream->begin, stream->end), "measuring time"));
    *seconds = 1e-3 * (double)milliseconds;
    return TW_OK;
}

/* ---- one step */

static int before_of(const tw_select_params &p) {
    return p.before == TW_BEFORE_ADAMW ? ADAMW : p.momentum != 0.0f ? MOMENTUM : NOTHING;
}

static int check_piece(tw__cuda_selector *d, const void *memory, int piece, const char *field,
                       size_t element) {
    char name[40];
    snprintf(name, sizeof name, "%s, piece %d", field, piece);
    return tw__cuda_check_pointer(memory, d->pieces->count > 1 ? name : field, d->params.ordinal,
                                  element);
}

/* A gradient mostly lies where it lay in the step before. */
static int check_whole(tw__cuda_selector *d, Table table, const void *memory, const char *field,
                       size_t element) {
    if (table == GRADIENTS && memory == d->checked)
        return TW_OK;
    TW_TRY(tw__cuda_check_pointer(memory, field, d->params.ordinal, element));
    if (table == GRADIENTS)
        d->checked = memory;
    return TW_OK;
}

/* Addresses that were checked and told in an earlier step are not again. The host's table can be
 * changed as soon as a copy is queued: it is not pinned. */
int tw::locate(tw__cuda_selector *d, Table table, const void *const *memory, const char *field,
               size_t element, cudaStream_t stream, Pieces *pieces) {
    int count = d->pieces->count;
    *pieces = Pieces{count == 1 ? const_cast<void *>(memory[0]) : nullptr, d->tables[table],
                     d->piece_of_tile};
    if (count == 1)
        return check_whole(d, table, memory[0], field, element);
    Piece *known = d->host_tables + table * count;
    size_t bytes = sizeof *known * (size_t)count;
    bool changed = false;
    for (int p = 0; p < count; p++) {
        int64_t first = d->pieces->starts[p], end = d->pieces->starts[p + 1];
        uintptr_t at = reinterpret_cast<uintptr_t>(memory[p]) - element * (size_t)first;
        if (reinterpret_cast<uintptr_t>(known[p].at) == at && known[p].end == end)
            continue;
        int error = check_piece(d, memory[p], p, field, element);
        if (error != TW_OK) {
            memset(known, 0, bytes);
            return error;
        }
        known[p] = Piece{reinterpret_cast<char *>(at), end};
        changed = true;
    }
    if (!changed)
        return TW_OK;
    cudaError_t error =
        cudaMemcpyAsync(d->tables[table], known, bytes, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess)
        memset(known, 0, bytes);
    return failure(error, "telling where pieces lie");
}

/* The current copies are read, the others written. */
static int aim(tw__cuda_selector *d, const void *const *grads, const tw__adamw &adamw) {
    Step &s = d->step;
    size_t element = d->params.type == TW_F32 ? 4 : 2;
    s.residual = d->residual[d->now];
    s.acc = d->residual[1 - d->now];
    s.learned = d->learned[d->now];
    s.next = d->learned[1 - d->now];
    s.source = Source{};
    s.source.first = d->first[d->now];
    s.source.next_first = d->first[1 - d->now];
    s.source.second = d->second[d->now];
    s.source.next_second = d->second[1 - d->now];
    s.source.scale = d->params.clip_norm != 0.0f ? &s.scratch->scale : nullptr;
    s.source.momentum = d->params.momentum;
    s.source.adamw = adamw;
    s.source.before = before_of(d->params);
    s.source.type = d->params.type;
    return locate(d, GRADIENTS, grads, "grad", element, d->stream, &s.source.grad);
}

/* The rank in the sample that corresponds to `rank` among n. */
static int64_t rank_in_sample(const tw__cuda_selector *d, double rank) {
    double count = (double)tw__at_most(d->sample, d->step.n);
    double at = rank * count / (double)d->step.n;
    return at < 1.0 ? 1 : at > count ? (int64_t)count : (int64_t)at;
}

/* The first guess lets 2k pass, and more where the sample is too small to tell. */
static cudaError_t guess_first(tw__cuda_selector *d) {
    double expected = 2.0 * (double)d->step.k * (double)d->sample / (double)d->step.n;
    double rank = (expected + 2.0 * sqrt(expected)) * (double)d->step.n / (double)d->sample;
    return launch_sample(d->step, d->sample, rank_in_sample(d, rank), false, d->blocks,
                         d->sample_values, d->stream);
}

/* One of `count` that are queued now. Every step of a method starts from the pass; random collects
 * nothing in it but bad numbers. */
static cudaError_t queue(tw__cuda_selector *d, int count) {
    const Step &s = d->step;
    bool draws = s.method == RANDOM;
    cudaError_t error = cudaSuccess;
    if (d->params.clip_norm != 0.0f)
        error = launch_clip(s, d->stream);
    if (error == cudaSuccess && d->cold)
        error = draws ? set_guess(s, TW__INFINITY_BITS, d->stream) : guess_first(d);
    if (error == cudaSuccess && goes_together(d, count))
        return let_wait(d->group, s);
    if (error == cudaSuccess)
        error = launch_fold(s, d->stream);
    if (error == cudaSuccess && wants_sums(s.method))
        error = launch_sums(s, d->stream);
    if (error == cudaSuccess && s.method == DGC)
        error = launch_sample(s, d->sample, rank_in_sample(d, (double)s.k), true, d->blocks,
                              d->sample_values, d->stream);
    if (error == cudaSuccess)
        error = draws ? launch_draw(s, d->blocks, d->stream)
                      : launch_choose(s, d->blocks, d->stage, d->stream);
    return error;
}

static int run_one(tw__select_task *task, int count) {
    tw__cuda_selector *d = selector_of(task->state);
    const tw__select_step &step = task->step;
    TW_TRY(aim(d, task->grads, step.adamw));
    d->step.k = step.k;
    d->step.next_k = step.next_k;
    d->step.k_changed = step.k_changed;
    d->step.k_changes = step.k_changes;
    d->step.key = tw__random(d->params.seed, (uint64_t)step.step);
    TW_TRY(failure(queue(d, count), "queueing a step on the stream"));
    task->sparse = tw_sparse{-1, d->step.chosen_idx, d->step.chosen_val, 0};
    task->open = 1;
    return TW_OK;
}

int tw__cuda_run(tw__select_task *tasks, int count) {
    const tw__cuda_selector *first = selector_of(tasks[0].state);
    Guard guard(first->params.ordinal);
    TW_TRY(failure(guard.error, "ordinal"));
    int error = TW_OK;
    for (int i = 0; i < count && error == TW_OK; i++)
        error = run_one(&tasks[i], count);
    if (first->group == nullptr)
        return error;
    cudaError_t queued = queue_waiting(first->group);
    return error != TW_OK ? error : failure(queued, "queueing steps on the stream");
}

/* What choose has written to the host's memory. */
static void read_report(const tw__cuda_selector *d, tw_select_info *info) {
    const Report &r = *d->step.report;
    info->count = r.count;
    info->candidates = r.candidates;
    info->rescans = r.rescans;
    info->bad_index = r.bad_index;
    info->refused = r.refused;
    memcpy(&info->threshold, &r.smallest, sizeof info->threshold);
}

/* The report of the step that was queued last. */
int tw__cuda_info(const void *state, tw_select_info *info) {
    const tw__cuda_selector *d = static_cast<const tw__cuda_selector *>(state);
    Guard guard(d->params.ordinal);
    TW_TRY(await_selector(d));
    read_report(d, info);
    return TW_OK;
}

/* They are on one stream. */
int tw__cuda_wait(tw__select_task *tasks, int count) {
    const tw__cuda_selector *first = selector_of(tasks[0].state);
    Guard guard(first->params.ordinal);
    TW_TRY(await_selector(first));
    int error = TW_OK;
    for (int i = 0; i < count; i++) {
        tw__select_task *task = &tasks[i];
        const tw__cuda_selector *d = selector_of(task->state);
        read_report(d, task->info);
        task->sparse = tw_sparse{task->info->count, d->step.chosen_idx, d->step.chosen_val, 0};
        task->open = task->info->bad_index < 0;
        if (!task->open && error == TW_OK)
            error = tw__fail_number(task->info->bad_index);
    }
    return error;
}

/* idx[count] is an ascending part of the selection. Waits. */
static int check_part(tw__cuda_selector *d, const int32_t *idx, int64_t count) {
    if (count > 0)
        TW_TRY(tw__cuda_check_pointer(idx, "idx", d->params.ordinal, sizeof *idx));
    TW_TRY(failure(launch_check_part(d->step, idx, count, d->stream), "ending a step"));
    TW_TRY(await_selector(d));
    if (d->step.report->wrong_part >= 0)
        return tw__fail(TW_ERR_INDEX, "idx: entry %lld is not an ascending part of the selection",
                        (long long)d->step.report->wrong_part);
    return TW_OK;
}

int tw__cuda_commit(void *state, const int32_t *idx, int64_t count) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    bool whole = idx == nullptr;
    if (!whole)
        TW_TRY(check_part(d, idx, count));
    /* The next pass recognises a whole selection by its threshold, which random has not. */
    if (!whole || d->step.method == RANDOM)
        TW_TRY(failure(launch_leave(d->step, idx, count, d->stream), "ending a step"));
    if (d->params.momentum != 0.0f && (whole || count > 0))
        TW_TRY(failure(launch_clear_velocity(d->step, idx, count, d->stream), "ending a step"));
    d->now = 1 - d->now;
    d->cold = false;
    return TW_OK;
}

/* The step wrote to the other copies: they stay the other ones. */
void tw__cuda_undo(void *state, const void *const *grads) {
    (void)state, (void)grads;
}

/* After commit or apply: acc of the step is the residual now. */
int tw__cuda_decay(void *state, double *lost) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    const Step &s = d->step;
    cudaError_t error = launch_settle(s.acc, s.n, d->learned[d->now], d->stream);
    if (error == cudaSuccess)
        error = launch_decay(s, d->params.decay, d->stream);
    TW_TRY(failure(error, "decay of a residual"));
    TW_TRY(await_selector(d));
    *lost = s.report->decayed;
    return TW_OK;
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

int tw__cuda_get(void *state, tw__vector which, int64_t first, int64_t count, float *to) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
    TW_TRY(await_state(d));                  /* to copy would wait without a deadline */
    if (which == TW__RESIDUAL && first == 0) /* once for all pieces of it */
        TW_TRY(failure(launch_settle(d->residual[d->now], d->step.n, d->learned[d->now], d->stream),
                       "settling a residual"));
    return copy(d, to, vector_of(d, which) + first, count, cudaMemcpyDeviceToHost);
}

int tw__cuda_set(void *state, tw__vector which, const float *from) {
    tw__cuda_selector *d = selector_of(state);
    Guard guard(d->params.ordinal);
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
    TW_TRY(failure(
        cudaMemcpyAsync(d->learned[d->now], &to, sizeof to, cudaMemcpyHostToDevice, d->stream),
        "writing thresholds"));
    return await_state(d);
}
