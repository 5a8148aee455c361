/* simulate_grid.c - `thinwire simulate --grid`: auto against the best fixed scheme, cell by cell
 *
 * A cell is a network, a size, a density and a number of ranks. All schemes of a cell, one for each
 * exchange and these with raw and with bf16 entries, are simulated at the size of auto's row, so
 * that ratios compare like with like.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "names.h"
#include "progress.h"
#include "simulate.h"

#define WORST 1.1 /* times the best fixed scheme that auto may take */

static const int64_t sizes[] = {10000, 100000, 1000000, 14728266};
static const double densities[] = {0.001, 0.01, 0.1};
static const double ranks[] = {2, 4, 8, 16, 64};
static const char *const networks[] = {"1gbe", "10gbe", "25gbe", "100g", "wan"};

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))

static const table_column columns[] = {
    {"network", "", -7},   {"n", "", 9},      {"density", "", 7}, {"P", "ranks", 5},
    {"best", "", -14},     {"time", "ms", 9}, {"auto", "", -14},  {"time", "ms", 9},
    {"steps", "to it", 5}, {"ratio", "", 6},
};

typedef struct grid {
    simulate_settings settings; /* of the cell under way */
    jsonl *json;
    table rows;
    int cells;
    double worst;
    char where[120];
} grid;

/* ---- One cell ------------------------------------------------------------------------------- */

static void name_way(char text[32], const simulate_result *result) {
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
    simulate_row as_auto = simulate_row_of(scheme_named("auto"), nranks, s->n, s->k);
    simulate_row row = simulate_row_of(scheme_named(scheme), nranks, s->n, s->k);
    row.wire = wire;
    row.size = simulate_size_of(&as_auto);
    return simulate_run(s, &row, result);
}

/* The fastest of the fixed ones. */
static int best_fixed(grid *g, int nranks, simulate_result *best) {
    static const char *const wires[] = {"raw", "bf16"};
    int status = STATUS_OK;
    best->time = 0.0;
    for (int i = 0; scheme_at(i) != NULL && status == STATUS_OK; i++) {
        bool dense = strcmp(scheme_at(i), "dense") == 0;
        for (int w = 0; w < (dense ? 1 : 2) && stands_for_exchange(i); w++) {
            simulate_result result;
            status = run_one(g, scheme_at(i), wires[w], nranks, &result);
            if (status != STATUS_OK)
                return status;
            if (best->time == 0.0 || result.time < best->time)
                *best = result;
        }
    }
    return status;
}

static void report_cell(grid *g, int nranks, const simulate_result *best,
                        const simulate_result *chosen) {
    const simulate_settings *s = &g->settings;
    double ratio = chosen->time / best->time;
    char fixed[32], way[32];
    name_way(fixed, best);
    name_way(way, chosen);
    table_text(&g->rows, s->network_name);
    table_integer(&g->rows, s->n);
    table_general(&g->rows, s->density);
    table_integer(&g->rows, nranks);
    table_text(&g->rows, fixed);
    table_real(&g->rows, best->time * 1e3, 4);
    table_text(&g->rows, way);
    table_real(&g->rows, chosen->time * 1e3, 4);
    table_integer(&g->rows, chosen->trials);
    table_real(&g->rows, ratio, 3);
    jsonl_text(g->json, "best_exchange", best->exchange);
    jsonl_text(g->json, "best_wire", best->wire);
    jsonl_real(g->json, "best_s", best->time);
    jsonl_real(g->json, "ratio", ratio);
    simulate_row row = simulate_row_of(scheme_named("auto"), nranks, s->n, s->k);
    simulate_write_json(g->json, s, &row, chosen, 0.0);
    g->cells++;
    if (ratio > g->worst) {
        g->worst = ratio;
        snprintf(g->where, sizeof g->where, "%s, n %" PRId64 ", density %g, P %d", s->network_name,
                 s->n, s->density, nranks);
    }
}

static int one_cell(grid *g, int nranks) {
    simulate_result best, chosen;
    int status = best_fixed(g, nranks, &best);
    if (status == STATUS_OK)
        status = run_one(g, "auto", NULL, nranks, &chosen);
    if (status == STATUS_OK) {
        progress_clear();
        report_cell(g, nranks, &best, &chosen);
        fflush(jsonl_table_stream(g->json));
    }
    return status;
}

/* ---- All of them ---------------------------------------------------------------------------- */

/* Along each axis the list above, or what was asked for. */
typedef struct axes {
    int networks, sizes, densities, ranks;
} axes;

static axes axes_of(const simulate_settings *asked) {
    return (axes){asked->network_name != NULL ? 1 : COUNT(networks),
                  asked->n > 0 ? 1 : COUNT(sizes), asked->density > 0.0 ? 1 : COUNT(densities),
                  asked->ranks.count > 0 ? asked->ranks.count : COUNT(ranks)};
}

static void take_cell(grid *g, const simulate_settings *asked, const axes *a, int cell,
                      int *nranks) {
    simulate_settings *s = &g->settings;
    int rank = cell % a->ranks, density = cell / a->ranks % a->densities;
    int size = cell / a->ranks / a->densities % a->sizes;
    int network = cell / a->ranks / a->densities / a->sizes;
    *s = *asked;
    if (asked->network_name == NULL)
        simulate_take_network(s, networks[network]);
    s->n = asked->n > 0 ? asked->n : sizes[size];
    s->density = asked->density > 0.0 ? asked->density : densities[density];
    s->k = simulate_k(s->n, s->density);
    *nranks = (int)(asked->ranks.count > 0 ? asked->ranks.at[rank] : ranks[rank]);
}

int simulate_grid(const simulate_settings *asked, jsonl *json) {
    grid g = {.json = json};
    axes a = axes_of(asked);
    int cells = a.networks * a.sizes * a.densities * a.ranks, status = STATUS_OK;
    FILE *stream = jsonl_table_stream(json);
    fputs("simulate: auto against the fastest fixed scheme, raw or bf16\n\n", stream);
    table_begin(&g.rows, stream, columns, sizeof columns / sizeof columns[0]);
    progress_begin("simulate", cells);
    for (int cell = 0; cell < cells && status == STATUS_OK; cell++) {
        int nranks;
        take_cell(&g, asked, &a, cell, &nranks);
        status = one_cell(&g, nranks);
        progress_to(cell + 1);
    }
    progress_end();
    if (status != STATUS_OK)
        return status;
    fprintf(stream, "\n%d cells; at worst auto takes %.3f times the best: %s\n", g.cells, g.worst,
            g.where);
    return g.worst <= WORST ? STATUS_OK
                            : failure("auto takes more than %g times the best in some cell", WORST);
}
