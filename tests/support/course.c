/* course.c - one selector and its oracle, step by step */
#include "course.h"

#include <stdlib.h>
#include <string.h>

void course_open(course *c, int64_t n, const tw_select_params *params, int shift) {
    memset(c, 0, sizeof *c);
    c->n = n;
    c->k = params->k;
    c->type = params->type;
    c->feedback = params->feedback;
    c->selector = check_create(n, params);
    c->memory = check_alloc(shift + n * oracle_type_size(c->type), 1);
    c->grad_raw = c->memory + shift;
    c->grad = check_alloc(n, sizeof(float));
    c->residual = check_alloc(n, sizeof(float));
    c->acc = check_alloc(n, sizeof(float));
    c->scratch = check_alloc(n, sizeof(float));
    c->idx = check_alloc(c->k, sizeof(int32_t));
    c->val = check_alloc(c->k, sizeof(float));
}

static void check_residual(course *c) {
    check_ok(tw_selector_get_residual(c->selector, c->scratch));
    check_bits("residual", c->scratch, c->residual, c->n);
}

void course_close(course *c) {
    check_residual(c);
    tw_selector_free(c->selector);
    free(c->memory);
    free(c->grad);
    free(c->residual);
    free(c->acc);
    free(c->scratch);
    free(c->idx);
    free(c->val);
    memset(c, 0, sizeof *c);
}

void course_fill(course *c, oracle_data kind, float scale, uint64_t seed) {
    oracle_fill(c->scratch, c->n, kind, seed);
    for (int64_t i = 0; i < c->n; i++)
        c->scratch[i] *= scale;
    oracle_encode(c->grad_raw, c->scratch, c->n, c->type);
    oracle_decode(c->grad, c->grad_raw, c->n, c->type);
}

/* The oracle's side of a step; returns the count. */
static int64_t expect(course *c) {
    for (int64_t i = 0; i < c->n; i++)
        c->acc[i] = c->feedback == TW_FEEDBACK_ON ? c->grad[i] + c->residual[i] : c->grad[i];
    const int64_t count = oracle_topk(c->acc, c->n, c->k, c->idx, c->val);
    if (c->feedback == TW_FEEDBACK_ON)
        memcpy(c->residual, c->acc, (size_t)c->n * sizeof *c->acc);
    for (int64_t j = 0; j < count; j++)
        c->residual[c->idx[j]] = 0.0f;
    return count;
}

static void check_info(const course *c, int64_t count) {
    uint32_t smallest = count ? UINT32_MAX : 0;
    for (int64_t j = 0; j < count; j++)
        if (oracle_magnitude(c->val[j]) < smallest)
            smallest = oracle_magnitude(c->val[j]);
    tw_select_info info;
    check_ok(tw_selector_info(c->selector, &info));
    check_int("info.k", info.k, c->k);
    check_int("info.count", info.count, count);
    check_int("info.bad_index", info.bad_index, -1);
    check_true(info.candidates >= count && info.rescans >= 0);
    check_float("info.threshold", info.threshold, oracle_float(smallest));
}

void course_step(course *c) {
    const int64_t count = expect(c);
    tw_sparse sparse;
    check_ok(tw_selector_run(c->selector, c->grad_raw, &sparse));
    check_selection(&sparse, count, c->idx, c->val);
    check_info(c, count);
    check_ok(tw_selector_commit(c->selector, NULL, 0));
    if (++c->steps % 3 == 0)
        check_residual(c);
}
