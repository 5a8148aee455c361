/* beside.c - a group and the oracle of its exchange, step by step */
#include "beside.h"

void beside_step(ranks *r, exchange_oracle *o, float **grads, float **outs) {
    exchange_oracle_step(o, grads);
    ranks_allreduce(r, 0, (void *const *)grads, outs);
    ranks_ok(r);
    for (int rank = 0; rank < r->nranks; rank++)
        check_bits("out", outs[rank], o->out, o->n);
    ranks_check_residuals(r, 0, o->residual, o->n);
}

void beside_run(const tw_group_params *params, exchange_oracle *o, int steps) {
    ranks r;
    float **grads = rows_alloc(o->nranks, o->n), **outs = rows_alloc(o->nranks, o->n);
    ranks_open(&r, o->nranks, params, &o->n, 1);
    for (int step = 0; step < steps; step++) {
        check_scene("%s P=%d feedback=%d momentum=%g threads=%d step=%d", o->exchange, o->nranks,
                    o->feedback, (double)o->momentum, params->select.threads, step);
        rows_fill(grads, o->nranks, o->n, DATA_LAPLACE, step);
        beside_step(&r, o, grads, outs);
    }
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
}
