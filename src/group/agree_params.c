/* agree_params.c - ranks compare the parameters of a group and its tensors when it opens
 *
 * Parameters travel as rows of 64-bit values with names: the first difference, in the order of
 * fields and then of ranks, is what every rank reports. */
#include "group/group.h"
#include "select/methods.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tw__two_texts tw__tell_apart(double one, double other) {
    tw__two_texts t;
    int digits = 6;
    do {
        snprintf(t.one, sizeof t.one, "%.*g", digits, one);
        snprintf(t.other, sizeof t.other, "%.*g", digits, other);
    } while (strcmp(t.one, t.other) == 0 && ++digits <= 17);
    return t;
}

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
        tw__bits_of_real(p->density),
        p->type,
        p->feedback,
        tw__bits_of_real(p->clip_norm),
        tw__bits_of_real(p->momentum),
        p->before,
        tw__bits_of_real(p->beta1),
        tw__bits_of_real(p->beta2),
        tw__bits_of_real(p->eps),
        tw__bits_of_real(p->rate),
        p->warmup,
        p->warmup_steps,
        tw__bits_of_real(p->warmup_density),
        p->reuse_period,
        tw__bits_of_real(p->reuse_low),
        tw__bits_of_real(p->reuse_high),
        tw__bits_of_real(p->reuse_nudge),
        p->gaussian_rounds,
        tw__bits_of_real(p->dgc_sample),
        tw__bits_of_real(p->decay),
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
    tw__two_texts t;
    if (f->kind == REAL) {
        double one, other;
        memcpy(&one, &theirs, sizeof one);
        memcpy(&other, &zeros, sizeof other);
        t = tw__tell_apart(one, other);
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
    int has_memory = group != NULL && tensors != NULL, error = TW_OK;
    if (!has_memory)
        error = tw__fail(TW_ERR_MEMORY, "no memory to compare parameters of %d ranks", g->nranks);
    error = tw__agree_error(g, error);
    if (error == TW_OK && has_memory)
        error = compare_all(g, group, tensors);
    free(group);
    free(tensors);
    return error;
}
