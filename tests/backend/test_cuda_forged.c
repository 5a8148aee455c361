/* test_cuda_forged.c - what comes from other ranks, checked where it lies: on the GPU
 *
 * Messages that no honest rank sends, and sums that no float holds. With lent transfers entries are on
 * the GPU, however few. An argument: tests of this name alone. */
#include "cuda_runs.h"

static const char *const schemes[] = {"topka", "topkdsa", "gtopk", "oktopk"};

/* ---- messages */

/* What becomes of the first message from rank 1 to rank 0: `bytes` of it, from `at` on or, where
 * that is negative, from there before its end, become `value`. */
typedef struct forgery {
    const char *what;
    int64_t at;
    size_t bytes;
    int value;
} forgery;

static const forgery *forged; /* NULL: all are honest */

static void forge(const tw_device_message *m, int from, int to) {
    if (forged == NULL || from != 1 || to != 0)
        return;
    int64_t at = forged->at >= 0 ? forged->at : (int64_t)m->bytes + forged->at;
    (void)cudaMemset((char *)m->data + at, forged->value, forged->bytes);
    (void)cudaDeviceSynchronize();
    forged = NULL;
}

static int zeros(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0.0f)
            return 0;
    return 1;
}

/* An error that names the rank, and nothing is lost. */
static void run_forged(const char *scheme, const forgery *f) {
    tw_group_params params = params_of(scheme, 0.1);
    params.wire = "f32";
    pair p;
    pair_open_one(&p, 3, 5003, &params, LENT);
    check_scene("forged %s, scheme=%s", f->what, scheme);
    rows_fill(p.grads, 3, 5003, DATA_GAUSS, 1);
    pair_upload(&p);
    forged = f;
    ranks_run(&p.cuda, reduce_one, &p);
    check_true(forged == NULL);
    check_int("status", p.cuda.status[0], TW_ERR_PROTOCOL);
    check_contains(p.cuda.text[0], "rank 1: sent");
    ranks_get_residuals(&p.cuda, 0, p.residuals[1], p.n);
    check_true(zeros(p.residuals[1][0], p.n));
    pair_close(&p);
}

static void test_forged_letters(void **state) {
    (void)state;
    static const forgery forgeries[] = {
        {"kind", 0, 1, 9},    {"version", 8, 1, 77}, {"format", 9, 1, 6},
        {"width", 10, 1, 31}, {"unused", 11, 1, 1},  {"count", 12, 4, 255},
        {"fewer", 12, 4, 0},  {"nan", -4, 4, 255},   {"indices", 16, 40, 255}};
    lent_tamper = forge;
    for (int s = 0; s < 4; s++)
        for (int f = 0; f < 9; f++)
            run_forged(schemes[s], &forgeries[f]);
    lent_tamper = NULL;
}

/* ---- sums that no float holds: refused alike */

/* Every second step is near the edge, and the last one beyond it. */
static void fill_large(pair *p, int step) {
    rows_fill(p->grads, p->nranks, p->n, DATA_GAUSS, step);
    for (int r = 0; r < p->nranks && step % 2; r++) {
        for (int64_t i = 0; i < p->n; i++)
            p->grads[r][i] *= 1e37f;
        p->grads[r][7] = step == STEPS - 1 ? 3e38f : p->grads[r][7];
    }
}

static void run_overflow(const char *scheme, const char *wire, transfer_kind how) {
    tw_group_params params = params_of(scheme, 0.02);
    params.wire = wire;
    pair p;
    pair_open_one(&p, 3, 3001, &params, how);
    for (int step = 0; step < STEPS; step++) {
        check_scene("overflow, scheme=%s wire=%s %s step=%d", scheme, wire, transfer_names[how],
                    step);
        fill_large(&p, step);
        pair_upload(&p);
        ranks_run(&p.cpu, reduce_one, &p);
        ranks_run(&p.cuda, reduce_one, &p);
        for (int r = 0; r < 3; r++)
            check_int("status", p.cuda.status[r], p.cpu.status[r]);
        if (p.cpu.status[0] == TW_OK)
            pair_check_outs(&p);
        compare_residuals(&p);
    }
    ranks_error(&p.cuda, TW_ERR_NUMBER); /* the last one */
    pair_close(&p);
}

static void test_overflow(void **state) {
    (void)state;
    static const char *const wires[] = {"raw", "bf16", "q2"};
    for (int s = 0; s < 4; s++) {
        for (int w = 0; w < 3; w++) {
            run_overflow(schemes[s], wires[w], DIRECT);
            run_overflow(schemes[s], wires[w], LENT);
        }
    }
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forged_letters),
        cmocka_unit_test(test_overflow),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
