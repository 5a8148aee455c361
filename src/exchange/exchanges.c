/* exchanges.c - the tables of exchanges and schemes, and what exchanges share */
#include "exchange/exchange.h"
#include "select/selector.h"

#include <math.h>

static const tw__exchange *const exchanges[] = {
    &tw__exchange_dense,  &tw__exchange_allgather, &tw__exchange_dsa,       &tw__exchange_gtopk,
    &tw__exchange_oktopk, &tw__exchange_fulltopk,  &tw__exchange_butterfly, &tw__exchange_twolevel,
};
#define EXCHANGES ((int)(sizeof exchanges / sizeof exchanges[0]))

static const tw__scheme schemes[] = {
    {"dense", "exact", "dense", "every value, no selection: what the others are measured against"},
    {"topka", "exact", "allgather", "exact top-k, gathered from all ranks"},
    {"topkdsa", "exact", "dsa", "exact top-k, summed by index ranges (SparCML)"},
    {"gtopk", "exact", "gtopk", "exact top-k, selected again at every merge of a tree (gTop-k)"},
    {"gaussiank", "gaussian", "allgather", "threshold from a fitted Gaussian (GaussianK-SGD)"},
    {"dgc", "dgc", "allgather", "threshold from a sample (Deep Gradient Compression)"},
    {"randomk", "random", "allgather", "k random entries: the baseline"},
    {"oktopk", "reuse", "oktopk", "reused threshold, balanced regions, global top-k (Ok-Topk)"},
    {"fulltopk", "reuse", "fulltopk", "oktopk's choice, summed over what all ranks hold of it"},
    {"logtopk", "exact", "butterfly", "exact top-k, summed and selected again in log P rounds"},
    {"twolevel", "exact", "twolevel", "the same, ranks of a host summed first"},
    {"auto", "exact", TW__AUTO, "the fastest here, dense included: measured, predicted and tried"},
};
#define SCHEMES ((int)(sizeof schemes / sizeof schemes[0]))

static const char *exchange_name(int position) {
    return position < EXCHANGES    ? exchanges[position]->name
           : position == EXCHANGES ? TW__AUTO
                                   : NULL;
}

static const char *scheme_name(int position) {
    return position < SCHEMES ? schemes[position].name : NULL;
}

const tw__exchange *tw__exchange_at(int position) {
    return position >= 0 && position < EXCHANGES ? exchanges[position] : NULL;
}

double tw__expected_union(const tw__shape *s) {
    double span = (double)s->span, missed = 1.0 - (double)s->k / span;
    return span * (1.0 - pow(missed, (double)s->nranks));
}

int tw__exchange_find(const char *name, const tw__exchange **exchange) {
    for (int i = 0; i < EXCHANGES; i++) {
        *exchange = exchanges[i];
        if (strcmp(name, exchanges[i]->name) == 0)
            return TW_OK;
    }
    *exchange = NULL;
    return strcmp(name, TW__AUTO) == 0 ? TW_OK : tw__fail_name("exchange", name, exchange_name);
}

int tw__scheme_find(const char *name, const tw__scheme **scheme) {
    for (int i = 0; i < SCHEMES; i++) {
        *scheme = &schemes[i];
        if (strcmp(name, schemes[i].name) == 0)
            return TW_OK;
    }
    return tw__fail_name("scheme", name, scheme_name);
}

int tw__exchange_suits(const tw__exchange *exchange, int64_t k, int nranks) {
    int bounded = exchange == &tw__exchange_oktopk || exchange == &tw__exchange_fulltopk;
    return !bounded || k >= 8 * (int64_t)nranks;
}

int tw__buffer_list(const tw__buffer *parcel, int rank, tw__list *list) {
    *list = (tw__list){parcel->data, (int64_t)(parcel->bytes / sizeof(tw__entry))};
    if (parcel->bytes % sizeof(tw__entry) != 0)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, which are no whole entries",
                        rank, parcel->bytes);
    return TW_OK;
}

static void layout(tw__job *job, const tw__shape *s, tw__arenas *room) {
    job->own.at = tw__arena_take(&room->lists, s->most, sizeof(tw__entry));
    job->bases = tw__arena_take(&room->host, s->nsegments + 1, sizeof(int64_t));
    job->positions = tw__arena_take(&room->host, s->nsegments + 1, sizeof(int64_t));
    for (int i = 0; i < 3; i++)
        job->parts[i] = tw__arena_take(&room->host, s->nsegments, sizeof(tw__list));
}

void tw__job_memory(const tw__shape *shape, tw__arenas *room) {
    tw__job counting;
    layout(&counting, shape, room);
}

void tw__job_begin(tw__job *job) {
    layout(job, &job->shape, &job->room);
    for (int i = 0; i < job->shape.nsegments; i++)
        job->bases[i] = job->segments[i].base;
    job->bases[job->shape.nsegments] = job->shape.span;
}

int tw__job_cut(const tw__job *job, const tw__list *list, tw__list *parts) {
    parts[0] = *list;
    if (job->shape.nsegments == 1)
        return TW_OK;
    return tw__list_cut(&job->lists, list, job->bases, job->shape.nsegments + 1, job->positions,
                        parts);
}

int tw__job_trim_own(tw__job *job) {
    int64_t all = 0;
    const tw__list *parts = job->parts[0];
    TW_TRY(tw__job_cut(job, &job->own, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++) {
        int64_t kept;
        tw__entry *to = job->own.at + all; /* the part itself, or what was dropped before it */
        TW_TRY(tw__list_split_best(&job->lists, &parts[i], job->segments[i].k, to, NULL, &kept));
        all += kept;
    }
    job->own.count = all;
    return TW_OK;
}

int tw__job_check_list(tw__job *job, const tw__list *list, int rank) {
    TW_TRY(tw__list_check(&job->lists, list, 0, job->shape.span, rank));
    return tw__job_check_counts(job, list, rank);
}

int tw__job_check_counts(tw__job *job, const tw__list *list, int rank) {
    const tw__list *parts = job->parts[0];
    TW_TRY(tw__job_cut(job, list, job->parts[0]));
    for (int i = 0; i < job->shape.nsegments; i++)
        if (parts[i].count > job->segments[i].k)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, more than k = %lld", rank,
                            (long long)parts[i].count, (long long)job->segments[i].k);
    return TW_OK;
}

/* All ranks decide alike: by what they may have selected. */
int tw__job_gather(tw__job *job, const tw__buffer *own, tw__buffer *out, tw__buffer *in,
                   void *rotation) {
    if (job->cargo == TW__PAYLOAD && tw__job_is_long(&job->shape))
        return tw__allgather_ring(job->transport, TW__PAYLOAD, own, in);
    for (int r = 0; r < job->shape.nranks; r++)
        out[r] = *own;
    return tw__alltoall_run(job->transport, job->cargo, out, in, rotation);
}

int tw__job_overflows(tw__job *job, int *yes) {
    *yes = 0;
    if (job->kept.count == 0)
        return TW_OK;
    TW_TRY(tw__job_cut(job, &job->kept, job->parts[0]));
    TW_TRY(tw__job_cut(job, &job->left, job->parts[1]));
    for (int i = 0; i < job->shape.nsegments && !*yes; i++)
        TW_TRY(tw__selector_overflows(job->segments[i].selector, job->cargo == TW__DEVICE,
                                      &job->parts[0][i], &job->parts[1][i], job->segments[i].base,
                                      yes));
    return TW_OK;
}

/* ---- wire formats: raw, and those of the codec */

static const char raw_name[] = "raw";

static const char *wire_name(int position) {
    const tw__wire *row = position > 0 ? tw__wire_at(position - 1) : NULL;
    return position == 0 ? raw_name : row != NULL ? row->name : NULL;
}

int tw__wire_name_find(const char *name, const tw__wire **wire) {
    *wire = NULL;
    if (strcmp(name, raw_name) == 0 || (*wire = tw__wire_find(name)) != NULL)
        return TW_OK;
    return tw__fail_name("wire", name, wire_name);
}

int tw_wire(int position, const char **name, const char **description) {
    const tw__wire *row = position > 0 ? tw__wire_at(position - 1) : NULL;
    if (position < 0 || (position > 0 && row == NULL))
        return tw__fail(TW_ERR_NAME, "position: %d; there is no such wire format", position);
    if (name != NULL)
        *name = row != NULL ? row->name : raw_name;
    if (description != NULL)
        *description = row != NULL ? row->description : "index and value, 4 bytes each";
    return TW_OK;
}

/* ---- public */

int tw_exchange(int position, const char **name, const char **description) {
    if (position < 0 || position >= EXCHANGES)
        return tw__fail(TW_ERR_NAME, "position: %d; there are %d exchanges", position, EXCHANGES);
    if (name != NULL)
        *name = exchanges[position]->name;
    if (description != NULL)
        *description = exchanges[position]->description;
    return TW_OK;
}

int tw_scheme(int position, const char **name, const char **select, const char **exchange,
              const char **description) {
    if (position < 0 || position >= SCHEMES)
        return tw__fail(TW_ERR_NAME, "position: %d; there are %d schemes", position, SCHEMES);
    if (name != NULL)
        *name = schemes[position].name;
    if (select != NULL)
        *select = schemes[position].select;
    if (exchange != NULL)
        *exchange = schemes[position].exchange;
    if (description != NULL)
        *description = schemes[position].description;
    return TW_OK;
}

int tw_exchange_cost(const char *exchange, int64_t n, int64_t k, int nranks, tw_cost *cost) {
    const tw__exchange *row = NULL;
    TW_REQUIRE(exchange, "exchange");
    TW_REQUIRE(cost, "cost");
    TW_TRY(tw__exchange_find(exchange, &row));
    if (row == NULL)
        return tw__fail(TW_ERR_NAME, "exchange: '%s' costs what it chooses; name that", exchange);
    if (n < 1 || n > INT32_MAX || k < 0 || k > n || nranks < 1 || nranks > TW__MAX_RANKS)
        return tw__fail(TW_ERR_PARAM,
                        "n: %lld, k: %lld, nranks: %d; accepted is n in 1 .. %d, k in 0 .. n and "
                        "nranks in 1 .. %d",
                        (long long)n, (long long)k, nranks, INT32_MAX, TW__MAX_RANKS);
    *cost = row->cost((double)n, (double)k, (double)nranks);
    return TW_OK;
}
