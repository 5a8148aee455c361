/* wire.h - how entries are written into messages: the table of value formats
 *
 * A message holds the entries of one list within lo .. hi-1, bounds that sender and receiver know:
 *
 *     header   version, format, width of indices, 0: a byte each; count: 4 bytes
 *     indices  coded without loss (tw__index_plan): their low parts
 *     values   rounded to the format, in blocks of TW__WIRE_BLOCK
 *     bitmap   the high parts of indices, to the end of the message
 *
 * The sender is told the values that the receiver will see, so that it can keep the difference.
 * docs/wire_format.md describes the bytes, which do not depend on the machine. Backends write and
 * read them: backend/cpu/wire_codec.c is the reference.
 *
 * Decoding takes any bytes: it reads and writes nothing outside of what it was given, and what it
 * accepts is a list that some rank could have sent.
 *
 * To add a format: its row here, its values in backend/cpu/wire_codec.c, its bytes in
 * tests/wire/wire_model.c and wire_golden.txt. For other backends than the CPU add it to wire_each.h.
 * A format that changes needs a new TW__WIRE_VERSION. */
#ifndef TW_WIRE_WIRE_H
#define TW_WIRE_WIRE_H

#include "backend/cpu/wire_kernels.h"
#include "exchange/entries.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW__WIRE_VERSION 2

/* The formats, in the order of their codes in messages: code, name, description, bits of a value,
 * bytes of levels before each block, backends. */
#define TW__WIRES(X)                                                                               \
    X(F32, "f32", "float32, as it is", 32, 0, TW__ALL_BACKENDS)                                    \
    X(F16, "f16", "binary16, clamped at 65504", 16, 0, TW__ALL_BACKENDS)                           \
    X(BF16, "bf16", "bfloat16: float32's range, 8 bits of precision", 16, 0, TW__ALL_BACKENDS)     \
    X(Q8, "q8", "sign and 128 levels between a block's smallest and largest magnitude", 8,         \
      TW__WIRE_LEVELS_BYTES, TW__ALL_BACKENDS)                                                     \
    X(Q4, "q4", "sign and 8 levels between a block's smallest and largest magnitude", 4,           \
      TW__WIRE_LEVELS_BYTES, TW__ALL_BACKENDS)                                                     \
    X(Q2, "q2", "sign and 2 levels, the means of a block's small and large magnitudes", 2,         \
      TW__WIRE_LEVELS_BYTES, TW__ALL_BACKENDS)
#define TW__WIRE_CODE(code, ...) TW__WIRE_##code,
enum { TW__WIRES(TW__WIRE_CODE) TW__WIRES_COUNT };

typedef struct tw__wire {
    int code;
    const char *name;
    const char *description;
    int bits;          /* of a value */
    int levels_bytes;  /* before the values of each block */
    unsigned backends; /* that code it (TW__ALL_BACKENDS) */
} tw__wire;

/* NULL if there is none of this name. */
const tw__wire *tw__wire_find(const char *name);
/* By position from 0; NULL past the last. */
const tw__wire *tw__wire_at(int position);

/* ---- lengths */

/* How strictly ascending indices 0 .. span-1 are written: by the gaps between them. The gap of an
 * index is the number of indices that are left out before it. Its low `width` bits are stored as they
 * are, packed. Its high part, gap >> width, is written in a bitmap, as so many zeros and a one: the
 * i-th index sets bit i + the sum of all high parts so far. That is Rice's code, with both parts of
 * all gaps kept apart. For random indices it takes 0.03 to 0.15 bits more than the least possible.
 * Example, width 2, span 16:
 *
 *     index   1     6     7    13       low parts   01 00 00 01
 *     gap     1     4     0     5       bitmap      bits 0+0, 1+1, 1+2, 2+3 of 6: 1 0 1 1 0 1
 *     high    0     1     0     1
 *
 * High parts sum to (span - count) >> width at most, so lengths have a bound before the indices are
 * known. Two widths are shorter than others in extreme cases:
 *
 *     TW__INDEX_PLAIN    32 bits each, no bitmap: very few indices
 *     TW__INDEX_BITMAP   no low parts, so index x sets bit x: from a density of 1/4 on
 *
 * Golomb 1966; Rice 1979. */
#define TW__INDEX_PLAIN 32
#define TW__INDEX_BITMAP 0

typedef struct tw__index_plan {
    int width;
    uint32_t span;
    size_t low_bytes; /* the packed low bits, or the plain indices */
    size_t bit_bytes; /* the bitmap; before the indices are known, at most */
} tw__index_plan;

/* The shortest for `count` indices whose bitmap is as long as can be. Of equal ones the plain, then
 * the bitmap, then the least width. */
tw__index_plan tw__index_choose(int64_t count, int64_t span);
/* The plan of a message. Returns 0 if there is no such width. */
int tw__index_plan_of(int width, int64_t count, int64_t span, tw__index_plan *plan);

/* Bytes of a message of `count` entries at most; fewer entries take no more. Counts above hi - lo
 * stand for hi - lo. The bytes to expect for random indices. And the bytes of its values, exactly. */
size_t tw__wire_bound(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
size_t tw__wire_expected(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
size_t tw__wire_value_bytes(const tw__wire *format, int64_t count);

/* Values from here on are not written: their remainder, of 2^92 at most, might not fit into a
 * residual, whereas a float takes 2^103 without harm. */
#define TW__WIRE_HUGE 0x1p100f

/* What is known of a message without its indices and values. */
typedef struct tw__wire_message {
    const tw__wire *format;
    tw__index_plan indices;
    int64_t count;
    int64_t lo;
    size_t bytes;      /* from the header on; before it is encoded, at most */
    uint64_t head[2];  /* what goes before the indices: the header, after a word of the sender's */
    size_t head_bytes; /* 8, or 16 with such a word */
} tw__wire_message;

#define TW__WIRE_HEADER 8 /* bytes */

tw__wire_message tw__wire_plan(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
/* The bitmap was written, and has so many bits: the lengths become exact. */
void tw__wire_set_bits(tw__wire_message *message, uint32_t bits);
/* From the header of a message of `size` bytes that `rank` sent. `header` has the first
 * TW__WIRE_HEADER, or `size` if that is less. Afterwards all lengths are possible ones.
 * Errors: TW_ERR_PROTOCOL naming the rank. */
int tw__wire_open(const void *header, size_t size, int64_t lo, int64_t hi, int64_t most, int rank,
                  tw__wire_message *message);

/* ---- coding */

/* A backend's codec, for lists and messages in its memory. The context is that of tw__lists. */
typedef struct tw__wire_calls {
    /* Write the list, which is sorted and within the message's bounds, behind its head to out, which
     * has room for the planned bytes. Afterwards the lengths of the message are those that were
     * written. rounded[count] gets the values that the receiver will see. *huge says that one is
     * TW__WIRE_HUGE or more, or not finite: then out and rounded hold nothing of use. */
    int (*encode)(void *context, tw__wire_message *message, const tw__list *list, void *out,
                  float *rounded, int *huge);
    /* Read what follows the header of an opened message, to entries[count]. They ascend strictly
     * within lo .. hi-1 and are finite.
     * Errors: TW_ERR_PROTOCOL naming the rank; entries[] is undefined then. */
    int (*decode)(void *context, const tw__wire_message *message, const void *body,
                  tw__entry *entries, int rank);
} tw__wire_calls;

/* The errors of decode, for indices or values that it refuses. */
int tw__wire_fail_order(const tw__wire_message *message, int rank);
int tw__wire_fail_end(const tw__wire_message *message, int rank);
int tw__wire_fail_number(int rank);

/* backend/cpu/wire_codec.c: the CPU's codec in one call, for given kernels.
 *
 * Write the list, which is sorted, within lo .. hi-1 and finite, to out[tw__wire_bound].
 * rounded[count] gets the values that the receiver will see. Returns the bytes written. */
size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded);

/* Read a message that `rank` sent: at most `most` entries, to entries[most]. They ascend strictly
 * within lo .. hi-1 and are finite.
 * Errors: TW_ERR_PROTOCOL naming the rank; entries[] is undefined then. */
int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank);

#ifdef __cplusplus
}
#endif

#endif
