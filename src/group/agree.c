/* agree.c - ranks compare parameters and errors, so that all of them end alike
 *
 * Parameters travel as rows of 64-bit values with names: the first difference, in the order of
 * fields and then of ranks, is what every rank reports. */
#include "base/memory.h"
#include "base/random.h"
#include "group/step.h"
#include "select/methods.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- parameters */

typedef enum {
    INTEGER,
    REAL,
    FORMAT,
    SCHEME,
    EXCHANGE,
    WIRE,
    METHOD,
    CHOICES, /* those of choices[] follow */
    RESULT = CHOICES,
    GLOBAL,
    COUNT,
    CHECKSUM,
    MEMBERSHIP,
    TYPE,
    FEEDBACK,
    BEFORE,
    WARMUP,
    DEVICE,
    NKINDS
} kind;

enum { MOST_CHOICES = 4 };
static const char *const choices[NKINDS - CHOICES][MOST_CHOICES] = {
    [RESULT - CHOICES] = {"TW_MEAN", "TW_SUM", "TW_MEAN_OF_SENDERS"},
    [GLOBAL - CHOICES] = {"TW_GLOBAL_EXACT", "TW_GLOBAL_REUSE"},
    [COUNT - CHOICES] = {"TW_COUNT_OF_SCHEME", "TW_COUNT_PER_RANK"},
    [CHECKSUM - CHOICES] = {"TW_CHECKSUM_ON", "TW_CHECKSUM_OFF"},
    [MEMBERSHIP - CHOICES] = {"TW_MEMBERSHIP_FIXED", "TW_MEMBERSHIP_ELASTIC"},
    [TYPE - CHOICES] = {"TW_F32", "TW_F16", "TW_BF16"},
    [FEEDBACK - CHOICES] = {"TW_FEEDBACK_ON", "TW_FEEDBACK_OFF"},
    [BEFORE - CHOICES] = {"TW_BEFORE_NOTHING", "TW_BEFORE_ADAMW"},
    [WARMUP - CHOICES] = {"TW_WARMUP_EXPONENTIAL", "TW_WARMUP_LINEAR", "TW_WARMUP_COSINE",
                          "TW_WARMUP_CALLER"},
    [DEVICE - CHOICES] = {"TW_CPU", "TW_CUDA"},
};

typedef struct field {
    const char *name;
    kind kind;
} field;

/* The format comes first: ranks of other versions or byte orders differ there. */
static const field group_fields[] = {
    {"format", FORMAT},  {"scheme", SCHEME},     {"exchange", EXCHANGE},
    {"wire", WIRE},      {"result", RESULT},     {"global", GLOBAL},
    {"count", COUNT},    {"checksum", CHECKSUM}, {"membership", MEMBERSHIP},
    {"bucket", INTEGER}, {"tensors", INTEGER},   {"tw_transport_set_device", INTEGER},
    {"key", INTEGER},
};
#define GROUP_FIELDS ((int)(sizeof group_fields / sizeof group_fields[0]))
#define KEY (GROUP_FIELDS - 1)
#define FORMAT_NOW 0x5457000b /* "TW", version 11; another byte order reads differently */

static const field tensor_fields[] = {
    {"n", INTEGER},
    {"method", METHOD},
    {"k", INTEGER},
    {"density", REAL},
    {"type", TYPE},
    {"feedback", FEEDBACK},
    {"clip_norm", REAL},
    {"momentum", REAL},
    {"before", BEFORE},
    {"beta1", REAL},
    {"beta2", REAL},
    {"eps", REAL},
    {"rate", REAL},
    {"warmup", WARMUP},
    {"warmup_steps", INTEGER},
    {"warmup_density", REAL},
    {"reuse_period", INTEGER},
    {"reuse_low", REAL},
    {"reuse_high", REAL},
    {"reuse_nudge", REAL},
    {"gaussian_rounds", INTEGER},
    {"dgc_sample", REAL},
    {"decay", REAL},
    {"device", DEVICE},
};
#define TENSOR_FIELDS ((int)(sizeof tensor_fields / sizeof tensor_fields[0]))

static int64_t real(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Two numbers that differ, with as many digits as that takes to see. */
typedef struct two_texts {
    char one[40], other[40];
} two_texts;

static two_texts tell_apart(double one, double other) {
    two_texts t;
    int digits = 6;
    do {
        snprintf(t.one, sizeof t.one, "%.*g", digits, one);
        snprintf(t.other, sizeof t.other, "%.*g", digits, other);
    } while (strcmp(t.one, t.other) == 0 && ++digits <= 17);
    return t;
}

/* Behind the last format comes what stands for a choice among them. */
static const char *wire_name(int position) {
    const char *name = tw__wire_name(position);
    int is_auto = name == NULL && tw__wire_name(position - 1) != NULL;
    return is_auto ? TW__AUTO : name;
}

static void fill_group(const tw_group *g, int64_t *values) {
    const int64_t all[GROUP_FIELDS] = {
        FORMAT_NOW,
        tw__name_position(g->scheme->name, tw__scheme_name),
        tw__name_position(g->params.exchange, tw__exchange_name),
        tw__name_position(g->params.wire, wire_name),
        g->params.result,
        g->params.global,
        g->params.count,
        g->params.checksum,
        g->params.membership,
        g->params.bucket,
        g->ntensors,
        tw__transport_lent(g->transport) != NULL,
        (int64_t)g->key,
    };
    memcpy(values, all, sizeof all);
}

static void fill_tensor(const tw__tensor *t, int64_t *values) {
    const tw_select_params *p = &t->params;
    const int64_t all[TENSOR_FIELDS] = {
        t->n,
        tw__name_position(p->method, tw__method_name),
        p->k,
        real(p->density),
        p->type,
        p->feedback,
        real(p->clip_norm),
        real(p->momentum),
        p->before,
        real(p->beta1),
        real(p->beta2),
        real(p->eps),
        real(p->rate),
        p->warmup,
        p->warmup_steps,
        real(p->warmup_density),
        p->reuse_period,
        real(p->reuse_low),
        real(p->reuse_high),
        real(p->reuse_nudge),
        p->gaussian_rounds,
        real(p->dgc_sample),
        real(p->decay),
        p->device,
    };
    memcpy(values, all, sizeof all);
}

/* NULL for a value that is not known. */
static const char *name_of(kind what, int64_t value) {
    tw__name_at *const tables[] = {[SCHEME] = tw__scheme_name,
                                   [EXCHANGE] = tw__exchange_name,
                                   [WIRE] = wire_name,
                                   [METHOD] = tw__method_name};
    if (what >= CHOICES)
        return value >= 0 && value < MOST_CHOICES ? choices[what - CHOICES][value] : NULL;
    return tables[what](value >= 0 && value < 1000 ? (int)value : 1000);
}

/* Of all kinds but REAL. */
static void print_value(char *text, size_t size, kind what, int64_t value) {
    if (what == INTEGER)
        snprintf(text, size, "%lld", (long long)value);
    else if (what == FORMAT)
        snprintf(text, size, "%llx", (unsigned long long)value);
    else {
        const char *name = name_of(what, value);
        snprintf(text, size, "%s", name != NULL ? name : "an unknown one");
    }
}

static int differs(const field *f, const char *where, int rank, int64_t theirs, int64_t zeros) {
    two_texts t;
    if (f->kind == REAL) {
        double one, other;
        memcpy(&one, &theirs, sizeof one);
        memcpy(&other, &zeros, sizeof other);
        t = tell_apart(one, other);
    } else {
        print_value(t.one, sizeof t.one, f->kind, theirs);
        print_value(t.other, sizeof t.other, f->kind, zeros);
    }
    return tw__fail(TW_ERR_MISMATCH, "%s%s: rank %d has %s, rank 0 has %s; give all ranks the same",
                    where, f->name, rank, t.one, t.other);
}

/* rows[nranks][count * nfields]: all ranks against rank 0. */
static int compare(const tw_group *g, const int64_t *rows, const field *fields, int nfields,
                   int count, const char *what) {
    int64_t width = (int64_t)nfields * count;
    for (int64_t i = 0; i < width; i++)
        for (int r = 1; r < g->nranks; r++) {
            char where[40] = "";
            if (rows[r * width + i] == rows[i])
                continue;
            if (what[0] != '\0')
                snprintf(where, sizeof where, "%s %lld: ", what, (long long)i / nfields);
            return differs(&fields[i % nfields], where, r, rows[r * width + i], rows[i]);
        }
    return TW_OK;
}

/* Rank 0's is everyone's. It changes with the ranks: states of before and after do not go together. */
static void take_key(tw_group *g, int64_t *rows) {
    g->key = tw__mix((uint64_t)rows[KEY], tw__transport_version(g->transport));
    g->run = 0;
    tw__group_renew_run(g);
    for (int r = 1; r < g->nranks; r++)
        rows[r * GROUP_FIELDS + KEY] = rows[KEY];
}

/* Tensors are compared once their number is known to be the same. */
static int compare_all(tw_group *g, int64_t *group, int64_t *tensors) {
    int width = g->ntensors * TENSOR_FIELDS;
    fill_group(g, group + g->rank * GROUP_FIELDS);
    TW_TRY(tw__allgather(g->transport, group, sizeof *group * GROUP_FIELDS, g->agree));
    take_key(g, group);
    TW_TRY(compare(g, group, group_fields, GROUP_FIELDS, 1, ""));
    for (int t = 0; t < g->ntensors; t++)
        fill_tensor(&g->tensors[t], tensors + (int64_t)g->rank * width + t * TENSOR_FIELDS);
    TW_TRY(tw__allgather(g->transport, tensors, sizeof *tensors * (size_t)width, g->agree));
    return compare(g, tensors, tensor_fields, TENSOR_FIELDS, g->ntensors, "tensor");
}

int tw__agree_params(tw_group *g) {
    size_t nranks = (size_t)g->nranks, width = (size_t)g->ntensors * TENSOR_FIELDS;
    int64_t *group = calloc(nranks * GROUP_FIELDS, sizeof *group);
    int64_t *tensors = calloc(nranks * width, sizeof *tensors);
    int error = TW_OK;
    if (group == NULL || tensors == NULL)
        error = tw__fail(TW_ERR_MEMORY, "no memory to compare parameters of %d ranks", g->nranks);
    error = tw__agree_error(g, error);
    if (error == TW_OK)
        error = compare_all(g, group, tensors);
    free(group);
    free(tensors);
    return error;
}

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
        record.settings =
            tw__mix(tw__mix(record.settings, (uint64_t)real(selector->rate)), (uint64_t)k);
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
        uint64_t *part = &row.parts[(i - first) / size], bits = (uint64_t)real(g->common[i]);
        *part = size == 1 ? bits : tw__mix(*part, bits);
    }
    return row;
}

static uint64_t hash_rates(const tw__step *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->count; i++) {
        const tw_selector *selector = tw__member(s, i)->selector;
        if (selector != NULL)
            hash = tw__mix(hash, (uint64_t)real(selector->rate));
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
        two_texts t = tell_apart(value_of(rows[rank].parts[part]), value_of(rows[0].parts[part]));
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
    two_texts t = tell_apart(records[r].rate, records[0].rate);
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
