/* fleet.c - see fleet.h */
#include "fleet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tw_group_params fleet_params(const char *scheme, int64_t bucket) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = scheme;
    params.select.density = 0.02;
    params.select.threads = 1;
    params.bucket = bucket;
    return params;
}

void fleet_prepare(fleet *f, int64_t *sizes, int tensors, float ***grads) {
    memset(f, 0, sizeof *f);
    f->tensors = tensors;
    f->sizes = sizes;
    f->grads = grads;
    f->outs = check_alloc(tensors, sizeof *f->outs);
    for (int i = 0; i < tensors; i++)
        f->outs[i] = rows_alloc(RANKS, sizes[i]);
    ranks_init(&f->r, RANKS);
    f->waits[0] = TW_ALL;
}

void fleet_open(fleet *f, const tw_group_params *params, int64_t *sizes, int tensors,
                float ***grads) {
    fleet_prepare(f, sizes, tensors, grads);
    ranks_try_open(&f->r, params, sizes, tensors);
    ranks_ok(&f->r);
}

void fleet_close(fleet *f) {
    for (int i = 0; i < f->tensors; i++)
        rows_free(f->outs[i]);
    free(f->outs);
    ranks_close(&f->r);
}

float ***gradients(const int64_t *sizes, int tensors) {
    float ***grads = check_alloc(tensors, sizeof *grads);
    for (int i = 0; i < tensors; i++)
        grads[i] = rows_alloc(RANKS, sizes[i]);
    return grads;
}

void gradients_free(float ***grads, int tensors) {
    for (int i = 0; i < tensors; i++)
        rows_free(grads[i]);
    free(grads);
}

void gradients_fill(float ***grads, const int64_t *sizes, int tensors, int step) {
    for (int i = 0; i < tensors; i++)
        for (int rank = 0; rank < RANKS; rank++)
            oracle_fill(grads[i][rank], sizes[i], DATA_GAUSS,
                        (uint64_t)((step * 1000 + i) * RANKS + rank));
}

void make_sizes(int64_t *sizes, int tensors, int64_t largest) {
    oracle_rng rng = {5};
    for (int i = 0; i < tensors; i++)
        sizes[i] = 1 + (int64_t)pow((double)largest / 20.0, oracle_uniform(&rng));
    sizes[0] = 1;
    sizes[tensors / 2] = largest;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

int step_one_by_one(ranks *r, int rank, void *context) {
    fleet *f = context;
    int error = TW_OK;
    for (int i = 0; i < f->tensors && !error; i++)
        error = tw_allreduce(r->groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
    return error;
}

int start_all(fleet *f, int rank) {
    int error = TW_OK;
    for (int j = 0; j < f->tensors && !error; j++) {
        const int i = f->order[rank][j];
        error = tw_allreduce_start(f->r.groups[rank], i, f->grads[i][rank], f->outs[i][rank]);
    }
    return error;
}

int step_in_background(ranks *r, int rank, void *context) {
    fleet *f = context;
    int error = start_all(f, rank), j = 0;
    for (; f->waits[j] != TW_ALL && !error; j++)
        error = tw_allreduce_wait(r->groups[rank], f->waits[j]);
    return error ? error : tw_allreduce_wait(r->groups[rank], TW_ALL);
}

static void shuffle(int *order, int count, oracle_rng *rng) {
    for (int i = 0; i < count; i++) {
        const int j = (int)oracle_below(rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

void shuffle_all(fleet *f, oracle_rng *rng) {
    for (int rank = 0; rank < RANKS; rank++)
        shuffle(f->order[rank], f->tensors, rng);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void same_tensor(fleet *got, fleet *want, int i) {
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

void same_fleet(fleet *got, fleet *want, const char *what, int step) {
    for (int i = 0; i < want->tensors; i++) {
        check_scene("%s: tensor %d of %lld elements, step=%d", what, i, (long long)want->sizes[i],
                    step);
        same_tensor(got, want, i);
    }
}

/* ---- Two of them ----------------------------------------------------------------------------- */

void duel_open(duel *d, const char *scheme) {
    for (int i = 0; i < FEW; i++)
        d->sizes[i] = 100 + 7 * (i % 3);
    d->grads = gradients(d->sizes, FEW);
    const tw_group_params params = fleet_params(scheme, 360), alone = fleet_params(scheme, 1);
    fleet_open(&d->tried, &params, d->sizes, FEW, d->grads);
    fleet_open(&d->reference, &alone, d->sizes, FEW, d->grads);
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0; i < FEW; i++)
            d->tried.order[rank][i] = i;
    gradients_fill(d->grads, d->sizes, FEW, 0);
}

void duel_close(duel *d) {
    fleet_close(&d->tried);
    fleet_close(&d->reference);
    gradients_free(d->grads, FEW);
}

void reference_step(duel *d) {
    ranks_run(&d->reference.r, step_one_by_one, &d->reference);
    ranks_ok(&d->reference.r);
}
