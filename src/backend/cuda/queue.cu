/* queue.cu - the steps of a selector on a GPU: their launches, alone or with those of others, and how
 * they end
 *
 *   run     clip -> sample (first step) -> fold -> sums -> choose      all queued on the stream
 *   wait    the report of the last step, which choose wrote into the host's memory
 *   commit  the other copies of residual, moments and thresholds become the current ones
 *   undo    they do not
 */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/failure.cuh"
#include "backend/cuda/selector.cuh"
#include "base/random.h"
#include "select/selector.h"

#include <cmath>
#include <cstdio>

using namespace tw;

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
