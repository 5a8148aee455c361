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

/* ---- memory: one list of all parts, for counting and for obtaining them
 *
 * Parts up to SMALL lie behind the selector in one block: with many small tensors, allocations of
 * their own would take more than the parts. Scratch is another block. */

#define SMALL ((size_t)4096)

typedef struct supply {
    tw_memory bytes; /* that the parts take */
    tw__arena block; /* the selector and its small parts */
    int counting;    /* nothing is obtained */
    size_t missing;  /* bytes that could not be had */
} supply;

/* Memory for count things, NULL for none. */
static void *take(supply *m, size_t *bytes, void *(*from)(size_t), int64_t count, size_t size) {
    size_t wanted = (size_t)count * size, used = m->block.used;
    if (count == 0)
        return NULL;
    if (wanted <= SMALL) {
        void *part = tw__arena_take(&m->block, count, size);
        *bytes += m->block.used - used;
        return part;
    }
    *bytes += tw__footprint(wanted);
    void *memory = m->counting ? NULL : from(wanted);
    m->missing += memory == NULL ? wanted : 0;
    return memory;
}

static int64_t most_chosen(const tw__cpu_selector *s) {
    int64_t usual = tw__at_most(TW__MOST * tw__k_max(s->params, s->n), s->n);
    return s->method->unbounded ? s->n : usual;
}

/* params, method and n are known. */
static void measure(tw__cpu_selector *s) {
    s->threads = (int16_t)s->params->threads;
    s->chunks = (int32_t)tw__chunks(s->n);
    s->sample_size = (int32_t)tw__sample_of(s->n, s->method->samples ? s->params->dgc_sample : 0.0);
    s->chosen.cap = most_chosen(s);
}

static void take_all(supply *m, tw__cpu_selector *s) {
    const tw_select_params *p = s->params;
    int feedback = p->feedback == TW_FEEDBACK_ON;
    int64_t n = s->n, chosen = s->chosen.cap + TW__SLACK;
    int64_t second = p->before == TW_BEFORE_ADAMW ? n : 0;
    int64_t first = p->momentum != 0.0f ? n : second;
    int64_t log = feedback ? n + s->chunks * TW__LANES : 0;
    s->residual = take(m, &m->bytes.residual, tw__alloc, feedback ? n : 0, sizeof(float));
    for (int copy = 0; copy < 2; copy++) {
        s->first[copy] = take(m, &m->bytes.moments, tw__alloc, first, sizeof(float));
        s->second[copy] = take(m, &m->bytes.moments, tw__alloc, second, sizeof(float));
    }
    s->lossy = take(m, &m->bytes.undo, tw__alloc, feedback ? n / 8 + 1 : 0, 1);
    s->near = take(m, &m->bytes.undo, tw__reserve, log, 1);
    s->far = take(m, &m->bytes.undo, tw__reserve, log, sizeof(float));
    size_t *workspace = &m->bytes.workspace;
    s->marks =
        take(m, workspace, tw__alloc, s->method->wants_marks ? n / 64 + 1 : 0, sizeof(uint64_t));
    s->chosen.idx = take(m, workspace, tw__alloc, chosen, sizeof(int32_t));
    s->chosen.val = take(m, workspace, tw__alloc, chosen, sizeof(float));
}

/* ---- scratch */

/* A worker may have to hold all candidates. */
static tw__entries take_found(tw__arena *arena, int64_t room) {
    return (tw__entries){.idx = tw__arena_take(arena, room + TW__SLACK, sizeof(int32_t)),
                         .val = tw__arena_take(arena, room + TW__SLACK, sizeof(float)),
                         .cap = room};
}

/* Where everything lies in scratch, behind what the arena has given out. */
static void place_scratch(tw__cpu_selector *s, tw__arena *arena) {
    int64_t room = tw__at_most(s->chosen.cap + TW__BLOCK, s->n);
    s->workers = tw__arena_take(arena, s->threads, sizeof(tw__worker));
    s->work = tw__arena_take(arena, 1, sizeof(tw__work));
    const tw__work work = {.owner = tw__arena_take(arena, s->chunks, 1),
                           .end = tw__arena_take(arena, s->chunks, sizeof(int64_t)),
                           .sums = tw__arena_take(arena, s->chunks, sizeof(tw__sums)),
                           .sample = tw__arena_take(arena, s->sample_size, sizeof(uint32_t))};
    if (arena->memory != NULL)
        *s->work = work;
    for (int i = 0; i < s->threads; i++) {
        float *converted = tw__arena_take(arena, TW__BLOCK, sizeof(float));
        uint8_t *keep = tw__arena_take(arena, TW__BLOCK / 8, 1);
        tw__entries found = take_found(arena, room);
        if (arena->memory == NULL)
            continue;
        memset(keep, 0xff, (size_t)TW__BLOCK / 8);
        s->workers[i] = (tw__worker){.collector.found = found, .scratch = converted, .keep = keep};
    }
}

static size_t scratch_bytes(const tw__cpu_selector *s) {
    tw__cpu_selector counted = *s;
    tw__arena arena = {0};
    place_scratch(&counted, &arena);
    return arena.used;
}

/* The steps that follow touch no page for the first time. A worker usually holds its share of the
 * candidates. */
static void touch_scratch(tw__cpu_selector *s) {
    int64_t usual = tw__at_most(TW__MOST * tw__k_max(s->params, s->n), s->n);
    memset(s->work->owner, 0, (size_t)s->chunks);
    memset(s->work->end, 0, (size_t)s->chunks * sizeof *s->work->end);
    memset(s->work->sums, 0, (size_t)s->chunks * sizeof *s->work->sums);
    memset(s->work->sample, 0, (size_t)s->sample_size * sizeof *s->work->sample);
    for (int i = 0; i < s->threads; i++) {
        const tw__worker *w = &s->workers[i];
        const tw__entries *found = &w->collector.found;
        size_t share = (size_t)tw__at_most(usual / s->threads / 2 + TW__BLOCK, found->cap);
        memset(found->idx, 0, share * sizeof *found->idx);
        memset(found->val, 0, share * sizeof *found->val);
        memset(w->scratch, 0, (size_t)TW__BLOCK * sizeof *w->scratch);
    }
}

/* A call that needs scratch begins: others may have used it since. */
static void begin_call(tw__cpu_selector *s) {
    place_scratch(s, &(tw__arena){s->scratch.memory, 0});
}

/* The same for as many selectors as there is room for, one at least. Returns how many. */
static int begin_batch(const tw__select_task *tasks, int most) {
    const tw__cpu_selector *first = tasks[0].state;
    tw__arena arena = {first->scratch.memory, 0};
    int count = 0;
    for (; count < most; count++) {
        tw__cpu_selector *s = tasks[count].state;
        if (s->scratch.memory != arena.memory || s->threads != first->threads ||
            arena.used + scratch_bytes(s) > s->scratch.bytes)
            break;
        place_scratch(s, &arena);
    }
    assert(count > 0);
    return count;
}

static int selector_memory(int64_t n, int pieces, const tw_select_params *params,
                           const tw__method *method, tw_memory *memory, size_t *scratch) {
    const tw__kernels *kernels = NULL;
    (void)pieces;
    tw__cpu_selector s = {.params = params, .method = method, .n = (int32_t)n};
    supply all = {.counting = 1};
    TW_TRY(tw__kernels_choose(&kernels));
    measure(&s);
    (void)take(&all, &all.bytes.workspace, tw__alloc, 1, sizeof s);
    take_all(&all, &s);
    *scratch = scratch_bytes(&s);
    *memory = all.bytes;
    return TW_OK;
}

/* ---- create and free */

static void free_part(const tw__cpu_selector *s, void *part) {
    uintptr_t block = (uintptr_t)s, at = (uintptr_t)part;
    if (at - block >= s->block)
        free(part);
}

static void selector_free(void *state) {
    tw__cpu_selector *s = state;
    if (s == NULL)
        return;
    void *const parts[] = {
        s->chosen.idx, s->chosen.val, s->marks,    s->near,
        s->far,        s->lossy,      s->first[0], s->first[1],
        s->second[0],  s->second[1],  s->residual, s->owns_scratch ? s->scratch.memory : NULL};
    /* The analyzer takes a part of the block for the block. NOLINTBEGIN(clang-analyzer-unix.Malloc) */
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free_part(s, parts[i]);
    free(s);
    /* NOLINTEND(clang-analyzer-unix.Malloc) */
    tw__pool_release();
}

/* The selector at the head of its block, without parts. */
static tw__cpu_selector *create_block(const tw__cpu_selector *model) {
    tw__cpu_selector counted = *model;
    supply all = {.counting = 1};
    (void)take(&all, &all.bytes.workspace, tw__alloc, 1, sizeof counted);
    take_all(&all, &counted);
    tw__cpu_selector *s = tw__alloc(all.block.used);
    if (s == NULL)
        return NULL;
    *s = *model;
    s->block = (uint32_t)all.block.used;
    return s;
}

static int fill_block(tw__cpu_selector *s, const tw__scratch *scratch) {
    supply all = {.block = {(char *)s, 0}};
    size_t bytes = scratch_bytes(s);
    (void)take(&all, &all.bytes.workspace, tw__alloc, 1, sizeof *s);
    take_all(&all, s);
    assert(all.block.used == s->block);
    s->owns_scratch = scratch == NULL;
    s->scratch = scratch != NULL ? *scratch : (tw__scratch){tw__reserve(bytes), bytes};
    all.missing += s->scratch.memory == NULL ? bytes : 0;
    if (all.missing > 0)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are missing; lower n, k or threads", all.missing);
    begin_call(s);
    touch_scratch(s);
    tw__feedback_leave(s, 0);
    return TW_OK;
}

static int selector_create(void **state, const tw__pieces *pieces, const tw_select_params *params,
                           const tw__method *method, tw__stream *stream,
                           const tw__scratch *scratch) {
    const tw__kernels *kernels = NULL;
    int64_t n = pieces->starts[pieces->count];
    (void)stream;
    TW_TRY(tw__kernels_choose(&kernels));
    tw__cpu_selector model = {
        .params = params, .method = method, .kernels = kernels, .pieces = pieces, .n = (int32_t)n};
    measure(&model);
    tw__cpu_selector *s = create_block(&model);
    if (s == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory for a selector of %lld elements", (long long)n);
    tw__pool_retain(params->threads);
    int error = fill_block(s, scratch);
    if (error != TW_OK) {
        selector_free(s);
        return error;
    }
    *state = s;
    return TW_OK;
}

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
    int count = begin_batch(tasks, most);
    const tw__cpu_selector *first = tasks[0].state;
    for (int i = 0; i < count; i++)
        begin_task(&tasks[i], ((tw__cpu_selector *)tasks[i].state)->method->guess);
    tw__feedback_fold(tasks, count);
    tw__pool_run(first->threads, count, choose, tasks);
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
    begin_call(s);
    begin_task(&task, tw__method_guess_none);
    tw__feedback_fold(&task, 1);
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
        begin_call(s);
        s->grads = grads;
        tw__feedback_unfold(s);
        tw__feedback_leave(s, 0);
    }
    s->learned = s->before;
}

static int selector_decay(void *state, double *lost) {
    begin_call(state);
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
    .selector_memory = selector_memory,
    .selector_create = selector_create,
    .selector_free = selector_free,
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
