/* test_kernels.c - kernels from inside, where their results do not show it all
 *
 * What kernels compute is compared through selections and messages, by the tests that run with each
 * kind of them. Here is what they must leave alone, and the k-th magnitude, which falls back where its
 * sample misleads it. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kth.h"
#include "backend/extent.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5 };

static int64_t first_other(const unsigned char *bytes, int64_t count, unsigned char want) {
    int64_t i = 0;
    while (i < count && bytes[i] == want)
        i++;
    return i;
}

/* Zeros inside, nothing outside; from 2^18 bytes on they go past the caches, in whole lines. */
static void test_clear(void **state) {
    (void)state;
    static const int64_t lengths[] = {
        0, 1, 63, 64, 65, 128, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 18) + 77};
    const int64_t most = 2 * GUARD + 66 + (1 << 18) + 77;
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    unsigned char *memory = check_alloc(most, 1);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int64_t shift = 0; shift <= 65; shift++) {
            const int64_t begin = GUARD + shift, end = begin + lengths[i];
            check_scene("%lld bytes from %lld", (long long)lengths[i], (long long)shift);
            memset(memory, GUARD_BYTE, (size_t)most);
            kernels->clear(memory + begin, lengths[i]);
            check_int("guard before", first_other(memory, begin, GUARD_BYTE), begin);
            check_int("zeros", first_other(memory + begin, lengths[i], 0), lengths[i]);
            check_int("guard behind", first_other(memory + end, most - end, GUARD_BYTE),
                      most - end);
        }
    free(memory);
}

/* ---- The k-th magnitude ------------------------------------------------------------------------ */

static void check_kth(tw__kth got, const float *val, int64_t n, int64_t rank) {
    int64_t greater = 0, equal = 0;
    for (int64_t i = 0; i < n; i++) {
        greater += tw__magnitude(val[i]) > got.bits;
        equal += tw__magnitude(val[i]) == got.bits;
    }
    check_int("greater", got.greater, greater);
    check_int("equal", got.equal, equal);
    check_between("rank", rank, greater + 1, greater + equal);
}

/* The median of so many values: those inside the bracket are more than their buffer holds. */
static void test_kth_of_many(void **state) {
    (void)state;
    const int64_t n = 255000;
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    float *val = check_alloc(n, sizeof *val);
    for (int trial = 0; trial < 8; trial++) {
        check_scene("%lld values, trial %d", (long long)n, trial);
        oracle_fill(val, n, DATA_GAUSS, (uint64_t)trial);
        check_kth(tw__kth_of_values(kernels, val, n, n / 2), val, n, n / 2);
    }
    free(val);
}

/* Samples that put the answer just above the bracket, in it, and just below it. */
static void test_kth_beside_bracket(void **state) {
    (void)state;
    enum { N = 4 * TW__SAMPLE + 1000, ROOM = 100, MIDDLE = 700 };
    uint32_t bits[TW__SAMPLE], scratch[ROOM + TW__SLACK];
    const tw__kth_sample sample = {bits, TW__SAMPLE, scratch, ROOM};
    const tw__kernels *kernels;
    check_kernels_or_skip();
    check_ok(tw__kernels_choose(&kernels));
    float *val = check_alloc(N, sizeof *val);
    for (int64_t i = 0; i < N; i++)
        val[i] = (float)(N - i);
    for (int64_t i = 0; i < TW__SAMPLE; i++)
        bits[i] = tw__magnitude(val[MIDDLE]);
    const tw__kth_part part = {val, N};
    for (int64_t rank = MIDDLE - 1; rank <= MIDDLE + 3; rank++) { /* MIDDLE values are above */
        check_scene("rank %lld", (long long)rank);
        check_kth(tw__kth_of_parts(kernels, &part, 1, &sample, rank), val, N, rank);
    }
    free(val);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clear),
                                       cmocka_unit_test(test_kth_of_many),
                                       cmocka_unit_test(test_kth_beside_bracket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
