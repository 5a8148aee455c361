/* backend_cpu.c - the CPU's row: selectors, plain memory, no streams
 *
 * Work is done when a call returns. A step of one selector, or of several together:
 *
 *   run      clip -> guess -> fold (acc = g + e, collecting) -> choose
 *            each in turn     one pass over all of them         each by one thread
 *   commit   what was sent will leave the residual
 *   undo     or nothing happened
 *   apply    or it ends as an exchange says, with the result written out
 *
 * While a step is open the residual holds acc. */
#include "backend/cpu/cpu_selector.h"
#include "backend/cpu/lists.h"
#include "base/pool.h"
#include "select/methods.h"

#include <assert.h>
#include <sched.h>
#include <stdlib.h>

/* ---- one step */

static void begin_task(const tw__select_task *task, uint32_t (*guess)(tw__cpu_selector *)) {
    tw__cpu_selector *s = task->state;
    assert(task->step.k >= 1 && task->step.k <= s->n);
    s->now = task->step;
    s->grads = task->grads;
    s->before = s->learned;
    s->rescans = 0;
    tw__feedback_clip(s);
    tw__feedback_begin(s, guess(s));
}

/* The pass is over. On a bad number nothing has changed. */
static void end_task(tw__select_task *task) {
    task->open = task->info->bad_index < 0;
    task->info->refused += !task->open;
}

static tw_sparse selection(const tw__cpu_selector *s) {
    return (tw_sparse){.count = s->chosen.count, .idx = s->chosen.idx, .val = s->chosen.val};
}

/* A thread chooses for a selector. What is read again is read by this thread alone, unless the
 * selector is the only one of its batch. */
static void choose(void *context, int worker, int64_t item) {
    tw__select_task *task = (tw__select_task *)context + item;
    tw__cpu_selector *s = task->state;
    (void)worker;
    end_task(task);
    if (!task->open)
        return;
    s->method->choose(s);
    assert(s->chosen.count <= s->chosen.cap);
    assert(s->chosen.count <= tw__method_most(s->method, s->now.k, s->n));
    task->info->count = s->chosen.count;
    task->info->candidates = tw__candidates_total(s);
    task->info->rescans = s->rescans;
    task->sparse = selection(s);
}

/* As many as scratch has room for. Returns how many. */
static int run_batch(tw__select_task *tasks, int most) {
    int threads, count = tw__cpu_begin_batch(tasks, most, &threads);
    for (int i = 0; i < count; i++)
        begin_task(&tasks[i], ((tw__cpu_selector *)tasks[i].state)->method->guess);
    tw__feedback_fold(tasks, count, threads);
    tw__pool_run(threads, count, choose, tasks);
    return count;
}

static int selector_run(tw__select_task *tasks, int count) {
    for (int first = 0; first < count;)
        first += run_batch(tasks + first, count - first);
    for (int i = 0; i < count; i++)
        if (!tasks[i].open)
            return tw__fail_number(tasks[i].info->bad_index);
    return TW_OK;
}

static int selector_wait(tw__select_task *tasks, int count) {
    for (int i = 0; i < count; i++)
        tasks[i].sparse = selection(tasks[i].state);
    return TW_OK;
}

static int selector_fold(void *state, const void *const *grads, const tw__select_step *step,
                         const float **acc, tw_select_info *info) {
    tw__cpu_selector *s = state;
    tw__select_task task = {.state = s, .grads = grads, .step = *step, .info = info};
    assert(s->residual != NULL);
    tw__cpu_begin_call(s);
    begin_task(&task, tw__method_guess_none);
    tw__feedback_fold(&task, 1, s->threads);
    end_task(&task);
    if (!task.open)
        return tw__fail_number(info->bad_index);
    s->chosen.count = 0;
    *acc = s->residual;
    return TW_OK;
}

/* Element i of the caller's idx, which may be misaligned. */
static int32_t load_index(const int32_t *idx, int64_t i) {
    int32_t index;
    memcpy(&index, (const char *)idx + 4 * i, sizeof index);
    return index;
}

/* idx must be an ascending part of what was chosen. */
static int check_subset(const tw__cpu_selector *s, const int32_t *idx, int64_t count) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t index = load_index(idx, i);
        while (at < s->chosen.count && s->chosen.idx[at] < index)
            at++;
        if (at == s->chosen.count || s->chosen.idx[at] != index)
            return tw__fail(
                TW_ERR_INDEX,
                "idx: entry %lld is %d, which is not an ascending part of the selection",
                (long long)i, index);
        at++;
    }
    return TW_OK;
}

static void swap(float *pair[2]) {
    float *first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

/* The first `leaving` of chosen.idx were sent. */
static void leave(tw__cpu_selector *s, int64_t leaving) {
    assert(leaving <= s->chosen.cap);
    if (s->residual != NULL)
        tw__feedback_leave(s, leaving);
    swap(s->first);
    swap(s->second);
}

static int selector_commit(void *state, const int32_t *idx, int64_t count) {
    tw__cpu_selector *s = state;
    if (idx != NULL) {
        TW_TRY(check_subset(s, idx, count));
        memmove(s->chosen.idx, idx, sizeof *idx * (size_t)count);
    }
    leave(s, idx != NULL ? count : s->chosen.count);
    return TW_OK;
}

static void selector_undo(void *state, const void *const *grads) {
    tw__cpu_selector *s = state;
    if (s->residual != NULL) {
        tw__cpu_begin_call(s);
        s->grads = grads;
        tw__feedback_unfold(s);
        tw__feedback_leave(s, 0);
    }
    s->learned = s->before;
}

static int selector_decay(void *state, double *lost) {
    tw__cpu_begin_call(state);
    *lost = tw__feedback_decay(state);
    return TW_OK;
}

/* ---- one step of a group */

/* A selection that exceeds `most` gives its largest; ties go to the smaller index. */
static int selector_pack(void *state, int64_t selected, int64_t most, int64_t base, int on_device,
                         tw__entry *to, int64_t *count) {
    const tw__cpu_selector *s = state;
    const tw__entries *chosen = &s->chosen;
    tw__edge edge = {0, selected}; /* takes all */
    int64_t taken = 0;
    assert(!on_device && selected == chosen->count && base + s->n <= INT32_MAX);
    (void)on_device;
    if (selected > most) {
        tw__kth worst = tw__kth_of_values(s->kernels, chosen->val, selected, most);
        edge = (tw__edge){worst.bits, most - worst.greater};
    }
    for (int64_t e = 0; e < selected; e++) {
        to[taken] = (tw__entry){(int32_t)base + chosen->idx[e], chosen->val[e]};
        taken += tw__edge_takes(&edge, chosen->val[e]);
    }
    *count = taken;
    return TW_OK;
}

static int selector_gather(void *state, const tw__list *list, int64_t base, float *values) {
    const tw__cpu_selector *s = state;
    assert(s->residual != NULL);
    for (int64_t i = 0; i < list->count; i++)
        values[i] = s->residual[list->at[i].idx - base];
    return TW_OK;
}

static int selector_peek(void *state, int64_t index, float *value) {
    const tw__cpu_selector *s = state;
    assert(s->residual != NULL && index >= 0 && index < s->n);
    *value = s->residual[index];
    return TW_OK;
}

/* `left` leaves the residual, then `kept` is added to it. What left for good loses its velocity: all
 * that is not kept, and of that what was applied, rounded. The entries that leave take the place of
 * the selection, which nobody needs any more. */
static void settle_residual(tw__cpu_selector *s, const tw__outcome *o) {
    const tw__list *left = &o->left, *kept = &o->kept, none = {0};
    const tw__list *applied = o->rounded ? &o->result : &none;
    int64_t leaving = 0, at = 0, seen = 0;
    for (int64_t i = 0; i < kept->count && s->residual != NULL; i++) {
        int64_t index = kept->at[i].idx - o->base;
        for (; at < left->count && left->at[at].idx < kept->at[i].idx; at++)
            s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - o->base);
        int sent = at < left->count && left->at[at].idx == kept->at[i].idx;
        s->residual[index] = (sent ? 0.0f : s->residual[index]) + kept->at[i].val;
        while (seen < applied->count && applied->at[seen].idx < kept->at[i].idx)
            seen++;
        int gone = sent && seen < applied->count && applied->at[seen].idx == kept->at[i].idx;
        if (gone && s->params->momentum != 0.0f)
            s->first[1][index] = 0.0f;
        at += sent; /* it does not leave after all */
    }
    for (; at < left->count; at++)
        s->chosen.idx[leaving++] = (int32_t)(left->at[at].idx - o->base);
    leave(s, leaving);
}

static void selector_clear(void *state, float *out, int64_t first, int64_t count) {
    const tw__cpu_selector *s = state;
    assert(first >= 0 && first + count <= s->n);
    s->kernels->clear((char *)out + 4 * first, 4 * count);
}

/* All of out, but for the elements that are zero already. */
static void clear_outs(tw__cpu_selector *s, const tw__outcome *o) {
    const int64_t *starts = s->pieces->starts;
    for (int piece = 0; piece < s->pieces->count; piece++) {
        int64_t n = starts[piece + 1] - starts[piece];
        for (int64_t lo = piece == 0 ? o->cleared : 0; lo < n; lo += TW__CLEARED_AT_ONCE) {
            int64_t count = tw__at_most(TW__CLEARED_AT_ONCE, n - lo);
            selector_clear(s, o->outs[piece], lo, count);
            if (count == TW__CLEARED_AT_ONCE)
                sched_yield(); /* on a shared core, ranks that still wait for entries come first */
        }
    }
}

/* Where element `index` of an ascending sequence lies: *piece is that of the one before, or 0. */
static char *element_of(const tw__pieces *pieces, float *const *memory, int64_t index, int *piece) {
    while (pieces->starts[*piece + 1] <= index)
        ++*piece;
    return (char *)memory[*piece] + 4 * (index - pieces->starts[*piece]); /* of any alignment */
}

/* The result, divided, into the tensor's arrays and into out, where it does not stand yet. */
static void deliver(tw__cpu_selector *s, const tw__outcome *o) {
    int missing = o->outs != NULL && o->placed < o->result.count, piece = 0;
    assert((o->cleared == 0 && o->placed == 0) || s->pieces->count == 1);
    if (o->outs != NULL)
        clear_outs(s, o);
    for (int64_t i = 0; i < o->result.count; i++) {
        int64_t index = o->result.at[i].idx - o->base;
        float value = o->result.at[i].val / o->divisor;
        assert(index >= 0 && index < s->n);
        o->idx[i] = (int32_t)index;
        o->val[i] = value;
        if (missing)
            memcpy(element_of(s->pieces, o->outs, index, &piece), &value, sizeof value);
    }
}

static int selector_subtract(void *state, const tw_sparse *result, float *const *params) {
    const tw__cpu_selector *s = state;
    int piece = 0;
    for (int64_t i = 0; i < result->count; i++) {
        char *at = element_of(s->pieces, params, result->idx[i], &piece);
        float value;
        memcpy(&value, at, sizeof value);
        value -= result->val[i];
        memcpy(at, &value, sizeof value);
    }
    return TW_OK;
}

static int selector_apply(void *state, const tw__outcome *o) {
    assert(!o->on_device && o->placed <= o->result.count);
    settle_residual(state, o);
    deliver(state, o);
    return TW_OK;
}

/* ---- state */

static float *vector_of(const tw__cpu_selector *s, tw__vector which) {
    float *const vectors[] = {
        [TW__RESIDUAL] = s->residual, [TW__FIRST] = s->first[0], [TW__SECOND] = s->second[0]};
    assert(vectors[which] != NULL);
    return vectors[which];
}

static int selector_get(void *state, tw__vector which, int64_t first, int64_t count, float *to) {
    tw__cpu_selector *s = state;
    assert(first >= 0 && first + count <= s->n);
    tw__feedback_settle(s);
    memcpy(to, vector_of(s, which) + first, sizeof *to * (size_t)count);
    return TW_OK;
}

static int selector_set(void *state, tw__vector which, const float *from) {
    tw__cpu_selector *s = state;
    tw__feedback_settle(s);
    memcpy(vector_of(s, which), from, sizeof *from * (size_t)s->n);
    return TW_OK;
}

static int selector_get_learned(void *state, tw__learned *learned) {
    *learned = ((const tw__cpu_selector *)state)->learned;
    return TW_OK;
}

static int selector_set_learned(void *state, const tw__learned *learned) {
    ((tw__cpu_selector *)state)->learned = *learned;
    return TW_OK;
}

static int selector_reset(void *state) {
    tw__cpu_selector *s = state;
    size_t bytes = sizeof(float) * (size_t)s->n;
    s->learned = (tw__learned){0};
    tw__feedback_leave(s, 0);
    float *const vectors[] = {s->residual, s->first[0], s->second[0]};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (vectors[i] != NULL)
            memset(vectors[i], 0, bytes);
    return TW_OK;
}

/* ---- information */

static int selector_info(const void *state, tw_select_info *info) {
    const tw__cpu_selector *s = state;
    uint32_t smallest = info->count > 0 ? TW__INFINITY_BITS : 0;
    for (int64_t i = 0; i < info->count; i++)
        if (tw__magnitude(s->chosen.val[i]) < smallest)
            smallest = tw__magnitude(s->chosen.val[i]);
    info->threshold = tw__from_bits(smallest);
    return TW_OK;
}

/* ---- devices and order: there is one device, and nothing is ever queued */

static int check_device(int ordinal) {
    (void)ordinal;
    return TW_OK;
}

static int check_pointer(const void *pointer, const char *field, int ordinal, size_t element) {
    (void)pointer, (void)field, (void)ordinal, (void)element;
    return TW_OK;
}

static int stream_create(tw__stream **stream, int ordinal, tw__check *check, void *context) {
    (void)ordinal, (void)check, (void)context;
    *stream = NULL;
    return TW_OK;
}

static void stream_free(tw__stream *stream) {
    (void)stream;
}

static void stream_adopt(const tw__stream *stream) {
    (void)stream;
}

static int stream_wait(tw__stream *stream) {
    (void)stream;
    return TW_OK;
}

static int event_record(tw__stream *stream, void *native, void **event) {
    (void)stream, (void)native, (void)event;
    return TW_OK;
}

static int stream_follow(tw__stream *stream, void *event) {
    (void)stream, (void)event;
    return TW_OK;
}

static void event_free(tw__stream *stream, void *event) {
    (void)stream, (void)event;
}

static int batch_seconds(tw__stream *stream, double *seconds) {
    (void)stream, (void)seconds;
    return TW_OK;
}

/* ---- memory */

static int alloc(tw__stream *stream, void **memory, size_t bytes) {
    (void)stream;
    *memory = tw__reserve(bytes);
    return *memory != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory for %zu bytes", bytes);
}

static void *host_alloc(tw__stream *stream, size_t bytes) {
    (void)stream;
    return tw__reserve(bytes);
}

static void release(tw__stream *stream, void *memory) {
    (void)stream;
    free(memory);
}

static int copy(tw__stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    memcpy(to, from, bytes);
    return TW_OK;
}

/* ---- lists */

static size_t lists_memory(int64_t entries, int runs) {
    (void)entries;
    return tw__footprint(tw__cpu_lists_memory(runs));
}

static int lists_create(void **context, tw__stream *stream, int64_t entries, int runs) {
    const tw__kernels *kernels = NULL;
    (void)stream, (void)entries;
    TW_TRY(tw__kernels_choose(&kernels));
    *context = tw__cpu_lists_create(kernels, runs);
    return *context != NULL ? TW_OK : tw__fail(TW_ERR_MEMORY, "no memory to sum %d lists", runs);
}

const tw__backend tw__backend_cpu = {
    .name = "cpu",
    .device = TW_CPU,
    .check_device = check_device,
    .check_pointer = check_pointer,
    .stream_create = stream_create,
    .stream_free = stream_free,
    .stream_adopt = stream_adopt,
    .stream_wait = stream_wait,
    .event_record = event_record,
    .stream_follow = stream_follow,
    .event_free = event_free,
    .batch_begin = stream_wait,
    .batch_end = stream_wait,
    .batch_seconds = batch_seconds,
    .alloc = alloc,
    .free = release,
    .host_alloc = host_alloc,
    .host_free = release,
    .copy = copy,
    .selector_memory = tw__cpu_selector_memory,
    .selector_create = tw__cpu_selector_create,
    .selector_free = tw__cpu_selector_free,
    .run = selector_run,
    .wait = selector_wait,
    .info = selector_info,
    .fold = selector_fold,
    .commit = selector_commit,
    .undo = selector_undo,
    .decay = selector_decay,
    .apply = selector_apply,
    .clear = selector_clear,
    .subtract = selector_subtract,
    .pack = selector_pack,
    .gather = selector_gather,
    .peek = selector_peek,
    .get = selector_get,
    .set = selector_set,
    .get_learned = selector_get_learned,
    .set_learned = selector_set_learned,
    .reset = selector_reset,
    .lists = &tw__lists_cpu,
    .codec = &tw__wire_cpu,
    .dense = &tw__dense_cpu,
    .lists_memory = lists_memory,
    .lists_create = lists_create,
    .lists_free = free,
};
