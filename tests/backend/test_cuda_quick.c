/* test_cuda_quick.c - some of all that groups do on a GPU, for tools that are many times slower
 *
 * What compute-sanitizer runs: entries stay on the GPU. An argument: tests of this name alone. */
#include <string.h>

#include "cuda_runs.h"

static void test_schemes(void **state) {
    (void)state;
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++)
        if (strcmp(scheme, "auto") != 0) /* goes by time, which is not the same here and there */
            run_scheme(scheme, LENT, 3, 5003, 0.1, 2);
}

static void test_wires(void **state) {
    (void)state;
    static const char *const coded[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    for (int w = 1; wire_at(w) != NULL; w++)
        run_wire(coded[w % 4], wire_at(w), LENT, 3, 5003, 0.1, 2);
}

static void test_buckets(void **state) {
    (void)state;
    for (mixture mix = METHODS; mix <= BOTH; mix++) {
        tw_select_params selects[MIXED];
        group_setup mixed = {
            .params = params_of("oktopk", 0.05), .nranks = 2, .how = LENT, .steps = 3};
        setup_mixed(&mixed, mix, selects);
        run_bucket(&mixed);
    }
}

/* Blocks that wait for each other, in rows. */
static void test_rows(void **state) {
    (void)state;
    static const int64_t sizes[] = {120000, 512, 130001};
    group_setup large = {.params = params_of("topka", 0.05),
                         .nranks = 2,
                         .how = LENT,
                         .steps = 3,
                         .tensors = 3,
                         .sizes = sizes};
    run_bucket(&large);
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_wires),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_rows),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
