/* test_cuda_buckets.c - several tensors in a bucket on a GPU, alike and not
 *
 * Steps of tensors share launches, as long as type and method are the same: here they are, are not,
 * and some tensors are of other methods in between. For large tensors blocks wait for each other,
 * row by row. An argument: tests of this name alone. */
#include "cuda_runs.h"

static void test_background(void **state) {
    (void)state;
    static const int64_t two[] = {30000, 30000};
    group_setup both = {
        .params = params_of("oktopk", 0.02), .nranks = 4, .tensors = 2, .sizes = two};
    run_bucket(&both);
}

static void test_many(void **state) {
    (void)state;
    run_many("oktopk");
    run_many("topka");
    run_many("gaussiank");
}

/* Rows of one block and of several; in the last step but one a bad number in a row of several. */
static void run_large(const char *scheme, double density, int64_t bucket) {
    static const int64_t large[] = {1728,    64,  64,  36864,  73728,  128, 147456,
                                    1179648, 300, 512, 700001, 589824, 10,  2359296};
    group_setup all = {.params = params_of(scheme, density),
                       .nranks = 2,
                       .tensors = sizeof large / sizeof *large,
                       .sizes = large};
    all.params.bucket = bucket;
    run_bucket(&all);
}

/* At density 0.2 a block cannot hold its candidates: the choice takes the long way. */
static void test_large(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "oktopk"};
    for (int s = 0; s < 2; s++) {
        run_large(schemes[s], 0.001, INT32_MAX);
        run_large(schemes[s], 0.01, INT32_MAX);
        run_large(schemes[s], 0.2, INT32_MAX);
        run_large(schemes[s], 0.01, 2000000);
    }
}

/* More than fit one launch, and more blocks that wait for each other than run at the same time. */
static void test_hundreds(void **state) {
    (void)state;
    enum { HUNDREDS = 200 };
    int64_t sizes[HUNDREDS];
    for (int t = 0; t < HUNDREDS; t++)
        sizes[t] = t % 3 == 0 ? 600000 + t : t % 3 == 1 ? 768 : 5000 + t;
    group_setup all = {
        .params = params_of("topka", 0.002), .nranks = 2, .tensors = HUNDREDS, .sizes = sizes};
    all.params.bucket = INT32_MAX;
    run_bucket(&all);
}

static void test_mixed(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka",  "topkdsa",  "gtopk",
                                          "oktopk", "fulltopk", "logtopk"};
    for (mixture mix = TYPES; mix < MIXTURES; mix++) {
        for (int s = 0; s < 6; s++) {
            run_mixed(schemes[s], NULL, mix, DIRECT);
            run_mixed(schemes[s], NULL, mix, LENT);
        }
    }
    run_mixed("dense", NULL, TYPES, DIRECT);
    run_mixed("dense", NULL, TYPES, LENT);
    run_mixed("oktopk", NULL, BOTH, STAGED);
}

static void test_mixed_wires(void **state) {
    (void)state;
    for (int w = 1; wire_at(w) != NULL; w++) {
        run_mixed("oktopk", wire_at(w), BOTH, LENT);
        run_mixed("topka", wire_at(w), TYPES, LENT);
    }
}

/* Without feedback there is no residual to add to, nor to leave. */
static void test_some_without_feedback(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "gtopk", "oktopk", "fulltopk"};
    for (int s = 0; s < 4; s++) {
        tw_select_params selects[MIXED];
        group_setup some = {.params = params_of(schemes[s], 0.05), .nranks = 3, .how = LENT};
        setup_mixed(&some, TYPES, selects);
        for (int t = 0; t < MIXED; t += 4)
            selects[t].feedback = TW_FEEDBACK_OFF;
        run_bucket(&some);
    }
}

/* Some tensors of the group do not lie on the GPU. */
static void test_some_on_host(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "gtopk", "oktopk", "fulltopk"};
    for (int s = 0; s < 4; s++) {
        tw_select_params selects[MIXED];
        group_setup some = {.params = params_of(schemes[s], 0.05), .nranks = 3};
        some.on_host = 1u << 3 | 1u << 13 | 1u << 23;
        setup_mixed(&some, BOTH, selects);
        run_bucket(&some);
    }
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_background),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_hundreds),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_mixed_wires),
        cmocka_unit_test(test_some_without_feedback),
        cmocka_unit_test(test_some_on_host),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
