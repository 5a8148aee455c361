/* wire_codec.c - the CPU's codec of messages: indices and values of a list to bytes, and back
 *
 * Blocks of TW__WIRE_BLOCK entries pass through, a few KiB that stay in the first-level cache. A block
 * is taken apart into indices and values, both are coded, and each is appended to its section of the
 * message. wire/wire.h describes the sections. */
#include "backend/cpu/lists.h"

#include <assert.h>

#define WORD_BYTES (TW__WIRE_WORD / 8)

/* ---- The bitmap, in words of which the last may be cut ---------------------------------------- */

static size_t word_bytes(size_t at, size_t bytes) {
    return bytes - at < WORD_BYTES ? bytes - at : WORD_BYTES;
}

static uint64_t load_word(const uint8_t *bits, size_t at, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, bits + at, word_bytes(at, bytes));
    return word;
}

/* ---- Writing indices ------------------------------------------------------------------------ */

typedef struct index_writer {
    const tw__wire_kernels *kernels;
    tw__index_plan plan;
    uint8_t *low;     /* where the next block goes */
    uint8_t *bits;    /* [plan.bit_bytes], zeros behind those that are set */
    uint32_t used;    /* bits up to the last one that is set */
    uint32_t minimum; /* of the next index */
} index_writer;

/* Sets bits at[count], which ascend, behind those that are set already. A word is stored when the
 * next one begins, so it is whole, but for the last. */
static void set_bits(const uint32_t *at, int count, uint8_t *bits, size_t bytes) {
    uint32_t word = at[0] / TW__WIRE_WORD;
    uint64_t pending = load_word(bits, (size_t)word * WORD_BYTES, bytes);
    for (int i = 0; i < count; i++) {
        if (at[i] / TW__WIRE_WORD != word) {
            memcpy(bits + (size_t)word * WORD_BYTES, &pending, WORD_BYTES);
            word = at[i] / TW__WIRE_WORD;
            pending = 0;
        }
        pending |= UINT64_C(1) << at[i] % TW__WIRE_WORD;
    }
    size_t last = (size_t)word * WORD_BYTES;
    memcpy(bits + last, &pending, word_bytes(last, bytes));
}

static void put_gaps(index_writer *w, const uint32_t *idx, int count) {
    uint32_t gap[TW__WIRE_BLOCK], at[TW__WIRE_BLOCK];
    w->kernels->gaps(idx, count, w->minimum, gap);
    w->kernels->sums(gap, w->plan.width, w->used - 1, at);
    w->kernels->pack(gap, count, w->plan.width, w->low);
    w->low += tw__packed_bytes(count, w->plan.width);
    set_bits(at, count, w->bits, w->plan.bit_bytes);
    w->used = at[count - 1] + 1;
    w->minimum = idx[count - 1] + 1;
}

/* The next `count` indices: all blocks but the last are full. */
static void put_indices(index_writer *w, const uint32_t *idx, int count) {
    assert(count > 0 && idx[0] >= w->minimum && idx[count - 1] < w->plan.span);
    if (w->plan.width == TW__INDEX_PLAIN) {
        memcpy(w->low, idx, sizeof *idx * (size_t)count);
        w->low += sizeof *idx * (size_t)count;
    } else if (w->plan.width == TW__INDEX_BITMAP) { /* as put_gaps, but faster */
        set_bits(idx, count, w->bits, w->plan.bit_bytes);
        w->used = idx[count - 1] + 1;
    } else {
        put_gaps(w, idx, count);
    }
}

/* ---- Reading indices ------------------------------------------------------------------------ */

typedef struct index_reader {
    const tw__wire_kernels *kernels;
    tw__index_plan plan;
    const uint8_t *low;  /* of the next block */
    const uint8_t *bits; /* [plan.bit_bytes] */
    size_t next;         /* the first byte of bits that was not read */
    uint32_t done;       /* indices read */
    uint32_t previous;   /* plain: the last one of them */
    uint32_t lows;       /* else: the sum of their low parts, and how many they are */
    int nfound;          /* set bits of later blocks */
    uint32_t found[TW__WIRE_BLOCK + TW__WIRE_WORD];
} index_reader;

/* At least `count` set bits to found[]. Returns 0 if there are fewer. */
static int find_bits(index_reader *r, int count) {
    while (r->nfound < count && r->next < r->plan.bit_bytes) {
        uint64_t word = load_word(r->bits, r->next, r->plan.bit_bytes);
        r->nfound += r->kernels->positions(word, (uint32_t)(8 * r->next), r->found + r->nfound);
        r->next += WORD_BYTES;
    }
    return r->nfound >= count;
}

/* The first `count` were used. */
static void drop_found(index_reader *r, int count) {
    r->nfound -= count;
    memmove(r->found, r->found + count, sizeof *r->found * (size_t)r->nfound);
}

static int get_plain(index_reader *r, uint32_t *idx, int count) {
    memcpy(idx, r->low, sizeof *idx * (size_t)count);
    r->low += sizeof *idx * (size_t)count;
    int descents = r->done > 0 && idx[0] <= r->previous;
    for (int i = 1; i < count; i++)
        descents += idx[i] <= idx[i - 1];
    r->previous = idx[count - 1];
    return descents == 0 && r->previous < r->plan.span;
}

/* What get_gaps would do, but faster. */
static int get_bitmap(index_reader *r, uint32_t *idx, int count) {
    if (!find_bits(r, count))
        return 0;
    memcpy(idx, r->found, sizeof *idx * (size_t)count);
    drop_found(r, count);
    return idx[count - 1] < r->plan.span;
}

/* Index i is i + the low parts + the high parts << width, both summed up to it. Sums ascend: if the
 * last index of a block lies within the span, so do the others. That of the low parts fits into 32
 * bits: it is below the span before the block, and the block adds 2^31 at most. */
static int get_gaps(index_reader *r, uint32_t *idx, int count) {
    const int width = r->plan.width, last = count - 1;
    if (!find_bits(r, count))
        return 0;
    r->kernels->unpack(r->low, count, width, idx);
    r->kernels->sums(idx, 0, r->lows - 1, idx);
    r->low += tw__packed_bytes(count, width);
    r->lows = idx[last] + 1;
    uint64_t high = r->found[last] - r->done - (uint32_t)last;
    int within = idx[last] + (high << width) < r->plan.span;
    for (int i = 0; i < count; i++)
        idx[i] += (r->found[i] - r->done - (uint32_t)i) << width;
    drop_found(r, count);
    return within;
}

/* The next `count` indices. Returns 0 if there are none, or not ascending within the span. */
static int get_indices(index_reader *r, uint32_t *idx, int count) {
    assert(count > 0 && count <= TW__WIRE_BLOCK);
    int good = r->plan.width == TW__INDEX_PLAIN    ? get_plain(r, idx, count)
               : r->plan.width == TW__INDEX_BITMAP ? get_bitmap(r, idx, count)
                                                   : get_gaps(r, idx, count);
    r->done += (uint32_t)count;
    return good;
}

/* After the last block: whether the bitmap ends in the byte of its last entry. */
static int is_at_end(const index_reader *r) {
    return r->nfound == 0 && r->next >= r->plan.bit_bytes &&
           (r->plan.bit_bytes == 0 || r->bits[r->plan.bit_bytes - 1] != 0);
}

/* ---- Values: a block of them to bytes, and back ------------------------------------------------ */

static void encode_values(const tw__kernels *kernels, const tw__wire *format, const float *val,
                          int count, uint8_t *out) {
    if (format->code == TW__WIRE_F32)
        memcpy(out, val, sizeof *val * (size_t)count);
    else if (format->code == TW__WIRE_F16)
        kernels->wire->narrow_f16(val, count, out);
    else if (format->code == TW__WIRE_BF16)
        kernels->wire->narrow_bf16(val, count, out);
    else
        kernels->wire->quantize(val, count, format->bits, out);
}

/* Decoded values may be anything. */
static void decode_values(const tw__kernels *kernels, const tw__wire *format, const uint8_t *in,
                          int count, float *val) {
    if (format->code == TW__WIRE_F32)
        memcpy(val, in, sizeof *val * (size_t)count);
    else if (format->code == TW__WIRE_F16)
        kernels->widen_f16(val, in, count);
    else if (format->code == TW__WIRE_BF16)
        kernels->widen_bf16(val, in, count);
    else
        kernels->wire->dequantize(in, count, format->bits, val);
}

/* ---- Lists ---------------------------------------------------------------------------------- */

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

static void take_apart(const tw__entry *entries, int64_t lo, block *b) {
    if (b->count < TW__WIRE_BLOCK)
        memset(b, 0, offsetof(block, count));
    for (int i = 0; i < b->count; i++) {
        b->idx[i] = (uint32_t)entries[i].idx - (uint32_t)lo;
        b->val[i] = entries[i].val;
    }
}

/* Whether a value's magnitude bits are `bits` or more. */
static int any_from(const block *b, uint32_t bits) {
    int count = 0;
    for (int i = 0; i < b->count; i++)
        count += (int32_t)tw__magnitude(b->val[i]) >= (int32_t)bits;
    return count > 0;
}

/* Returns 1, and stops, at a value whose magnitude bits are `huge` or more; else 0, and the lengths
 * of the message are what was written. */
static int write_body(const tw__kernels *kernels, tw__wire_message *m, const tw__list *list,
                      uint8_t *indices, float *rounded, uint32_t huge) {
    uint8_t *values = indices + m->indices.low_bytes;
    index_writer writer = {.kernels = kernels->wire,
                           .plan = m->indices,
                           .low = indices,
                           .bits = values + tw__wire_value_bytes(m->format, m->count)};
    assert(list->count == m->count);
    memset(writer.bits, 0, m->indices.bit_bytes);
    block b;
    for (int64_t at = 0; at < list->count; at += b.count) {
        b.count = block_count(list->count - at);
        take_apart(list->at + at, m->lo, &b);
        if (any_from(&b, huge))
            return 1;
        put_indices(&writer, b.idx, b.count);
        encode_values(kernels, m->format, b.val, b.count, values);
        float *seen = b.count == TW__WIRE_BLOCK ? rounded + at : b.val; /* room for a whole block */
        decode_values(kernels, m->format, values, b.count, seen);
        if (seen == b.val)
            memcpy(rounded + at, b.val, sizeof *rounded * (size_t)b.count);
        values += value_block_bytes(m->format, b.count);
    }
    tw__wire_set_bits(m, writer.used);
    return 0;
}

static int encode(void *context, tw__wire_message *m, const tw__list *list, void *out,
                  float *rounded, int *huge) {
    const tw__cpu_lists *cpu = context;
    memcpy(out, m->head, m->head_bytes);
    *huge = write_body(cpu->kernels, m, list, (uint8_t *)out + m->head_bytes, rounded,
                       tw__magnitude(TW__WIRE_HUGE));
    return TW_OK;
}

size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded) {
    tw__wire_message m = tw__wire_plan(format, list->count, lo, hi);
    memcpy(out, m.head, m.head_bytes);
    (void)write_body(kernels, &m, list, (uint8_t *)out + m.head_bytes, rounded, TW__MAGNITUDE_MASK);
    return m.bytes;
}

static void put_together(const block *b, int64_t lo, tw__entry *entries) {
    for (int i = 0; i < b->count; i++)
        entries[i] = (tw__entry){(int32_t)(b->idx[i] + (uint32_t)lo), b->val[i]};
}

static int read_body(const tw__kernels *kernels, const tw__wire_message *m, const void *body,
                     tw__entry *entries, int rank) {
    const uint8_t *indices = body, *values = indices + m->indices.low_bytes;
    index_reader reader;
    memset(&reader, 0, offsetof(index_reader, found));
    reader.kernels = kernels->wire;
    reader.plan = m->indices;
    reader.low = indices;
    reader.bits = values + tw__wire_value_bytes(m->format, m->count);
    block b;
    for (int64_t at = 0; at < m->count; at += b.count) {
        b.count = block_count(m->count - at);
        if (!get_indices(&reader, b.idx, b.count))
            return tw__wire_fail_order(m, rank);
        decode_values(kernels, m->format, values, b.count, b.val);
        if (any_from(&b, TW__INFINITY_BITS))
            return tw__wire_fail_number(rank);
        put_together(&b, m->lo, entries + at);
        values += value_block_bytes(m->format, b.count);
    }
    return is_at_end(&reader) ? TW_OK : tw__wire_fail_end(m, rank);
}

static int decode(void *context, const tw__wire_message *m, const void *body, tw__entry *entries,
                  int rank) {
    const tw__cpu_lists *cpu = context;
    return read_body(cpu->kernels, m, body, entries, rank);
}

int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank) {
    tw__wire_message m;
    TW_TRY(tw__wire_open(bytes, size, lo, hi, most, rank, &m));
    TW_TRY(read_body(kernels, &m, (const uint8_t *)bytes + m.head_bytes, entries, rank));
    *count = m.count;
    return TW_OK;
}

const tw__wire_calls tw__wire_cpu = {.encode = encode, .decode = decode};
