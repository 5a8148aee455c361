/* state_file.c - one rank's state as a file: written, read, checked */
#include "group/state_file.h"

#include "backend/cpu/kernels.h"
#include "base/file.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

#define MAGIC "thinwire"
#define VERSION 2
#define BYTE_ORDER_MARK 0x01020304u
/* A step takes a microsecond at least: nine years of them. And the next one can be counted. */
#define MOST_STEPS ((int64_t)1 << 48)

typedef struct header {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint32_t rank;
    uint32_t nranks;
    uint32_t ntensors;
    uint32_t run;   /* the same in all files that belong together; 0: of an earlier version */
    uint64_t bytes; /* of the file */
} header;

/* Elements of a vector that are copied at a time; even, as words of the file are 8 bytes. */
#define PIECE ((int64_t)1 << 18)

/* ---- checksum: 64 bits over words of 8 bytes, of which everything in the file is made */

static uint64_t checksum(uint64_t hash, const void *data, size_t bytes) {
    const char *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- write */

typedef struct writer {
    tw__output out;
    uint64_t hash;
    float *piece; /* [PIECE + 1] of a vector */
} writer;

static int put(writer *w, const void *data, size_t bytes) {
    w->hash = checksum(w->hash, data, bytes);
    return tw__output_put(&w->out, data, bytes);
}

static tw__state_head head_of(const tw__tensor *t) {
    tw__state_head head = {.n = t->n, .steps = t->steps, .global_threshold = t->threshold};
    if (t->selector == NULL)
        return head;
    head.has_residual = t->params.feedback == TW_FEEDBACK_ON;
    head.moments = tw__moments_of(&t->params);
    head.last_k = t->selector->last_k;
    head.moment_steps = t->selector->moment_steps;
    return head;
}

static int add_learned(const tw_selector *s, tw__state_head *head) {
    tw__learned learned;
    TW_TRY(s->backend->get_learned(s->state, &learned));
    head->guess = learned.guess;
    head->rank = learned.rank;
    head->growth = learned.growth;
    head->margin = learned.margin;
    head->threshold = learned.threshold;
    head->age = learned.age;
    return TW_OK;
}

/* In pieces, copied from where the vector lies. An odd length ends with a zero. */
static int put_vector(writer *w, const tw_selector *s, tw__vector which) {
    assert(PIECE % 2 == 0 && !s->open);
    for (int64_t first = 0; first < s->extent[1]; first += PIECE) {
        int64_t count = tw__at_most(PIECE, s->extent[1] - first);
        TW_TRY(s->backend->get(s->state, which, first, count, w->piece));
        w->piece[count] = 0.0f;
        TW_TRY(put(w, w->piece, tw__state_vector_bytes(count)));
    }
    return TW_OK;
}

static int put_tensor(writer *w, const tw__tensor *t) {
    tw__state_head head = head_of(t);
    if (t->selector != NULL)
        TW_TRY(add_learned(t->selector, &head));
    TW_TRY(put(w, &head, sizeof head));
    if (head.has_residual)
        TW_TRY(put_vector(w, t->selector, TW__RESIDUAL));
    if (head.moments >= 1)
        TW_TRY(put_vector(w, t->selector, TW__FIRST));
    return head.moments == 2 ? put_vector(w, t->selector, TW__SECOND) : TW_OK;
}

static header header_of(const tw_group *g) {
    header h = {.magic = MAGIC,
                .version = VERSION,
                .byte_order = BYTE_ORDER_MARK,
                .rank = (uint32_t)g->rank,
                .nranks = (uint32_t)g->nranks,
                .ntensors = (uint32_t)g->ntensors,
                .run = g->run};
    h.bytes = sizeof h + sizeof(uint64_t);
    for (int t = 0; t < g->ntensors; t++) {
        tw__state_head head = head_of(&g->tensors[t]);
        h.bytes += sizeof head + tw__state_data_bytes(&head);
    }
    return h;
}

static int put_all(writer *w, tw_group *g) {
    header h = header_of(g);
    TW_TRY(put(w, &h, sizeof h));
    for (int t = 0; t < g->ntensors; t++)
        TW_TRY(put_tensor(w, &g->tensors[t]));
    uint64_t sum = w->hash;
    return put(w, &sum, sizeof sum);
}

int tw__state_write(tw_group *g, const char *path) {
    writer w = {.piece = malloc(sizeof *w.piece * (size_t)(PIECE + 1))};
    if (w.piece == NULL)
        return tw__fail(TW_ERR_MEMORY, "no memory to save a state");
    int error = tw__output_open(&w.out, path);
    if (error == TW_OK)
        error = tw__output_close(&w.out, put_all(&w, g));
    free(w.piece);
    return error;
}

/* ---- read */

static int damaged(const tw__state *state, const char *what) {
    return tw__fail(TW_ERR_DAMAGED, "path: '%.200s' %s; use an earlier state", state->path, what);
}

static int check_header(tw__state *state) {
    header h;
    uint64_t sum;
    if (state->size < sizeof h + sizeof sum)
        return damaged(state, "is too short to be a state");
    memcpy(&h, state->bytes, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        return damaged(state, "is not a saved state");
    if (h.byte_order != BYTE_ORDER_MARK || h.version != VERSION)
        return damaged(state, "is of another version or byte order");
    if (h.bytes != state->size || state->size % 8 != 0)
        return damaged(state, "is truncated, or has something appended");
    memcpy(&sum, state->bytes + state->size - sizeof sum, sizeof sum);
    if (sum != checksum(0, state->bytes, state->size - sizeof sum))
        return damaged(state, "does not match its checksum");
    if (h.nranks < 1 || h.nranks > TW__MAX_RANKS || h.rank >= h.nranks || h.ntensors > INT_MAX)
        return damaged(state, "names ranks or tensors that cannot be");
    state->rank = (int)h.rank;
    state->nranks = (int)h.nranks;
    state->ntensors = (int)h.ntensors;
    state->run = h.run;
    return TW_OK;
}

int tw__state_read(const char *path, tw__state *state) {
    state->path = path;
    TW_TRY(tw__file_read(path, SIZE_MAX - 1, &state->bytes, &state->size));
    return check_header(state);
}

static int other(const tw__state *state, int tensor, const char *field, int64_t saved,
                 int64_t ours) {
    return tw__fail(TW_ERR_MISMATCH, "tensor %d, %s: the state '%.160s' has %lld, the group %lld",
                    tensor, field, state->path, (long long)saved, (long long)ours);
}

int tw__state_each(tw_group *g, const tw__state *state, tw__state_visit *visit, void *context) {
    size_t at = sizeof(header), end = state->size - sizeof(uint64_t);
    if (state->ntensors != g->ntensors)
        return tw__fail(TW_ERR_MISMATCH, "tensors: the state '%.160s' has %d, the group %d",
                        state->path, state->ntensors, g->ntensors);
    for (int t = 0; t < g->ntensors; t++) {
        tw__state_head head, ours = head_of(&g->tensors[t]);
        if (end - at < sizeof head)
            return damaged(state, "ends within a tensor");
        memcpy(&head, state->bytes + at, sizeof head);
        if (head.n != ours.n)
            return other(state, t, "n", head.n, ours.n);
        if (head.has_residual != ours.has_residual)
            return other(state, t, "feedback", head.has_residual, ours.has_residual);
        if (head.moments != ours.moments)
            return other(state, t, "moments (1 with momentum, 2 with AdamW)", head.moments,
                         ours.moments);
        if (end - at < sizeof head + tw__state_data_bytes(&head))
            return damaged(state, "ends within a tensor");
        TW_TRY(visit(&g->tensors[t], &head, state->bytes + at + sizeof head, context));
        at += sizeof head + tw__state_data_bytes(&head);
    }
    return at == end ? TW_OK : damaged(state, "has more than its tensors");
}

/* ---- check */

int tw__steps_possible(int64_t steps) {
    return steps >= 0 && steps <= MOST_STEPS;
}

int tw__state_possible(int64_t steps, int64_t threshold) {
    return tw__steps_possible(steps) && threshold >= 0 && threshold <= TW__INFINITY_BITS;
}

static int is_amount(double x, double most) {
    return isfinite(x) && x >= 0.0 && x <= most;
}

/* A device rounds the rank, which is n at most. A step counts margin * k entries, so a margin above 2,
 * its most, could overflow. A reused threshold may have been nudged to infinity. */
static int learned_possible(const tw__state_head *head) {
    return is_amount(head->rank, 2.0 * (double)head->n) &&
           is_amount(head->growth, TW__GROWTH_MOST) && is_amount(head->margin, 2.0) &&
           head->threshold >= 0.0f && head->guess <= TW__INFINITY_BITS && head->age >= 0 &&
           head->age <= MOST_STEPS;
}

typedef struct inspection {
    const tw__state *state;
    const tw__kernels *kernels;
} inspection;

/* A right checksum says nothing of who made it: what a step could not bear is refused. */
static int holds_negative(const char *vector, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, vector + 4 * i, sizeof bits);
        if (bits >> 31 != 0)
            return 1;
    }
    return 0;
}

static int check_tensor(tw__tensor *t, const tw__state_head *head, const char *data,
                        void *context) {
    const inspection *i = context;
    int64_t many = (int64_t)(tw__state_data_bytes(head) / sizeof(float));
    if (!tw__state_possible(head->steps, head->global_threshold) || !learned_possible(head) ||
        head->last_k < 0 || head->last_k > t->n || head->moment_steps < 0 ||
        head->moment_steps > MOST_STEPS || /* other steps, after tw_group_load_residuals */
        i->kernels->count((const void *)data, many, TW__INFINITY_BITS) > 0 ||
        (head->moments == 2 && holds_negative(data + 2 * tw__state_vector_bytes(t->n), t->n)))
        return damaged(i->state, "holds numbers that cannot be");
    return TW_OK;
}

int tw__state_check(tw_group *g, const tw__state *state) {
    inspection i = {.state = state};
    TW_TRY(tw__kernels_choose(&i.kernels));
    return tw__state_each(g, state, check_tensor, &i);
}
