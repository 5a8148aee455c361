/* exchanges.c - the tables of exchanges and schemes, and their public names */
#include "exchange/exchange.h"

#include <assert.h>
#include <math.h>

/* All exchanges, in the order of tw_exchange(). */
#define TABLE(X)                                                                                   \
    X(dense) X(allgather) X(dsa) X(gtopk) X(oktopk) X(fulltopk) X(butterfly) X(twolevel)

#define DECLARATION(name) extern const tw__exchange tw__exchange_##name;
TABLE(DECLARATION)
#define ROW(name) &tw__exchange_##name,
static const tw__exchange *const exchanges[] = {TABLE(ROW)};
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

/* ---- by position and name */

const tw__exchange *tw__exchange_at(int position) {
    return position >= 0 && position < EXCHANGES ? exchanges[position] : NULL;
}

const char *tw__exchange_name(int position) {
    return position < EXCHANGES    ? exchanges[position]->name
           : position == EXCHANGES ? TW__AUTO
                                   : NULL;
}

const char *tw__scheme_name(int position) {
    return position < SCHEMES ? schemes[position].name : NULL;
}

const char *tw__wire_name(int position) {
    const tw__wire *row = tw__wire_at(position - 1);
    return position == 0 ? "raw" : row != NULL ? row->name : NULL;
}

int tw__exchange_find(const char *name, const tw__exchange **exchange) {
    int at;
    TW_TRY(tw__name_find("exchange", name, tw__exchange_name, &at));
    *exchange = tw__exchange_at(at);
    return TW_OK;
}

int tw__scheme_find(const char *name, const tw__scheme **scheme) {
    int at;
    TW_TRY(tw__name_find("scheme", name, tw__scheme_name, &at));
    *scheme = &schemes[at];
    return TW_OK;
}

int tw__wire_name_find(const char *name, const tw__wire **wire) {
    int at;
    TW_TRY(tw__name_find("wire", name, tw__wire_name, &at));
    *wire = tw__wire_at(at - 1);
    return TW_OK;
}

/* ---- what rows say */

const tw__exchange *tw__exchange_for(const tw__exchange *exchange, int64_t k, int nranks) {
    int small = k < (int64_t)exchange->least_k * nranks;
    assert(exchange->least_k == 0 || exchange->fallback != NULL);
    return small ? exchange->fallback : exchange;
}

int64_t tw__most_union(const tw__shape *s) {
    int64_t all = s->most * s->nranks;
    return all < s->span ? all : s->span;
}

double tw__expected_union(const tw__shape *s) {
    double span = (double)s->span, missed = 1.0 - (double)s->k / span;
    return span * (1.0 - pow(missed, (double)s->nranks));
}

/* ---- public */

int tw_exchange(int position, const char **name, const char **description) {
    const tw__exchange *row = tw__exchange_at(position);
    if (row == NULL)
        return TW_ERR_NAME;
    tw__tell(name, row->name);
    tw__tell(description, row->description);
    return TW_OK;
}

int tw_wire(int position, const char **name, const char **description) {
    const tw__wire *row = tw__wire_at(position - 1);
    if (tw__wire_name(position) == NULL)
        return TW_ERR_NAME;
    tw__tell(name, tw__wire_name(position));
    tw__tell(description, row != NULL ? row->description : "index and value, 4 bytes each");
    return TW_OK;
}

int tw_scheme(int position, const char **name, const char **select, const char **exchange,
              const char **description) {
    if (position < 0 || position >= SCHEMES)
        return TW_ERR_NAME;
    const tw__scheme *row = &schemes[position];
    tw__tell(name, row->name);
    tw__tell(select, row->select);
    tw__tell(exchange, row->exchange);
    tw__tell(description, row->description);
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
    if (nranks == 1)
        cost->latencies = 0.0;
    return TW_OK;
}
