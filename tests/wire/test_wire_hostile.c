/* test_wire_hostile.c - bytes that no honest rank sends are refused, or give a list that one could
 *
 * Messages lie in memory of exactly their size, as do the entries, for the sanitizers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"
#include "wire_lists.h"

enum { RANK = 3 };

/* A message and the bounds that it was made for. */
typedef struct sent_message {
    uint8_t *bytes; /* [size] */
    size_t size;
    int64_t lo, hi, count;
} sent_message;

static sent_message write_message(int format, int64_t count, int64_t lo, int64_t hi) {
    tw__list list = wire_list(count, lo, hi, 0, DATA_LAPLACE, (uint64_t)count);
    float *rounded = check_alloc(count + 1, sizeof *rounded);
    sent_message l = {.lo = lo, .hi = hi, .count = count};
    l.bytes = check_alloc((int64_t)tw__wire_bound(tw__wire_at(format), count, lo, hi), 1);
    l.size = tw__wire_encode(wire_kernels(), tw__wire_at(format), &list, lo, hi, l.bytes, rounded);
    free(rounded);
    wire_list_free(&list);
    return l;
}

static int decode(const uint8_t *bytes, size_t size, const sent_message *l, int64_t most) {
    uint8_t *copy = malloc(size);
    tw__entry *entries = malloc(sizeof *entries * (size_t)most);
    int64_t count = -1, least = l->lo;
    if (size > 0)
        memcpy(copy, bytes, size);
    const int status =
        tw__wire_decode(wire_kernels(), copy, size, l->lo, l->hi, most, entries, &count, RANK);
    if (status == TW_OK)
        check_between("count", count, 0, most);
    for (int64_t i = 0; i < count; i++) {
        check_between("index", entries[i].idx, least, l->hi - 1);
        check_true(isfinite(entries[i].val));
        least = (int64_t)entries[i].idx + 1;
    }
    free(copy);
    free(entries);
    return status;
}

static void check_refused(const sent_message *l, const char *why) {
    check_error(decode(l->bytes, l->size, l, l->count), TW_ERR_PROTOCOL);
    check_contains(tw_last_error(), "rank 3: sent");
    check_contains(tw_last_error(), why);
}

/* An error, or a valid list. */
static void check_survives(const uint8_t *bytes, size_t size, const sent_message *l) {
    const int status = decode(bytes, size, l, l->count);
    if (status != TW_OK) {
        check_int("status", status, TW_ERR_PROTOCOL);
        check_contains(tw_last_error(), "rank 3:");
    }
}

/* Indices of all three kinds of plan, with a block and a bit. */
static const struct shape {
    int64_t count, lo, hi;
} shapes[] = {{150, 50, 20000}, {150, 0, 400}, {2, 0, 2000000000}, {1, 7, 8}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void on_every_message(void (*check)(sent_message *l)) {
    check_kernels_or_skip();
    for (int format = 0; tw__wire_at(format); format++)
        for (int s = 0; s < SHAPES; s++) {
            check_scene("%s shape %d", tw__wire_at(format)->name, s);
            sent_message l = write_message(format, shapes[s].count, shapes[s].lo, shapes[s].hi);
            check_ok(decode(l.bytes, l.size, &l, l.count));
            check(&l);
            free(l.bytes);
        }
}

/* Lengths follow from the header and the last set bit: any other is refused. */
static void cut_and_lengthen(sent_message *l) {
    uint8_t *longer = check_alloc((int64_t)l->size + 9, 1);
    memcpy(longer, l->bytes, l->size);
    for (size_t size = 0; size < l->size + 9; size++)
        if (size != l->size)
            check_error(decode(longer, size, l, l->count), TW_ERR_PROTOCOL);
    free(longer);
}

static void test_length(void **state) {
    (void)state;
    on_every_message(cut_and_lengthen);
}

static void alter_every_bit(sent_message *l) {
    for (size_t bit = 0; bit < 8 * l->size; bit++) {
        l->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        check_survives(l->bytes, l->size, l);
        l->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_every_bit(void **state) {
    (void)state;
    on_every_message(alter_every_bit);
}

static void alter_at_random(sent_message *l) {
    oracle_rng rng = {.key = l->size};
    uint8_t *bytes = check_alloc((int64_t)l->size, 1);
    for (int trial = 0; trial < 3000; trial++) {
        memcpy(bytes, l->bytes, l->size);
        for (int64_t changes = 1 + oracle_below(&rng, 6); changes > 0; changes--)
            bytes[oracle_below(&rng, (int64_t)l->size)] = (uint8_t)oracle_next(&rng);
        check_survives(bytes, l->size, l);
    }
    free(bytes);
}

static void test_random_changes(void **state) {
    (void)state;
    on_every_message(alter_at_random);
}

/* A header that asks for much, and no more bytes than there are. */
static void test_headers(void **state) {
    (void)state;
    const uint32_t many[] = {0, 1, 127, 128, 129, 1u << 20, INT32_MAX, 1u << 31, UINT32_MAX};
    uint8_t bytes[300] = {TW__WIRE_VERSION};
    const sent_message l = {bytes, sizeof bytes, 0, INT32_MAX, 200};
    check_kernels_or_skip();
    for (int format = 0; format < 8; format++)
        for (int width = 0; width < 256; width++)
            for (size_t c = 0; c < sizeof many / sizeof many[0]; c++) {
                bytes[1] = (uint8_t)format;
                bytes[2] = (uint8_t)width;
                memcpy(bytes + 4, &many[c], sizeof many[c]);
                check_survives(bytes, sizeof bytes, &l);
            }
}

static void test_words(void **state) {
    (void)state;
    const float infinite = INFINITY;
    tw__wire_message m;
    check_kernels_or_skip();
    sent_message l = write_message(0, 150, 50, 20000);
    check_error(decode(l.bytes, l.size, &l, 149), TW_ERR_PROTOCOL);
    check_contains(tw_last_error(), "rank 3: sent 150 entries, expected were 149 at most");
    check_ok(tw__wire_open(l.bytes, l.size, l.lo, l.hi, l.count, RANK, &m));
    memcpy(l.bytes + l.size - m.indices.bit_bytes - 4, &infinite, 4);
    check_refused(&l, "sent NaN or infinity");
    l.size -= m.indices.bit_bytes;
    check_refused(&l, "expected were");
    l.bytes[2] = 25;
    check_refused(&l, "indices of width 25");
    l.bytes[3] = 1; /* unused */
    check_refused(&l, "version 2, format 0; this rank reads version 2");
    l.bytes[3] = 0;
    l.bytes[1] = 250;
    check_refused(&l, "version 2, format 250; this rank reads version 2");
    l.bytes[1] = 0;
    l.bytes[0] = 1;
    check_refused(&l, "version 1, format 0; this rank reads version 2");
    l.size = 7;
    check_refused(&l, "a message of 7 bytes, a header takes 8");
    free(l.bytes);
}

static void test_plain_indices(void **state) {
    (void)state;
    check_kernels_or_skip();
    sent_message plain = write_message(2, 2, 0, 2000000000);
    uint32_t pair[2];
    check_int("width", plain.bytes[2], 32);
    memcpy(pair, plain.bytes + 8, sizeof pair);
    memcpy(plain.bytes + 8, &pair[1], 4);
    check_error(decode(plain.bytes, plain.size, &plain, 2), TW_ERR_PROTOCOL);
    check_contains(tw_last_error(), "rank 3: sent indices that do not ascend within");
    memcpy(plain.bytes + 8, pair, 4);
    plain.hi = pair[1]; /* one less than it takes */
    check_error(decode(plain.bytes, plain.size, &plain, 2), TW_ERR_PROTOCOL);
    free(plain.bytes);
}

/* 20 values, and bits 0 .. 18 and 29 of 30. */
static void test_bitmap(void **state) {
    (void)state;
    enum { COUNT = 20, VALUES = 2 * COUNT, BITS = 8 + VALUES };
    uint8_t bytes[BITS + 4] = {2, 2, 0, 0, COUNT};
    sent_message l = {bytes, sizeof bytes, 0, 30, COUNT};
    check_kernels_or_skip();
    memcpy(bytes + BITS, (uint8_t[]){0xff, 0xff, 0x07, 0x20}, 4);
    check_ok(decode(bytes, sizeof bytes, &l, COUNT));
    bytes[BITS + 3] = 0x40; /* bit 30 instead */
    check_refused(&l, "indices that do not ascend within 0 .. 29");
    bytes[BITS + 3] = 0x60; /* besides */
    check_refused(&l, "a bitmap that does not end with the last of its 20 entries");
    bytes[BITS + 3] = 0; /* 19 bits */
    check_refused(&l, "indices that do not ascend within 0 .. 29");
    bytes[BITS + 2] = 0x0f; /* bit 19 instead, so the last byte is too much */
    check_refused(&l, "a bitmap that does not end with the last of its 20 entries");
    l.size--;
    check_ok(decode(bytes, l.size, &l, COUNT));
    l.size--;
    check_refused(&l, "expected were 51 to 52");
    l.size = sizeof bytes;
    l.hi = 24; /* for which 3 bytes are the most */
    check_refused(&l, "expected were 51 to 51");
}

/* A third bit, long after the last of two entries. */
static void test_surplus_bits(void **state) {
    (void)state;
    uint8_t far[8 + 4 + 25] = {2, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3};
    sent_message l = {far, 8 + 4 + 1, 0, 200, 2};
    check_kernels_or_skip();
    check_ok(decode(far, l.size, &l, 2));
    for (size_t at = 13; at < sizeof far; at += 4) {
        l.size = at + 1;
        check_refused(&l, "a bitmap that does not end with the last of its 2 entries");
        far[at] = 0x80;
        check_refused(&l, "a bitmap that does not end with the last of its 2 entries");
        far[at] = 0;
    }
}

/* Gaps whose sum leaves the span, and would be within it again in 32 bits. */
static void test_sums(void **state) {
    (void)state;
    enum { COUNT = 130, BLOCK = 128, LOWS = 3 * COUNT, BITS = 8 + LOWS + 2 * COUNT };
    uint8_t bytes[BITS + 33] = {2, 2, 24, 0, COUNT};
    const sent_message l = {bytes, sizeof bytes, 0, INT32_MAX, COUNT};
    check_kernels_or_skip();
    memset(bytes + BITS, 0xff, 16); /* bits 0 .. 127, 255 and 256 */
    memcpy(bytes + BITS + 31, (uint8_t[]){0x80, 0x01}, 2);
    check_ok(decode(bytes, sizeof bytes, &l, COUNT));
    memset(bytes + 8, 0xff, 3 * BLOCK); /* index 127 is 128 (2^24 - 1) + 127 */
    check_refused(&l, "indices that do not ascend within");
    memset(bytes + BITS, 0, 33); /* bits 134 .. 263: index 127 is 134 * 2^24 more, which is */
    memset(bytes + BITS + 17, 0xff, 16); /* 2^32 + 6 * 2^24 - 1 */
    bytes[BITS + 16] = 0xc0;
    check_refused(&l, "indices that do not ascend within");
}

/* The first index of a block repeats the last one of the block before. */
static void test_block_edge(void **state) {
    (void)state;
    enum { COUNT = 130, EDGE = 128 };
    uint8_t bytes[8 + 4 * COUNT + 2 * COUNT] = {2, 2, 32, 0, COUNT};
    const sent_message l = {bytes, sizeof bytes, 0, 1000, COUNT};
    check_kernels_or_skip();
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t idx = 2 * i;
        memcpy(bytes + 8 + 4 * (size_t)i, &idx, sizeof idx);
    }
    check_ok(decode(bytes, sizeof bytes, &l, COUNT));
    memcpy(bytes + 8 + 4 * EDGE, bytes + 8 + 4 * (EDGE - 1), 4);
    check_refused(&l, "indices that do not ascend within");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_length),         cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_random_changes), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_words),          cmocka_unit_test(test_plain_indices),
        cmocka_unit_test(test_bitmap),         cmocka_unit_test(test_surplus_bits),
        cmocka_unit_test(test_sums),           cmocka_unit_test(test_block_edge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
