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
 * To add a format: a row in wire_values.c, its case in wire_each.h for GPUs, and a new version if an
 * old one changes. */
#ifndef TW_WIRE_WIRE_H
#define TW_WIRE_WIRE_H

#include "exchange/entries.h"
#include "wire/wire_index.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TW__WIRE_VERSION 1

/* Formats by their code in messages. */
enum {
    TW__WIRE_F32,
    TW__WIRE_F16,
    TW__WIRE_BF16,
    TW__WIRE_Q8,
    TW__WIRE_Q4,
    TW__WIRE_Q2,
};

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

/* NULL if there is none of this name. */
const tw__wire *tw__wire_find(const char *name);
/* By position from 0; NULL past the last. */
const tw__wire *tw__wire_at(int position);

/* Bytes of a message of `count` entries, exactly; fewer entries take no more. Counts above hi - lo
 * stand for hi - lo. And what of it the values take. */
size_t tw__wire_bound(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
size_t tw__wire_value_bytes(const tw__wire *format, int64_t count);

/* Values from here on are not written: a remainder of theirs, of 2^92 at most, might not fit into a
 * residual, whereas a float takes 2^103 without harm. */
#define TW__WIRE_HUGE 0x1p100f

/* What is known of a message without its indices and values. */
typedef struct tw__wire_message {
    const tw__wire *format;
    tw__index_plan indices;
    int64_t count;
    int64_t lo;
    size_t bytes;     /* with the header, which is the last of head */
    uint64_t head[2]; /* what goes before the indices: a word of the sender's, if any, the header */
    size_t head_bytes; /* 8, or 16 with such a word, which then begins the message */
} tw__wire_message;

#define TW__WIRE_HEADER 8 /* bytes */

tw__wire_message tw__wire_plan(const tw__wire *format, int64_t count, int64_t lo, int64_t hi);
/* From the header of a message of `size` bytes that `rank` sent, of which `header` has the first
 * TW__WIRE_HEADER, or as many as there are. Afterwards all lengths are right.
 * Errors: TW_ERR_PROTOCOL naming the rank. */
int tw__wire_open(const void *header, size_t size, int64_t lo, int64_t hi, int64_t most, int rank,
                  tw__wire_message *message);

/* Coding, where lists and messages lie in the same memory: tw__wire_host in the host's, and
 * tw__wire_cuda (cuda/device.h) in a GPU's. context is that of the work on lists. */
typedef struct tw__wire_calls {
    /* Write head, indices and values of the list, which is sorted and within the message's bounds,
     * to out. rounded[count] gets the values as the receiver will see them. *huge says that one is
     * TW__WIRE_HUGE or more, or not finite: then out and rounded hold nothing of use. */
    int (*encode)(void *context, const tw__kernels *kernels, const tw__wire_message *message,
                  const tw__list *list, void *out, float *rounded, int *huge);
    /* Read what follows the header of an opened message, to entries[count]. They ascend strictly
     * within lo .. hi-1 and are finite.
     * Errors: TW_ERR_PROTOCOL naming the rank; what entries[] holds is then undefined. */
    int (*decode)(void *context, const tw__kernels *kernels, const tw__wire_message *message,
                  const void *body, tw__entry *entries, int rank);
} tw__wire_calls;

extern const tw__wire_calls tw__wire_host;

/* What decode says of indices or values that it refuses. */
int tw__wire_fail_order(const tw__wire_message *message, int rank);
int tw__wire_fail_surplus(const tw__wire_message *message, int rank);
int tw__wire_fail_number(int rank);

/* In the host's memory, in one call each. */

/* Write the list, which is sorted, within lo .. hi-1 and finite, to out[tw__wire_bound].
 * rounded[count] gets the values as the receiver will see them. Returns the bytes written. */
size_t tw__wire_encode(const tw__kernels *kernels, const tw__wire *format, const tw__list *list,
                       int64_t lo, int64_t hi, void *out, float *rounded);

/* Read a message that `rank` sent: at most `most` entries, to entries[most]. They ascend strictly
 * within lo .. hi-1 and are finite.
 * Errors: TW_ERR_PROTOCOL naming the rank; what entries[] holds is then undefined. */
int tw__wire_decode(const tw__kernels *kernels, const void *bytes, size_t size, int64_t lo,
                    int64_t hi, int64_t most, tw__entry *entries, int64_t *count, int rank);

#ifdef __cplusplus
}
#endif

#endif
