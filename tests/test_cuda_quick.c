/* test_cuda_quick.c - some of all that groups do on a GPU, for tools that are many times slower
 *
 * What compute-sanitizer runs: entries stay on the GPU. An argument: tests of this name alone. */
#include <string.h>

#include "cuda_courses.h"

static void test_schemes(void **state) {
    (void)state;
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        if (strcmp(scheme, "auto") != 0) { /* goes by time, which is not the same here and there */
            run_scheme(scheme, LENT, 3, 5003, 0.1);
        }
    }
}

static void test_wires(void **state) {
    (void)state;
    static const char *const coded[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    for (int w = 1; wire_at(w) != NULL; w++) {
        run_wire(coded[w % 4], wire_at(w), LENT, 3, 5003, 0.1, 2);
    }
}

static void test_buckets(void **state) {
    (void)state;
    run_many("oktopk");
    run_mixed("topka", NULL, TYPES, LENT);
    run_mixed("fulltopk", NULL, METHODS, DIRECT);
    run_mixed("oktopk", NULL, BOTH, LENT);
}

int main(int argc, char **argv) {
    if (gpu_missing()) {
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_wires),
        cmocka_unit_test(test_buckets),
    };
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
