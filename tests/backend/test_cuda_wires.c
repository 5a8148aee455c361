/* test_cuda_wires.c - groups on a GPU in wire formats send and get what those on the CPU do
 *
 * Lists so short that the CPU codes them, unless transfers are lent, and long ones, which the GPU does.
 * An argument: tests of this name alone. */
#include <string.h>

#include "cuda_runs.h"

static void test_wires(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 8};
    const char *scheme;
    for (int s = 0; tw_scheme(s, &scheme, NULL, NULL, NULL) == TW_OK; s++) {
        int coded = strcmp(scheme, "auto") != 0 && strcmp(scheme, "dense") != 0;
        for (int w = 1; wire_at(w) != NULL && coded; w++) {
            for (int c = 0; c < 4; c++)
                run_wire(scheme, wire_at(w), LENT, counts[c], 5003, 0.1, 3);
            run_wire(scheme, wire_at(w), DIRECT, 3, 20011, 0.02, 3);
        }
    }
}

/* Entries stay on the GPU all three ways. */
static void test_long_wires(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka", "topkdsa", "gtopk", "oktopk"};
    for (transfer_kind how = DIRECT; how < TRANSFER_KINDS; how++) {
        for (int s = 0; s < 4; s++)
            for (int w = 1; wire_at(w) != NULL; w++)
                run_wire(schemes[s], wire_at(w), how, 3, 250007, 0.1, 2);
        run_wire("topkdsa", "q8", how, 2, 900000, 0.4, 2); /* bitmaps */
    }
}

/* Momentum and AdamW: what was applied, rounded, loses its velocity, and what comes back does not.
 * Lists with the host and on the GPU. */
static void test_moments(void **state) {
    (void)state;
    static const char *const schemes[] = {"topka",  "topkdsa", "gtopk",
                                          "oktopk", "randomk", "fulltopk"};
    for (int s = 0; s < 6; s++) {
        for (int w = 1; wire_at(w) != NULL; w++) {
            tw_group_params params = params_of(schemes[s], 0.05);
            params.wire = wire_at(w);
            params.select.momentum = 0.9f;
            run_coded(&params, DIRECT, 3, 20011, STEPS);
            run_coded(&params, LENT, 3, 20011, STEPS);
            params.select.momentum = 0.0f;
            params.select.before = TW_BEFORE_ADAMW;
            run_coded(&params, LENT, 3, 20011, STEPS);
        }
    }
}

/* From 32768 entries on oktopk cuts regions into batches: on the CPU always, on a GPU where values
 * are rounded by blocks. */
static void test_batches(void **state) {
    (void)state;
    for (transfer_kind how = DIRECT; how < TRANSFER_KINDS; how++) {
        run_wire("oktopk", "bf16", how, 4, 1000003, 0.05, 3);
        run_wire("oktopk", "q4", how, 4, 1000003, 0.05, 3);
        run_wire("oktopk", "q2", how, 2, 1000003, 0.05, 3);
        for (int w = 1; wire_at(w) != NULL; w++)
            run_wire("oktopk", wire_at(w), how, 6, 700001, 0.05, 3);
        run_wire("oktopk", "q8", how, 8, 400009, 0.1, 2);
        run_wire("oktopk", "q4", how, 7, 400009, 0.1, 2);
        run_wire("fulltopk", "q4", how, 6, 400009, 0.1, 2);
    }
}

int main(int argc, char **argv) {
    if (gpu_missing())
        return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wires),
        cmocka_unit_test(test_long_wires),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_batches),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
