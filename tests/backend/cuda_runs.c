/* cuda_runs.c - see cuda_runs.h */
#include "cuda_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one tensor */

/* Of summable data, in units: gradients so far = applied so far + residuals of all ranks. */
static void check_conserved(const pair *p, const int64_t *given, const int64_t *applied) {
    for (int64_t i = 0; i < p->n; i++) {
        int64_t left = 0;
        for (int r = 0; r < p->nranks; r++)
            left += check_units(p->residuals[1][r][i]);
        check_int("conserved", applied[i] + left, given[i]);
    }
}

static void add_step(const pair *p, int64_t *given, int64_t *applied) {
    for (int64_t i = 0; i < p->n; i++) {
        applied[i] += check_units(p->copies[0][i]);
        for (int r = 0; r < p->nranks; r++)
            given[i] += check_units(p->grads[r][i]);
    }
}

void run_scheme(const char *scheme, transfer_kind how, int nranks, int64_t n, double density,
                int steps) {
    tw_group_params params = params_of(scheme, density);
    int64_t *given = check_alloc(n, sizeof *given), *applied = check_alloc(n, sizeof *applied);
    memset(given, 0, sizeof *given * (size_t)n);
    memset(applied, 0, sizeof *applied * (size_t)n);
    pair p;
    check_scene("scheme=%s %s P=%d n=%lld open", scheme, transfer_names[how], nranks, (long long)n);
    pair_open_one(&p, nranks, n, &params, how);
    for (int step = 0; step < steps; step++) {
        check_scene("scheme=%s %s P=%d n=%lld density=%g step=%d", scheme, transfer_names[how],
                    nranks, (long long)n, density, step);
        rows_fill(p.grads, nranks, n, DATA_SUMMABLE, step);
        pair_step(&p, reduce_one, TW_OK);
        add_step(&p, given, applied);
    }
    compare_residuals(&p);
    check_conserved(&p, given, applied);
    pair_close(&p);
    free(given);
    free(applied);
}

/* ---- wire formats */

const char *wire_at(int position) {
    const char *name = NULL;
    return tw_wire(position, &name, NULL) == TW_OK ? name : NULL;
}

static void compare_payload(const pair *p) {
    for (int r = 0; r < p->nranks; r++) {
        tw_step_info cpu, cuda;
        check_ok(tw_group_info(p->cpu.groups[r], 0, &cpu));
        check_ok(tw_group_info(p->cuda.groups[r], 0, &cuda));
        check_int("payload sent", cuda.traffic.payload_sent, cpu.traffic.payload_sent);
        check_int("payload received", cuda.traffic.payload_received, cpu.traffic.payload_received);
    }
}

void run_wire(const char *scheme, const char *wire, transfer_kind how, int nranks, int64_t n,
              double density, int steps) {
    tw_group_params params = params_of(scheme, density);
    params.wire = wire;
    run_coded(&params, how, nranks, n, steps);
}

void run_coded(const tw_group_params *params, transfer_kind how, int nranks, int64_t n, int steps) {
    pair p;
    check_scene("scheme=%s wire=%s %s P=%d n=%lld open", params->scheme, params->wire,
                transfer_names[how], nranks, (long long)n);
    pair_open_one(&p, nranks, n, params, how);
    for (int step = 0; step < steps; step++) {
        check_scene("scheme=%s wire=%s %s P=%d n=%lld density=%g momentum=%g before=%d step=%d",
                    params->scheme, params->wire, transfer_names[how], nranks, (long long)n,
                    params->select.density, (double)params->select.momentum, params->select.before,
                    step);
        rows_fill(p.grads, nranks, n, step == 1 ? DATA_POWER5 : DATA_GAUSS, step);
        pair_step(&p, reduce_one, TW_OK);
        if (n < 100000) /* longer lists may be cut, and go from rank to rank, on the CPU alone */
            compare_payload(&p);
    }
    compare_residuals(&p);
    pair_close(&p);
}

/* ---- buckets */

void run_bucket(const group_setup *what) {
    const char *scheme = what->params.scheme, *how = transfer_names[what->how];
    int steps = what->steps != 0 ? what->steps : STEPS;
    pair p;
    check_scene("bucket, scheme=%s %s open", scheme, how);
    pair_open(&p, what);
    for (int step = 0; step < steps; step++) {
        int bad = step == steps / 2;
        check_scene("bucket, scheme=%s %s wire=%s, first of type %d and method %s, step=%d", scheme,
                    how, what->params.wire != NULL ? what->params.wire : "raw",
                    what->selects != NULL ? what->selects[0].type : TW_F32,
                    what->selects != NULL ? what->selects[0].method : "as the scheme", step);
        rows_fill(p.grads, p.nranks, p.n, step == 1 ? DATA_LAPLACE : DATA_GAUSS, step);
        if (bad)
            p.grads[1][p.n / 2] = NAN;
        pair_step(&p, reduce_all, bad ? TW_ERR_NUMBER : TW_OK);
    }
    compare_residuals(&p);
    pair_close(&p);
}

void run_many(const char *scheme) {
    static const int64_t many[] = {1,  2,    3,    31,   64,   512,   512,   512,   4095, 4096,
                                   10, 4097, 1728, 8192, 5000, 36864, 65536, 65537, 70001};
    group_setup all = {.params = params_of(scheme, 0.02),
                       .nranks = 4,
                       .tensors = sizeof many / sizeof *many,
                       .sizes = many};
    run_bucket(&all);
}

/* ---- neighbours that differ */

/* From 12 to 20 they are alike: more than fit a launch, before and behind others. */
const int64_t mixed_sizes[MIXED] = {1,   2,    31,   512, 4095, 4096,  4097, 512,
                                    10,  1728, 8192, 300, 512,  512,   512,  512,
                                    512, 512,  512,  512, 512,  65536, 5000, 65537};

static int alike(int tensor) {
    return tensor >= 12 && tensor <= 20;
}

static tw_select_params select_mixed(const group_setup *what, mixture mix, int t) {
    tw_select_params select = what->params.select;
    select.method = t % 2 == 0 || alike(t) ? "reuse" : "exact";
    if (mix != METHODS) {
        select.type = alike(t) ? TW_F16 : t % 3;
        select.method = "exact";
    }
    if (mix == BOTH) {
        select.density = t % 2 == 0 ? 0.05 : 0.01;
        select.reuse_period = 2;
        select.warmup_steps = t % 7 == 3 ? 3 : 0;
        select.clip_norm = t % 5 == 1 ? 2.5f : 0.0f;
        if (!alike(t))
            select.method = check_method(t % check_gpu_methods());
        select.momentum = t % 4 == 2 ? 0.9f : 0.0f;
        select.before = t % 4 == 3 ? TW_BEFORE_ADAMW : TW_BEFORE_NOTHING;
    }
    return select;
}

void setup_mixed(group_setup *what, mixture mix, tw_select_params selects[MIXED]) {
    what->tensors = MIXED;
    what->sizes = mixed_sizes;
    what->selects = selects;
    for (int t = 0; t < MIXED; t++)
        selects[t] = select_mixed(what, mix, t);
}

void run_mixed(const char *scheme, const char *wire, mixture mix, transfer_kind how) {
    tw_select_params selects[MIXED];
    group_setup mixed = {.params = params_of(scheme, 0.05), .nranks = 3, .how = how};
    mixed.params.wire = wire;
    mixed.params.result = TW_MEAN;
    setup_mixed(&mixed, mix, selects);
    run_bucket(&mixed);
}
