/* ranks.c - ranks as threads, and checks of what they return; see ranks.h */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct rank_thread {
    ranks *all;
    int rank;
    ranks_call call;
    void *context;
    pthread_t thread;
} rank_thread;

static void *rank_main(void *context) {
    rank_thread *t = context;
    ranks *r = t->all;
    r->status[t->rank] = t->call(r, t->rank, t->context);
    r->text[t->rank][0] = '\0';
    if (r->status[t->rank] != TW_OK)
        snprintf(r->text[t->rank], sizeof *r->text, "%s", tw_last_error());
    return NULL;
}

void ranks_run(ranks *r, ranks_call call, void *context) {
    rank_thread *threads = check_alloc(r->nranks, sizeof *threads);
    for (int rank = 0; rank < r->nranks; rank++) {
        threads[rank] = (rank_thread){.all = r, .rank = rank, .call = call, .context = context};
        if (pthread_create(&threads[rank].thread, NULL, rank_main, &threads[rank]) != 0) {
            fprintf(stderr, "ranks.c: no thread for rank %d of %d\n", rank, r->nranks);
            abort(); /* the others wait for it */
        }
    }
    for (int rank = 0; rank < r->nranks; rank++)
        pthread_join(threads[rank].thread, NULL);
    free(threads);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void alloc_ranks(ranks *r, int nranks) {
    r->nranks = nranks;
    r->transports = check_alloc(nranks, sizeof(tw_transport *));
    r->groups = check_alloc(nranks, sizeof(tw_group *));
    r->status = check_alloc(nranks, sizeof *r->status);
    r->text = check_alloc(nranks, sizeof *r->text);
}

void ranks_init(ranks *r, int nranks) {
    alloc_ranks(r, nranks);
    check_ok(tw_transport_threads(r->transports, nranks));
}

void ranks_adopt(ranks *r, int nranks, tw_transport *const *transports) {
    alloc_ranks(r, nranks);
    memcpy(r->transports, transports, sizeof(tw_transport *) * (size_t)nranks);
}

tw_group_params ranks_params(const char *exchange, int64_t k) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = exchange && strcmp(exchange, "dense") == 0 ? "dense" : NULL;
    params.exchange = exchange;
    params.select.method = "exact";
    params.select.k = k;
    params.select.threads = 1;
    return params;
}

typedef struct opening {
    tw_group_params params;
    const int64_t *sizes;
    int tensors;
} opening;

static int open_rank(ranks *r, int rank, void *context) {
    const opening *o = context;
    int error = tw_group_create(&r->groups[rank], r->transports[rank], &o->params);
    for (int i = 0; i < o->tensors && !error; i++)
        error = tw_group_add(r->groups[rank], o->sizes[i], NULL, NULL);
    return error ? error : tw_group_open(r->groups[rank]);
}

void ranks_try_open(ranks *r, const tw_group_params *params, const int64_t *sizes, int tensors) {
    opening o = {.params = *params, .sizes = sizes, .tensors = tensors};
    if (o.params.timeout == 0)
        o.params.timeout = RANKS_TIMEOUT;
    ranks_run(r, open_rank, &o);
}

void ranks_open(ranks *r, int nranks, const tw_group_params *params, const int64_t *sizes,
                int tensors) {
    ranks_init(r, nranks);
    ranks_try_open(r, params, sizes, tensors);
    ranks_ok(r);
}

static int free_group(ranks *r, int rank, void *context) {
    (void)context;
    tw_group_free(r->groups[rank]);
    r->groups[rank] = NULL;
    return TW_OK;
}

static int free_transport(ranks *r, int rank, void *context) {
    (void)context;
    tw_transport_free(r->transports[rank]);
    return TW_OK;
}

void ranks_free_groups(ranks *r) {
    ranks_run(r, free_group, NULL);
}

void ranks_close(ranks *r) {
    ranks_free_groups(r);
    ranks_run(r, free_transport, NULL);
    free(r->transports);
    free(r->groups);
    free(r->status);
    free(r->text);
    memset(r, 0, sizeof *r);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

void ranks_error(const ranks *r, int want) {
    for (int rank = 0; rank < r->nranks; rank++)
        if (r->status[rank] != want)
            check_fail("rank %d of %d gave %d (%s: %s), expected %d (%s)", rank, r->nranks,
                       r->status[rank], tw_error_text(r->status[rank]), r->text[rank], want,
                       tw_error_text(want));
}

void ranks_ok(const ranks *r) {
    ranks_error(r, TW_OK);
}

void ranks_say(const ranks *r, const char *format, ...) {
    char part[128];
    va_list args;
    va_start(args, format);
    vsnprintf(part, sizeof part, format, args);
    va_end(args);
    for (int rank = 0; rank < r->nranks; rank++)
        if (!strstr(r->text[rank], part))
            check_fail("rank %d says \"%s\", which does not contain \"%s\"", rank, r->text[rank],
                       part);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

typedef struct reduction {
    int tensor;
    void *const *grads;
    float *const *outs;
} reduction;

static int allreduce(ranks *r, int rank, void *context) {
    const reduction *a = context;
    return tw_allreduce(r->groups[rank], a->tensor, a->grads[rank], a->outs ? a->outs[rank] : NULL);
}

void ranks_allreduce(ranks *r, int tensor, void *const *grads, float *const *outs) {
    reduction a = {.tensor = tensor, .grads = grads, .outs = outs};
    ranks_run(r, allreduce, &a);
}

void ranks_get_residuals(ranks *r, int tensor, float **rows, int64_t n) {
    for (int rank = 0; rank < r->nranks; rank++) {
        memset(rows[rank], 0xff, (size_t)n * sizeof(float));
        check_ok(tw_group_get_residual(r->groups[rank], tensor, rows[rank]));
    }
}

void ranks_check_residuals(ranks *r, int tensor, float *const *rows, int64_t n) {
    float **got = rows_alloc(r->nranks, n);
    ranks_get_residuals(r, tensor, got, n);
    for (int rank = 0; rank < r->nranks; rank++) {
        char what[64];
        snprintf(what, sizeof what, "residual of rank %d, ", rank);
        check_bits(what, got[rank], rows[rank], n);
    }
    rows_free(got);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* One allocation each, so that AddressSanitizer sees the end of every row. */
float **rows_alloc(int nranks, int64_t n) {
    float **rows = check_alloc(nranks + 1, sizeof *rows);
    for (int rank = 0; rank < nranks; rank++)
        rows[rank] = check_alloc(n, sizeof(float));
    return rows;
}

void rows_free(float **rows) {
    for (float **row = rows; rows && *row; row++)
        free(*row);
    free(rows);
}

void rows_copy(float **to, float *const *from, int nranks, int64_t n) {
    for (int rank = 0; rank < nranks; rank++)
        memcpy(to[rank], from[rank], (size_t)n * sizeof(float));
}

void rows_fill(float **rows, int nranks, int64_t n, oracle_data kind, int step) {
    for (int rank = 0; rank < nranks; rank++)
        oracle_fill(rows[rank], n, kind, (uint64_t)(1000 * step + rank));
}
