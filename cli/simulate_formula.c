/* simulate_formula.c - the papers' cost table in seconds
 *
 * words * 4 / bandwidth + messages * latency, after the table of Ok-Topk (Li and Hoefler, 2022),
 * which our own exchanges join;
 * words are those of tw_exchange_cost. It has every message of a rank wait for the one before, so a
 * rotation costs P latencies; in the simulation messages are under way together. It knows neither
 * jitter nor stragglers; ranks of a host have their share of its link.
 */
#include <math.h>
#include <string.h>

#include "errors.h"
#include "simulate.h"

typedef struct latency_row {
    const char *exchange;
    double ranks;     /* latencies: so many times P ... */
    double logs;      /* ... and so many times log2 P */
    bool is_interval; /* words lie between two bounds; else the upper one is what it takes */
} latency_row;

static const latency_row latencies[] = {
    {"dense", 0, 2, false},           {"allgather", 0, 1, false}, {"dsa", 1, 2, true},
    {"gtopk", 0, 2, false},           {"oktopk", 2, 2, true},     {"fulltopk", 2, 4, true},
    {"butterfly", 0, 14.0 / 3, true}, /* 7 messages for each of log8 P rounds, both ways */
    {"twolevel", 0, 14.0 / 3, true},
};

static double latencies_of(const latency_row *row, const simulate_row *what) {
    double nranks = what->nranks, logs = row->logs;
    bool uneven = strcmp(what->select, "gaussian") == 0 || strcmp(what->select, "dgc") == 0;
    if (uneven && strcmp(row->exchange, "allgather") == 0)
        logs = 2; /* counts first */
    return nranks > 1 ? row->ranks * nranks + logs * log2(nranks) : 0.0;
}

void simulate_formula(const simulate_row *row, const tw_network *network, simulate_result *result) {
    double share = network->bandwidth / (network->host_ranks > 1 ? network->host_ranks : 1);
    result->formula = result->least = NAN;
    for (size_t i = 0; i < sizeof latencies / sizeof latencies[0]; i++) {
        const latency_row *its = &latencies[i];
        tw_cost words;
        if (strcmp(its->exchange, result->exchange) != 0 ||
            tw_exchange_cost(result->exchange, row->n, row->k, row->nranks, &words) != TW_OK)
            continue;
        double waiting = latencies_of(its, row) * network->latency;
        double least = its->is_interval ? words.least : words.most;
        result->formula = words.most * SIMULATE_WORD / share + waiting;
        result->least = least * SIMULATE_WORD / share + waiting;
    }
}
