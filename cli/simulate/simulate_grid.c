/* simulate_grid.c - `thinwire simulate --grid`: auto against the best fixed scheme, cell by cell
 *
 * A cell is a network, a size, a density and a number of ranks. All schemes of a cell, one for each
 * exchange and these with raw and with bf16 entries, are simulated at the size of auto's row, so
 * that ratios compare like with like.
 */
#include "simulate/simulate.h"

#include <inttypes.h>
#include <string.h>

#include "cli.h"

#define WORST 1.1 /* times the best fixed scheme that auto may take */

static const int64_t sizes[] = {10000, 100000, 1000000, 14728266};
static const double densities[] = {0.001, 0.01, 0.1};
static const double ranks[] = {2, 4, 8, 16, 64};
static const char *const networks[] = {"1gbe", "10gbe", "25gbe", "100g", "wan"};

static const table_column columns[] = {
    {"network", "", -7},   {"n", "", 9},      {"density", "", 7}, {"P", "ranks", 5},
    {"best", "", -14},     {"time", "ms", 9}, {"auto", "", -14},  {"time", "ms", 9},
    {"steps", "to it", 5}, {"ratio", "", 6},
};

typedef struct grid {
    simulate_settings settings; /* of the cell under way */
    jsonl *json;
    table rows;
    double worst;
    char where[120];
} grid;

static void name_plan(char text[32], const simulate_result *result) {
    snprintf(text, 32, "%.16s %.8s", result->exchange,
             strcmp(result->exchange, "dense") == 0 ? "" : result->wire);
}

/* The first scheme of each exchange. */
static bool stands_for_exchange(int scheme) {
    const char *own = "", *other = "";
    tw_scheme(scheme, NULL, NULL, &own, NULL);
    for (int i = 0; i < scheme; i++) {
        tw_scheme(i, NULL, NULL, &other, NULL);
        if (strcmp(own, other) == 0)
            return false;
    }
    return strcmp(own, "auto") != 0;
}

static int run_one(grid *g, const char *scheme, const char *wire, int nranks,
                   simulate_result *result) {
    const simulate_settings *s = &g->settings;
    simulate_row as_auto = simulate_row_of(names_find_scheme("auto"), nranks, s->n, s->k);
    simulate_row row = simulate_row_of(names_find_scheme(scheme), nranks, s->n, s->k);
    row.wire = wire;
    row.size = simulate_size_of(&as_auto);
    return simulate_run(s, &row, result);
}

/* The fastest of the fixed ones. */
static int best_fixed(grid *g, int nranks, simulate_result *best) {
    static const char *const wires[] = {"raw", "bf16"};
    best->time = 0.0;
    for (int i = 0; names_scheme(i) != NULL; i++) {
        bool dense = strcmp(names_scheme(i), "dense") == 0;
        for (int w = 0; w < (dense ? 1 : 2) && stands_for_exchange(i); w++) {
            simulate_result result;
            TW_TRY(run_one(g, names_scheme(i), wires[w], nranks, &result));
            if (best->time == 0.0 || result.time < best->time)
                *best = result;
        }
    }
    return STATUS_OK;
}

static int one_cell(grid *g, int nranks) {
    simulate_result best, chosen;
    TW_TRY(best_fixed(g, nranks, &best));
    TW_TRY(run_one(g, "auto", NULL, nranks, &chosen));
    progress_clear();
    const simulate_settings *s = &g->settings;
    double ratio = chosen.time / best.time;
    char fixed[32], own[32];
    name_plan(fixed, &best);
    name_plan(own, &chosen);
    table_row(&g->rows, "%s|%" PRId64 "|%.4g|%d|%s|%.4f|%s|%.4f|%" PRId64 "|%.3f", s->network_name,
              s->n, s->density, nranks, fixed, best.time * 1e3, own, chosen.time * 1e3,
              chosen.trials, ratio);
    jsonl_set(g->json, J_TEXT("best_exchange", best.exchange), J_TEXT("best_wire", best.wire),
              J_REAL("best_s", best.time), J_REAL("ratio", ratio));
    simulate_row row = simulate_row_of(names_find_scheme("auto"), nranks, s->n, s->k);
    simulate_write_json(g->json, s, &row, &chosen, 0.0);
    if (ratio > g->worst) {
        g->worst = ratio;
        snprintf(g->where, sizeof g->where, "%s, n %" PRId64 ", density %g, P %d", s->network_name,
                 s->n, s->density, nranks);
    }
    return STATUS_OK;
}

/* The cell's position along an axis of `count`; *cell becomes what is left for the other axes. */
static int take_axis(int *cell, int count) {
    int position = *cell % count;
    *cell /= count;
    return position;
}

/* Along each axis the list above, or what was asked for. Returns the number of ranks, 0 past the
 * last cell. */
static int take_cell(grid *g, const simulate_settings *asked, int cell) {
    simulate_settings *s = &g->settings;
    bool has_ranks = asked->ranks.count > 0;
    int rank = take_axis(&cell, has_ranks ? asked->ranks.count : COUNT_OF(ranks));
    int density = take_axis(&cell, asked->density > 0.0 ? 1 : COUNT_OF(densities));
    int size = take_axis(&cell, asked->n > 0 ? 1 : COUNT_OF(sizes));
    int network = take_axis(&cell, asked->network_name != NULL ? 1 : COUNT_OF(networks));
    *s = *asked;
    if (asked->network_name == NULL)
        simulate_take_network(s, networks[network]);
    s->n = asked->n > 0 ? asked->n : sizes[size];
    s->density = asked->density > 0.0 ? asked->density : densities[density];
    s->k = simulate_k(s->n, s->density);
    return cell > 0 ? 0 : (int)(has_ranks ? asked->ranks.at[rank] : ranks[rank]);
}

int simulate_grid(const simulate_settings *asked, jsonl *json) {
    grid g = {.json = json};
    int cells = 0, status = STATUS_OK;
    while (take_cell(&g, asked, cells) > 0)
        cells++;
    FILE *stream = jsonl_table_stream(json);
    fputs("simulate: auto against the fastest fixed scheme, raw or bf16\n\n", stream);
    table_begin(&g.rows, stream, columns, COUNT_OF(columns), 2);
    progress_begin("simulate", cells);
    for (int cell = 0; cell < cells && status == STATUS_OK; cell++) {
        status = one_cell(&g, take_cell(&g, asked, cell));
        progress_to(cell + 1);
    }
    progress_end();
    if (status != STATUS_OK)
        return status;
    fprintf(stream, "\n%d cells; at worst auto takes %.3f times the best: %s\n", cells, g.worst,
            g.where);
    return g.worst <= WORST
               ? STATUS_OK
               : error_report("auto takes more than %g times the best in some cell", WORST);
}
