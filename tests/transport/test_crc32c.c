/* test_crc32c.c - the checksum of messages: known values, and the instruction against the table */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/random.h"
#include "check.h"

/* RFC 3720, B.4, and the check value of the catalogue of CRCs. */
static void test_known(void **state) {
    unsigned char data[32] = {0};
    (void)state;
    check_int("of nothing", tw__crc32c(0, data, 0), 0);
    check_int("of 123456789", tw__crc32c(0, "123456789", 9), 0xe3069283);
    check_int("of 32 zeros", tw__crc32c(0, data, 32), 0x8a9136aa);
    memset(data, 0xff, sizeof data);
    check_int("of 32 ones", tw__crc32c(0, data, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)i;
    check_int("of 0 .. 31", tw__crc32c(0, data, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        data[i] = (unsigned char)(31 - i);
    check_int("of 31 .. 0", tw__crc32c(0, data, 32), 0x113fdb5c);
}

enum { BYTES = 100000 };

static unsigned char *make_bytes(void) {
    unsigned char *data = check_alloc(BYTES, 1);
    for (uint64_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)tw__random(1, i);
    return data;
}

/* Lengths around those that are read in parts, from any address. */
static void test_lengths(void **state) {
    unsigned char *data = make_bytes();
    (void)state;
    for (size_t bytes = 0; bytes < 40000; bytes += bytes < 3200 ? 1 : 61)
        check_int("crc", tw__crc32c(7, data + bytes % 9, bytes),
                  tw__crc32c_table(7, data + bytes % 9, bytes));
    check_int("crc of all", tw__crc32c(0, data, BYTES), tw__crc32c_table(0, data, BYTES));
    free(data);
}

/* A message is checked as it arrives. */
static void test_parts(void **state) {
    unsigned char *data = make_bytes();
    const uint32_t whole = tw__crc32c(0, data, BYTES);
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        uint32_t crc = 0;
        for (size_t at = 0, draw = 0; at < BYTES; draw++) {
            size_t part = tw__random(seed, draw) % 20000;
            part = part < BYTES - at ? part : BYTES - at;
            crc = tw__crc32c(crc, data + at, part);
            at += part;
        }
        check_int("crc", crc, whole);
    }
    free(data);
}

static void test_name(void **state) {
    const char *forced = getenv("THINWIRE_KERNELS");
    (void)state;
    if (forced != NULL && strcmp(forced, "ref") == 0)
        check_true(strcmp(tw__crc32c_name(), "table") == 0);
#if defined(__x86_64__)
    else
        check_true(strcmp(tw__crc32c_name(), "sse4.2") == 0);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_lengths),
                                       cmocka_unit_test(test_parts), cmocka_unit_test(test_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
