/* wire.c - a list to a message and back: header, indices, values
 *
 * Blocks of TW__WIRE_BLOCK entries pass through, a few KiB that stay in the first-level cache: taken
 * apart into indices and values, coded, and appended to both parts of the message. All lengths
 * follow from the header and the span of indices, so a message is of the right length or refused
 * before anything is read from it. */
#include "wire/wire.h"
#include "wire/wire_index.h"

#include <assert.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "messages are little endian, and written as they lie in memory"
#endif

typedef struct header {
    uint8_t version;
    uint8_t format;
    uint8_t width;  /* of the low parts of indices: see wire_index.h */
    uint8_t unused; /* 0 */
    uint32_t count;
} header;

typedef struct block {
    uint32_t idx[TW__WIRE_BLOCK]; /* from lo */
    float val[TW__WIRE_BLOCK];
    int count;
} block;

static int block_count(int64_t left) {
    return left < TW__WIRE_BLOCK ? (int)left : TW__WIRE_BLOCK;
}

static size_t value_block_bytes(const tw__wire *format, int count) {
    return (size_t)format->levels_bytes + tw__bits_bytes(count, format->bits);
}

static size_t message_bytes(const tw__wire *format, int64_t count, const tw__index_plan *plan) {
    return sizeof(header) + plan->low_bytes + plan->bit_bytes + tw__wire_value_bytes(format, count);
}

size_t tw__wire_bound(const tw__wire *format, int64_t count, int64_t lo, int64_t hi) {
    if (count > hi - lo)
        count = hi - lo;
    tw__index_plan plan = tw__index_choose(count, hi - lo);
    return message_bytes(format, count, &plan);
}

/* ---- Encoding ------------------------------------------------------------------------------- */

static void take_apart(const tw__entry *entries, int64_t lo, block *b) {
    if (b->count < TW__WIRE_BLOCK)
        memset(b, 0, offsetof(block, count));
    for (int i = 0; i < b->count; i++) {
        b->idx[i] = (uint32_t)entries[i].idx - (uint32_t)lo;
        b->val[i] = entries[i].val;
    }
}

size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded) {
    assert(list->count <= hi - lo);
    tw__index_plan plan = tw__index_choose(list->count, hi - lo);
    header h = {.version = TW__WIRE_VERSION,
                .format = (uint8_t)format->code,
                .width = (uint8_t)plan.width,
                .count = (uint32_t)list->count};
    memcpy(out, &h, sizeof h);
    uint8_t *indices = (uint8_t *)out + sizeof h;
    uint8_t *values = indices + plan.low_bytes + plan.bit_bytes;
    tw__index_writer writer = tw__index_write(kernels, &plan, indices);
    block b;
    for (int64_t at = 0; at < list->count; at += b.count) {
        b.count = block_count(list->count - at);
        take_apart(list->at + at, lo, &b);
        tw__index_put(&writer, b.idx, b.count);
        format->encode(kernels, b.val, b.count, values);
        format->decode(kernels, values, b.count, b.val);
        memcpy(rounded + at, b.val, sizeof *rounded * (size_t)b.count);
        values += value_block_bytes(format, b.count);
    }
    return message_bytes(format, list->count, &plan);
}

/* ---- Decoding ------------------------------------------------------------------------------- */

static int fail_length(int rank, size_t got, size_t expected) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a message of %zu bytes, expected were %zu",
                    rank, got, expected);
}

static int read_header(const void *bytes, size_t size, int rank, header *h,
                       const tw__wire **format) {
    if (size < sizeof *h)
        return fail_length(rank, size, sizeof *h);
    memcpy(h, bytes, sizeof *h);
    *format = tw__wire_at(h->format);
    if (h->version != TW__WIRE_VERSION || h->unused != 0 || *format == NULL)
        return tw__fail(TW_ERR_PROTOCOL,
                        "rank %d: sent a message of wire version %d, format %d; this rank reads "
                        "version %d; do all ranks run the same version?",
                        rank, h->version, h->format, TW__WIRE_VERSION);
    return TW_OK;
}

/* What the header says, against what can be. */
static int check_extent(const header *h, const tw__wire *format, size_t size, int64_t span,
                        int64_t most, int rank, tw__index_plan *plan) {
    int64_t limit = most < span ? most : span;
    if (h->count > limit)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, expected were %lld at most",
                        rank, (long long)h->count, (long long)limit);
    if (!tw__index_plan_of(h->width, h->count, span, plan))
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent indices of width %d, which there is not",
                        rank, h->width);
    size_t expected = message_bytes(format, h->count, plan);
    return size == expected ? TW_OK : fail_length(rank, size, expected);
}

static int all_finite(const block *b) {
    int others = 0;
    for (int i = 0; i < b->count; i++)
        others += (int32_t)tw__magnitude(b->val[i]) >= (int32_t)TW__INFINITY_BITS;
    return others == 0;
}

static void put_together(const block *b, int64_t lo, tw__entry *entries) {
    for (int i = 0; i < b->count; i++)
        entries[i] = (tw__entry){(int32_t)(b->idx[i] + (uint32_t)lo), b->val[i]};
}

int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank) {
    header h = {0};
    const tw__wire *format = NULL;
    tw__index_plan plan = {0};
    TW_TRY(read_header(bytes, size, rank, &h, &format));
    TW_TRY(check_extent(&h, format, size, hi - lo, most, rank, &plan));
    const uint8_t *indices = (const uint8_t *)bytes + sizeof h;
    const uint8_t *values = indices + plan.low_bytes + plan.bit_bytes;
    tw__index_reader reader;
    tw__index_read(&reader, kernels, &plan, indices);
    block b;
    for (int64_t at = 0; at < h.count; at += b.count) {
        b.count = block_count(h.count - at);
        if (!tw__index_get(&reader, b.idx, b.count))
            return tw__fail(TW_ERR_PROTOCOL,
                            "rank %d: entries %lld .. %lld of its message do not ascend within "
                            "%lld .. %lld",
                            rank, (long long)at, (long long)at + b.count - 1, (long long)lo,
                            (long long)hi - 1);
        format->decode(kernels, values, b.count, b.val);
        if (!all_finite(&b))
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent NaN or infinity", rank);
        put_together(&b, lo, entries + at);
        values += value_block_bytes(format, b.count);
    }
    if (!tw__index_at_end(&reader))
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent more indices than its %lld entries", rank,
                        (long long)h.count);
    *count = h.count;
    return TW_OK;
}
