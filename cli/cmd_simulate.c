/* cmd_simulate.c - `thinwire simulate`: the sweep over numbers of ranks and schemes
 *
 * simulate.h lists the other parts. Rows appear as they are done, dense first for each number of
 * ranks, as the others are compared with it.
 */
#include <string.h>

#include "command.h"
#include "errors.h"
#include "names.h"
#include "progress.h"
#include "simulate.h"

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
        row.wire = wire_at(settings->wire);
        status = simulate_run(settings, &row, &result);
        if (status == STATUS_OK) {
            progress_clear();
            simulate_report_row(&report, &row, &result);
            fflush(jsonl_table_stream(json));
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
    int status = sweep(settings, json, seconds);
    return status == STATUS_OK && settings->plot_path != NULL ? simulate_plot(settings, seconds)
                                                              : status;
}

int cmd_simulate(int argc, char **argv) {
    simulate_settings settings;
    jsonl *json = NULL;
    int status = simulate_options(&settings, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return status;
    status = jsonl_open(&json, settings.json_path);
    if (status != STATUS_OK)
        return status;
    status = run(&settings, json);
    int closed = jsonl_close(json);
    return status != STATUS_OK ? status : closed;
}
