/* wire.h - how entries are written into messages: the formats of values, as rows
 *
 * A message holds the entries of one list within lo .. hi-1, bounds that both sides know. Indices
 * are coded without loss, as whatever is smallest: plain, as a bitmap, or by Elias and Fano's code.
 * Values are rounded to the format; the sender is told what the receiver will see, so that it can
 * keep the difference. docs/wire_format.md describes the bytes, which do not depend on the machine.
 *
 * Decoding takes any bytes: it reads and writes nothing outside of what it was given, and what it
 * accepts is a list that some rank could have sent.
 *
 * To add a format: a row in wire_values.c, and a new version if an old one changes. */
#ifndef TW_WIRE_WIRE_H
#define TW_WIRE_WIRE_H

#include "entries.h"

#define TW__WIRE_VERSION 1

typedef struct tw__wire {
    const char *name;
    const char *description;
    int code;         /* in the message: the position in the table */
    int bits;         /* of a value */
    int levels_bytes; /* before the values of each block */
    /* A block of values to bytes, and back: see wire_kernels.h. Decoded values may be anything. */
    void (*encode)(const tw__kernels *kernels, const float *val, int count, uint8_t *out);
    void (*decode)(const tw__kernels *kernels, const uint8_t *in, int count, float *val);
} tw__wire;

/* Errors: TW_ERR_NAME, listing the names. */
int tw__wire_find(const char *name, const tw__wire **format);
/* By position from 0; NULL past the last. */
const tw__wire *tw__wire_at(int position);

/* Bytes of a message of `count` entries, exactly; fewer entries take no more. Counts above hi - lo
 * stand for hi - lo. And what of it the values take. */
size_t tw__wire_bound(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
size_t tw__wire_value_bytes(const tw__wire *format, int64_t count);

/* Write the list, which is sorted, within lo .. hi-1 and finite, to out[tw__wire_bound].
 * rounded[count] gets the values as the receiver will see them. Returns the bytes written. */
size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded);

/* Read a message that `rank` sent: at most `most` entries, to entries[most]. They ascend strictly
 * within lo .. hi-1 and are finite.
 * Errors: TW_ERR_PROTOCOL naming the rank; what entries[] holds is then undefined. */
int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank);

#endif
