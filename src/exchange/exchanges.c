/* exchanges.c - the tables of exchanges and schemes, and what exchanges share */
#include "exchange/exchange.h"
#include "selector.h"

#include <stdio.h>

static const tw__exchange *const exchanges[] = {
    &tw__exchange_dense,  &tw__exchange_allgather, &tw__exchange_dsa,      &tw__exchange_gtopk,
    &tw__exchange_oktopk, &tw__exchange_butterfly, &tw__exchange_twolevel,
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
    {"logtopk", "exact", "butterfly", "exact top-k, summed and selected again in log P rounds"},
    {"twolevel", "exact", "twolevel", "the same, ranks of a host summed first"},
};
#define SCHEMES ((int)(sizeof schemes / sizeof schemes[0]))

/* "a, b or c" into text. */
static void list_names(char *text, size_t size, const char *(*name_at)(int), int count) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && used < size; i++) {
        const char *before = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        int written = snprintf(text + used, size - used, "%s%s", before, name_at(i));
        used += written > 0 ? (size_t)written : 0;
    }
}

static const char *exchange_name(int position) {
    return exchanges[position]->name;
}

static const char *scheme_name(int position) {
    return schemes[position].name;
}

int tw__exchange_find(const char *name, const tw__exchange **exchange) {
    char names[160];
    for (int i = 0; i < EXCHANGES; i++) {
        *exchange = exchanges[i];
        if (strcmp(name, exchanges[i]->name) == 0)
            return TW_OK;
    }
    list_names(names, sizeof names, exchange_name, EXCHANGES);
    return tw__fail(TW_ERR_NAME, "exchange: '%.40s'; accepted is %s", name, names);
}

int tw__scheme_find(const char *name, const tw__scheme **scheme) {
    char names[160];
    for (int i = 0; i < SCHEMES; i++) {
        *scheme = &schemes[i];
        if (strcmp(name, schemes[i].name) == 0)
            return TW_OK;
    }
    list_names(names, sizeof names, scheme_name, SCHEMES);
    return tw__fail(TW_ERR_NAME, "scheme: '%.40s'; accepted is %s", name, names);
}

int tw__exchange_suits(const tw__exchange *exchange, int64_t k, int nranks) {
    return exchange != &tw__exchange_oktopk || k >= 8 * (int64_t)nranks;
}

int tw__parcel_list(const tw__parcel *parcel, int rank, tw__list *list) {
    *list = (tw__list){parcel->data, (int64_t)(parcel->bytes / sizeof(tw__entry))};
    if (parcel->bytes % sizeof(tw__entry) != 0)
        return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %zu bytes, which are no whole entries",
                        rank, parcel->bytes);
    return TW_OK;
}

void tw__job_trim_own(tw__job *job) {
    int64_t kept = 0;
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        tw__list part = tw__list_between(&job->own, s->base, s->base + s->n);
        tw__entry *to = job->own.at + kept; /* the part itself, or what was dropped before it */
        kept += tw__list_keep_best(&part, s->k, to);
    }
    job->own.count = kept;
}

int tw__job_check_list(const tw__job *job, const tw__list *list, int rank) {
    TW_TRY(tw__list_check(list, 0, job->shape.span, rank));
    for (int i = 0; i < job->shape.nsegments; i++) {
        const tw__segment *s = &job->segments[i];
        int64_t count = tw__list_between(list, s->base, s->base + s->n).count;
        if (count > s->k)
            return tw__fail(TW_ERR_PROTOCOL, "rank %d: sent %lld entries, more than k = %lld", rank,
                            (long long)count, (long long)s->k);
    }
    return TW_OK;
}

/* All ranks decide alike: by what they may have selected. */
int tw__job_gather(tw__job *job, const tw__parcel *own, tw__parcel *out, tw__parcel *in,
                   void *rotation) {
    if ((int64_t)sizeof(tw__entry) * job->shape.most >= TW__LONG_PARCEL)
        return tw__hand_round(job->transport, TW__PAYLOAD, own, in);
    for (int r = 0; r < job->shape.nranks; r++)
        out[r] = *own;
    return tw__rotate(job->transport, TW__PAYLOAD, out, in, rotation);
}

/* A sum below half of the last place of the largest float can be added to any other. */
#define HARMLESS 0x1p103f

/* Whether what a segment keeps would overflow this rank's residual: acc, and of what it sent only
 * the sum itself. */
static int segment_overflows(const tw__job *job, const tw__segment *s) {
    tw__list kept = tw__list_between(&job->kept, s->base, s->base + s->n);
    tw__list sent = tw__list_between(&job->left, s->base, s->base + s->n);
    int64_t at = 0;
    for (int64_t i = 0; i < kept.count; i++) {
        if (tw__magnitude(kept.at[i].val) < tw__magnitude(HARMLESS))
            continue;
        while (at < sent.count && sent.at[at].idx < kept.at[i].idx)
            at++;
        int own = at < sent.count && sent.at[at].idx == kept.at[i].idx;
        float stays = own ? 0.0f : tw__selector_peek(s->selector, kept.at[i].idx - s->base);
        if (tw__magnitude(stays + kept.at[i].val) >= TW__INFINITY_BITS)
            return 1;
    }
    return 0;
}

int tw__job_overflows(const tw__job *job) {
    for (int i = 0; i < job->shape.nsegments; i++)
        if (segment_overflows(job, &job->segments[i]))
            return 1;
    return 0;
}

/* ---- wire formats: raw, and those of the codec */

static const char raw_name[] = "raw";

int tw__wire_name_find(const char *name, const tw__wire **wire) {
    *wire = NULL;
    return strcmp(name, raw_name) == 0 ? TW_OK : tw__wire_find(name, wire);
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
    if (n < 1 || k < 0 || k > n || nranks < 1)
        return tw__fail(TW_ERR_PARAM,
                        "n: %lld, k: %lld, nranks: %d; accepted is 0 <= k <= n and "
                        "1 for the others at least",
                        (long long)n, (long long)k, nranks);
    *cost = row->cost((double)n, (double)k, (double)nranks);
    return TW_OK;
}
