/* agree.c - ranks compare errors, steps and their settings, so that all of them end alike */
#include "base/memory.h"
#include "base/random.h"
#include "group/step.h"
#include "select/methods.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- errors */

typedef struct error_record {
    int32_t error;
    char text[TW__TEXT - 4];
} error_record;

typedef struct space {
    void *allgather;
    void *records;  /* [nranks] of errors or steps: enough for either */
    float *weights; /* [nranks] */
} space;

static space layout(tw__arena *arena, int nranks) {
    return (space){.allgather = tw__arena_take(arena, 1, tw__allgather_memory(nranks)),
                   .records = tw__arena_take(arena, nranks, sizeof(error_record)),
                   .weights = tw__arena_take(arena, nranks, sizeof(float))};
}

size_t tw__agree_memory(int nranks) {
    tw__arena counting = {0};
    (void)layout(&counting, nranks);
    return counting.used;
}

static space space_of(const tw_group *g) {
    tw__arena arena = {g->agree, 0};
    return layout(&arena, g->nranks);
}

int tw__agree_error(tw_group *g, int error) {
    assert(error <= TW_OK && g->agree != NULL);
    error_record *records = space_of(g).records, *mine = &records[g->rank];
    memset(mine, 0, sizeof *mine);
    mine->error = error;
    if (error != TW_OK)
        snprintf(mine->text, sizeof mine->text, "%s", tw_last_error());
    TW_TRY(tw__allgather(g->transport, records, sizeof *records, g->agree));
    for (int r = 0; r < g->nranks; r++) {
        records[r].text[sizeof records[r].text - 1] = '\0';
        if (records[r].error != TW_OK)
            return tw__fail(tw__known_error(records[r].error), "rank %d: %s", r, records[r].text);
    }
    return TW_OK;
}

int tw__agree_share(tw_group *g, const void *own, size_t bytes, const void **all) {
    char *records = space_of(g).records;
    assert(bytes <= sizeof(error_record)); /* they share the memory */
    memcpy(records + (size_t)g->rank * bytes, own, bytes);
    *all = records;
    return tw__allgather(g->transport, records, bytes, g->agree);
}

_Static_assert(sizeof(error_record) == TW__TEXT, "a record is all text but its number");

typedef struct step_record {
    int32_t error;
    int32_t tensor;
    int64_t index;     /* of the element at fault, in its piece */
    int64_t piece;     /* -1: the tensor lies in one */
    uint64_t call;     /* which tensors, at which step */
    double seconds;    /* that an earlier step took */
    uint64_t settings; /* common values, rates and k of all tensors, hashed */
    double rate;       /* of AdamW, summed over the tensors: for the text of an error */
    int64_t k;         /* entries to select, likewise */
    double weight;     /* of the rank */
} step_record;

static uint64_t signature(const tw__step *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->count; i++)
        hash = tw__mix(hash, (uint64_t)s->members[i] << 40 ^ (uint64_t)tw__member(s, i)->steps);
    return hash;
}

/* `own` says more about an error of this rank. */
static int explain(const step_record *record, int rank, const char *own) {
    char piece[40] = "";
    if (record->piece >= 0)
        snprintf(piece, sizeof piece, "piece %lld, ", (long long)record->piece);
    if (record->error == TW_ERR_NUMBER)
        return tw__fail(
            TW_ERR_NUMBER,
            "rank %d, tensor %d: %selement %lld is NaN or infinite, or overflows with the "
            "residual; skip this step or lower the loss scale",
            rank, record->tensor, piece, (long long)record->index);
    if (record->error == TW_ERR_NULL)
        return tw__fail(TW_ERR_NULL,
                        "rank %d, tensor %d: %sgrad, or out%s, is NULL; give memory for it", rank,
                        record->tensor, piece, piece[0] == '\0' ? " with dense or auto" : "");
    if (record->error == TW_ERR_PARAM)
        return tw__fail(TW_ERR_PARAM,
                        "rank %d, tensor %d: %sgrad and out overlap; let out be grad itself, if "
                        "that is f32, or memory apart from it",
                        rank, record->tensor, piece);
    if (record->error == TW_ERR_TIMEOUT && own == NULL)
        return tw__fail(TW_ERR_TIMEOUT,
                        "rank %d, tensor %d: its device did not end in time what was queued before "
                        "this step or in it; is a stream stuck?",
                        rank, record->tensor);
    return tw__fail(tw__known_error(record->error), "rank %d, tensor %d: %s", rank, record->tensor,
                    own != NULL ? own : tw_error_text(tw__known_error(record->error)));
}

static step_record own_record(const tw__step *s, int error, double seconds) {
    step_record record = {.error = error,
                          .tensor = s->error_tensor,
                          .index = s->bad_index,
                          .piece = -1,
                          .call = signature(s),
                          .seconds = seconds,
                          .weight = s->g->weight};
    const tw__piece_table *table = s->g->tensors[s->error_tensor].table;
    if (table != NULL)
        record.piece = s->bad_piece;
    if (table != NULL && s->bad_index >= 0) {
        record.piece = tw__piece_of(&table->pieces, s->bad_index);
        record.index -= table->pieces.starts[record.piece];
    }
    record.settings = s->g->common_hash;
    for (int i = 0; i < s->count; i++) {
        const tw_selector *selector = tw__member(s, i)->selector;
        if (selector == NULL)
            continue;
        int64_t k = tw__selector_k(selector);
        record.settings = tw__mix(
            tw__mix(record.settings, (uint64_t)tw__bits_of_real(selector->rate)), (uint64_t)k);
        record.rate += selector->rate;
        record.k += k;
    }
    return record;
}

/* Into how many parts a round cuts the common values. One message has the hashes of all. */
enum { COMMON_PARTS = 32 };

typedef struct common_row {
    int64_t count;                /* of all that the rank has set */
    uint64_t rates;               /* of all tensors of the step, hashed */
    uint64_t parts[COMMON_PARTS]; /* the hash of each; of a single value its bits */
} common_row;

static common_row hash_parts(const tw_group *g, int64_t first, int64_t end, int64_t size) {
    common_row row = {.count = g->ncommon};
    for (int64_t i = first; i < end; i++) {
        uint64_t *part = &row.parts[(i - first) / size],
                 bits = (uint64_t)tw__bits_of_real(g->common[i]);
        *part = size == 1 ? bits : tw__mix(*part, bits);
    }
    return row;
}

static uint64_t hash_rates(const tw__step *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->count; i++) {
        const tw_selector *selector = tw__member(s, i)->selector;
        if (selector != NULL)
            hash = tw__mix(hash, (uint64_t)tw__bits_of_real(selector->rate));
    }
    return hash;
}

static int compare_counts(const tw_group *g, const common_row *rows) {
    for (int r = 1; r < g->nranks; r++)
        if (rows[r].count != rows[0].count)
            return tw__fail(TW_ERR_MISMATCH,
                            "common values: rank %d has set %lld, rank 0 %lld; call "
                            "tw_group_set_common alike on all ranks",
                            r, (long long)rows[r].count, (long long)rows[0].count);
    return TW_OK;
}

/* The first part in which *rank differs from rank 0; COMMON_PARTS if there is none. */
static int first_other_part(const tw_group *g, const common_row *rows, int *rank) {
    for (int i = 0; i < COMMON_PARTS; i++)
        for (int r = 1; r < g->nranks; r++)
            if (rows[r].parts[i] != rows[0].parts[i]) {
                *rank = r;
                return i;
            }
    return COMMON_PARTS;
}

/* All common values are the same, and so are rates and k in sum. So some tensors have other rates or,
 * on rank `other`, another k than on rank 0. */
static int differ_in_single(const tw_group *g, const common_row *rows, int other) {
    for (int r = 1; r < g->nranks; r++)
        if (rows[r].rates != rows[0].rates)
            return tw__fail(TW_ERR_MISMATCH,
                            "rate: rank %d has set other rates than rank 0 for single tensors, "
                            "though the same in sum; call tw_group_set_rate alike on all ranks",
                            r);
    return tw__fail(TW_ERR_MISMATCH,
                    "density: rank %d selects other numbers of entries than rank 0 for single "
                    "tensors, though the same in sum; call tw_group_set_density alike on all ranks",
                    other);
}

static double value_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The records say that rank `other` differs from rank 0, and neither rates nor k do in sum. Only now,
 * and on all ranks alike, ranks look for the first common value that differs: they compare hashes of
 * parts of equal length, then of the parts of the first part that differs, and so on, four times for a
 * million values. *found gets the error that all ranks return. */
static int find_difference(const tw__step *s, int other, int *found) {
    tw_group *g = s->g;
    int64_t first = 0, end = g->ncommon, size;
    do {
        size = end - first > COMMON_PARTS ? (end - first + COMMON_PARTS - 1) / COMMON_PARTS : 1;
        common_row row = hash_parts(g, first, end, size);
        row.rates = hash_rates(s);
        const void *shared = NULL;
        TW_TRY(tw__agree_share(g, &row, sizeof row, &shared));
        const common_row *rows = shared;
        *found = compare_counts(g, rows);
        if (*found != TW_OK)
            return TW_OK;
        int rank = 0, part = first_other_part(g, rows, &rank);
        if (part == COMMON_PARTS) {
            *found = differ_in_single(g, rows, other);
            return TW_OK;
        }
        first += part * size;
        end = end - first < size ? end : first + size;
        if (size > 1)
            continue;
        tw__two_texts t =
            tw__tell_apart(value_of(rows[rank].parts[part]), value_of(rows[0].parts[part]));
        *found = tw__fail(TW_ERR_MISMATCH,
                          "common value %lld: rank %d has set %s, rank 0 %s; call "
                          "tw_group_set_common alike on all ranks",
                          (long long)first, rank, t.one, t.other);
    } while (size > 1);
    return TW_OK;
}

/* The lowest rank that has set another rate, density or common value than rank 0.
 * *refused: 1 if all ranks return this error and the group goes on; 0 if communication failed. */
static int compare_settings(const tw__step *s, const step_record *records, int *refused) {
    const tw_group *g = s->g;
    int r = 1;
    while (r < g->nranks && records[r].settings == records[0].settings)
        r++;
    *refused = r < g->nranks;
    if (!*refused)
        return TW_OK;
    tw__two_texts t = tw__tell_apart(records[r].rate, records[0].rate);
    if (records[r].rate != records[0].rate)
        return tw__fail(TW_ERR_MISMATCH,
                        "rate: rank %d has set %s, rank 0 %s (summed over the tensors of the "
                        "step); call tw_group_set_rate alike on all ranks",
                        r, t.one, t.other);
    if (records[r].k != records[0].k)
        return tw__fail(
            TW_ERR_MISMATCH,
            "density: rank %d selects %lld entries, rank 0 %lld (summed likewise); call "
            "tw_group_set_density alike on all ranks",
            r, (long long)records[r].k, (long long)records[0].k);
    int found = TW_OK;
    *refused = 0;
    TW_TRY(find_difference(s, r, &found)); /* overwrites the records */
    *refused = 1;
    return found;
}

/* The weights that all ranks have told. */
static int take_weights(tw__step *s, const step_record *records) {
    float *weights = space_of(s->g).weights;
    double sum = 0.0;
    for (int r = 0; r < s->g->nranks; r++) {
        if (!tw__is_weight(records[r].weight))
            return tw__fail(TW_ERR_PROTOCOL, "rank %d sent a weight of %g", r, records[r].weight);
        weights[r] = (float)records[r].weight;
        sum += records[r].weight;
    }
    s->weights = weights;
    s->weight = (float)sum;
    return TW_OK;
}

static int compare_steps(tw__step *s, int error, double *slowest) {
    tw_group *g = s->g;
    step_record *records = space_of(g).records;
    assert(sizeof *records <= sizeof(error_record)); /* they share the memory */
    char own[TW__TEXT];
    snprintf(own, sizeof own, "%s", tw_last_error());
    records[g->rank] = own_record(s, error, *slowest);
    TW_TRY(tw__allgather(g->transport, records, sizeof *records, g->agree));
    for (int r = 0; r < g->nranks; r++)
        if (records[r].call != records[0].call)
            return tw__fail(TW_ERR_MISMATCH,
                            "rank %d exchanges other tensors, or another step, than rank 0: start "
                            "and wait for the same tensors in the same order on all ranks",
                            r);
    for (int r = 0; r < g->nranks; r++)
        if (records[r].error != TW_OK) {
            int e = records[r].error;
            s->refused =
                e == TW_ERR_NUMBER || e == TW_ERR_NULL || e == TW_ERR_PARAM || e == TW_ERR_DEVICE;
            return explain(&records[r], r, r == g->rank ? own : NULL);
        }
    TW_TRY(compare_settings(s, records, &s->refused));
    TW_TRY(take_weights(s, records));
    for (int r = 0; r < g->nranks; r++)
        *slowest = records[r].seconds > *slowest ? records[r].seconds : *slowest;
    return TW_OK;
}

/* ---- elastic groups: before a step is applied */

typedef struct complete_record {
    int64_t step; /* that the rank is about to complete */
    tw__norm norm;
} complete_record;

int tw__agree_complete(tw_group *g) {
    complete_record *records = space_of(g).records;
    assert(sizeof *records <= sizeof(error_record)); /* they share the memory */
    records[g->rank] = (complete_record){g->elastic.step + 1, g->elastic.norms[g->rank]};
    TW_TRY(tw__allgather(g->transport, records, sizeof *records, g->agree));
    for (int r = 0; r < g->nranks; r++) {
        if (records[r].step != g->elastic.step + 1)
            return tw__transport_abort(
                g->transport,
                tw__fail(TW_ERR_PROTOCOL, "rank %d completes step %lld, rank %d %lld", r,
                         (long long)records[r].step, g->rank, (long long)g->elastic.step + 1));
        g->elastic.norms[r] = records[r].norm;
    }
    return TW_OK;
}

/* ---- a step */

int tw__agree_step(tw__step *s, int error) {
    tw_group *g = s->g;
    if (error != TW_OK && tw__transport_has_failed(g->transport))
        return error; /* while the device was waited for: nobody can be told any more */
    double selected = tw__transport_seconds(g->transport);
    double slowest = tw__auto_pending(g, s->members);
    error = compare_steps(s, error, &slowest);
    if (error == TW_OK)
        tw__auto_learn(g, s->members, slowest);
    s->agreed = tw__transport_seconds(g->transport);
    s->info.agree_seconds = s->agreed - selected;
    return error;
}
