/* wire_index.h - strictly ascending indices in few bits
 *
 * Of an index x in 0 .. span-1 the low `width` bits are stored as they are, packed; the high parts
 * x >> width, which never descend, as a bitmap: the i-th index sets bit (x >> width) + i. That is
 * Elias and Fano's code, within half a bit of the least possible for indices without structure:
 * width + 1 + span / (count * 2^width) bits each, where the best width leaves 1.4 to 2 for the
 * bitmap. Two further widths stand for what is smaller in extreme cases:
 *
 *     TW__INDEX_PLAIN    32 bits each, no bitmap: next to no indices
 *     TW__INDEX_BITMAP   bit x of the bitmap, nothing else: from a density of 1/4 on
 *
 * Elias 1974, Fano 1971; Vigna, Quasi-succinct indices, 2013. */
#ifndef TW_WIRE_WIRE_INDEX_H
#define TW_WIRE_WIRE_INDEX_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/wire_kernels.h"

#define TW__INDEX_PLAIN 32
#define TW__INDEX_BITMAP 0

typedef struct tw__index_plan {
    int width;
    uint32_t span;
    size_t low_bytes; /* the packed low bits, or the plain indices */
    size_t bit_bytes; /* the bitmap, which follows them */
} tw__index_plan;

/* The smallest for `count` indices; of equal ones the plain, then the bitmap, then the least width.
 */
tw__index_plan tw__index_choose(int64_t count, int64_t span);
/* That of a message. Returns 0 for a width that there is not. */
int tw__index_plan_of(int width, int64_t count, int64_t span, tw__index_plan *plan);

typedef struct tw__index_writer {
    const tw__wire_kernels *kernels;
    tw__index_plan plan;
    uint8_t *low;  /* where the next block goes */
    uint8_t *bits; /* [plan.bit_bytes] */
    uint32_t done; /* indices written */
} tw__index_writer;

/* To out[low_bytes + bit_bytes]. */
tw__index_writer tw__index_write(const tw__kernels *kernels, const tw__index_plan *plan,
                                 uint8_t *out);
/* The next `count` indices: all blocks but the last are full. */
void tw__index_put(tw__index_writer *writer, const uint32_t *idx, int count);

typedef struct tw__index_reader {
    const tw__wire_kernels *kernels;
    tw__index_plan plan;
    const uint8_t *low;  /* of the next block */
    const uint8_t *bits; /* [plan.bit_bytes] */
    size_t next;         /* byte of bits that was not looked at */
    uint32_t done;       /* indices read */
    uint32_t previous;   /* the last one of them */
    int nfound;          /* set bits that wait for their block */
    uint32_t found[TW__WIRE_BLOCK + TW__WIRE_WORD];
} tw__index_reader;

void tw__index_read(tw__index_reader *reader, const tw__kernels *kernels,
                    const tw__index_plan *plan, const uint8_t *in);
/* The next `count` indices. Returns 0 if there are none, or not ascending within the span. */
int tw__index_get(tw__index_reader *reader, uint32_t *idx, int count);
/* Whether nothing is left, after the last block. */
int tw__index_at_end(const tw__index_reader *reader);

#endif
