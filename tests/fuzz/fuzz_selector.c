/* fuzz_selector.c - bytes become parameters and steps; every step is compared with the oracle
 *
 * A libFuzzer target; fuzz_main.c runs it on seeded random bytes where there is no libFuzzer. The
 * first bytes give n, k, method, type, feedback, threads and momentum. Each step then takes a kind
 * of data, a few elements with arbitrary bits (NaN and infinity included), and how it ends.
 *
 * The model computes acc itself: a step must be refused exactly when acc is not finite somewhere;
 * "exact" must equal the full sort, the other methods by magnitude the `count` largest. Clipping is
 * left out, as its norm depends on the order of summation. A violation prints a line and aborts.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "oracle.h"

enum { MOST = 3000, MAX_STEPS = 12 };

/* The selector, and what it should hold. */
typedef struct model {
    tw_select_params params;
    int64_t n, k;
    tw_selector *selector;
    float grad[MOST], residual[MOST], velocity[MOST];
    float acc[MOST], next_velocity[MOST], scratch[MOST];
    float second[MOST], next_second[MOST]; /* of AdamW, whose m is in velocity */
    int gradients;                         /* in these moments */
    char raw[MOST * 4 + 4];
    int shift; /* misalignment of raw */
    int32_t idx[MOST];
    float val[MOST];
} model;

static void read_params(model *m, input *in) {
    const uint32_t size = take(in, 2);
    const uint32_t flags = take(in, 1);
    m->n = 1 + (flags & 1 ? size % MOST : size % 70);
    m->k = m->params.k = 1 + take(in, 2) % (flags & 2 ? m->n : 1 + m->n / 20);
    m->params.type = (int)(take(in, 1) % 3);
    m->params.feedback = flags & 4 ? TW_FEEDBACK_OFF : TW_FEEDBACK_ON;
    m->params.threads = 1 + (int)(flags >> 3) % 3;
    m->params.momentum = (flags & 32) && !(flags & 4) ? 0.75f : 0.0f;
    m->params.reuse_period = 1 + (int)(flags >> 6);
    const uint32_t shift = take(in, 1);
    m->shift = (int)(shift % 4);
    if ((shift & 4) && m->params.momentum == 0.0f && m->params.feedback == TW_FEEDBACK_ON) {
        m->params.before = TW_BEFORE_ADAMW;
        m->params.beta1 = 0.75; /* powers of these are exact */
        m->params.beta2 = 0.875;
        m->params.eps = 1e-6;
        m->params.rate = 0.01;
    }
    REQUIRE(tw_select_method(take_row(in, count_methods()), &m->params.method, NULL) == TW_OK);
}

/* Some kind of data at some scale, then up to 15 elements with arbitrary bits. */
static void read_gradient(model *m, input *in) {
    const oracle_data kind = (oracle_data)(take(in, 1) % DATA_KINDS);
    const float scale = ldexpf(1.0f, (int)(take(in, 1) % 64) - 32);
    oracle_fill(m->scratch, m->n, kind, take(in, 1));
    for (int64_t i = 0; i < m->n; i++)
        m->scratch[i] *= scale;
    for (uint32_t wild = take(in, 1) % 16; wild > 0; wild--) {
        const int64_t at = take(in, 2) % m->n;
        m->scratch[at] = oracle_float(take(in, 4));
    }
    char *raw = m->raw + m->shift;
    oracle_encode(raw, m->scratch, m->n, m->params.type);
    oracle_decode(m->grad, raw, m->n, m->params.type);
}

/* AdamW's update of element i, as src/backend/adamw.h has it; NaN if v overflows. */
static float update_of(model *m, int64_t i) {
    const float rate = (float)(0.01 / (1.0 - pow(0.75, m->gradients + 1)));
    const float root = (float)(1.0 / sqrt(1.0 - pow(0.875, m->gradients + 1)));
    m->next_velocity[i] = 0.75f * m->velocity[i] + 0.25f * m->grad[i];
    m->next_second[i] = 0.875f * m->second[i] + 0.125f * m->grad[i] * m->grad[i];
    const float d = root * sqrtf(m->next_second[i]) + 1e-6f;
    return rate * m->next_velocity[i] / d + (d - d);
}

/* acc as it should be; returns the first index that is not finite, or -1. */
static int64_t expect(model *m) {
    int64_t bad = -1;
    for (int64_t i = m->n - 1; i >= 0 && m->params.before == TW_BEFORE_ADAMW; i--) {
        m->acc[i] = m->residual[i] + update_of(m, i);
        if (!isfinite(m->acc[i]))
            bad = i;
    }
    if (m->params.before == TW_BEFORE_ADAMW)
        return bad;
    for (int64_t i = m->n - 1; i >= 0; i--) {
        const float kept = m->params.momentum * m->velocity[i];
        m->next_velocity[i] = m->params.momentum > 0 ? kept + m->grad[i] : m->grad[i];
        m->acc[i] = m->params.feedback == TW_FEEDBACK_ON ? m->next_velocity[i] + m->residual[i]
                                                         : m->grad[i];
        if (!isfinite(m->acc[i]))
            bad = i;
    }
    return bad;
}

static void check_residual(model *m) {
    REQUIRE(tw_selector_get_residual(m->selector, m->scratch) == TW_OK);
    REQUIRE(oracle_difference(m->scratch, m->residual, m->n) < 0);
}

static void check_selection(model *m, const tw_sparse *sparse) {
    const int random = strcmp(m->params.method, "random") == 0;
    const int exact = strcmp(m->params.method, "exact") == 0;
    const int unbounded = strcmp(m->params.method, "gaussian_published") == 0;
    REQUIRE(sparse->count >= 0 && sparse->count <= m->n);
    REQUIRE(unbounded || sparse->count <= 4 * m->k);
    REQUIRE(!random || sparse->count == m->k);
    for (int64_t j = 0; j < sparse->count; j++) {
        REQUIRE(sparse->idx[j] >= 0 && sparse->idx[j] < m->n);
        REQUIRE(j == 0 || sparse->idx[j] > sparse->idx[j - 1]);
        REQUIRE(oracle_bits(sparse->val[j]) == oracle_bits(m->acc[sparse->idx[j]]));
    }
    if (random)
        return;
    const int64_t wanted = exact ? m->k : sparse->count;
    const int64_t count = oracle_topk(m->acc, m->n, wanted, m->idx, m->val);
    REQUIRE(count == sparse->count);
    REQUIRE(count == 0 || memcmp(m->idx, sparse->idx, (size_t)count * sizeof *m->idx) == 0);
}

/* An index that was not selected must be refused, and the step stay open. */
static void commit_wrongly(model *m, const tw_sparse *sparse) {
    int32_t at = 0;
    while (at < sparse->count && sparse->idx[at] == at)
        at++;
    REQUIRE(tw_selector_commit(m->selector, &at, 1) == TW_ERR_INDEX);
    REQUIRE(tw_selector_commit(m->selector, (int32_t[]){1, 0}, 2) == TW_ERR_INDEX);
}

static void commit(model *m, const tw_sparse *sparse, int how) {
    int64_t count = 0;
    for (int64_t j = 0; j < sparse->count; j++)
        if (how == 0 || (how == 1 && j % 2 == 0))
            m->idx[count++] = sparse->idx[j];
    memcpy(m->residual, m->acc, sizeof m->acc);
    memcpy(m->velocity, m->next_velocity, sizeof m->velocity);
    memcpy(m->second, m->next_second, sizeof m->second);
    m->gradients++;
    for (int64_t j = 0; j < count; j++) {
        m->residual[m->idx[j]] = 0.0f;
        if (m->params.before != TW_BEFORE_ADAMW)
            m->velocity[m->idx[j]] = 0.0f;
    }
    REQUIRE(tw_selector_commit(m->selector, how == 0 ? NULL : m->idx, how == 0 ? 0 : count) ==
            TW_OK);
}

static void end_step(model *m, input *in, const tw_sparse *sparse) {
    const uint32_t how = take(in, 1);
    if (m->params.feedback == TW_FEEDBACK_OFF)
        return;
    if (how & 4)
        commit_wrongly(m, sparse);
    if (how % 4 == 3)
        REQUIRE(tw_selector_undo(m->selector, m->raw + m->shift) == TW_OK);
    else
        commit(m, sparse, (int)(how % 4));
    if (how & 8)
        check_residual(m);
}

static void one_step(model *m, input *in) {
    tw_sparse sparse;
    tw_select_info info;
    read_gradient(m, in);
    const int64_t bad = expect(m);
    const int error = tw_selector_run(m->selector, m->raw + m->shift, &sparse);
    REQUIRE(error == (bad < 0 ? TW_OK : TW_ERR_NUMBER));
    REQUIRE(tw_selector_info(m->selector, &info) == TW_OK && info.bad_index == bad);
    if (error) {
        if (take(in, 1) & 1)
            check_residual(m);
        return;
    }
    check_selection(m, &sparse);
    end_step(m, in, &sparse);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    read_params(m, &in);
    REQUIRE(tw_selector_create(&m->selector, m->n, &m->params) == TW_OK);
    for (int step = 0; step < MAX_STEPS && in.left > 0; step++)
        one_step(m, &in);
    check_residual(m);
    tw_selector_free(m->selector);
    free(m);
    return 0;
}

/* Any bytes are a valid input. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    (void)number, (void)data, (void)room;
    return 0;
}
