/* pack.c - lists to messages and back: raw, or in a wire format
 *
 * A raw message is the list as it lies in memory, 8 bytes an entry. A packed message begins with a
 * tag of 8 bytes that says how the rest is written:
 *
 *     CODED  | header, indices and values of the wire format (docs/wire_format.md). The upper half of
 *            | the tag is 0, or the end of a piece: one more than its last index. An empty piece ends
 *            | where the piece before ended
 *     PLAIN  | raw entries: a value is so large that its rounding remainder could overflow a
 *            | residual, or is a NaN that tells other ranks to refuse the step. One such value makes
 *            | all pieces of its list plain */
#include "exchange/job.h"

#include <assert.h>

enum { PLAIN = 1, CODED = 2 };
#define WORD 8 /* bytes; entries behind it stay aligned */
#define END 32 /* the bit of the tag at which a piece's end begins */

/* A coded entry takes a plain index, a plain value and its part of a block's levels at most. A
 * multiple of WORD, so that stretches for messages can follow each other. */
size_t tw__pack_capacity(const tw__wire *wire, int64_t entries, int64_t messages) {
    if (wire == NULL)
        return 0;
    return (size_t)(entries * 8 + entries / 128 * 8 + messages * 128);
}

size_t tw__pack_bound(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    size_t plain = sizeof(tw__entry) * (size_t)count;
    size_t coded = wire != NULL ? tw__wire_bound(wire, count, lo, hi) : 0;
    return wire != NULL ? WORD + (coded > plain ? coded : plain) : plain;
}

size_t tw__pack_bytes(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    return wire != NULL ? WORD + tw__wire_expected(wire, count, lo, hi)
                        : sizeof(tw__entry) * (size_t)count;
}

static int write_plain(const tw__job *job, const tw__list *list, char *message, float *rounded) {
    const tw__list_calls *calls = job->lists.calls;
    const uint64_t word = PLAIN;
    TW_TRY(calls->poke(job->lists.context, message, &word, WORD));
    TW_TRY(calls->move(job->lists.context, (tw__entry *)(void *)(message + WORD), list->at,
                       list->count));
    return calls->get_values(job->lists.context, list, rounded);
}

/* `word` goes before the header. *huge says that nothing was written, as tw__wire_calls.encode does. */
static int write_coded(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi,
                       uint64_t word, char *message, float *rounded, size_t *bytes, int *huge) {
    tw__wire_message m = tw__wire_plan(job->shape.wire, list->count, lo, hi);
    m.head[1] = m.head[0];
    m.head[0] = word;
    m.head_bytes += WORD;
    TW_TRY(job->codec->encode(job->lists.context, &m, list, message, rounded, huge));
    *bytes = WORD + m.bytes;
    assert(*huge || *bytes <= tw__pack_bound(job->shape.wire, list->count, lo, hi));
    return TW_OK;
}

/* `plain`: its values are written as they are. */
static int pack(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi, uint64_t word,
                int plain, char **memory, float *rounded, tw__buffer *message) {
    size_t bytes = sizeof(tw__entry) * (size_t)list->count;
    assert(tw__list_is_sorted(&job->lists, list, lo, hi));
    *message = (tw__buffer){list->at, bytes, 0};
    if (job->shape.wire == NULL)
        return TW_OK;
    assert((uintptr_t)*memory % WORD == 0);
    if (!plain)
        TW_TRY(write_coded(job, list, lo, hi, word, *memory, rounded, &bytes, &plain));
    if (plain) {
        TW_TRY(write_plain(job, list, *memory, rounded));
        bytes = WORD + sizeof(tw__entry) * (size_t)list->count;
    }
    *message = (tw__buffer){*memory, bytes, 0};
    *memory += (bytes + WORD - 1) / WORD * WORD;
    return TW_OK;
}

int tw__pack_list(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi, char **memory,
                  float *rounded, tw__buffer *message) {
    return pack(job, list, lo, hi, CODED, 0, memory, rounded, message);
}

int tw__pack_piece(const tw__job *job, const tw__list *piece, int64_t lo, int plain, char **memory,
                   float *rounded, tw__buffer *message) {
    int64_t hi = piece->count > 0 ? piece->at[piece->count - 1].idx + INT64_C(1) : lo;
    return pack(job, piece, lo, hi, CODED | (uint64_t)hi << END, plain, memory, rounded, message);
}

tw__buffer tw__pack_receive(const tw__wire *wire, int64_t most, int64_t lo, int64_t hi,
                            tw__entry *entries, char *packed) {
    return (tw__buffer){.data = wire != NULL ? (void *)packed : (void *)entries,
                        .capacity = tw__pack_bound(wire, most, lo, hi)};
}

int tw__unpack_raw(const tw__buffer *message, int rank, tw__list *list) {
    *list = (tw__list){message->data, (int64_t)(message->bytes / sizeof(tw__entry))};
    if (message->bytes % sizeof(tw__entry) != 0)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, which are no whole entries",
                        rank, message->bytes);
    return TW_OK;
}

static int unpack_plain(const tw__job *job, const tw__buffer *message, int64_t lo, int64_t hi,
                        int64_t most, int rank, tw__list *list) {
    TW_TRY(tw__unpack_raw(message, rank, list));
    if (list->count > most)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries where %lld are possible", rank,
                        (long long)list->count, (long long)most);
    return tw__list_check(&job->lists, list, lo, hi, rank);
}

int tw__unpack_list(const tw__job *job, const tw__buffer *message, int64_t lo, int64_t hi,
                    int64_t most, int rank, tw__entry *entries, tw__list *list) {
    struct {
        uint64_t word;
        uint8_t header[TW__WIRE_HEADER];
    } head = {0};
    tw__wire_message m;
    if (job->shape.wire == NULL)
        return unpack_plain(job, message, lo, hi, most, rank, list);
    if (message->bytes < WORD)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a message of %zu bytes", rank,
                        message->bytes);
    size_t head_bytes = message->bytes < sizeof head ? message->bytes : sizeof head;
    TW_TRY(job->lists.calls->peek(job->lists.context, message->data, head_bytes, &head));
    tw__buffer rest = {(char *)message->data + WORD, message->bytes - WORD, 0};
    if (head.word == PLAIN)
        return unpack_plain(job, &rest, lo, hi, most, rank, list);
    if ((uint32_t)head.word != CODED)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a message of an unknown kind", rank);
    int64_t end = (int64_t)(head.word >> END);
    if (end != 0 && (end < lo || end > hi))
        return tw__fail(TW_ERR_PROTOCOL,
                        "rank %d: sent a piece that ends at %lld, outside of %lld .. %lld", rank,
                        (long long)end, (long long)lo, (long long)hi);
    hi = end != 0 ? end : hi;
    TW_TRY(tw__wire_open(head.header, rest.bytes, lo, hi, most, rank, &m));
    *list = (tw__list){entries, m.count};
    return job->codec->decode(job->lists.context, &m, (const char *)rest.data + m.head_bytes,
                              entries, rank);
}

int tw__pack_remainders(const tw__job *job, const tw__list *list, const float *rounded,
                        tw__list *out) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->subtract(job->lists.context, list, rounded, out);
}

int tw__pack_set_rounded(const tw__job *job, const tw__list *list, const float *rounded) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->set_values(job->lists.context, list, rounded);
}

int tw__pack_keep_values(const tw__job *job, const tw__list *list, float *rounded) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->get_values(job->lists.context, list, rounded);
}
