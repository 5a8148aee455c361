/* simulate_rounds.c - hours of training with rounds: workers compute for H inner steps, then exchange
 *
 * An exchange is simulated as in every other row; computing takes what the caller says. Of a run:
 *
 *     inner steps   tokens / (P * tokens of a worker's step)
 *     hours         inner steps * (computing + exchange / H)
 *     delayed       inner steps * max(computing, exchange / H): it runs while the next round computes
 *
 * --paper streaming-diloco puts the figures of Douillard et al., 2025, beside ours.
 */
#include "simulate/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli.h"

static const struct {
    const char *name;
    const char *scheme, *wire;
    bool rounds, delayed;
} kinds[] = {
    {"dense, each step", "dense", NULL, false, false},
    {"topka bf16, each step", "topka", "bf16", false, false},
    {"dense, rounds", "dense", NULL, true, false},
    {"topka q2, rounds", "topka", "q2", true, false},
    {"oktopk q2, rounds", "oktopk", "q2", true, false},
    {"topka q2, delayed", "topka", "q2", true, true},
    {"oktopk q2, delayed", "oktopk", "q2", true, true},
};
#define KINDS COUNT_OF(kinds)

static const table_column columns[] = {
    {"exchange", "", -21},       {"P", "workers", 7},  {"sent", "B per step", 11},
    {"fewer", "x dense", 8},     {"exchange", "s", 9}, {"step", "s", 9},
    {"computing", "% of it", 9}, {"run", "hours", 9},  {"sent", "TB per worker", 13},
};

/* One kind of exchange, of one worker. */
typedef struct outcome {
    double exchange;  /* seconds of one */
    double per_step;  /* bytes of an inner step */
    double computing; /* seconds of an inner step */
    double step;      /* seconds of an inner step with its share of the exchange */
    double steps;     /* inner steps of the run */
    double bits;      /* per entry of an exchange in which each entry goes to all; else 0 */
} outcome;

static int simulate_kind(const simulate_settings *s, int kind, int nranks, outcome *o) {
    simulate_row row = simulate_row_of(names_find_scheme(kinds[kind].scheme), nranks, s->n, s->k);
    simulate_result result;
    double every = kinds[kind].rounds ? (double)s->local_steps : 1.0;
    row.wire = kinds[kind].wire;
    TW_TRY(simulate_run(s, &row, &result));
    o->exchange = result.time;
    o->per_step = ((double)result.payload + (double)result.control) / every;
    o->computing = (double)s->batch_tokens / s->token_rate;
    o->step = kinds[kind].delayed ? fmax(o->computing, o->exchange / every)
                                  : o->computing + o->exchange / every;
    o->steps = s->tokens / ((double)nranks * (double)s->batch_tokens);
    o->bits = strcmp(result.exchange, "allgather") == 0 && nranks > 1
                  ? 8.0 * (double)result.payload / ((double)s->k * (nranks - 1.0))
                  : 0.0;
    return STATUS_OK;
}

static void report_kind(const simulate_settings *s, jsonl *json, table *rows, int kind, int nranks,
                        const outcome *o, double dense) {
    double hours = o->steps * o->step / 3600.0;
    progress_clear();
    table_row(rows, "%s|%d|%.0f|%.1f|%.3f|%.3f|%.1f|%.2f|%.4g", kinds[kind].name, nranks,
              o->per_step, dense / o->per_step, o->exchange, o->step,
              100.0 * o->computing / o->step, hours, o->per_step * o->steps * 1e-12);
    jsonl_set(json, J_TEXT("kind", "rounds"), J_TEXT("scheme", kinds[kind].scheme),
              J_TEXT("wire", kinds[kind].wire != NULL ? kinds[kind].wire : "raw"),
              J_INT("local_steps", kinds[kind].rounds ? s->local_steps : 1),
              J_FLAG("delayed", kinds[kind].delayed), J_INT("nranks", nranks), J_INT("n", s->n),
              J_INT("k", s->k), J_TEXT("network", s->network_name),
              J_REAL("bandwidth_Bps", s->network.bandwidth),
              J_REAL("latency_s", s->network.latency), J_REAL("tokens_per_second", s->token_rate),
              J_INT("batch_tokens", s->batch_tokens), J_REAL("tokens", s->tokens),
              J_REAL("bytes_per_step", o->per_step),
              J_REAL("fewer_than_dense", dense / o->per_step),
              J_REAL("bits_per_entry", o->bits > 0.0 ? o->bits : NAN),
              J_REAL("exchange_s", o->exchange), J_REAL("step_s", o->step),
              J_REAL("computing_share", o->computing / o->step), J_REAL("hours", hours));
    jsonl_write(json);
}

int simulate_rounds(const simulate_settings *s, jsonl *json) {
    FILE *stream = jsonl_table_stream(json);
    table rows;
    double dense = 0.0, bits = 0.0;
    fprintf(stream,
            "simulate: rounds of %" PRId64 " inner steps; n %" PRId64 ", k %" PRId64
            "; %s, %.6g us, %.4g Mbit/s; a worker computes %.4g tokens per second, %" PRId64
            " a step; %.4g tokens in all\n\n",
            s->local_steps, s->n, s->k, s->network_name, s->network.latency * 1e6,
            s->network.bandwidth * 8e-6, s->token_rate, s->batch_tokens, s->tokens);
    table_begin(&rows, stream, columns, COUNT_OF(columns), 2);
    progress_begin("simulate", (int64_t)KINDS * s->ranks.count);
    for (int i = 0; i < KINDS * s->ranks.count; i++) {
        int kind = i % (int)KINDS, nranks = (int)s->ranks.at[i / (int)KINDS];
        outcome o;
        int status = simulate_kind(s, kind, nranks, &o);
        if (status != STATUS_OK) {
            progress_end();
            return status;
        }
        dense = kind == 0 ? o.per_step : dense;
        bits = kinds[kind].rounds && o.bits > 0.0 ? o.bits : bits;
        report_kind(s, json, &rows, kind, nranks, &o, dense);
        progress_to(i + 1);
    }
    progress_end();
    fprintf(stream,
            "\ntopka q2: %.2f bits per entry. delayed: the exchange of a round runs while the next "
            "one computes.\n",
            bits);
    return STATUS_OK;
}

/* ---- Streaming DiLoCo, table 1: a model of 1 B parameters */

static const struct {
    double tokens;                  /* 10^9 */
    double parallel_tb, parallel_h; /* data parallelism at 1 Gbit/s */
    double streaming_tb, streaming_h;
} published[] = {
    {25, 441, 109, 1.10, 0.88},
    {100, 1767, 438, 4.42, 3.5},
    {250, 4418, 1097, 11.05, 8.75},
};

static const table_column paper_columns[] = {
    {"tokens", "10^9", 6},   {"data parallel", "TB publ.", 13},
    {"", "hours publ.", 11}, {"streaming", "TB publ.", 9},
    {"", "hours publ.", 11}, {"topka q2", "TB", 8},
    {"", "hours", 6},        {"oktopk q2", "TB", 9},
    {"", "hours", 6},
};

#define PAPER_N 1000000000
#define PAPER_RANKS 8
#define PAPER_EVERY 30

/* Bytes of an inner step over those of dense, in rounds of PAPER_EVERY. */
static int share_of_dense(const simulate_settings *s, int kind, double *share) {
    outcome dense, sparse;
    TW_TRY(simulate_kind(s, 0, PAPER_RANKS, &dense));
    TW_TRY(simulate_kind(s, kind, PAPER_RANKS, &sparse));
    *share = sparse.per_step / dense.per_step;
    return STATUS_OK;
}

/* The terabytes that data parallelism was published with take (its hours - hours of computing): so
 * many hours a terabyte. Computing takes the hours of streaming at most, which hides messages. */
static double hours_of(int row, double terabytes) {
    double computing = published[row].streaming_h;
    double per_terabyte = (published[row].parallel_h - computing) / published[row].parallel_tb;
    return computing + terabytes * per_terabyte;
}

int simulate_streaming_diloco(simulate_settings *settings, jsonl *json) {
    FILE *stream = jsonl_table_stream(json);
    table rows;
    double topka = 0.0, oktopk = 0.0;
    settings->n = PAPER_N;
    settings->k = PAPER_N / 64;
    settings->local_steps = PAPER_EVERY;
    settings->batch_tokens = 1;
    settings->token_rate = settings->tokens = 1.0;
    simulate_take_network(settings, "1gbe");
    TW_TRY(share_of_dense(settings, 3, &topka));
    TW_TRY(share_of_dense(settings, 4, &oktopk));
    fprintf(
        stream,
        "simulate: Streaming DiLoCo's table 1, 10^9 parameters, links of 1 Gbit/s; ours: rounds "
        "of %d inner steps, density 1/64, q2, %d workers\n\n",
        PAPER_EVERY, PAPER_RANKS);
    table_begin(&rows, stream, paper_columns, COUNT_OF(paper_columns), 2);
    for (int i = 0; i < COUNT_OF(published); i++) {
        double a = published[i].parallel_tb * topka, b = published[i].parallel_tb * oktopk;
        table_row(&rows, "%.0f|%.0f|%.0f|%.2f|%.2f|%.3f|%.2f|%.3f|%.2f", published[i].tokens,
                  published[i].parallel_tb, published[i].parallel_h, published[i].streaming_tb,
                  published[i].streaming_h, a, hours_of(i, a), b, hours_of(i, b));
        jsonl_set(json, J_TEXT("paper", "streaming-diloco"),
                  J_REAL("tokens", published[i].tokens * 1e9),
                  J_REAL("data_parallel_tb", published[i].parallel_tb),
                  J_REAL("data_parallel_hours", published[i].parallel_h),
                  J_REAL("streaming_tb", published[i].streaming_tb),
                  J_REAL("streaming_hours", published[i].streaming_h), J_REAL("topka_tb", a),
                  J_REAL("topka_hours", hours_of(i, a)), J_REAL("oktopk_tb", b),
                  J_REAL("oktopk_hours", hours_of(i, b)));
        jsonl_write(json);
    }
    fprintf(
        stream,
        "\npubl.: the authors'. Ours: the published terabytes of data parallelism, divided by "
        "how many times fewer bytes an\ninner step sends than a dense one, simulated: %.0f "
        "(topka) and %.0f (oktopk). Hours: a terabyte takes what it took\ndata parallelism, and "
        "computing takes the hours of streaming, which hides its messages; ours are not "
        "hidden.\nLoss is another question: docs/local_steps.md.\n",
        1.0 / topka, 1.0 / oktopk);
    return STATUS_OK;
}
