/* fuzz_wire.c - any bytes as a message, and honest messages altered
 *
 * A libFuzzer target; fuzz_main.c runs it on seeded random bytes where there is no libFuzzer. The
 * first bytes give the bounds and the mode: the rest is decoded directly, or behind a valid header,
 * or it becomes entries that are encoded, decoded and altered.
 *
 * Decoding must give TW_OK and a valid list, or TW_ERR_PROTOCOL; all kernels must agree; an honest
 * message must decode. A violation prints a line and aborts. */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "wire/wire.h"

enum { MOST = 700 };

typedef struct bounds {
    int64_t lo, hi, most;
} bounds;

typedef struct message {
    uint8_t *bytes; /* [size], of exactly this size */
    size_t size;
} message;

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    REQUIRE(memory != NULL);
    return memory;
}

static int decode(const tw__kernels *kernels, const message *m, const bounds *b, tw__entry *entries,
                  int64_t *count) {
    return tw__wire_decode(kernels, m->bytes, m->size, b->lo, b->hi, b->most, entries, count, 1);
}

static const tw__kernels *fastest(void) {
    const tw__kernels *kernels = NULL;
    REQUIRE(tw__kernels_choose(&kernels) == TW_OK);
    return kernels;
}

static const tw__wire *any_format(input *in) {
    int count = 0;
    while (tw__wire_at(count) != NULL)
        count++;
    return tw__wire_at(take_row(in, count));
}

/* Decode with the reference and the fastest kernels; returns the status. */
static int check_message(const message *m, const bounds *b) {
    tw__entry *entries = allocate(sizeof *entries * (size_t)b->most);
    tw__entry *again = allocate(sizeof *again * (size_t)b->most);
    int64_t count = 0, count_again = 0, least = b->lo;
    const int status = decode(&tw__kernels_ref, m, b, entries, &count);
    REQUIRE(status == TW_OK || status == TW_ERR_PROTOCOL);
    REQUIRE(decode(fastest(), m, b, again, &count_again) == status);
    REQUIRE(count == count_again && count >= 0 && count <= b->most);
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(entries[i].idx >= least && entries[i].idx < b->hi && isfinite(entries[i].val));
        REQUIRE(entries[i].idx == again[i].idx);
        REQUIRE(tw__to_bits(entries[i].val) == tw__to_bits(again[i].val));
        least = (int64_t)entries[i].idx + 1;
    }
    free(entries);
    free(again);
    return status;
}

/* ---- Bytes that may be a message ------------------------------------------------------------- */

static message rest_of(input *in, size_t size) {
    message m = {allocate(size), size};
    for (size_t i = 0; i < size; i++)
        m.bytes[i] = (uint8_t)take(in, 1);
    return m;
}

/* A header that fits, and a number of bytes that it allows: libFuzzer need not guess lengths. */
static message fitting_message(input *in, const bounds *b) {
    const tw__wire *format = any_format(in);
    const int width = (int)(take(in, 1) % (TW__WIRE_WIDTH_MAX + 2));
    const int64_t limit = b->most < b->hi - b->lo ? b->most : b->hi - b->lo;
    const uint32_t count = (uint32_t)(take(in, 2) % (limit + 1));
    const uint8_t start[4] = {TW__WIRE_VERSION, (uint8_t)format->code,
                              (uint8_t)(width > TW__WIRE_WIDTH_MAX ? TW__INDEX_PLAIN : width), 0};
    tw__index_plan plan = {0};
    if (!tw__index_plan_of(start[2], count, b->hi - b->lo, &plan) || plan.bit_bytes > 4096)
        return rest_of(in, in->left);
    const size_t bits = plan.bit_bytes > 0 ? take(in, 2) % (plan.bit_bytes + 1) : 0;
    message m = rest_of(in, 8 + plan.low_bytes + tw__wire_value_bytes(format, count) + bits);
    memcpy(m.bytes, start, sizeof start);
    memcpy(m.bytes + 4, &count, sizeof count);
    return m;
}

/* ---- Honest messages ------------------------------------------------------------------------- */

/* Ascending indices and any finite values. */
static tw__list make_list(input *in, const bounds *b) {
    tw__list list = {allocate(sizeof *list.at * (size_t)b->most), 0};
    const uint32_t gap = 1 + take(in, 2);
    int64_t idx = b->lo;
    for (; list.count < b->most && in->left > 0; list.count++) {
        idx += list.count > 0 ? 1 + take(in, 1) % gap : take(in, 1) % gap;
        if (idx >= b->hi)
            break;
        const float val = tw__from_bits(take(in, 4));
        list.at[list.count] = (tw__entry){(int32_t)idx, isfinite(val) ? val : 1.0f};
    }
    return list;
}

/* Encode with both kernels, which must agree to the bit. */
static message encode(const tw__wire *format, const tw__list *list, const bounds *b) {
    const size_t most = tw__wire_bound(format, list->count, b->lo, b->hi);
    message m = {allocate(most), most}, again = {allocate(most), most}, exact;
    float *rounded = allocate(sizeof *rounded * (size_t)list->count);
    m.size = tw__wire_encode(&tw__kernels_ref, format, list, b->lo, b->hi, m.bytes, rounded);
    REQUIRE(m.size <= most);
    for (int64_t i = 0; i < list->count; i++)
        REQUIRE(isfinite(rounded[i]));
    again.size = tw__wire_encode(fastest(), format, list, b->lo, b->hi, again.bytes, rounded);
    REQUIRE(m.size == again.size && memcmp(m.bytes, again.bytes, m.size) == 0);
    exact = (message){allocate(m.size), m.size};
    memcpy(exact.bytes, m.bytes, m.size);
    free(m.bytes);
    free(again.bytes);
    free(rounded);
    return exact;
}

static message honest_message(input *in, const bounds *b) {
    const tw__wire *format = any_format(in);
    const uint32_t changes = take(in, 1) % 8;
    tw__list list = make_list(in, b);
    message m = encode(format, &list, b);
    REQUIRE(check_message(&m, b) == TW_OK);
    for (uint32_t i = 0; i < changes; i++)
        m.bytes[take(in, 2) % m.size] = (uint8_t)take(in, 1);
    free(list.at);
    return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    const uint32_t what = take(&in, 1);
    const int64_t lo = take(&in, 3);
    const int64_t span = take(&in, 1 + (int)(what / 4 % 3));
    const bounds b = {lo, lo + span, take(&in, 2) % MOST};
    message m = what % 4 == 0   ? rest_of(&in, in.left)
                : what % 4 == 1 ? fitting_message(&in, &b)
                                : honest_message(&in, &b);
    check_message(&m, &b);
    free(m.bytes);
    return 0;
}

/* Any bytes are a valid input. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    (void)number, (void)data, (void)room;
    return 0;
}
