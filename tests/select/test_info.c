/* test_info.c - what a program may ask before it selects: version, error texts, methods, kernels,
 * threads; and the bare pass tw_accumulate
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static void test_version(void **state) {
    (void)state;
    char want[32];
    snprintf(want, sizeof want, "%d.%d.%d", TW_VERSION_MAJOR, TW_VERSION_MINOR, TW_VERSION_PATCH);
    assert_string_equal(tw_version(), want);
}

static void test_error_texts(void **state) {
    (void)state;
#define CHECK_TEXT(name, value, text)                                                              \
    assert_int_equal(name, value);                                                                 \
    assert_string_equal(tw_error_text(name), text);
    TW_ERRORS(CHECK_TEXT)
#undef CHECK_TEXT
    const int unknown[] = {1, -11, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++)
        check_true(tw_error_text(unknown[i]) != NULL && tw_error_text(unknown[i])[0] != '\0');
}

static int methods_named(const char *name) {
    int found = 0;
    for (int i = 0; i < check_methods(); i++)
        found += strcmp(check_method(i), name) == 0;
    return found;
}

/* Every method has a name of its own and one line of description. The published ones stay. */
static void test_methods(void **state) {
    (void)state;
    const char *published[] = {"exact",  "reuse",   "gaussian",          "dgc",
                               "random", "redsync", "gaussian_published"};
    const char *name, *description;
    for (int i = 0; i < 7; i++)
        check_int(published[i], methods_named(published[i]), 1);
    int count = 0;
    for (; tw_select_method(count, &name, &description) == TW_OK; count++) {
        check_int(name, methods_named(name), 1);
        check_true(description[0] != '\0' && strchr(description, '\n') == NULL);
    }
    check_error(tw_select_method(count, &name, NULL), TW_ERR_NAME);
    check_error(tw_select_method(-1, NULL, NULL), TW_ERR_NAME);
}

/* Loops over the tables end without an error to explain: the text of an earlier one stays. */
static void test_ends_of_tables(void **state) {
    (void)state;
    int usable;
    check_error(tw_selector_create(NULL, 1, NULL), TW_ERR_NULL);
    char *before = strdup(tw_last_error());
    check_contains(before, "selector");
    for (int position = 99; position >= -1; position -= 100) {
        check_int("scheme", tw_scheme(position, NULL, NULL, NULL, NULL), TW_ERR_NAME);
        check_int("exchange", tw_exchange(position, NULL, NULL), TW_ERR_NAME);
        check_int("wire", tw_wire(position, NULL, NULL), TW_ERR_NAME);
        check_int("transport", tw_transport_kind(position, NULL, NULL), TW_ERR_NAME);
        check_int("method", tw_select_method(position, NULL, NULL), TW_ERR_NAME);
        check_int("kernels", tw_kernels_at(position, NULL, &usable), TW_ERR_NAME);
    }
    assert_string_equal(tw_last_error(), before);
    free(before);
}

/* ref is always there; kernels that are usable can be chosen by name, and are then in use. */
static void test_kernels(void **state) {
    (void)state;
    const char *name;
    int usable, count = 0, has_ref = 0;
    const char *before = getenv("THINWIRE_KERNELS");
    char *saved = before ? strdup(before) : NULL;
    unsetenv("THINWIRE_KERNELS");
    const char *fastest = tw_kernels();
    for (; tw_kernels_at(count, &name, &usable) == TW_OK; count++) {
        has_ref += strcmp(name, "ref") == 0 && usable;
        if (!usable) {
            check_true(strcmp(name, fastest) != 0);
            continue;
        }
        setenv("THINWIRE_KERNELS", name, 1);
        assert_string_equal(tw_kernels(), name);
    }
    check_int("ref", has_ref, 1);
    check_ok(tw_kernels_at(0, NULL, NULL));
    check_error(tw_kernels_at(count, NULL, NULL), TW_ERR_NAME);
    check_error(tw_kernels_at(-1, NULL, NULL), TW_ERR_NAME);
    unsetenv("THINWIRE_KERNELS");
    if (saved)
        setenv("THINWIRE_KERNELS", saved, 1);
    free(saved);
}

static void test_default_threads(void **state) {
    (void)state;
    unsetenv("THINWIRE_THREADS");
    check_between("default threads", tw_default_threads(), 1, 256);
    setenv("THINWIRE_THREADS", "3", 1);
    check_int("default threads", tw_default_threads(), 3);
    unsetenv("THINWIRE_THREADS");
}

/* sum += add at sum and add misaligned by `shift` bytes, and nothing written past the end. */
static void accumulate_once(int64_t n, int threads, int shift) {
    const int64_t bytes = n * 4;
    char *sum = check_alloc(bytes + shift + 4, 1);
    char *add = check_alloc(bytes + shift, 1);
    float *want = check_alloc(n + 1, sizeof *want);
    float *other = check_alloc(n + 1, sizeof *other);
    oracle_fill(want, n + 1, DATA_GAUSS, 1);
    oracle_fill(other, n, DATA_BITS, 2);
    memcpy(sum + shift, want, (size_t)bytes + 4);
    memcpy(add + shift, other, (size_t)bytes);
    for (int64_t i = 0; i < n; i++)
        want[i] += other[i];
    check_scene("accumulate n=%lld threads=%d shift=%d", (long long)n, threads, shift);
    check_ok(tw_accumulate((void *)(sum + shift), (void *)(add + shift), n, threads));
    memcpy(other, sum + shift, (size_t)bytes + 4);
    check_bits("sum", other, want, n + 1);
    free(sum);
    free(add);
    free(want);
    free(other);
}

static void test_accumulate(void **state) {
    (void)state;
    const char *name;
    int usable;
    for (int at = 0; tw_kernels_at(at, &name, &usable) == TW_OK; at++) {
        if (!usable)
            continue;
        setenv("THINWIRE_KERNELS", name, 1);
        for (int64_t n = 1; n <= 150; n++)
            accumulate_once(n, 1, (int)(n % 9));
        for (int threads = 1; threads <= 4; threads++)
            accumulate_once(200003, threads, 4 * threads + 1);
    }
    unsetenv("THINWIRE_KERNELS");
}

static void test_accumulate_errors(void **state) {
    (void)state;
    float sum[4] = {1, 2, 3, 4}, add[4] = {1, 1, 1, 1};
    const float before[4] = {1, 2, 3, 4};
    const int64_t bad_sizes[] = {0, -1, INT64_C(2147483648), INT64_MIN};
    for (int i = 0; i < 4; i++)
        check_error(tw_accumulate(sum, add, bad_sizes[i], 1), TW_ERR_SIZE);
    check_error(tw_accumulate(sum, add, 4, -1), TW_ERR_PARAM);
    check_error(tw_accumulate(sum, add, 4, 257), TW_ERR_PARAM);
    check_bits("sum", sum, before, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),    cmocka_unit_test(test_error_texts),
        cmocka_unit_test(test_methods),    cmocka_unit_test(test_ends_of_tables),
        cmocka_unit_test(test_kernels),    cmocka_unit_test(test_default_threads),
        cmocka_unit_test(test_accumulate), cmocka_unit_test(test_accumulate_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
