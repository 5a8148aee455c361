/* test_bad_params.c - every wrong parameter is refused with its typed error and a helpful text
 *
 * Each case starts from good parameters and spoils one field. tw_selector_create and
 * tw_selector_memory must agree on the error, the text must name the field, and nothing may be
 * replaced in silence. The good neighbours of the limits are accepted.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { N = 100 };

static tw_select_params good(void) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 10;
    params.threads = 1;
    return params;
}

/* Both calls refuse with the error, and the text names the field. */
static void refused(int64_t n, const tw_select_params *params, int error, const char *word) {
    tw_selector *selector = (tw_selector *)&selector; /* anything but NULL */
    check_error(tw_selector_create(&selector, n, params), error);
    check_true(selector == NULL);
    check_contains(tw_last_error(), word);
    tw_memory memory;
    check_error(tw_selector_memory(n, params, &memory), error);
    check_contains(tw_last_error(), word);
}

static void accepted(const tw_select_params *params) {
    tw_memory memory;
    check_ok(tw_selector_memory(N, params, &memory));
    tw_selector_free(check_create(N, params));
}

/* refuse(error, word, p.field = value): good parameters with one field spoiled. */
#define refuse(error, word, spoil)                                                                 \
    do {                                                                                           \
        tw_select_params p = good();                                                               \
        spoil;                                                                                     \
        check_scene("line %d: %s", __LINE__, #spoil);                                              \
        refused(N, &p, error, word);                                                               \
    } while (0)

#define accept(spoil)                                                                              \
    do {                                                                                           \
        tw_select_params p = good();                                                               \
        spoil;                                                                                     \
        check_scene("line %d: %s", __LINE__, #spoil);                                              \
        accepted(&p);                                                                              \
    } while (0)

static void test_k(void **state) {
    (void)state;
    refuse(TW_ERR_K, "k", p.k = -1);
    refuse(TW_ERR_K, "k", p.k = INT64_MIN);
    refuse(TW_ERR_K, "k", p.k = N + 1);
    refuse(TW_ERR_K, "100", p.k = INT64_MAX); /* says what is accepted */
    accept(p.k = 1);
    accept(p.k = N);
}

static void test_density(void **state) {
    (void)state;
    const double bad[] = {-0.1, -1e-300, 1.0000001, 2.0, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 7; i++)
        refuse(TW_ERR_DENSITY, "density", (p.k = 0, p.density = bad[i]));
    accept((p.k = 0, p.density = 1.0));
    accept((p.k = 0, p.density = 1e-300));
}

static void test_both_or_none(void **state) {
    (void)state;
    tw_select_params p = good();
    tw_selector *selector;
    for (int both = 0; both < 2; both++) {
        p.k = both ? 10 : 0;
        p.density = both ? 0.1 : 0.0;
        check_scene("k and density: %s given", both ? "both" : "none");
        const int error = tw_selector_create(&selector, N, &p);
        check_true(error == TW_ERR_K || error == TW_ERR_DENSITY);
        check_true(selector == NULL);
        check_contains(tw_last_error(), "k");
        check_contains(tw_last_error(), "density");
    }
}

static void test_size(void **state) {
    (void)state;
    const int64_t bad[] = {0, -1, INT64_MIN, INT64_C(2147483648), INT64_C(1) << 40, INT64_MAX};
    const tw_select_params p = good();
    for (int i = 0; i < 6; i++) {
        check_scene("n=%lld", (long long)bad[i]);
        refused(bad[i], &p, TW_ERR_SIZE, "n");
    }
    tw_memory memory;
    check_ok(tw_selector_memory(INT64_C(2147483647), &p, &memory));
    check_true(memory.residual >= (size_t)4 * 2147483647u);
}

static void test_method_name(void **state) {
    (void)state;
    refuse(TW_ERR_NAME, "method", p.method = "exactly");
    refuse(TW_ERR_NAME, "method", p.method = "");
    refuse(TW_ERR_NAME, "method", p.method = "Exact");
    for (int i = 0; i < check_methods(); i++) {
        refuse(TW_ERR_NAME, check_method(i), p.method = "nonsense"); /* lists what is accepted */
        accept(p.method = check_method(i));
    }
    accept(p.method = NULL);
}

/* The tests below set environment variables; the next test starts without them. */
static int forget_variables(void **state) {
    (void)state;
    unsetenv("THINWIRE_KERNELS");
    unsetenv("THINWIRE_THREADS");
    return 0;
}

static void test_kernels_name(void **state) {
    (void)state;
    setenv("THINWIRE_KERNELS", "nonsense", 1);
    refuse(TW_ERR_NAME, "THINWIRE_KERNELS", (void)p);
    refuse(TW_ERR_NAME, "nonsense", (void)p);
    const char *name;
    int usable;
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++) {
        setenv("THINWIRE_KERNELS", name, 1);
        if (usable)
            accept((void)p);
        else
            refuse(TW_ERR_NAME, name, (void)p);
    }
    setenv("THINWIRE_KERNELS", "", 1); /* as if it were not set */
    accept((void)p);
}

static void test_threads_variable(void **state) {
    (void)state;
    const char *bad[] = {"0", "-3", "257", "two", "4x"};
    for (int i = 0; i < 5; i++) {
        setenv("THINWIRE_THREADS", bad[i], 1);
        refuse(TW_ERR_PARAM, "THINWIRE_THREADS", p.threads = 0);
        accept(p.threads = 2); /* not asked for, not looked at */
    }
}

static void test_enums_and_threads(void **state) {
    (void)state;
    refuse(TW_ERR_PARAM, "type", p.type = 3);
    refuse(TW_ERR_PARAM, "type", p.type = -1);
    refuse(TW_ERR_PARAM, "feedback", p.feedback = 2);
    refuse(TW_ERR_PARAM, "feedback", p.feedback = -1);
    refuse(TW_ERR_PARAM, "threads", p.threads = -1);
    refuse(TW_ERR_PARAM, "threads", p.threads = 257);
    accept(p.threads = 256);
    accept(p.threads = 0);
    for (int i = 0; i < 7; i++)
        refuse(TW_ERR_PARAM, "reserved", p.reserved[i] = 1);
}

static void test_adamw_fields(void **state) {
    (void)state;
    const double outside[] = {1.0, 1.5, -1e-9, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 6; i++) {
        refuse(TW_ERR_PARAM, "beta1", (p.before = TW_BEFORE_ADAMW, p.beta1 = outside[i]));
        refuse(TW_ERR_PARAM, "beta2", (p.before = TW_BEFORE_ADAMW, p.beta2 = outside[i]));
        if (!(outside[i] >= 1.0 && outside[i] < 2.0)) {
            refuse(TW_ERR_PARAM, "eps", (p.before = TW_BEFORE_ADAMW, p.eps = outside[i]));
            refuse(TW_ERR_PARAM, "rate", (p.before = TW_BEFORE_ADAMW, p.rate = outside[i]));
        }
    }
    refuse(TW_ERR_PARAM, "before", p.before = 2);
    refuse(TW_ERR_PARAM, "before", p.before = -1);
    refuse(TW_ERR_PARAM, "before", (p.before = TW_BEFORE_ADAMW, p.feedback = TW_FEEDBACK_OFF));
    refuse(TW_ERR_PARAM, "momentum", (p.before = TW_BEFORE_ADAMW, p.momentum = 0.5f));
    refuse(TW_ERR_PARAM, "beta1", p.beta1 = 0.5);
    refuse(TW_ERR_PARAM, "beta2", p.beta2 = 0.5);
    refuse(TW_ERR_PARAM, "eps", p.eps = 0.5);
    refuse(TW_ERR_PARAM, "rate", p.rate = 0.5);
    accept(p.before = TW_BEFORE_ADAMW);
    accept((p.before = TW_BEFORE_ADAMW, p.beta2 = 0.5)); /* beta1 is then 0 */
    accept((p.before = TW_BEFORE_ADAMW, p.eps = 1.0, p.rate = 1.0));
}

static void test_momentum_fields(void **state) {
    (void)state;
    const float bad_momentum[] = {1.0f, 1.5f, -0.1f, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 6; i++)
        refuse(TW_ERR_PARAM, "momentum", p.momentum = bad_momentum[i]);
    const float bad_clip[] = {-1.0f, -1e-30f, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 5; i++)
        refuse(TW_ERR_PARAM, "clip_norm", p.clip_norm = bad_clip[i]);
    refuse(TW_ERR_PARAM, "momentum", (p.momentum = 0.5f, p.feedback = TW_FEEDBACK_OFF));
    refuse(TW_ERR_PARAM, "warmup_steps", p.warmup_steps = -1);
    const double bad_warmup[] = {-0.1, 1.5, NAN, INFINITY};
    for (int i = 0; i < 4; i++)
        refuse(TW_ERR_DENSITY, "warmup_density",
               (p.warmup_steps = 3, p.warmup_density = bad_warmup[i]));
    refuse(TW_ERR_PARAM, "warmup", p.warmup = 4);
    refuse(TW_ERR_PARAM, "warmup", p.warmup = -1);
    refuse(TW_ERR_PARAM, "warmup_steps", (p.warmup = TW_WARMUP_CALLER, p.warmup_steps = 3));
    for (int warmup = 0; warmup < TW_WARMUP_CALLER; warmup++)
        accept((p.warmup = warmup, p.warmup_steps = 3));
    accept(p.warmup = TW_WARMUP_CALLER);
    accept(p.momentum = 0.99999994f); /* the last float before 1 */
    accept(p.momentum = 1e-9f);
    accept(p.clip_norm = FLT_MIN);
    accept(p.clip_norm = FLT_MAX);
    accept((p.warmup_steps = 3, p.warmup_density = 1.0));
}

static void test_method_fields(void **state) {
    (void)state;
    refuse(TW_ERR_PARAM, "reuse_period", p.reuse_period = -1);
    const float bad[] = {-0.5f, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        refuse(TW_ERR_PARAM, "reuse_low", p.reuse_low = bad[i]);
        refuse(TW_ERR_PARAM, "reuse_high", p.reuse_high = bad[i]);
        refuse(TW_ERR_PARAM, "reuse_nudge", p.reuse_nudge = bad[i]);
    }
    refuse(TW_ERR_PARAM, "gaussian_rounds", p.gaussian_rounds = -1);
    const double bad_sample[] = {-0.01, 1.01, NAN, INFINITY};
    for (int i = 0; i < 4; i++)
        refuse(TW_ERR_PARAM, "dgc_sample", p.dgc_sample = bad_sample[i]);
    accept((p.method = "reuse", p.reuse_period = 1));
    accept((p.method = "dgc", p.dgc_sample = 1.0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_k),
        cmocka_unit_test(test_density),
        cmocka_unit_test(test_both_or_none),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_method_name),
        cmocka_unit_test_setup_teardown(test_kernels_name, NULL, forget_variables),
        cmocka_unit_test_setup_teardown(test_threads_variable, NULL, forget_variables),
        cmocka_unit_test(test_enums_and_threads),
        cmocka_unit_test(test_momentum_fields),
        cmocka_unit_test(test_adamw_fields),
        cmocka_unit_test(test_method_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
