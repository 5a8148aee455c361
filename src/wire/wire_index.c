/* wire_index.c - strictly ascending indices in few bits; see wire_index.h */
#include "wire/wire_index.h"

#define WORD_BYTES (TW__WIRE_WORD / 8)

/* ---- Sizes ---------------------------------------------------------------------------------- */

static int is_elias_fano(int width) {
    return width >= 1 && width <= TW__WIRE_WIDTH_MAX;
}

static tw__index_plan plan_of(int width, int64_t count, int64_t span) {
    tw__index_plan plan = {.width = width, .span = (uint32_t)span};
    if (width == TW__INDEX_PLAIN) {
        plan.low_bytes = sizeof(uint32_t) * (size_t)count;
    } else if (width == TW__INDEX_BITMAP) {
        plan.bit_bytes = tw__bits_bytes(span, 1);
    } else {
        int64_t full = count / TW__WIRE_BLOCK;
        plan.low_bytes = (size_t)full * tw__packed_bytes(TW__WIRE_BLOCK, width) +
                         tw__packed_bytes(count % TW__WIRE_BLOCK, width);
        plan.bit_bytes = tw__bits_bytes(count + ((span - 1) >> width), 1);
    }
    return plan;
}

static size_t plan_bytes(const tw__index_plan *plan) {
    return plan->low_bytes + plan->bit_bytes;
}

tw__index_plan tw__index_choose(int64_t count, int64_t span) {
    tw__index_plan best = plan_of(TW__INDEX_PLAIN, count, span);
    for (int width = TW__INDEX_BITMAP; width <= TW__WIRE_WIDTH_MAX && count > 0; width++) {
        tw__index_plan plan = plan_of(width, count, span);
        if (plan_bytes(&plan) < plan_bytes(&best))
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

/* ---- The bitmap, in words of which the last may be cut ---------------------------------------- */

static size_t word_bytes(size_t at, size_t bytes) {
    return bytes - at < WORD_BYTES ? bytes - at : WORD_BYTES;
}

static uint64_t load_word(const uint8_t *bits, size_t at, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, bits + at, word_bytes(at, bytes));
    return word;
}

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

/* ---- Writing -------------------------------------------------------------------------------- */

tw__index_writer tw__index_write(const tw__kernels *kernels, const tw__index_plan *plan,
                                 uint8_t *out) {
    memset(out + plan->low_bytes, 0, plan->bit_bytes);
    return (tw__index_writer){
        .kernels = kernels->wire, .plan = *plan, .low = out, .bits = out + plan->low_bytes};
}

static void put_elias_fano(tw__index_writer *w, const uint32_t *idx, int count) {
    uint32_t at[TW__WIRE_BLOCK];
    for (int i = 0; i < TW__WIRE_BLOCK; i++)
        at[i] = (idx[i] >> w->plan.width) + w->done + (uint32_t)i;
    set_bits(at, count, w->bits, w->plan.bit_bytes);
    w->kernels->pack(idx, count, w->plan.width, w->low);
    w->low += tw__packed_bytes(count, w->plan.width);
}

void tw__index_put(tw__index_writer *w, const uint32_t *idx, int count) {
    if (is_elias_fano(w->plan.width)) {
        put_elias_fano(w, idx, count);
    } else if (w->plan.width == TW__INDEX_BITMAP) {
        set_bits(idx, count, w->bits, w->plan.bit_bytes);
    } else {
        memcpy(w->low, idx, sizeof *idx * (size_t)count);
        w->low += sizeof *idx * (size_t)count;
    }
    w->done += (uint32_t)count;
}

/* ---- Reading -------------------------------------------------------------------------------- */

void tw__index_read(tw__index_reader *r, const tw__kernels *kernels, const tw__index_plan *plan,
                    const uint8_t *in) {
    r->kernels = kernels->wire;
    r->plan = *plan;
    r->low = in;
    r->bits = in + plan->low_bytes;
    r->next = 0;
    r->done = 0;
    r->previous = 0;
    r->nfound = 0;
}

/* At least `count` set bits into found[], where there are so many. */
static int find_bits(tw__index_reader *r, int count) {
    while (r->nfound < count && r->next < r->plan.bit_bytes) {
        uint64_t word = load_word(r->bits, r->next, r->plan.bit_bytes);
        r->nfound += r->kernels->positions(word, (uint32_t)(8 * r->next), r->found + r->nfound);
        r->next += WORD_BYTES;
    }
    return r->nfound >= count;
}

/* Those of the next block come first. */
static void drop_found(tw__index_reader *r, int count) {
    r->nfound -= count;
    memmove(r->found, r->found + count, sizeof *r->found * (size_t)r->nfound);
}

/* Too high a part, as of a message with too few bits set, may wrap around: tw__index_at_end tells.
 */
static void get_elias_fano(tw__index_reader *r, uint32_t *idx, int count) {
    r->kernels->unpack(r->low, count, r->plan.width, idx);
    r->low += tw__packed_bytes(count, r->plan.width);
    for (int i = 0; i < count; i++)
        idx[i] |= (r->found[i] - r->done - (uint32_t)i) << r->plan.width;
}

static int ascends(const uint32_t *idx, int count) {
    int descents = 0;
    for (int i = 1; i < count; i++)
        descents += idx[i] <= idx[i - 1];
    return descents == 0;
}

int tw__index_get(tw__index_reader *r, uint32_t *idx, int count) {
    if (r->plan.width == TW__INDEX_PLAIN) {
        memcpy(idx, r->low, sizeof *idx * (size_t)count);
        r->low += sizeof *idx * (size_t)count;
    } else {
        if (!find_bits(r, count))
            return 0;
        if (r->plan.width == TW__INDEX_BITMAP)
            memcpy(idx, r->found, sizeof *idx * (size_t)count);
        else
            get_elias_fano(r, idx, count);
        drop_found(r, count);
    }
    int follows = r->done == 0 || idx[0] > r->previous;
    r->done += (uint32_t)count;
    r->previous = idx[count - 1];
    return follows && ascends(idx, count) && r->previous < r->plan.span;
}

int tw__index_at_end(const tw__index_reader *r) {
    uint64_t more = (uint64_t)r->nfound;
    for (size_t at = r->next; at < r->plan.bit_bytes; at += WORD_BYTES)
        more |= load_word(r->bits, at, r->plan.bit_bytes);
    return more == 0;
}
