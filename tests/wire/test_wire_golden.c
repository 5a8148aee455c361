/* test_wire_golden.c - messages of version 2 stay what they are, byte for byte
 *
 * wire_golden.txt has a line for every list and format: their names and the message in hex. It was
 * made by `test_wire_golden print` and is never made again for this version: what fails here would
 * be misread by ranks of an older release. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"
#include "wire_lists.h"

enum { MOST = 150, BYTES_MOST = 1024 };

/* Entries by a formula in whole numbers, the same everywhere. */
typedef struct sample {
    const char *name;
    int64_t lo, hi;
    int64_t count;
    int32_t (*idx)(int64_t i);
} sample;

static int32_t spread(int64_t i) {
    return (int32_t)(7 + 97 * i + i * i % 53);
}

static int32_t close_by(int64_t i) {
    return (int32_t)(3 * i / 2);
}

static const sample samples[] = {
    {"empty", 0, 100, 0, spread},
    {"one", 5, 1000000, 1, spread},
    {"eight", 0, 800, 8, spread},
    {"bitmap", 0, 31, 20, close_by},
    {"blocks", 0, 100 * MOST, MOST, spread},
};
enum { SAMPLES = sizeof samples / sizeof samples[0] };

static tw__list make_list(const sample *s) {
    tw__list list = {check_alloc(MOST, sizeof *list.at), s->count};
    for (int64_t i = 0; i < s->count; i++) {
        const float val = (float)(10 + i * 37 % 101) / 8.0f;
        list.at[i] = (tw__entry){s->idx(i), i % 3 == 1 ? -val : val};
    }
    return list;
}

/* The message as hex, to text[2 * BYTES_MOST + 1]. */
static void encode_hex(const sample *s, int format, char *text, float *rounded) {
    uint8_t bytes[BYTES_MOST];
    tw__list list = make_list(s);
    check_between("bytes", (int64_t)tw__wire_bound(tw__wire_at(format), s->count, s->lo, s->hi), 0,
                  BYTES_MOST);
    const size_t size =
        tw__wire_encode(wire_kernels(), tw__wire_at(format), &list, s->lo, s->hi, bytes, rounded);
    for (size_t i = 0; i < size; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    wire_list_free(&list);
}

static void check_golden(const sample *s, const char *hex, const float *rounded) {
    uint8_t bytes[BYTES_MOST];
    tw__entry entries[MOST];
    const size_t size = strlen(hex) / 2;
    int64_t count = -1;
    for (size_t i = 0; i < size; i++) {
        const char byte[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        bytes[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    check_ok(tw__wire_decode(wire_kernels(), bytes, size, s->lo, s->hi, MOST, entries, &count, 0));
    check_int("count", count, s->count);
    for (int64_t i = 0; i < count; i++) {
        check_int("index", entries[i].idx, s->idx(i));
        check_float("value", entries[i].val, rounded[i]);
    }
}

/* Reads the lines in the order in which print writes them. */
static void test_golden(void **state) {
    (void)state;
    char name[16], format_name[16], golden[2 * BYTES_MOST + 1], now[2 * BYTES_MOST + 1];
    float rounded[MOST];
    check_kernels_or_skip();
    FILE *file = fopen(WIRE_GOLDEN, "r");
    check_true(file != NULL);
    for (int i = 0; i < SAMPLES; i++)
        for (int format = 0; tw__wire_at(format); format++) {
            check_scene("%s %s", samples[i].name, tw__wire_at(format)->name);
            check_int("fields", fscanf(file, "%15s %15s %2048s", name, format_name, golden), 3);
            assert_string_equal(name, samples[i].name);
            assert_string_equal(format_name, tw__wire_at(format)->name);
            encode_hex(&samples[i], format, now, rounded);
            assert_string_equal(now, golden);
            check_golden(&samples[i], golden, rounded);
        }
    fclose(file);
}

static int print(void) {
    char text[2 * BYTES_MOST + 1];
    float rounded[MOST];
    for (int i = 0; i < SAMPLES; i++)
        for (int format = 0; tw__wire_at(format); format++) {
            encode_hex(&samples[i], format, text, rounded);
            printf("%s %s %s\n", samples[i].name, tw__wire_at(format)->name, text);
        }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    if (argc > 1 && strcmp(argv[1], "print") == 0)
        return print();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
