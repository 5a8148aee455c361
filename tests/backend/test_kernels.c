/* test_kernels.c - kernels from inside, where their results do not show it all
 *
 * What kernels compute is compared through selections and messages, by the tests that run with each
 * kind of them. Here is what they must leave alone. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "backend/cpu/kernels.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clear)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
