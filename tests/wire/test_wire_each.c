/* test_wire_each.c - messages put together piece by piece, as a GPU's threads do, are the encoder's
 *
 * cuda/wire.cu adds what threads need of each other; what each of them makes and reads is tested
 * here, on the CPU. Memory is allocated to the byte, for the sanitizers. */
#include <stdlib.h>
#include <string.h>

#include "wire/wire_each.h"
#include "wire_lists.h"

typedef struct block {
    uint32_t x[TW__WIRE_BLOCK], gap[TW__WIRE_BLOCK], code[TW__WIRE_BLOCK];
    float val[TW__WIRE_BLOCK];
    int m;
} block;

static block block_of(const tw__wire_body *body, const tw__list *list, int64_t number) {
    block b = {.m = tw__block_entries(body->count, number)};
    for (int i = 0; i < b.m; i++) {
        const tw__entry *entry = &list->at[number * TW__WIRE_BLOCK + i];
        b.x[i] = (uint32_t)(entry->idx - body->lo);
        b.gap[i] = tw__gap_of(body, list->at, number * TW__WIRE_BLOCK + i);
        b.val[i] = entry->val;
    }
    return b;
}

static tw__shares shares_of(const block *b, float border) {
    tw__shares lanes[TW__LANES];
    for (int lane = 0; lane < TW__LANES; lane++)
        lanes[lane] = tw__lane_shares(b->val, lane, border);
    return tw__lanes_sum(lanes);
}

static tw__levels levels_of(const tw__wire_body *body, const block *b) {
    uint32_t least = UINT32_MAX, most = 0;
    if (body->levels_bytes == 0)
        return (tw__levels){0};
    if (body->format == TW__WIRE_Q2)
        return tw__levels_of_means(shares_of(b, (float)(shares_of(b, 0.0f).large / b->m)), b->m);
    for (int i = 0; i < b->m; i++) {
        const uint32_t magnitude = tw__magnitude(b->val[i]);
        least = magnitude < least ? magnitude : least;
        most = magnitude > most ? magnitude : most;
    }
    return tw__levels_between(least, most, tw__top_level(body->bits));
}

static void write_block(const tw__wire_body *body, const tw__list *list, int64_t number,
                        uint8_t *out, float *rounded) {
    block b = block_of(body, list, number);
    const tw__levels levels = levels_of(body, &b);
    const int64_t first = number * TW__WIRE_BLOCK;
    for (int i = 0; i < b.m; i++) {
        b.code[i] = tw__value_code(body, b.val[i], levels);
        rounded[first + i] = tw__value_of(body, b.code[i], levels);
        if (body->width == TW__INDEX_PLAIN)
            tw__plain_write(b.x[i], 4, out + 4 * (first + i));
    }
    for (int j = 0; j < TW__WIRE_BLOCK; j++) {
        if (body->width != TW__INDEX_PLAIN)
            tw__low_write(b.gap, b.m, body->width, j,
                          out + (size_t)number * tw__packed_bytes(TW__WIRE_BLOCK, body->width));
        tw__values_write(body, b.code, levels, b.m, j, out + tw__values_at(body, number));
    }
}

static int64_t bitmap_words(const tw__wire_body *body) {
    return ((int64_t)body->bit_bytes + 7) / 8;
}

/* What a scan gives: bits of entries 0 .. i, to ends[count]. */
static void add_up_bits(const tw__wire_body *body, const tw__list *list, uint32_t *ends) {
    uint32_t bits = 0;
    for (int64_t i = 0; i < list->count; i++)
        ends[i] = bits += tw__bits_of(body, list->at, i);
}

static void write_bitmap(const tw__wire_body *body, const tw__list *list, uint8_t *out) {
    uint32_t *ends = check_alloc(list->count, sizeof *ends);
    add_up_bits(body, list, ends);
    check_int("bytes", (int64_t)body->bit_bytes, (ends[list->count - 1] + 7) / 8);
    for (int64_t word = 0; word < bitmap_words(body); word++)
        tw__bitmap_store(tw__bitmap_word(ends, list->count, word), word, out + body->bits_at,
                         body->bit_bytes);
    free(ends);
}

static void check_written(const tw__wire_body *body, const tw__list *list, const uint8_t *want,
                          const float *want_rounded, size_t bytes) {
    uint8_t *out = malloc(bytes);
    float *rounded = check_alloc(list->count + 1, sizeof *rounded);
    memset(out, 0xee, bytes); /* what nobody writes shows */
    if (body->width != TW__INDEX_PLAIN)
        write_bitmap(body, list, out);
    for (int64_t b = 0; b < tw__blocks_of(body->count); b++)
        write_block(body, list, b, out, rounded);
    for (size_t i = 0; i < bytes; i++)
        check_int("byte", out[i], want[i]);
    check_bits("rounded", rounded, want_rounded, list->count);
    free(out);
    free(rounded);
}

/* What scans give: the set bits, and sums of low parts. */
static void find_bits(const tw__wire_body *body, const tw__list *list, const uint8_t *in,
                      uint32_t *found, unsigned long long *lows) {
    unsigned long long sum = 0;
    int64_t many = 0;
    for (int64_t bit = 0; bit < 64 * bitmap_words(body); bit++)
        if (tw__bitmap_load(in + body->bits_at, bit / 64, body->bit_bytes) >> bit % 64 & 1)
            found[many++] = (uint32_t)bit;
    check_int("set bits", many, list->count);
    for (int64_t i = 0; i < list->count; i++)
        lows[i] = sum += tw__low_at(body, in, i);
}

static void check_read(const tw__wire_body *body, const tw__list *list, const uint8_t *in,
                       const float *rounded) {
    uint32_t *found = check_alloc(list->count + 1, sizeof *found);
    unsigned long long *lows = check_alloc(list->count + 1, sizeof *lows);
    if (body->width != TW__INDEX_PLAIN)
        find_bits(body, list, in, found, lows);
    for (int64_t i = 0; i < list->count; i++) {
        const int64_t b = i / TW__WIRE_BLOCK;
        const uint64_t x = body->width == TW__INDEX_PLAIN ? tw__plain_read(in + 4 * i, 4)
                                                          : tw__index_at(body, found, lows, i);
        check_int("index", (int64_t)x + body->lo, list->at[i].idx);
        check_float("value",
                    tw__value_read(body, in + tw__values_at(body, b),
                                   tw__block_entries(body->count, b), (int)(i % TW__WIRE_BLOCK)),
                    rounded[i]);
    }
    free(found);
    free(lows);
}

static void check_list(const tw__list *list, int64_t lo, int64_t hi) {
    for (int format = 0; tw__wire_at(format) != NULL; format++) {
        if (tw__wire_at(format)->backends == 0)
            continue; /* for the CPU alone */
        const tw__wire *row = tw__wire_at(format);
        uint8_t *message = check_alloc((int64_t)tw__wire_bound(row, list->count, lo, hi), 1);
        float *rounded = check_alloc(list->count + 1, sizeof *rounded);
        const size_t size = tw__wire_encode(wire_kernels(), row, list, lo, hi, message, rounded);
        tw__wire_message m;
        check_ok(tw__wire_open(message, size, lo, hi, list->count, 0, &m));
        const tw__wire_body body = tw__wire_body_of(&m);
        const size_t bytes = size - TW__WIRE_HEADER;
        uint8_t *exact = malloc(bytes);
        check_scene("%s count=%lld lo=%lld hi=%lld width=%d", row->name, (long long)list->count,
                    (long long)lo, (long long)hi, body.width);
        memcpy(exact, message + TW__WIRE_HEADER, bytes);
        check_written(&body, list, exact, rounded, bytes);
        check_read(&body, list, exact, rounded);
        free(message);
        free(exact);
        free(rounded);
    }
}

static void test_densities(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 2, 31, 32, 33, 127, 128, 129, 255, 257, 1003};
    static const double densities[] = {1e-4, 9e-4, 1e-2, 0.1, 0.24, 0.26, 0.5, 0.9, 1.0};
    uint64_t seed = 1;
    for (int c = 0; c < 11; c++)
        for (int d = 0; d < 9; d++, seed++) {
            const int64_t span = (int64_t)((double)counts[c] / densities[d]);
            tw__list list =
                wire_list(counts[c], 7, 7 + span, 0, (oracle_data)(seed % DATA_KINDS), seed);
            check_list(&list, 7, 7 + span);
            wire_list_free(&list);
        }
}

/* Every width, with a block and a bit; 0 and the last are a bitmap and plain indices. */
static void test_widths(void **state) {
    (void)state;
    for (int width = 0; width <= 24; width++) {
        int64_t span = ((int64_t)3 << width) / 2 * 129 + 129;
        span = span > INT32_MAX ? INT32_MAX : span;
        tw__list list = wire_list(129, 0, span, 0, DATA_LAPLACE, (uint64_t)width);
        check_list(&list, 0, span);
        wire_list_free(&list);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_densities),
        cmocka_unit_test(test_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
