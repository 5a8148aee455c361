/* piece_twins.c - see piece_twins.h */
#include "piece_twins.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MOST = 8 };

static void *alloc_cpu(int64_t bytes) {
    return check_alloc(bytes, 1);
}

static void copy_cpu(void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
}

const piece_memory piece_memory_cpu = {TW_CPU, 1, alloc_cpu, free, copy_cpu};

piece_case piece_case_default(const char *scheme, int npieces, int64_t largest, uint64_t seed) {
    piece_case c = {.nranks = 2,
                    .steps = 6,
                    .npieces = npieces,
                    .out = PIECES_OUT_APART,
                    .data = DATA_GAUSS,
                    .bad_step = 3,
                    .load_step = -1,
                    .seed = seed};
    oracle_rng rng = {seed, 0};
    c.params = (tw_group_params)TW_GROUP_PARAMS_INIT;
    c.params.scheme = scheme;
    c.params.select.density = 0.05;
    c.params.select.threads = 1;
    c.params.timeout = RANKS_TIMEOUT;
    for (int p = 0; p < npieces; p++)
        c.sizes[p] = p % 4 == 3 ? 1 : 1 + oracle_below(&rng, largest);
    return c;
}

/* ---- both groups */

typedef struct twins {
    const piece_case *c;
    const piece_memory *memory;
    int64_t n;
    int64_t starts[PIECES_MOST + 1];
    ranks whole, cut;
    float **grads, **outs, **params; /* [nranks][n] of the whole */
    void *typed[RANKS_MOST];         /* [n] gradients as their type */
    char *blocks[3][RANKS_MOST];     /* that hold the pieces below */
    void *cut_grads[RANKS_MOST][PIECES_MOST];
    float *cut_outs[RANKS_MOST][PIECES_MOST];
    float *cut_params[RANKS_MOST][PIECES_MOST];
    float *copy; /* [n] */
    char name[32];
} twins;

static int open_whole(ranks *r, int rank, void *context) {
    const twins *t = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &t->c->params);
    if (error == TW_OK)
        error = tw_group_add(r->groups[rank], t->n, NULL, NULL);
    return error != TW_OK ? error : tw_group_open(r->groups[rank]);
}

static int open_cut(ranks *r, int rank, void *context) {
    const twins *t = context;
    tw_group_params params = t->c->params;
    params.select.device = t->memory->device;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &params);
    if (error == TW_OK)
        error = tw_group_add_pieces(r->groups[rank], t->c->sizes, t->c->npieces, NULL, NULL);
    return error != TW_OK ? error : tw_group_open(r->groups[rank]);
}

/* Pieces of so many bytes an element, with gaps between them, so that most are misaligned. */
static char *place_pieces(const twins *t, int64_t element, void **pieces, oracle_rng *rng) {
    int64_t unit = t->memory->any_address ? 1 : element, bytes = 0, at[PIECES_MOST];
    for (int p = 0; p < t->c->npieces; p++) {
        at[p] = bytes;
        bytes += element * t->c->sizes[p] + unit * oracle_below(rng, 8);
    }
    char *block = t->memory->alloc(bytes);
    for (int p = 0; p < t->c->npieces; p++)
        pieces[p] = block + at[p];
    return block;
}

/* From a whole vector to pieces, or back. */
static void scatter(const twins *t, int64_t element, void *const *pieces, const void *from) {
    for (int p = 0; p < t->c->npieces; p++)
        t->memory->copy(pieces[p], (const char *)from + element * t->starts[p],
                        element * t->c->sizes[p]);
}

static void collect(const twins *t, int64_t element, void *to, void *const *pieces) {
    for (int p = 0; p < t->c->npieces; p++)
        t->memory->copy((char *)to + element * t->starts[p], pieces[p], element * t->c->sizes[p]);
}

static void open_memory(twins *t) {
    int64_t element = oracle_type_size(t->c->params.select.type);
    oracle_rng rng = {t->c->seed, 1000};
    t->grads = rows_alloc(t->c->nranks, t->n);
    t->outs = rows_alloc(t->c->nranks, t->n);
    t->params = rows_alloc(t->c->nranks, t->n);
    t->copy = check_alloc(t->n, sizeof(float));
    rows_fill(t->params, t->c->nranks, t->n, DATA_LAPLACE, 77);
    for (int r = 0; r < t->c->nranks; r++) {
        t->typed[r] = check_alloc(t->n, element);
        t->blocks[0][r] = place_pieces(t, element, t->cut_grads[r], &rng);
        t->blocks[1][r] = place_pieces(t, 4, (void **)t->cut_outs[r], &rng);
        t->blocks[2][r] = place_pieces(t, 4, (void **)t->cut_params[r], &rng);
        scatter(t, 4, (void **)t->cut_params[r], t->params[r]);
    }
}

static void twins_open(twins *t, const piece_case *c, const piece_memory *memory) {
    *t = (twins){.c = c, .memory = memory};
    check_true(c->nranks <= RANKS_MOST && c->npieces <= PIECES_MOST);
    for (int p = 0; p < c->npieces; p++)
        t->starts[p + 1] = t->starts[p] + c->sizes[p];
    t->n = t->starts[c->npieces];
    open_memory(t);
    snprintf(t->name, sizeof t->name, "/tmp/thinwire-pieces-XXXXXX");
    int file = mkstemp(t->name);
    check_true(file >= 0);
    close(file);
    ranks_init(&t->whole, c->nranks);
    ranks_init(&t->cut, c->nranks);
    ranks_run(&t->whole, open_whole, t);
    ranks_ok(&t->whole);
    ranks_run(&t->cut, open_cut, t);
    ranks_ok(&t->cut);
}

static void twins_close(twins *t) {
    ranks_close(&t->whole);
    ranks_close(&t->cut);
    rows_free(t->grads);
    rows_free(t->outs);
    rows_free(t->params);
    free(t->copy);
    for (int r = 0; r < t->c->nranks; r++) {
        free(t->typed[r]);
        for (int b = 0; b < 3; b++)
            t->memory->free(t->blocks[b][r]);
    }
    unlink(t->name);
}

/* ---- steps */

static void give(twins *t, int step) {
    int type = t->c->params.select.type;
    for (int r = 0; r < t->c->nranks; r++) {
        oracle_fill(t->grads[r], t->n, t->c->data, t->c->seed + (uint64_t)(1000 * step + r));
        oracle_encode(t->typed[r], t->grads[r], t->n, type);
        scatter(t, oracle_type_size(type), t->cut_grads[r], t->typed[r]);
    }
}

static int reduce_whole(ranks *r, int rank, void *context) {
    const twins *t = context;
    return tw_allreduce(r->groups[rank], 0, t->typed[rank], t->outs[rank]);
}

static int reduce_cut(ranks *r, int rank, void *context) {
    const twins *t = context;
    float *const *outs = t->c->out == PIECES_OUT_NONE   ? NULL
                         : t->c->out == PIECES_OUT_GRAD ? (float *const *)t->cut_grads[rank]
                                                        : t->cut_outs[rank];
    int error = tw_allreduce_start_pieces(
        r->groups[rank], 0, (const void *const *)t->cut_grads[rank], outs, t->c->npieces);
    return error != TW_OK ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void compare_results(twins *t, int rank) {
    tw_sparse whole, cut;
    void *const *outs =
        t->c->out == PIECES_OUT_GRAD ? t->cut_grads[rank] : (void *const *)t->cut_outs[rank];
    check_ok(tw_group_result(t->whole.groups[rank], 0, &whole));
    check_ok(tw_group_result(t->cut.groups[rank], 0, &cut));
    int32_t *idx = check_alloc(cut.count + 1, sizeof *idx);
    float *val = check_alloc(cut.count + 1, sizeof *val);
    t->memory->copy(idx, cut.idx, 4 * cut.count);
    t->memory->copy(val, cut.val, 4 * cut.count);
    check_selection(&(tw_sparse){.count = cut.count, .idx = idx, .val = val}, whole.count,
                    whole.idx, whole.val);
    free(idx);
    free(val);
    if (t->c->out == PIECES_OUT_NONE)
        return;
    collect(t, 4, t->copy, outs);
    check_bits("out", t->copy, t->outs[rank], t->n);
}

/* Parameters lose the result: those in pieces, those of the whole, and by a loop here. */
static void subtract(twins *t, int rank) {
    float *loop = check_alloc(t->n, sizeof *loop);
    for (int64_t i = 0; i < t->n; i++)
        loop[i] = t->params[rank][i] - t->outs[rank][i];
    check_ok(tw_group_subtract(t->whole.groups[rank], 0, &t->params[rank], 1));
    check_ok(tw_group_subtract(t->cut.groups[rank], 0, t->cut_params[rank], t->c->npieces));
    check_bits("parameters of the whole", t->params[rank], loop, t->n);
    collect(t, 4, t->copy, (void *const *)t->cut_params[rank]);
    check_bits("parameters in pieces", t->copy, loop, t->n);
    free(loop);
}

static void compare_residuals(twins *t) {
    float **rows = rows_alloc(t->c->nranks, t->n);
    ranks_get_residuals(&t->whole, 0, rows, t->n);
    ranks_check_residuals(&t->cut, 0, rows, t->n);
    rows_free(rows);
}

static void good_step(twins *t, int step) {
    give(t, step);
    ranks_run(&t->whole, reduce_whole, t);
    ranks_ok(&t->whole);
    ranks_run(&t->cut, reduce_cut, t);
    ranks_ok(&t->cut);
    for (int r = 0; r < t->c->nranks; r++) {
        compare_results(t, r);
        subtract(t, r);
    }
    compare_residuals(t);
}

/* An element of one rank is NaN: all ranks name its piece, and nothing changes. */
static void bad_step(twins *t, int step) {
    int64_t element = oracle_type_size(t->c->params.select.type);
    oracle_rng rng = {t->c->seed, 2000};
    int rank = (int)oracle_below(&rng, t->c->nranks),
        piece = (int)oracle_below(&rng, t->c->npieces);
    int64_t at = oracle_below(&rng, t->c->sizes[piece]);
    float nan = NAN;
    char bytes[4];
    give(t, step);
    oracle_encode(bytes, &nan, 1, t->c->params.select.type);
    t->memory->copy((char *)t->cut_grads[rank][piece] + element * at, bytes, element);
    float **residuals = rows_alloc(t->c->nranks, t->n);
    ranks_get_residuals(&t->cut, 0, residuals, t->n);
    ranks_run(&t->cut, reduce_cut, t);
    ranks_error(&t->cut, TW_ERR_NUMBER);
    ranks_say(&t->cut, "rank %d, tensor 0: piece %d, element %lld is NaN", rank, piece,
              (long long)at);
    ranks_check_residuals(&t->cut, 0, residuals, t->n);
    check_error(tw_group_subtract(t->cut.groups[0], 0, t->cut_params[0], t->c->npieces),
                TW_ERR_STATE);
    rows_free(residuals);
}

/* ---- states */

static int save(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", ((const twins *)context)->name, rank);
    return tw_group_save(r->groups[rank], path);
}

static int load(ranks *r, int rank, void *context) {
    char path[64];
    snprintf(path, sizeof path, "%s.%d", ((const twins *)context)->name, rank);
    const char *const paths[] = {path};
    int error = tw_group_load(r->groups[rank], paths, 1);
    unlink(path);
    return error;
}

/* `to` has made a step that `from` has not, then loads what `from` saved. */
static void hand_over(twins *t, ranks *from, ranks *to, ranks_call step) {
    give(t, 500);
    ranks_run(to, step, t);
    ranks_ok(to);
    ranks_run(from, save, t);
    ranks_ok(from);
    ranks_run(to, load, t);
    ranks_ok(to);
    compare_residuals(t);
}

void piece_check(const piece_case *c, const piece_memory *memory) {
    static twins t; /* too large for a stack */
    twins_open(&t, c, memory);
    for (int step = 0; step < c->steps; step++) {
        check_scene("scheme %s, wire %s, %d pieces, n %lld, %d ranks, type %d, out %d, before %d, "
                    "seed %llu, step %d",
                    c->params.scheme, c->params.wire != NULL ? c->params.wire : "raw", c->npieces,
                    (long long)t.n, c->nranks, c->params.select.type, c->out,
                    c->params.select.before, (unsigned long long)c->seed, step);
        if (step == c->load_step) {
            hand_over(&t, &t.whole, &t.cut, reduce_cut);
            hand_over(&t, &t.cut, &t.whole, reduce_whole);
        }
        if (step == c->bad_step)
            bad_step(&t, step);
        else
            good_step(&t, step);
    }
    twins_close(&t);
}
