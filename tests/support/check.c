/* check.c - the assertions of check.h, on top of cmocka's fail() and skip() */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_selector.h"
#include "base/clock.h"

/* With THINWIRE_TEST_UNCACHED selectors take the way of vectors that no cache holds, of any size. */
__attribute__((constructor)) static void choose_way(void) {
    if (getenv("THINWIRE_TEST_UNCACHED") != NULL)
        tw__most_cached = 0;
}

static char scene[256] = "";

void check_scene(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(scene, sizeof scene, format, args);
    va_end(args);
}

void check_fail(const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_msg("%s\n       scene: %s", text, scene);
    abort(); /* not reached */
}

void check_status(int got, int want, const char *call, const char *file, int line) {
    if (got != want)
        check_fail("%s:%d: %s\n       gave %d (%s), expected %d (%s)\n       last error: %s", file,
                   line, call, got, tw_error_text(got), want, tw_error_text(want), tw_last_error());
}

void check_int(const char *what, int64_t got, int64_t want) {
    if (got != want)
        check_fail("%s is %lld, expected %lld", what, (long long)got, (long long)want);
}

void check_between(const char *what, int64_t got, int64_t low, int64_t high) {
    if (got < low || got > high)
        check_fail("%s is %lld, expected %lld .. %lld", what, (long long)got, (long long)low,
                   (long long)high);
}

void check_float(const char *what, float got, float want) {
    if (oracle_bits(got) != oracle_bits(want))
        check_fail("%s is %a (%g), expected %a (%g)", what, (double)got, (double)got, (double)want,
                   (double)want);
}

void check_contains(const char *text, const char *part) {
    if (!strstr(text, part))
        check_fail("\"%s\" does not contain \"%s\"", text, part);
}

int64_t check_units(float x) {
    const double scaled = (double)x * 1024.0;
    if (scaled != floor(scaled))
        check_fail("%a is no multiple of 2^-10", (double)x);
    return (int64_t)scaled;
}

void check_bits(const char *what, const float *got, const float *want, int64_t n) {
    const int64_t i = oracle_difference(got, want, n);
    if (i >= 0)
        check_fail("%s[%lld] is %a (%g), expected %a (%g)", what, (long long)i, (double)got[i],
                   (double)got[i], (double)want[i], (double)want[i]);
}

void check_selection(const tw_sparse *got, int64_t count, const int32_t *idx, const float *val) {
    const int64_t shorter = got->count < count ? got->count : count;
    for (int64_t j = 0; j < shorter; j++)
        if (got->idx[j] != idx[j] || oracle_bits(got->val[j]) != oracle_bits(val[j]))
            check_fail("entry %lld of %lld is [%d] = %a, expected [%d] = %a of %lld", (long long)j,
                       (long long)got->count, got->idx[j], (double)got->val[j], idx[j],
                       (double)val[j], (long long)count);
    check_int("count", got->count, count);
}

void check_sparse(const tw_sparse *sparse, const float *acc, int64_t n) {
    for (int64_t j = 0; j < sparse->count; j++) {
        const int64_t i = sparse->idx[j];
        if (i < 0 || i >= n)
            check_fail("idx[%lld] is %lld, outside 0 .. n-1 = %lld", (long long)j, (long long)i,
                       (long long)n - 1);
        if (j > 0 && i <= sparse->idx[j - 1])
            check_fail("idx[%lld] is %lld after %d", (long long)j, (long long)i,
                       sparse->idx[j - 1]);
        if (oracle_bits(sparse->val[j]) != oracle_bits(acc[i]))
            check_fail("val[%lld] is %a, expected acc[%lld] = %a", (long long)j,
                       (double)sparse->val[j], (long long)i, (double)acc[i]);
    }
}

void *check_alloc(int64_t count, int64_t size) {
    void *memory = calloc((size_t)count, (size_t)size);
    if (!memory)
        check_fail("the test itself is out of memory");
    return memory;
}

tw_selector *check_create(int64_t n, const tw_select_params *params) {
    tw_selector *selector = NULL;
    check_ok(tw_selector_create(&selector, n, params));
    check_true(selector != NULL);
    return selector;
}

/* ---- Tables of the library ------------------------------------------------------------------- */

/* The name of a row, NULL behind the last one. */
typedef const char *(*row_name)(int position);

static const char *method_row(int position) {
    const char *name = NULL;
    return tw_select_method(position, &name, NULL) == TW_OK ? name : NULL;
}

static const char *exchange_row(int position) {
    const char *name = NULL;
    return tw_exchange(position, &name, NULL) == TW_OK ? name : NULL;
}

static const char *wire_row(int position) {
    const char *name = NULL;
    return tw_wire(position, &name, NULL) == TW_OK ? name : NULL;
}

static int count_rows(row_name row) {
    int count = 0;
    while (row(count))
        count++;
    return count;
}

static const char *name_row(row_name row, int position) {
    const char *name = row(position);
    if (!name)
        check_fail("the table has no row %d", position);
    return name;
}

int check_methods(void) {
    return count_rows(method_row);
}

const char *check_method(int position) {
    return name_row(method_row, position);
}

int check_gpu_methods(void) {
    int count = 0;
    for (; count < check_methods(); count++) {
        tw_select_params params = TW_SELECT_PARAMS_INIT;
        tw_memory memory;
        params.method = check_method(count);
        params.k = 1;
        params.device = TW_CUDA;
        if (tw_selector_memory(1, &params, &memory) == TW_ERR_NAME)
            break;
    }
    return count;
}

int64_t check_most(const char *method, int64_t k, int64_t n) {
    if (strcmp(method, "exact") == 0 || strcmp(method, "random") == 0)
        return k;
    return strcmp(method, "gaussian_published") == 0 || 4 * k > n ? n : 4 * k;
}

int check_exchanges(void) {
    return count_rows(exchange_row);
}

const char *check_exchange(int position) {
    return name_row(exchange_row, position);
}

int check_wires(void) {
    return count_rows(wire_row);
}

const char *check_wire(int position) {
    return name_row(wire_row, position);
}

/* ---- The machine ----------------------------------------------------------------------------- */

double check_seconds(void) {
    return tw__seconds();
}

void check_kernels_or_skip(void) {
    const char *wanted = getenv("THINWIRE_KERNELS");
    if (!wanted)
        return;
    const char *name;
    int usable;
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++)
        if (strcmp(name, wanted) == 0 && usable)
            return;
    printf("SKIP: this CPU or this build lacks the %s kernels\n", wanted);
    skip();
}
