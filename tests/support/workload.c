/* workload.c - many tensors on four ranks; see workload.h */
#include "workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tw_group_params workload_params(const char *scheme, int64_t bucket) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.02;
    params.select.threads = 1;
    params.bucket = bucket;
    return params;
}

void workload_prepare(workload *w, int64_t *sizes, int tensors, float ***grads) {
    memset(w, 0, sizeof *w);
    w->tensors = tensors;
    w->sizes = sizes;
    w->grads = grads;
    w->outs = check_alloc(tensors, sizeof *w->outs);
    for (int i = 0; i < tensors; i++)
        w->outs[i] = rows_alloc(RANKS, sizes[i]);
    ranks_init(&w->r, RANKS);
    w->waits[0] = TW_ALL;
}

void workload_open(workload *w, const tw_group_params *params, int64_t *sizes, int tensors,
                   float ***grads) {
    workload_prepare(w, sizes, tensors, grads);
    ranks_try_open(&w->r, params, sizes, tensors);
    ranks_ok(&w->r);
}

void workload_close(workload *w) {
    for (int i = 0; i < w->tensors; i++)
        rows_free(w->outs[i]);
    free(w->outs);
    ranks_close(&w->r);
}

float ***workload_gradients(const int64_t *sizes, int tensors) {
    float ***grads = check_alloc(tensors, sizeof *grads);
    for (int i = 0; i < tensors; i++)
        grads[i] = rows_alloc(RANKS, sizes[i]);
    return grads;
}

void workload_gradients_free(float ***grads, int tensors) {
    for (int i = 0; i < tensors; i++)
        rows_free(grads[i]);
    free(grads);
}

void workload_gradients_fill(float ***grads, const int64_t *sizes, int tensors, int step) {
    for (int i = 0; i < tensors; i++)
        for (int rank = 0; rank < RANKS; rank++)
            oracle_fill(grads[i][rank], sizes[i], DATA_GAUSS,
                        (uint64_t)((step * 1000 + i) * RANKS + rank));
}

void workload_sizes(int64_t *sizes, int tensors, int64_t largest) {
    oracle_rng rng = {.key = 5};
    for (int i = 0; i < tensors; i++)
        sizes[i] = 1 + (int64_t)pow((double)largest / 20.0, oracle_uniform(&rng));
    sizes[0] = 1;
    sizes[tensors / 2] = largest;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

int step_one_by_one(ranks *r, int rank, void *context) {
    workload *w = context;
    int error = TW_OK;
    for (int i = 0; i < w->tensors && !error; i++)
        error = tw_allreduce(r->groups[rank], i, w->grads[i][rank], w->outs[i][rank]);
    return error;
}

int workload_start(workload *w, int rank) {
    int error = TW_OK;
    for (int j = 0; j < w->tensors && !error; j++) {
        const int i = w->order[rank][j];
        error = tw_allreduce_start(w->r.groups[rank], i, w->grads[i][rank], w->outs[i][rank]);
    }
    return error;
}

int step_in_background(ranks *r, int rank, void *context) {
    workload *w = context;
    int error = workload_start(w, rank), j = 0;
    for (; w->waits[j] != TW_ALL && !error; j++)
        error = tw_allreduce_wait(r->groups[rank], w->waits[j]);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void shuffle(int *order, int count, oracle_rng *rng) {
    for (int i = 0; i < count; i++) {
        const int j = (int)oracle_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

void workload_shuffle(workload *w, oracle_rng *rng) {
    for (int rank = 0; rank < RANKS; rank++)
        shuffle(w->order[rank], w->tensors, rng);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void same_tensor(workload *got, workload *want, int i) {
    float *a = check_alloc(want->sizes[i], sizeof *a), *b = check_alloc(want->sizes[i], sizeof *b);
    for (int rank = 0; rank < RANKS; rank++) {
        tw_sparse sparse, expected;
        check_bits("out", got->outs[i][rank], want->outs[i][rank], want->sizes[i]);
        check_ok(tw_group_get_residual(got->r.groups[rank], i, a));
        check_ok(tw_group_get_residual(want->r.groups[rank], i, b));
        check_bits("residual", a, b, want->sizes[i]);
        const int error = tw_group_result(want->r.groups[rank], i, &expected);
        check_error(tw_group_result(got->r.groups[rank], i, &sparse), error);
        if (!error)
            check_selection(&sparse, expected.count, expected.idx, expected.val);
    }
    free(a);
    free(b);
}

void workload_same(workload *got, workload *want, const char *what, int step) {
    for (int i = 0; i < want->tensors; i++) {
        check_scene("%s: tensor %d of %lld elements, step=%d", what, i, (long long)want->sizes[i],
                    step);
        same_tensor(got, want, i);
    }
}

/* ---- A workload and its reference ------------------------------------------------------------ */

void comparison_open(comparison *c, const char *scheme) {
    for (int i = 0; i < FEW; i++)
        c->sizes[i] = 100 + 7 * (i % 3);
    c->grads = workload_gradients(c->sizes, FEW);
    const tw_group_params params = workload_params(scheme, 360), alone = workload_params(scheme, 1);
    workload_open(&c->tried, &params, c->sizes, FEW, c->grads);
    workload_open(&c->reference, &alone, c->sizes, FEW, c->grads);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < FEW; i++)
            c->tried.order[rank][i] = i;
    workload_gradients_fill(c->grads, c->sizes, FEW, 0);
}

void comparison_close(comparison *c) {
    workload_close(&c->tried);
    workload_close(&c->reference);
    workload_gradients_free(c->grads, FEW);
}

void reference_step(comparison *c) {
    ranks_run(&c->reference.r, step_one_by_one, &c->reference);
    ranks_ok(&c->reference.r);
}
