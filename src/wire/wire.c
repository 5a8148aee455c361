/* wire.c - a list to a message and back: header, indices, values
 *
 * Blocks of TW__WIRE_BLOCK entries pass through, a few KiB that stay in the first-level cache: taken
 * apart into indices and values, coded, and appended to both parts of the message. All lengths
 * follow from the header and the span of indices, so a message is of the right length or refused
 * before anything is read from it. */
#include "wire/wire.h"

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

tw__wire_message tw__wire_plan(const tw__wire *format, int64_t count, int64_t lo, int64_t hi) {
    assert(count <= hi - lo);
    tw__wire_message m = {.format = format,
                          .indices = tw__index_choose(count, hi - lo),
                          .count = count,
                          .lo = lo,
                          .head_bytes = sizeof(header)};
    header h = {.version = TW__WIRE_VERSION,
                .format = (uint8_t)format->code,
                .width = (uint8_t)m.indices.width,
                .count = (uint32_t)count};
    memcpy(m.head, &h, sizeof h);
    m.bytes = message_bytes(format, count, &m.indices);
    return m;
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

static void write_body(const tw__kernels *kernels, const tw__wire_message *m, const tw__list *list,
                       uint8_t *indices, float *rounded) {
    uint8_t *values = indices + m->indices.low_bytes + m->indices.bit_bytes;
    tw__index_writer writer = tw__index_write(kernels, &m->indices, indices);
    block b;
    for (int64_t at = 0; at < list->count; at += b.count) {
        b.count = block_count(list->count - at);
        take_apart(list->at + at, m->lo, &b);
        tw__index_put(&writer, b.idx, b.count);
        m->format->encode(kernels, b.val, b.count, values);
        m->format->decode(kernels, values, b.count, b.val);
        memcpy(rounded + at, b.val, sizeof *rounded * (size_t)b.count);
        values += value_block_bytes(m->format, b.count);
    }
}

static int any_huge(const tw__list *list) {
    for (int64_t i = 0; i < list->count; i++)
        if (tw__magnitude(list->at[i].val) >= tw__magnitude(TW__WIRE_HUGE))
            return 1;
    return 0;
}

static int encode(void *context, const tw__kernels *kernels, const tw__wire_message *m,
                  const tw__list *list, void *out, float *rounded, int *huge) {
    (void)context;
    *huge = any_huge(list);
    if (*huge)
        return TW_OK;
    memcpy(out, m->head, m->head_bytes);
    write_body(kernels, m, list, (uint8_t *)out + m->head_bytes, rounded);
    return TW_OK;
}

size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded) {
    tw__wire_message m = tw__wire_plan(format, list->count, lo, hi);
    memcpy(out, m.head, m.head_bytes);
    write_body(kernels, &m, list, (uint8_t *)out + m.head_bytes, rounded);
    return m.bytes;
}

/* ---- Decoding ------------------------------------------------------------------------------- */

static int fail_length(int rank, size_t got, size_t expected) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a message of %zu bytes, expected were %zu",
                    rank, got, expected);
}

static int read_header(const void *from, size_t size, int rank, header *h,
                       const tw__wire **format) {
    if (size < sizeof *h)
        return fail_length(rank, size, sizeof *h);
    memcpy(h, from, sizeof *h);
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

int tw__wire_open(const void *from, size_t size, int64_t lo, int64_t hi, int64_t most, int rank,
                  tw__wire_message *m) {
    header h = {0};
    *m = (tw__wire_message){.lo = lo, .bytes = size, .head_bytes = sizeof h};
    TW_TRY(read_header(from, size, rank, &h, &m->format));
    TW_TRY(check_extent(&h, m->format, size, hi - lo, most, rank, &m->indices));
    memcpy(m->head, &h, sizeof h);
    m->count = h.count;
    return TW_OK;
}

int tw__wire_fail_order(const tw__wire_message *m, int rank) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent indices that do not ascend within %lld .. %lld",
                    rank, (long long)m->lo, (long long)m->lo + m->indices.span - 1);
}

int tw__wire_fail_surplus(const tw__wire_message *m, int rank) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent more indices than its %lld entries", rank,
                    (long long)m->count);
}

int tw__wire_fail_number(int rank) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent NaN or infinity", rank);
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

static int decode(void *context, const tw__kernels *kernels, const tw__wire_message *m,
                  const void *body, tw__entry *entries, int rank) {
    const uint8_t *indices = body;
    const uint8_t *values = indices + m->indices.low_bytes + m->indices.bit_bytes;
    tw__index_reader reader;
    (void)context;
    tw__index_read(&reader, kernels, &m->indices, indices);
    block b;
    for (int64_t at = 0; at < m->count; at += b.count) {
        b.count = block_count(m->count - at);
        if (!tw__index_get(&reader, b.idx, b.count))
            return tw__wire_fail_order(m, rank);
        m->format->decode(kernels, values, b.count, b.val);
        if (!all_finite(&b))
            return tw__wire_fail_number(rank);
        put_together(&b, m->lo, entries + at);
        values += value_block_bytes(m->format, b.count);
    }
    return tw__index_at_end(&reader) ? TW_OK : tw__wire_fail_surplus(m, rank);
}

int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank) {
    tw__wire_message m;
    TW_TRY(tw__wire_open(bytes, size, lo, hi, most, rank, &m));
    TW_TRY(decode(NULL, kernels, &m, (const uint8_t *)bytes + m.head_bytes, entries, rank));
    *count = m.count;
    return TW_OK;
}

const tw__wire_calls tw__wire_host = {.encode = encode, .decode = decode};
