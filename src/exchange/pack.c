/* letter.c - lists as messages: as they lie, or coded
 *
 * Raw entries are sent from where they are and used where they arrive. In a wire format a letter is
 * a word that says how it is written, then the coded list: or the entries themselves, where values
 * are so large that what rounding leaves could not be added to a residual, or where a NaN tells
 * other ranks to refuse the step. */
#include "exchange/exchange.h"

typedef enum { PLAIN = 1, CODED = 2 } writing;
#define HEAD 8 /* bytes; entries behind it stay aligned */

/* A coded entry takes a plain index, a plain value and its part of a level at most. A multiple of
 * HEAD, so that rooms can follow each other. */
size_t tw__pack_room(const tw__wire *wire, int64_t entries, int64_t letters) {
    if (wire == NULL)
        return 0;
    return (size_t)(entries * 8 + entries / 128 * 8 + letters * 128);
}

size_t tw__pack_bound(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    size_t plain = sizeof(tw__entry) * (size_t)count;
    if (wire == NULL)
        return plain;
    size_t coded = tw__wire_bound(wire, count, lo, hi);
    return HEAD + (coded > plain ? coded : plain);
}

size_t tw__pack_bytes(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    if (wire == NULL)
        return sizeof(tw__entry) * (size_t)count;
    return HEAD + tw__wire_bound(wire, count, lo, hi);
}

/* The list as it lies. */
static int write_plain(const tw__job *job, const tw__list *list, char *letter, float *rounded) {
    const tw__list_calls *calls = job->lists.calls;
    const uint64_t word = PLAIN;
    TW_TRY(calls->poke(job->lists.context, letter, &word, HEAD));
    TW_TRY(calls->move(job->lists.context, (tw__entry *)(void *)(letter + HEAD), list->at,
                       list->count));
    return calls->get_values(job->lists.context, list, rounded);
}

int tw__pack_list(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi, char **mail,
                  float *rounded, tw__buffer *parcel) {
    size_t plain = sizeof(tw__entry) * (size_t)list->count;
    int huge = 0;
    *parcel = (tw__buffer){list->at, plain, 0};
    if (job->shape.wire == NULL)
        return TW_OK;
    tw__wire_message m = tw__wire_plan(job->shape.wire, list->count, lo, hi);
    m.head[1] = m.head[0];
    m.head[0] = CODED;
    m.head_bytes += HEAD;
    TW_TRY(job->codec->encode(job->lists.context, job->kernels, &m, list, *mail, rounded, &huge));
    if (huge)
        TW_TRY(write_plain(job, list, *mail, rounded));
    *parcel = (tw__buffer){*mail, HEAD + (huge ? plain : m.bytes), 0};
    *mail += (parcel->bytes + HEAD - 1) / HEAD * HEAD;
    return TW_OK;
}

static int too_many(int rank, int64_t count, int64_t most) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries where %lld are possible", rank,
                    (long long)count, (long long)most);
}

/* Entries as they lie: to be used there. */
static int read_entries(const tw__job *job, const tw__buffer *parcel, int64_t lo, int64_t hi,
                        int64_t most, int rank, tw__list *list) {
    TW_TRY(tw__buffer_list(parcel, rank, list));
    if (list->count > most)
        return too_many(rank, list->count, most);
    return tw__list_check(&job->lists, list, lo, hi, rank);
}

/* What a letter begins with, as far as it goes. */
typedef struct opening {
    uint64_t word;
    uint8_t header[TW__WIRE_HEADER];
} opening;

static int read_coded(const tw__job *job, const tw__buffer *rest, const opening *o, int64_t lo,
                      int64_t hi, int64_t most, int rank, tw__list *list) {
    tw__wire_message m;
    TW_TRY(tw__wire_open(o->header, rest->bytes, lo, hi, most, rank, &m));
    list->count = m.count;
    return job->codec->decode(job->lists.context, job->kernels, &m,
                              (const char *)rest->data + m.head_bytes, list->at, rank);
}

int tw__unpack_list(const tw__job *job, const tw__buffer *parcel, int64_t lo, int64_t hi,
                    int64_t most, int rank, tw__entry *room, tw__list *list) {
    opening o = {0};
    if (job->shape.wire == NULL)
        return read_entries(job, parcel, lo, hi, most, rank, list);
    if (parcel->bytes < HEAD)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a letter of %zu bytes", rank,
                        parcel->bytes);
    size_t begins = parcel->bytes < sizeof o ? parcel->bytes : sizeof o;
    TW_TRY(job->lists.calls->peek(job->lists.context, parcel->data, begins, &o));
    tw__buffer rest = {(char *)parcel->data + HEAD, parcel->bytes - HEAD, 0};
    *list = (tw__list){room, 0};
    if (o.word == CODED)
        return read_coded(job, &rest, &o, lo, hi, most, rank, list);
    if (o.word != PLAIN)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a letter of an unknown kind", rank);
    return read_entries(job, &rest, lo, hi, most, rank, list);
}

int tw__pack_remainders(const tw__job *job, const tw__list *list, const float *rounded,
                        tw__list *out) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->subtract(job->lists.context, list, rounded, out);
}

int tw__pack_round(const tw__job *job, const tw__list *list, const float *rounded) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->set_values(job->lists.context, list, rounded);
}

int tw__pack_keep(const tw__job *job, const tw__list *list, float *rounded) {
    if (job->shape.wire == NULL)
        return TW_OK;
    return job->lists.calls->get_values(job->lists.context, list, rounded);
}
