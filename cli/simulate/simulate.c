/* simulate.c - `thinwire simulate`: rows, their size and formula, the sweep over ranks and schemes
 *
 * simulate.h lists the other parts. Rows appear as they are done, dense first for each number of
 * ranks, as the others are compared with it.
 */
#include "simulate/simulate.h"

#include <math.h>
#include <string.h>

#include "cli.h"

#define MOST_ELEMENTS 40e6 /* n over all ranks: 0.4 GB and a second for a step */
#define MOST_GATHERED 40e6 /* kP over all ranks: 1 to 4 GB */
#define LEAST_K_PER_RANK 8

simulate_row simulate_row_of(int scheme, int nranks, int64_t n, int64_t k) {
    simulate_row row = {.nranks = nranks, .n = n, .k = k};
    tw_scheme(scheme, &row.scheme, &row.select, &row.exchange, NULL);
    row.automatic = strcmp(row.exchange, "auto") == 0;
    row.dense = strcmp(row.exchange, "dense") == 0;
    if (row.dense) {
        row.select = "";
        row.k = n;
    }
    return row;
}

/* ---- Size --------------------------------------------------------------------------------------
 *
 * The vectors of all ranks lie in this machine's memory: 256 ranks of BERT would take 137 GB. What
 * is sent is proportional to n at one density, so 1/s of it is exchanged, each byte taking the time
 * of s.
 *
 * The exchanges whose results grow with P (allgather, dsa) also hold kP entries on each rank. The
 * others hold k, and what they do depends on k against P (oktopk needs k >= 8P), not on n: k is then
 * kept at 8P at least, at a higher density where n would be too large. */

/* Auto may do so. */
static bool gathers(const char *exchange) {
    return strcmp(exchange, "allgather") == 0 || strcmp(exchange, "dsa") == 0 ||
           strcmp(exchange, "auto") == 0;
}

static int64_t at_least_one(double value) {
    return value >= 1.0 ? llround(value) : 1;
}

simulate_size simulate_size_of(const simulate_row *row) {
    double nranks = row->nranks, n = (double)row->n, k = (double)row->k;
    double scale = fmax(1.0, n * nranks / MOST_ELEMENTS);
    if (gathers(row->exchange))
        scale = fmax(scale, k * nranks * nranks / MOST_GATHERED);
    if (scale <= 1.0)
        return (simulate_size){row->n, row->k, 1.0};
    if (row->dense) {
        /* Ranges alike: rounding up a range of 9.5 would cost 5 %. */
        int64_t less = at_least_one(n / scale / nranks) * row->nranks;
        return (simulate_size){less, less, n / (double)less};
    }
    bool grows = gathers(row->exchange) && !row->automatic;
    double kept = grows ? 1.0 : fmin(k, LEAST_K_PER_RANK * nranks);
    simulate_size size = {.n = at_least_one(n / scale), .k = at_least_one(fmax(k / scale, kept))};
    size.n = size.n > size.k ? size.n : size.k;
    size.scale = k / (double)size.k;
    return size;
}

/* ---- Formula -----------------------------------------------------------------------------------
 *
 * The papers' cost table in seconds: words * 4 / bandwidth + latencies * latency, after the table of
 * Ok-Topk (Li and Hoefler, 2022), which our own exchanges join. Words and latencies are those of
 * tw_exchange_cost. Every message of a rank waits for the one before, so an alltoall costs P latencies;
 * in the simulation messages are under way together. The formula knows neither jitter nor stragglers;
 * ranks of a host have their share of its link. */

void simulate_formula(const simulate_row *row, const tw_network *network, simulate_result *result) {
    double share = network->bandwidth / (network->host_ranks > 1 ? network->host_ranks : 1);
    tw_cost cost;
    result->formula = result->least = NAN;
    if (tw_exchange_cost(result->exchange, row->n, row->k, row->nranks, &cost) != TW_OK)
        return;
    bool uneven = strcmp(row->select, "gaussian") == 0 || strcmp(row->select, "dgc") == 0;
    if (uneven && strcmp(result->exchange, "allgather") == 0)
        cost.latencies *= 2; /* selections differ in length: their counts are gathered first */
    if (strcmp(result->exchange, "gtopk") == 0)
        cost.least = cost.most; /* the longest path, which all ranks wait for */
    double waiting = cost.latencies * network->latency;
    result->formula = cost.most * SIMULATE_WORD / share + waiting;
    result->least = cost.least * SIMULATE_WORD / share + waiting;
}

static int sweep(const simulate_settings *settings, jsonl *json,
                 double seconds[][OPTION_LIST_MAX]) {
    int64_t nschemes = settings->schemes.count, rows = nschemes * settings->ranks.count;
    int status = STATUS_OK;
    simulate_report report;
    simulate_report_begin(&report, settings, json);
    progress_begin("simulate", rows);
    for (int64_t i = 0; i < rows && status == STATUS_OK; i++) {
        int which = (int)(i % nschemes), at = (int)(i / nschemes);
        simulate_result result;
        simulate_row row = simulate_row_of(settings->schemes.at[which], (int)settings->ranks.at[at],
                                           settings->n, settings->k);
        row.wire = names_wire(settings->wire);
        status = simulate_run(settings, &row, &result);
        if (status == STATUS_OK) {
            progress_clear();
            simulate_report_row(&report, &row, &result);
            seconds[which][at] = result.time;
        }
        progress_to(i + 1);
    }
    progress_end();
    if (status == STATUS_OK)
        simulate_report_end(&report);
    return status;
}

static int run(simulate_settings *settings, jsonl *json) {
    double seconds[OPTION_LIST_MAX][OPTION_LIST_MAX] = {{0}};
    if (settings->paper >= 0)
        return simulate_paper(settings, json);
    if (settings->grid)
        return simulate_grid(settings, json);
    if (settings->local_steps > 0)
        return simulate_rounds(settings, json);
    TW_TRY(sweep(settings, json, seconds));
    return settings->plot_path != NULL ? simulate_plot(settings, seconds) : STATUS_OK;
}

int command_simulate(int argc, char **argv) {
    simulate_settings settings;
    jsonl *json = NULL;
    TW_TRY(simulate_options(&settings, argc, argv));
    TW_TRY(jsonl_open(&json, settings.json_path, false));
    return jsonl_close(json, run(&settings, json));
}
