/* cpu_memory.c - the memory of selectors on the CPU: their parts, and the scratch that they share */
#include "backend/cpu/cpu_selector.h"
#include "base/pool.h"
#include "select/methods.h"

#include <assert.h>
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
    s->chunks = (int32_t)tw__chunks(s->n);
    s->threads = (int16_t)tw__at_most(s->params->threads, s->chunks); /* others would get none */
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

int64_t tw__most_cached = (int64_t)12 << 20;

/* Of gradient, residual, and velocity or moments: what a pass reads and writes of each element. */
static int64_t bytes_per_element(const tw__cpu_selector *s) {
    int64_t floats = (s->residual != NULL) + 2 * (s->first[0] != NULL) + 2 * (s->second[0] != NULL);
    return (s->params->type == TW_F32 ? 4 : 2) + (int64_t)sizeof(float) * floats;
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

void tw__cpu_begin_call(tw__cpu_selector *s) {
    place_scratch(s, &(tw__arena){s->scratch, 0});
}

int tw__cpu_begin_batch(const tw__select_task *tasks, int most, int *threads) {
    tw__arena arena = {((const tw__cpu_selector *)tasks[0].state)->scratch, 0};
    int count = 0, asked = 1;
    int shared_threads = 0; /* of the selectors that have fewer threads than chunks; 0: none has */
    int64_t chunks = 0;
    for (; count < most; count++) {
        tw__cpu_selector *s = tasks[count].state;
        int few = s->chunks <= s->threads;
        if (s->scratch != arena.memory ||
            (!few && shared_threads != 0 && shared_threads != s->threads) ||
            arena.used + scratch_bytes(s) > s->scratch_room)
            break;
        place_scratch(s, &arena);
        shared_threads = few ? shared_threads : s->threads;
        asked = s->params->threads > asked ? s->params->threads : asked;
        chunks += s->chunks;
    }
    assert(count > 0);
    *threads = shared_threads != 0 ? shared_threads : (int)tw__at_most(asked, chunks);
    return count;
}

int tw__cpu_selector_memory(int64_t n, int pieces, const tw_select_params *params,
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

void tw__cpu_selector_free(void *state) {
    tw__cpu_selector *s = state;
    if (s == NULL)
        return;
    void *const parts[] = {s->chosen.idx, s->chosen.val, s->marks,
                           s->near,       s->far,        s->lossy,
                           s->first[0],   s->first[1],   s->second[0],
                           s->second[1],  s->residual,   s->owns_scratch ? s->scratch : NULL};
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
    s->scratch = scratch != NULL ? scratch->memory : tw__reserve(bytes);
    s->scratch_room = scratch != NULL ? scratch->bytes : bytes;
    int64_t elements = scratch != NULL ? scratch->elements : s->n;
    s->uncached = elements * bytes_per_element(s) > tw__most_cached;
    all.missing += s->scratch == NULL ? bytes : 0;
    if (all.missing > 0)
        return tw__fail(TW_ERR_MEMORY, "%zu bytes are missing; lower n, k or threads", all.missing);
    tw__cpu_begin_call(s);
    touch_scratch(s);
    tw__feedback_leave(s, 0);
    return TW_OK;
}

int tw__cpu_selector_create(void **state, const tw__pieces *pieces, const tw_select_params *params,
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
    /* The pass that a group's tensors share has chunks for more threads than one of them has. */
    tw__pool_retain(scratch != NULL ? params->threads : s->threads);
    int error = fill_block(s, scratch);
    if (error != TW_OK) {
        tw__cpu_selector_free(s);
        return error;
    }
    *state = s;
    return TW_OK;
}
