/* wire.c - the table of value formats, and the lengths of messages; see wire.h
 *
 * All lengths but the bitmap's follow from the header and the span of indices, and the bitmap's has
 * bounds. So a message is of a possible length, or it is refused before anything is read from it. */
#include "wire/wire.h"

#include <assert.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "messages are little endian, and written as they lie in memory"
#endif

/* ---- the formats */

#define ROW(code, ...) {TW__WIRE_##code, __VA_ARGS__},
static const tw__wire formats[] = {TW__WIRES(ROW)};

const tw__wire *tw__wire_at(int position) {
    assert(position < 0 || position >= TW__WIRES_COUNT || formats[position].code == position);
    return position >= 0 && position < TW__WIRES_COUNT ? &formats[position] : NULL;
}

const tw__wire *tw__wire_find(const char *name) {
    const tw__wire *format = NULL;
    for (int i = 0; (format = tw__wire_at(i)) != NULL; i++)
        if (strcmp(name, format->name) == 0)
            break;
    return format;
}

/* ---- lengths */

static tw__index_plan plan_of(int width, int64_t count, int64_t span) {
    tw__index_plan plan = {.width = width, .span = (uint32_t)span};
    if (width == TW__INDEX_PLAIN) {
        plan.low_bytes = sizeof(uint32_t) * (size_t)count;
    } else {
        int64_t full = count / TW__WIRE_BLOCK;
        plan.low_bytes = (size_t)full * tw__packed_bytes(TW__WIRE_BLOCK, width) +
                         tw__packed_bytes(count % TW__WIRE_BLOCK, width);
        plan.bit_bytes = tw__bits_bytes(count + ((span - count) >> width), 1);
    }
    return plan;
}

tw__index_plan tw__index_choose(int64_t count, int64_t span) {
    assert(count >= 0 && count <= span);
    tw__index_plan best = plan_of(TW__INDEX_PLAIN, count, span);
    for (int width = TW__INDEX_BITMAP; width <= TW__WIRE_WIDTH_MAX && count > 0; width++) {
        tw__index_plan plan = plan_of(width, count, span);
        if (plan.low_bytes + plan.bit_bytes < best.low_bytes + best.bit_bytes)
            best = plan;
    }
    return best;
}

int tw__index_plan_of(int width, int64_t count, int64_t span, tw__index_plan *plan) {
    if (width != TW__INDEX_PLAIN && (count == 0 || width > TW__WIRE_WIDTH_MAX))
        return 0;
    *plan = plan_of(width, count, span);
    return 1;
}

/* Whole blocks, and the one that is left. */
size_t tw__wire_value_bytes(const tw__wire *format, int64_t count) {
    size_t blocks = (size_t)((count + TW__WIRE_BLOCK - 1) / TW__WIRE_BLOCK);
    return blocks * (size_t)format->levels_bytes + tw__bits_bytes(count, format->bits);
}

static size_t message_bytes(const tw__wire *format, int64_t count, const tw__index_plan *plan) {
    return TW__WIRE_HEADER + plan->low_bytes + plan->bit_bytes +
           tw__wire_value_bytes(format, count);
}

size_t tw__wire_bound(const tw__wire *format, int64_t count, int64_t lo, int64_t hi) {
    if (count > hi - lo)
        count = hi - lo;
    tw__index_plan plan = tw__index_choose(count, hi - lo);
    return message_bytes(format, count, &plan);
}

/* High parts take 2^width of a gap each, and leave half of that in the mean. */
static size_t expected_bits(int64_t count, const tw__index_plan *plan) {
    int64_t left = count * ((INT64_C(1) << plan->width) - 1) / 2;
    int64_t high = (int64_t)plan->span - count - left;
    return tw__bits_bytes(count + (high > 0 ? high >> plan->width : 0), 1);
}

size_t tw__wire_expected(const tw__wire *format, int64_t count, int64_t lo, int64_t hi) {
    if (count > hi - lo)
        count = hi - lo;
    tw__index_plan plan = tw__index_choose(count, hi - lo);
    if (plan.width != TW__INDEX_PLAIN)
        plan.bit_bytes = expected_bits(count, &plan);
    return message_bytes(format, count, &plan);
}

/* ---- headers */

typedef struct header {
    uint8_t version;
    uint8_t format;
    uint8_t width;  /* tw__index_plan */
    uint8_t unused; /* 0 */
    uint32_t count;
} header;

_Static_assert(sizeof(header) == TW__WIRE_HEADER, "headers have no holes");

tw__wire_message tw__wire_plan(const tw__wire *format, int64_t count, int64_t lo, int64_t hi) {
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

void tw__wire_set_bits(tw__wire_message *m, uint32_t bits) {
    size_t planned = m->indices.bit_bytes, bytes = tw__bits_bytes(bits, 1);
    assert(bytes <= planned);
    m->indices.bit_bytes = bytes;
    m->bytes -= planned - bytes;
}

static int fail_length(int rank, size_t got, size_t least, size_t most) {
    return tw__fail(TW_ERR_PROTOCOL,
                    "rank %d: sent a message of %zu bytes, expected were %zu to %zu", rank, got,
                    least, most);
}

static int read_header(const void *from, size_t size, int rank, header *h,
                       const tw__wire **format) {
    if (size < sizeof *h)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a message of %zu bytes, a header takes %zu",
                        rank, size, sizeof *h);
    memcpy(h, from, sizeof *h);
    *format = tw__wire_at(h->format);
    if (h->version != TW__WIRE_VERSION || h->unused != 0 || *format == NULL)
        return tw__fail(TW_ERR_PROTOCOL,
                        "rank %d: sent a message of wire version %d, format %d; this rank reads "
                        "version %d; do all ranks run the same version?",
                        rank, h->version, h->format, TW__WIRE_VERSION);
    return TW_OK;
}

/* What the header says must be possible. The bitmap is what is left of the message: between a bit
 * for each entry, and the most that there can be. */
static int check_extent(const header *h, const tw__wire *format, size_t size, int64_t span,
                        int64_t most, int rank, tw__index_plan *plan) {
    int64_t limit = most < span ? most : span;
    if (h->count > limit)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, expected were %lld at most",
                        rank, (long long)h->count, (long long)limit);
    if (!tw__index_plan_of(h->width, h->count, span, plan))
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent indices of width %d, which no message has",
                        rank, h->width);
    size_t most_bytes = message_bytes(format, h->count, plan);
    size_t others = most_bytes - plan->bit_bytes, least_bytes = others;
    if (plan->width != TW__INDEX_PLAIN)
        least_bytes += tw__bits_bytes(h->count, 1);
    if (size < least_bytes || size > most_bytes)
        return fail_length(rank, size, least_bytes, most_bytes);
    plan->bit_bytes = size - others;
    return TW_OK;
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

int tw__wire_fail_end(const tw__wire_message *m, int rank) {
    return tw__fail(TW_ERR_PROTOCOL,
                    "rank %d: sent a bitmap that does not end with the last of its %lld entries",
                    rank, (long long)m->count);
}

int tw__wire_fail_number(int rank) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent NaN or infinity", rank);
}
