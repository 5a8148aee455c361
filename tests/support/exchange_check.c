/* exchange_check.c - a group and the oracle of its exchange, step by step; see exchange_check.h */
#include "exchange_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A case while it runs. */
typedef struct case_run {
    exchange_case t;
    ranks r;
    exchange_oracle oracle;
    float **grad;    /* [nranks][n] as float32 */
    char **raw;      /* [nranks] what the library gets: type, shift */
    char **out;      /* [nranks] where the library writes */
    float *got;      /* [n] */
    void **grad_arg; /* [nranks] */
    float **out_arg; /* [nranks] or NULL */
} case_run;

static char **bytes_alloc(int nranks, int64_t bytes) {
    char **rows = check_alloc(nranks, sizeof *rows);
    for (int rank = 0; rank < nranks; rank++)
        rows[rank] = check_alloc(bytes, 1);
    return rows;
}

static void bytes_free(char **rows, int nranks) {
    for (int rank = 0; rank < nranks; rank++)
        free(rows[rank]);
    free(rows);
}

static void case_arguments(case_run *s) {
    const int in_place = s->t.mode == OUT_IN_PLACE;
    for (int rank = 0; rank < s->t.nranks; rank++) {
        s->grad_arg[rank] = s->raw[rank] + s->t.shift;
        char *out = in_place ? s->raw[rank] : s->out[rank];
        s->out_arg[rank] = (float *)(void *)(out + s->t.shift);
    }
}

static void case_open(case_run *s, const exchange_case *t) {
    memset(s, 0, sizeof *s);
    s->t = *t;
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = strcmp(t->exchange, "dense") == 0 ? "dense" : "topka";
    params.exchange = t->exchange;
    params.select.method = "exact";
    params.select.k = t->k;
    params.select.type = t->type;
    params.select.threads = 1;
    params.result = t->result;
    ranks_open(&s->r, t->nranks, &params, &t->n, 1);
    exchange_oracle_open(&s->oracle, t->exchange, t->nranks, t->n, t->k, t->result);
    s->grad = rows_alloc(t->nranks, t->n);
    s->raw = bytes_alloc(t->nranks, t->n * oracle_type_size(t->type) + t->shift);
    s->out = bytes_alloc(t->nranks, t->n * 4 + t->shift);
    s->got = check_alloc(t->n, sizeof *s->got);
    s->grad_arg = check_alloc(t->nranks, sizeof *s->grad_arg);
    s->out_arg = check_alloc(t->nranks, sizeof *s->out_arg);
    case_arguments(s);
}

static void case_close(case_run *s) {
    ranks_close(&s->r);
    exchange_oracle_close(&s->oracle);
    rows_free(s->grad);
    bytes_free(s->raw, s->t.nranks);
    bytes_free(s->out, s->t.nranks);
    free(s->got);
    free(s->grad_arg);
    free(s->out_arg);
}

/* By powers of two, which round nothing. */
static void resize(float *grad, int64_t n, int step, int jump) {
    static const int turns[] = {0, 1, -1};
    for (int64_t i = 0; i < n; i++)
        grad[i] = ldexpf(grad[i], turns[step % 3] * jump);
}

static void case_fill(case_run *s, int step) {
    const exchange_case *t = &s->t;
    const support where = {.kind = t->kind,
                           .nranks = t->nranks,
                           .n = t->n,
                           .k = t->k,
                           .seed = t->seed,
                           .summable = t->summable,
                           .noise = !t->quiet};
    for (int rank = 0; rank < t->nranks; rank++) {
        if (t->data >= 0)
            oracle_fill(s->grad[rank], t->n, (oracle_data)t->data,
                        t->seed * 100 + (uint64_t)(step * t->nranks + rank));
        else
            support_fill(&where, rank, step, s->grad[rank]);
        resize(s->grad[rank], t->n, step, t->jump);
        oracle_encode(s->grad_arg[rank], s->grad[rank], t->n, t->type);
        oracle_decode(s->grad[rank], s->grad_arg[rank], t->n, t->type);
        memset(s->out[rank], 0xff, (size_t)(t->n * 4 + t->shift));
    }
}

/* ---- What a step leaves behind -- ------------------------------------------------------------ */

static void check_out(case_run *s, int rank) {
    if (s->t.mode == OUT_NONE)
        return;
    memcpy(s->got, s->out_arg[rank], (size_t)s->t.n * sizeof(float));
    check_bits("out", s->got, s->oracle.out, s->t.n);
}

static void check_result(case_run *s, int rank) {
    tw_sparse sparse;
    if (strcmp(s->t.exchange, "dense") == 0) {
        check_error(tw_group_result(s->r.groups[rank], 0, &sparse), TW_ERR_STATE);
        return;
    }
    const oracle_entries *want = &s->oracle.applied;
    float *val = check_alloc(want->count + 1, sizeof *val);
    for (int64_t j = 0; j < want->count; j++)
        val[j] = s->oracle.out[want->idx[j]];
    check_ok(tw_group_result(s->r.groups[rank], 0, &sparse));
    check_selection(&sparse, want->count, want->idx, val);
    free(val);
}

static void check_step_info(case_run *s, int rank, int step) {
    tw_step_info info;
    check_ok(tw_group_info(s->r.groups[rank], 0, &info));
    check_int("info.step", info.step, step + 1);
    check_int("info.tensors", info.tensors, 1);
    if (strcmp(info.exchange, s->oracle.used) != 0)
        check_fail("info.exchange is %s, expected %s", info.exchange, s->oracle.used);
    if (strcmp(s->t.exchange, "dense") == 0)
        return;
    check_int("info.k", info.k, s->t.k);
    check_int("info.applied", info.applied, s->oracle.applied.count);
    check_between("info.selected", info.selected, 0, s->t.k);
}

/* The gradient is the caller's; in place it has become the result. */
static void check_grad_untouched(case_run *s, int rank) {
    if (s->t.mode == OUT_IN_PLACE)
        return;
    oracle_decode(s->got, s->grad_arg[rank], s->t.n, s->t.type);
    check_bits("grad", s->got, s->grad[rank], s->t.n);
}

static void case_step(case_run *s, int step) {
    case_fill(s, step);
    exchange_oracle_step(&s->oracle, s->grad);
    ranks_allreduce(&s->r, 0, s->grad_arg, s->t.mode == OUT_NONE ? NULL : s->out_arg);
    ranks_ok(&s->r);
    for (int rank = 0; rank < s->t.nranks; rank++) {
        check_out(s, rank);
        check_result(s, rank);
        check_step_info(s, rank, step);
        check_grad_untouched(s, rank);
    }
    /* Not after every step: unread, the library leaves part of its work for the next pass. */
    if (step % 2 || step + 1 == s->t.steps)
        ranks_check_residuals(&s->r, 0, s->oracle.residual, s->t.n);
}

static void describe(const exchange_case *t, int step) {
    check_scene("%s P=%d n=%lld k=%lld %s%s result=%d type=%d out=%d shift=%d seed=%d step=%d",
                t->exchange, t->nranks, (long long)t->n, (long long)t->k,
                t->data >= 0 ? oracle_data_name((oracle_data)t->data) : support_name(t->kind),
                t->summable ? " summable" : "", t->result, t->type, (int)t->mode, t->shift,
                (int)t->seed, step);
}

void exchange_check(const exchange_case *t) {
    case_run s;
    describe(t, -1);
    case_open(&s, t);
    for (int step = 0; step < t->steps; step++) {
        describe(t, step);
        case_step(&s, step);
    }
    case_close(&s);
}

exchange_case exchange_case_default(const char *exchange, int nranks) {
    return (exchange_case){.exchange = exchange,
                           .nranks = nranks,
                           .n = 3001,
                           .k = 300,
                           .steps = 4,
                           .result = TW_SUM,
                           .data = -1,
                           .seed = (uint64_t)nranks};
}

out_mode exchange_case_out(const char *exchange, int number) {
    const out_mode mode = (out_mode)(number % OUTS);
    return mode == OUT_NONE && strcmp(exchange, "dense") == 0 ? OUT_APART : mode;
}

/* ---- Groups with options of the caller ------------------------------------------------------- */

void exchange_check_step(ranks *r, exchange_oracle *o, float **grads, float **outs) {
    exchange_oracle_step(o, grads);
    ranks_allreduce(r, 0, (void *const *)grads, outs);
    ranks_ok(r);
    for (int rank = 0; rank < r->nranks; rank++)
        check_bits("out", outs[rank], o->out, o->n);
    ranks_check_residuals(r, 0, o->residual, o->n);
}

void exchange_check_steps(const tw_group_params *params, exchange_oracle *o, int steps) {
    ranks r;
    float **grads = rows_alloc(o->nranks, o->n), **outs = rows_alloc(o->nranks, o->n);
    ranks_open(&r, o->nranks, params, &o->n, 1);
    for (int step = 0; step < steps; step++) {
        check_scene("%s P=%d feedback=%d momentum=%g threads=%d step=%d", o->exchange, o->nranks,
                    o->feedback, (double)o->momentum, params->select.threads, step);
        rows_fill(grads, o->nranks, o->n, DATA_LAPLACE, step);
        exchange_check_step(&r, o, grads, outs);
    }
    ranks_close(&r);
    rows_free(grads);
    rows_free(outs);
}
