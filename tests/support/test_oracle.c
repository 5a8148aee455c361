/* test_oracle.c - the oracle itself, on examples worked out by hand
 *
 * A wrong oracle would accept a wrong library. So its conversions are compared with numbers from
 * the IEEE tables, and its top-k with a selection done by hand.
 */
#include "check.h"

#include <math.h>
#include <string.h>

static void test_f16_numbers(void **state) {
    (void)state;
    const float x[] = {0.0f, -0.0f, 1.0f, -2.0f, 65504.0f, 0x1p-14f, 0x1p-24f, 1.0f / 3, 1e9f};
    const uint16_t want[] = {0, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x3555, 0x7bff};
    uint16_t got[9];
    oracle_encode(got, x, 9, TW_F16);
    for (int i = 0; i < 9; i++)
        check_int("binary16 bits", got[i], want[i]);
}

static void test_bf16_numbers(void **state) {
    (void)state;
    const float x[] = {0.0f, 1.0f, -2.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 0x1p-133f, 3.4e38f};
    const uint16_t want[] = {0, 0x3f80, 0xc000, 0x3f80, 0x3f82, 0x0001, 0x7f7f};
    uint16_t got[7];
    oracle_encode(got, x, 7, TW_BF16);
    for (int i = 0; i < 7; i++)
        check_int("bfloat16 bits", got[i], want[i]);
}

/* Decoding and encoding give back every one of the 65536 patterns, but for NaN payloads. */
static void test_round_trip(void **state) {
    (void)state;
    for (int type = TW_F16; type <= TW_BF16; type++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const uint16_t element = (uint16_t)bits;
            float x;
            uint16_t again;
            oracle_decode(&x, &element, 1, type);
            if (isnan(x))
                continue;
            oracle_encode(&again, &x, 1, type);
            check_int("bits after a round trip", again, element);
            if (type == TW_BF16)
                check_int("upper half", oracle_bits(x) >> 16, element);
        }
}

static void test_topk_by_hand(void **state) {
    (void)state;
    const float acc[8] = {1.0f, -3.0f, 0.0f, 2.0f, -0.0f, -2.0f, 3.0f, 0x1p-149f};
    int32_t idx[8];
    float val[8];
    check_int("count", oracle_topk(acc, 8, 3, idx, val), 3);
    const int32_t three[] = {1, 3, 6};
    assert_memory_equal(idx, three, sizeof three);
    check_float("value", val[0], -3.0f);

    check_int("zeros are left out", oracle_topk(acc, 8, 8, idx, val), 6);
    const int32_t six[] = {0, 1, 3, 5, 6, 7};
    assert_memory_equal(idx, six, sizeof six);
}

static void test_difference(void **state) {
    (void)state;
    const float a[3] = {1.0f, 0.0f, 2.0f};
    const float b[3] = {1.0f, -0.0f, 2.0f};
    check_int("first difference", oracle_difference(a, b, 3), 1);
    check_int("no difference", oracle_difference(a, a, 3), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_numbers), cmocka_unit_test(test_bf16_numbers),
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_topk_by_hand),
        cmocka_unit_test(test_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
