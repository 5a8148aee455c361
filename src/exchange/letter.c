/* letter.c - lists as messages: as they lie, or coded
 *
 * Raw entries are sent from where they are and used where they arrive. In a wire format a letter is
 * a word that says how it is written, then the coded list: or the entries themselves, where values
 * are so large that what rounding leaves could not be added to a residual, or where a NaN tells
 * other ranks to refuse the step. */
#include "exchange/exchange.h"

#define HUGE_VALUE                                                                                 \
    0x1p100f /* its rounding remainder may be 2^92; a float takes 2^103 without harm */

typedef enum { PLAIN = 1, CODED = 2 } writing;
#define HEAD 8 /* bytes; entries behind it stay aligned */

/* A coded entry takes a plain index, a plain value and its part of a level at most. A multiple of
 * HEAD, so that rooms can follow each other. */
size_t tw__letter_room(const tw__wire *wire, int64_t entries, int64_t letters) {
    if (wire == NULL)
        return 0;
    return (size_t)(entries * 8 + entries / 128 * 8 + letters * 128);
}

size_t tw__letter_bound(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    size_t plain = sizeof(tw__entry) * (size_t)count;
    if (wire == NULL)
        return plain;
    size_t coded = tw__wire_bound(wire, count, lo, hi);
    return HEAD + (coded > plain ? coded : plain);
}

size_t tw__letter_bytes(const tw__wire *wire, int64_t count, int64_t lo, int64_t hi) {
    if (wire == NULL)
        return sizeof(tw__entry) * (size_t)count;
    return HEAD + tw__wire_bound(wire, count, lo, hi);
}

static int any_huge(const tw__list *list) {
    for (int64_t i = 0; i < list->count; i++)
        if (tw__magnitude(list->at[i].val) >= tw__magnitude(HUGE_VALUE))
            return 1;
    return 0;
}

static size_t write_plain(const tw__list *list, char *to, float *rounded) {
    size_t bytes = sizeof(tw__entry) * (size_t)list->count;
    memcpy(to, list->at, bytes);
    for (int64_t i = 0; i < list->count; i++)
        rounded[i] = list->at[i].val;
    return bytes;
}

tw__parcel tw__letter_write(const tw__job *job, const tw__list *list, int64_t lo, int64_t hi,
                            char **mail, float *rounded) {
    const tw__wire *wire = job->shape.wire;
    if (wire == NULL)
        return (tw__parcel){list->at, sizeof(tw__entry) * (size_t)list->count, 0};
    char *letter = *mail;
    uint64_t head = any_huge(list) ? PLAIN : CODED;
    memcpy(letter, &head, HEAD);
    size_t bytes = head == PLAIN
                       ? write_plain(list, letter + HEAD, rounded)
                       : tw__wire_encode(job->kernels, wire, list, lo, hi, letter + HEAD, rounded);
    bytes += HEAD;
    *mail += (bytes + HEAD - 1) / HEAD * HEAD;
    return (tw__parcel){letter, bytes, 0};
}

static int too_many(int rank, int64_t count, int64_t most) {
    return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries where %lld are possible", rank,
                    (long long)count, (long long)most);
}

/* Entries as they lie: to be used there. */
static int read_entries(const tw__job *job, const tw__parcel *parcel, int64_t lo, int64_t hi,
                        int64_t most, int rank, tw__list *list) {
    TW_TRY(tw__parcel_list(parcel, rank, list));
    if (list->count > most)
        return too_many(rank, list->count, most);
    return tw__list_check(&job->lists, list, lo, hi, rank);
}

int tw__letter_read(const tw__job *job, const tw__parcel *parcel, int64_t lo, int64_t hi,
                    int64_t most, int rank, tw__entry *room, tw__list *list) {
    uint64_t head = 0;
    if (job->shape.wire == NULL)
        return read_entries(job, parcel, lo, hi, most, rank, list);
    if (parcel->bytes < HEAD)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a letter of %zu bytes", rank,
                        parcel->bytes);
    memcpy(&head, parcel->data, HEAD);
    tw__parcel rest = {(char *)parcel->data + HEAD, parcel->bytes - HEAD, 0};
    *list = (tw__list){room, 0};
    if (head == CODED)
        return tw__wire_decode(job->kernels, rest.data, rest.bytes, lo, hi, most, room,
                               &list->count, rank);
    if (head != PLAIN)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent a letter of an unknown kind", rank);
    return read_entries(job, &rest, lo, hi, most, rank, list);
}

void tw__letter_remainders(const tw__list *list, const float *rounded, tw__list *out) {
    int64_t count = out->count;
    for (int64_t i = 0; i < list->count; i++) {
        float remainder = list->at[i].val - rounded[i];
        out->at[count] = (tw__entry){list->at[i].idx, remainder};
        count += remainder != 0.0f;
    }
    out->count = count;
}

void tw__letter_round(tw__list *list, const float *rounded) {
    for (int64_t i = 0; i < list->count; i++)
        list->at[i].val = rounded[i];
}
