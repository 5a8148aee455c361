/* bench_allreduce_cases.c - which pairs of selection and exchange a run measures
 *
 * The schemes asked for, with --select or --exchange in place of their own; both of these without
 * --scheme are a pair of its own. A pair that comes twice is measured once. Dense comes first, even
 * if not asked for, unless --no-dense: it is what all others are compared with.
 */
#include <stdio.h>
#include <string.h>

#include "bench_allreduce.h"
#include "names.h"
#include "thinwire.h"

/* The name at a position that the options gave, or the scheme's own when they gave none. */
static const char *name_or(const char *(*name_at)(int position), int position, const char *own) {
    const char *name = name_at(position);
    return name != NULL ? name : own;
}

/* Add a pair unless it is there already; what has exchange dense is dense, whatever is selected. */
static void add_case(allreduce_bench *bench, const char *scheme, const char *select,
                     const char *exchange) {
    allreduce_case added = {.scheme = scheme, .select = select, .exchange = exchange};
    if (strcmp(exchange, "dense") == 0) {
        added.scheme = "dense";
        added.select = "";
        added.dense = true;
    }
    added.automatic = strcmp(exchange, "auto") == 0;
    for (int i = 0; i < bench->ncases; i++)
        if (strcmp(bench->cases[i].select, added.select) == 0 &&
            strcmp(bench->cases[i].exchange, exchange) == 0)
            return;
    if (added.scheme != NULL)
        snprintf(added.name, sizeof added.name, "%s", added.scheme);
    else
        snprintf(added.name, sizeof added.name, "%s+%s", select, exchange);
    bench->cases[bench->ncases++] = added;
}

/* A scheme with what the options put in place of its parts; it keeps its name only if that changes
 * nothing. Dense has no parts to replace. */
static void add_scheme(allreduce_bench *bench, int position) {
    const char *scheme = "";
    const char *own_select = "";
    const char *own_exchange = "";
    tw_scheme(position, &scheme, &own_select, &own_exchange, NULL);
    if (strcmp(own_exchange, "dense") == 0) {
        add_case(bench, scheme, "", own_exchange);
        return;
    }
    const char *select = name_or(method_at, bench->select, own_select);
    const char *exchange = name_or(exchange_at, bench->exchange, own_exchange);
    bool own = strcmp(select, own_select) == 0 && strcmp(exchange, own_exchange) == 0;
    add_case(bench, own ? scheme : NULL, select, exchange);
}

void allreduce_cases(allreduce_bench *bench) {
    bool is_pair = bench->select >= 0 && bench->exchange >= 0;
    bench->ncases = 0;
    if (!bench->no_dense)
        add_case(bench, "dense", "", "dense");
    if (bench->schemes.count == 0 && is_pair) {
        add_case(bench, NULL, name_or(method_at, bench->select, ""),
                 name_or(exchange_at, bench->exchange, ""));
        return;
    }
    bool asked = bench->schemes.count > 0;
    if (!asked)
        options_take_all(scheme_at, &bench->schemes);
    for (int i = 0; i < bench->schemes.count; i++)
        if (asked || bench->schemes.at[i] != scheme_named("auto")) /* its runs never repeat */
            add_scheme(bench, bench->schemes.at[i]);
}
