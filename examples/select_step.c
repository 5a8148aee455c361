/* select_step.c - selection with error feedback, without an exchange
 *
 *     cc select_step.c $(pkg-config --cflags --libs thinwire) -o select_step
 *
 * Each step selects 3 of 10 gradient values and commits them as sent. The residual keeps the rest.
 * So after four steps every value was either sent or is still in the residual. One gradient holds a
 * NaN: that step is refused and changes nothing. */
#include <math.h>
#include <stdio.h>

#include <thinwire.h>

enum { N = 10, STEPS = 4 };

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, tw_last_error());
    return 1;
}

int main(void) {
    tw_select_params params = TW_SELECT_PARAMS_INIT;
    params.k = 3;
    tw_selector *selector;
    if (tw_selector_create(&selector, N, &params) != TW_OK)
        return failed("create");

    double given = 0.0, sent = 0.0, kept = 0.0;
    for (int step = 0; step < STEPS; step++) {
        float grad[N];
        for (int i = 0; i < N; i++)
            grad[i] = (float)((i * 7 + step * 3) % 10 - 4);
        if (step == 2)
            grad[5] = NAN;

        tw_sparse sparse;
        if (tw_selector_run(selector, grad, &sparse) != TW_OK) {
            printf("step %d refused: %s\n", step, tw_last_error());
            continue;
        }
        printf("step %d sends", step);
        for (int64_t i = 0; i < sparse.count; i++) {
            printf("  [%d] %g", (int)sparse.idx[i], (double)sparse.val[i]);
            sent += (double)sparse.val[i];
        }
        printf("\n");
        for (int i = 0; i < N; i++)
            given += (double)grad[i];
        if (tw_selector_commit(selector, NULL, 0) != TW_OK)
            return failed("commit");
    }

    float residual[N];
    if (tw_selector_get_residual(selector, residual) != TW_OK)
        return failed("residual");
    for (int i = 0; i < N; i++)
        kept += (double)residual[i];
    printf("given %g = sent %g + kept %g\n", given, sent, kept);
    tw_selector_free(selector);
    return given == sent + kept ? 0 : 1;
}
