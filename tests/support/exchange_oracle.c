/* exchange_oracle.c - all ranks of an exchange in one loop, and gradients to feed it with */
#include "exchange_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "thinwire.h"

static void *allocate(int64_t count, int64_t size) {
    void *memory = calloc((size_t)count, (size_t)size);
    if (!memory)
        abort();
    return memory;
}

static oracle_entries entries_alloc(int64_t most) {
    oracle_entries e = {.idx = allocate(most, sizeof *e.idx), .val = allocate(most, sizeof *e.val)};
    return e;
}

static void entries_free(oracle_entries *e) {
    free(e->idx);
    free(e->val);
}

static void entries_add(oracle_entries *e, int32_t idx, float val) {
    e->idx[e->count] = idx;
    e->val[e->count++] = val;
}

static void entries_copy(oracle_entries *to, const oracle_entries *from) {
    to->count = 0;
    for (int64_t j = 0; j < from->count; j++)
        entries_add(to, from->idx[j], from->val[j]);
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- Life ------------------------------------------------------------------------------------ */

void exchange_oracle_open(exchange_oracle *o, const char *exchange, int nranks, int64_t n,
                          int64_t k, int result) {
    *o = (exchange_oracle){.exchange = exchange, .nranks = nranks, .n = n, .k = k};
    o->oktopk_from = 8 * (int64_t)nranks;
    o->result = result;
    o->residual = allocate(nranks, sizeof *o->residual);
    o->velocity = allocate(nranks, sizeof *o->velocity);
    o->second = allocate(nranks, sizeof *o->second);
    o->undelivered = allocate(nranks, sizeof *o->undelivered);
    o->lists = allocate(nranks, sizeof *o->lists);
    o->own = allocate(nranks, sizeof *o->own);
    o->next = allocate(nranks, sizeof *o->next);
    o->element = allocate(n, sizeof *o->element);
    for (int r = 0; r < nranks; r++) {
        o->residual[r] = allocate(n, sizeof(float));
        o->velocity[r] = allocate(n, sizeof(float));
        o->second[r] = allocate(n, sizeof(float));
        o->undelivered[r] = allocate(n, sizeof(float));
        o->lists[r] = entries_alloc(n);
        o->own[r] = entries_alloc(n);
        o->next[r] = entries_alloc(n);
    }
    o->applied = entries_alloc(n);
    o->kept = entries_alloc(n);
    o->dropped = entries_alloc(n);
    o->sum = allocate(n, sizeof *o->sum);
    o->present = allocate(n, 1);
    o->out = allocate(n, sizeof *o->out);
}

void exchange_oracle_close(exchange_oracle *o) {
    for (int r = 0; r < o->nranks; r++) {
        free(o->residual[r]);
        free(o->velocity[r]);
        free(o->second[r]);
        free(o->undelivered[r]);
        entries_free(&o->lists[r]);
        entries_free(&o->own[r]);
        entries_free(&o->next[r]);
    }
    free(o->residual);
    free(o->velocity);
    free(o->second);
    free(o->undelivered);
    free(o->lists);
    free(o->own);
    free(o->next);
    free(o->element);
    entries_free(&o->applied);
    entries_free(&o->kept);
    entries_free(&o->dropped);
    free(o->sum);
    free(o->present);
    free(o->out);
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* acc = update + residual into the residual. */
static void fold_update(const exchange_oracle *o, int r, const float *grad) {
    float *m = o->velocity[r], *v = o->second[r];
    const float rate = (float)(o->rate / (1.0 - pow(0.75, o->steps + 1)));
    const float root = (float)(1.0 / sqrt(1.0 - pow(0.875, o->steps + 1)));
    for (int64_t i = 0; i < o->n; i++) {
        m[i] = 0.75f * m[i] + 0.25f * grad[i];
        v[i] = 0.875f * v[i] + 0.125f * grad[i] * grad[i];
        const float d = root * sqrtf(v[i]) + 1e-6f;
        const float u = rate * m[i] / d;
        o->residual[r][i] = o->residual[r][i] + u;
    }
}

/* acc = grad + residual into the residual, and the best k of it into the rank's list. */
static void fold_and_select(exchange_oracle *o, int r, const float *grad) {
    float *acc = o->residual[r], *u = o->velocity[r];
    if (o->adamw)
        fold_update(o, r, grad);
    for (int64_t i = 0; i < o->n && !o->adamw; i++) {
        const float kept = o->momentum * u[i];
        u[i] = o->momentum > 0 ? kept + grad[i] : grad[i];
        acc[i] = o->feedback == TW_FEEDBACK_ON ? u[i] + acc[i] : grad[i];
    }
    o->lists[r].count = oracle_topk(acc, o->n, o->k, o->lists[r].idx, o->lists[r].val);
}

static void leave(exchange_oracle *o, int r, int32_t i) {
    o->residual[r][i] = 0.0f;
    if (!o->adamw)
        o->velocity[r][i] = 0.0f;
}

static void leave_all(exchange_oracle *o, int r) {
    for (int64_t j = 0; j < o->lists[r].count; j++)
        leave(o, r, o->lists[r].idx[j]);
}

/* gtopk, butterfly: the list leaves the residual now. It leaves the velocity at the end, when the
 * rank knows what was dropped. */
static void leave_residual(exchange_oracle *o, int r) {
    memset(o->undelivered[r], 0, (size_t)o->n * sizeof(float));
    for (int64_t j = 0; j < o->lists[r].count; j++)
        o->residual[r][o->lists[r].idx[j]] = 0.0f;
    entries_copy(&o->own[r], &o->lists[r]);
}

/* Sums, element by element: begin, add lists one after the other, take what is not zero. */
static void sum_begin(exchange_oracle *o) {
    memset(o->present, 0, (size_t)o->n);
}

static void sum_add(exchange_oracle *o, const oracle_entries *list) {
    for (int64_t j = 0; j < list->count; j++) {
        const int32_t i = list->idx[j];
        o->sum[i] = o->present[i] ? o->sum[i] + list->val[j] : list->val[j];
        o->present[i] = 1;
    }
}

static void sum_take(const exchange_oracle *o, oracle_entries *sums) {
    sums->count = 0;
    for (int64_t i = 0; i < o->n; i++)
        if (o->present[i] && o->sum[i] != 0.0f)
            entries_add(sums, (int32_t)i, o->sum[i]);
}

/* The best k of all stay in it, the rest goes to o->dropped. */
static void keep_best(exchange_oracle *o, oracle_entries *all, int64_t k) {
    oracle_entries best = entries_alloc(k);
    const int64_t count = oracle_topk(all->val, all->count, k, best.idx, best.val);
    o->kept.count = o->dropped.count = 0;
    for (int64_t j = 0, next = 0; j < all->count; j++) {
        const int is_best = next < count && best.idx[next] == j; /* positions ascend */
        entries_add(is_best ? &o->kept : &o->dropped, all->idx[j], all->val[j]);
        next += is_best;
    }
    entries_copy(all, &o->kept);
    entries_free(&best);
}

/* ---- The exchanges --------------------------------------------------------------------------- */

static void sum_all_lists(exchange_oracle *o) {
    sum_begin(o);
    for (int r = 0; r < o->nranks; r++)
        sum_add(o, &o->lists[r]);
    sum_take(o, &o->applied);
}

static void exchange_allgather(exchange_oracle *o) {
    sum_all_lists(o);
    for (int r = 0; r < o->nranks; r++)
        leave_all(o, r);
}

static void exchange_oktopk(exchange_oracle *o) {
    sum_all_lists(o);
    keep_best(o, &o->applied, o->k);
    sum_begin(o);
    sum_add(o, &o->applied); /* marks in `present` what is in the result */
    for (int r = 0; r < o->nranks; r++)
        for (int64_t j = 0; j < o->lists[r].count; j++)
            if (o->present[o->lists[r].idx[j]])
                leave(o, r, o->lists[r].idx[j]);
}

/* Without feedback there is nothing but the selection to sum. */
static void exchange_fulltopk(exchange_oracle *o) {
    int64_t count = 0;
    if (o->feedback == TW_FEEDBACK_OFF) {
        exchange_oktopk(o);
        return;
    }
    sum_all_lists(o);
    keep_best(o, &o->applied, o->k);
    for (int64_t j = 0; j < o->applied.count; j++) {
        const int32_t i = o->applied.idx[j];
        float sum = o->residual[0][i];
        for (int r = 1; r < o->nranks; r++)
            sum += o->residual[r][i];
        o->applied.idx[count] = i;
        o->applied.val[count] = sum;
        count += sum != 0.0f;
        for (int r = 0; sum != 0.0f && r < o->nranks; r++)
            leave(o, r, i);
    }
    o->applied.count = count;
}

/* Rank r takes in the list of rank s. */
static void merge_lists(exchange_oracle *o, int r, int s) {
    sum_begin(o);
    sum_add(o, &o->lists[r]);
    sum_add(o, &o->lists[s]);
    sum_take(o, &o->lists[r]);
    keep_best(o, &o->lists[r], o->k);
    for (int64_t j = 0; j < o->dropped.count; j++)
        o->undelivered[r][o->dropped.idx[j]] += o->dropped.val[j];
}

/* What a rank dropped returns to its residual, and its velocity there stays. */
static void return_undelivered(exchange_oracle *o, int r) {
    for (int64_t j = 0; j < o->own[r].count; j++)
        if (o->undelivered[r][o->own[r].idx[j]] == 0.0f && !o->adamw)
            o->velocity[r][o->own[r].idx[j]] = 0.0f;
    for (int64_t i = 0; i < o->n; i++)
        if (o->undelivered[r][i] != 0.0f)
            o->residual[r][i] += o->undelivered[r][i];
}

static void exchange_gtopk(exchange_oracle *o) {
    for (int r = 0; r < o->nranks; r++)
        leave_residual(o, r);
    for (int d = 1; d < o->nranks; d *= 2)
        for (int r = 0; r + d < o->nranks; r += 2 * d)
            merge_lists(o, r, r + d);
    for (int r = 0; r < o->nranks; r++)
        return_undelivered(o, r);
    entries_copy(&o->applied, &o->lists[0]);
}

/* ---- butterfly */

static int is_prime(int64_t x) {
    for (int64_t d = 2; d < x; d++)
        if (x % d == 0)
            return 0;
    return 1;
}

/* The order of indices: 0 mod C first, then 1 mod C ...; C is a prime above 60 and 4P. */
static void interleave(exchange_oracle *o) {
    int64_t stride = 4 * o->nranks > 60 ? 4 * o->nranks + 1 : 61, position = 0;
    while (!is_prime(stride))
        stride++;
    for (int64_t first = 0; first < stride; first++)
        for (int64_t i = first; i < o->n; i += stride)
            o->element[position++] = i;
}

/* A rank's selection by position. */
static void interleave_list(exchange_oracle *o, int r) {
    sum_begin(o);
    sum_add(o, &o->own[r]);
    o->lists[r].count = 0;
    for (int64_t at = 0; at < o->n; at++)
        if (o->present[o->element[at]])
            entries_add(&o->lists[r], (int32_t)at, o->sum[o->element[at]]);
}

/* How many of k entries m of `of` ranks may hold. */
static int64_t share(const exchange_oracle *o, int64_t m, int64_t of) {
    const int64_t even = (o->k * m + of - 1) / of;
    int64_t root = 0;
    while ((root + 1) * (root + 1) <= even)
        root++;
    return smaller(o->k, even + 3 * root + 3);
}

/* Ranks first .. first+size-1, split into the fewest parts with which `levels` levels suffice. */
typedef struct rank_range {
    int first, size, levels, parts;
} rank_range;

static rank_range range_of(int first, int size, int levels) {
    rank_range f = {first, size, levels, 0};
    for (int64_t served = 0; served < size;) {
        f.parts++;
        served = 1;
        for (int i = 0; i < levels; i++)
            served *= f.parts;
    }
    return f;
}

static rank_range child(const rank_range *f, int part) {
    const int from = f->size * part / f->parts, to = f->size * (part + 1) / f->parts;
    return range_of(f->first + from, to - from, f->levels - 1);
}

static int part_of(const rank_range *f, int rank) {
    int part = 0;
    for (rank_range c = child(f, part); rank >= c.first + c.size; c = child(f, part))
        part++;
    return part;
}

static void drop_all(exchange_oracle *o, int r, const oracle_entries *dropped) {
    for (int64_t j = 0; j < dropped->count; j++)
        o->undelivered[r][o->element[dropped->idx[j]]] += dropped->val[j];
}

/* The entries of rank r in these ranks' positions. */
static void cut_out(exchange_oracle *o, int r, const rank_range *ranks, oracle_entries *piece) {
    const int64_t from = o->n * ranks->first / o->nranks;
    const int64_t to = o->n * (ranks->first + ranks->size) / o->nranks;
    piece->count = 0;
    for (int64_t j = 0; j < o->lists[r].count; j++)
        if (o->lists[r].idx[j] >= from && o->lists[r].idx[j] < to)
            entries_add(piece, o->lists[r].idx[j], o->lists[r].val[j]);
}

/* Rank `to` sums its own entries and those of each rank whose position in its part leads here. */
static void receive_all(exchange_oracle *o, const rank_range *f, int to) {
    const rank_range mine = child(f, part_of(f, to));
    oracle_entries piece = entries_alloc(o->n);
    sum_begin(o);
    for (int r = f->first; r < f->first + f->size; r++) {
        const rank_range theirs = child(f, part_of(f, r));
        cut_out(o, r, &mine, &piece);
        if (theirs.first != mine.first) {
            if (mine.first + (r - theirs.first) % mine.size != to)
                continue;
            keep_best(o, &piece, share(o, mine.size, f->size));
            drop_all(o, r, &o->dropped);
        }
        if (theirs.first != mine.first || r == to)
            sum_add(o, &piece);
    }
    sum_take(o, &o->next[to]);
    keep_best(o, &o->next[to], o->k);
    drop_all(o, to, &o->dropped);
    entries_free(&piece);
}

static void scatter(exchange_oracle *o, const rank_range *f) {
    if (f->levels == 0)
        return;
    for (int r = f->first; r < f->first + f->size; r++)
        receive_all(o, f, r);
    for (int r = f->first; r < f->first + f->size; r++)
        entries_copy(&o->lists[r], &o->next[r]);
    for (int part = 0; part < f->parts; part++) {
        const rank_range c = child(f, part);
        scatter(o, &c);
    }
}

/* The best sums of these ranks, appended to all. */
static void gather(exchange_oracle *o, const rank_range *f, oracle_entries *all) {
    oracle_entries best = entries_alloc(o->n);
    if (f->levels == 0)
        entries_copy(&best, &o->lists[f->first]);
    for (int part = 0; part < f->parts && f->levels > 0; part++) {
        const rank_range c = child(f, part);
        gather(o, &c, &best);
    }
    keep_best(o, &best, share(o, f->size, o->nranks));
    for (int64_t j = 0; j < best.count; j++)
        entries_add(all, best.idx[j], best.val[j]);
    entries_free(&best);
}

/* The result in the order of indices; a sum that is not in it stays with the rank that has it. */
static void restore_order(exchange_oracle *o, const oracle_entries *result) {
    sum_begin(o);
    for (int64_t j = 0; j < result->count; j++) {
        o->sum[o->element[result->idx[j]]] = result->val[j];
        o->present[o->element[result->idx[j]]] = 1;
    }
    sum_take(o, &o->applied);
    for (int r = 0; r < o->nranks; r++)
        for (int64_t j = 0; j < o->lists[r].count; j++)
            if (!o->present[o->element[o->lists[r].idx[j]]])
                o->undelivered[r][o->element[o->lists[r].idx[j]]] += o->lists[r].val[j];
}

static void exchange_butterfly(exchange_oracle *o) {
    oracle_entries result = entries_alloc(o->n);
    int levels = 0;
    for (int served = 1; served < o->nranks; served *= 8)
        levels++;
    const rank_range all = range_of(0, o->nranks, levels);
    interleave(o);
    for (int r = 0; r < o->nranks; r++) {
        leave_residual(o, r);
        interleave_list(o, r);
    }
    scatter(o, &all);
    gather(o, &all, &result);
    restore_order(o, &result);
    for (int r = 0; r < o->nranks; r++)
        return_undelivered(o, r);
    entries_free(&result);
}

/* ---- The table ------------------------------------------------------------------------------- */

typedef struct exchange_row {
    const char *name;
    void (*run)(exchange_oracle *o); /* NULL: dense */
    int bounded;                     /* k < oktopk_from is left to butterfly */
} exchange_row;

static const exchange_row rows[] = {
    {"dense", NULL, 0},
    {"allgather", exchange_allgather, 0},
    {"dsa", exchange_allgather, 0},
    {"gtopk", exchange_gtopk, 0},
    {"oktopk", exchange_oktopk, 1},
    {"fulltopk", exchange_fulltopk, 1},
    {"butterfly", exchange_butterfly, 0},
    {"twolevel", exchange_butterfly, 0},
};

static const exchange_row *find_row(const char *exchange) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, exchange) == 0)
            return &rows[i];
    return NULL;
}

int exchange_oracle_knows(const char *exchange) {
    return find_row(exchange) != NULL;
}

static const exchange_row *row_of(const char *exchange) {
    const exchange_row *row = find_row(exchange);
    if (!row) {
        fprintf(stderr, "exchange_oracle.c has no row for exchange %s\n", exchange);
        abort();
    }
    return row;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static float mean_or_sum(const exchange_oracle *o, float sum) {
    return o->result == TW_MEAN ? sum / (float)o->nranks : sum;
}

static void step_dense(exchange_oracle *o, float *const *grads) {
    for (int64_t i = 0; i < o->n; i++) {
        float sum = grads[0][i];
        for (int r = 1; r < o->nranks; r++)
            sum += grads[r][i];
        o->out[i] = mean_or_sum(o, sum);
    }
}

static void step_sparse(exchange_oracle *o, float *const *grads) {
    const exchange_row *row = row_of(o->exchange);
    if (row->bounded && o->k < o->oktopk_from)
        row = row_of("butterfly");
    o->used = row->name;
    for (int r = 0; r < o->nranks; r++)
        fold_and_select(o, r, grads[r]);
    row->run(o);
    memset(o->out, 0, (size_t)o->n * sizeof *o->out);
    for (int64_t j = 0; j < o->applied.count; j++)
        o->out[o->applied.idx[j]] = mean_or_sum(o, o->applied.val[j]);
    for (int r = 0; o->feedback == TW_FEEDBACK_OFF && r < o->nranks; r++)
        memset(o->residual[r], 0, (size_t)o->n * sizeof(float));
}

void exchange_oracle_step(exchange_oracle *o, float *const *grads) {
    o->used = o->exchange;
    if (row_of(o->exchange)->run == NULL)
        step_dense(o, grads);
    else
        step_sparse(o, grads);
    o->steps++;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

const char *support_name(support_kind kind) {
    static const char *const names[] = {
#define ORACLE_SUPPORT_TEXT(name, text) text,
        ORACLE_SUPPORTS(ORACLE_SUPPORT_TEXT)
#undef ORACLE_SUPPORT_TEXT
    };
    return names[kind];
}

/* One of the `width` indices from start on, modulo n. */
static int64_t within(const support *s, oracle_rng *rng, int64_t start, int64_t width) {
    return (start + oracle_below(rng, width > 0 ? width : 1)) % s->n;
}

static int64_t disjoint(const support *s, oracle_rng *rng, int rank) {
    const int64_t turns = (s->n - rank + s->nranks - 1) / s->nranks;
    return turns > 0 ? rank + s->nranks * oracle_below(rng, turns) : 0;
}

/* In clump j mod P. */
static int64_t clump(const support *s, oracle_rng *rng, int64_t j) {
    const int64_t start = j % s->nranks * s->n / s->nranks + s->n / (2 * s->nranks);
    return within(s, rng, start, 2 * s->k / s->nranks + 1);
}

/* Each needle holds a little more than 2k entries of all ranks together, and lies anywhere in its
 * part of the vector. */
static int64_t needle(const support *s, int step, int64_t j) {
    const int64_t needles = s->nranks < 3 ? 1 : s->nranks * 29 / 64, part = s->n / needles;
    oracle_rng rng = {.key = (s->seed * 1009 + (uint64_t)step) * 65537 + (uint64_t)(j % needles)};
    return (j % needles * part + oracle_below(&rng, part + 1) + j / needles) % s->n;
}

/* Which kind an alternating support is at this rank and step. */
static support_kind alternate(int rank, int step) {
    static const support_kind turn[] = {SUPPORT_START, SUPPORT_END, SUPPORT_RANDOM,
                                        SUPPORT_NEIGHBOUR, SUPPORT_CLUMPS};
    return turn[(step + (step % 3 == 2 ? rank : 0)) % 5];
}

/* The index of entry j of k. */
static int64_t index_of(const support *s, support_kind kind, oracle_rng *rng, int rank, int step,
                        int64_t j) {
    const int64_t n = s->n, part = n / s->nranks;
    switch (kind) {
    case SUPPORT_RANDOM:
    case SUPPORT_IDENTICAL: /* by the seed */
        return within(s, rng, 0, n);
    case SUPPORT_DRIFT:
        return within(s, rng, step * (n / 40 + 1), n / 4);
    case SUPPORT_DISJOINT:
        return disjoint(s, rng, rank);
    case SUPPORT_REGION:
        return within(s, rng, n / 3, smaller(n, 2 * s->k));
    case SUPPORT_NEIGHBOUR:
        return within(s, rng, (rank + 1) % s->nranks * part, part);
    case SUPPORT_CLUMPS:
        return clump(s, rng, j);
    case SUPPORT_NEEDLES:
        return needle(s, step, j);
    case SUPPORT_START:
        return j;
    case SUPPORT_MIDDLE:
        return (n - s->k) / 2 + j;
    case SUPPORT_END:
        return n - s->k + j;
    case SUPPORT_ALTERNATING:
        return index_of(s, alternate(rank, step), rng, rank, step, j);
    case SUPPORT_KINDS:
        break;
    }
    abort();
}

static float noise(const support *s, oracle_rng *rng) {
    if (s->summable)
        return (float)(oracle_below(rng, 201) - 100) * 0x1p-10f;
    return 0.1f * (float)oracle_gauss(rng);
}

static float large(const support *s, oracle_rng *rng) {
    if (!s->summable)
        return 10.0f * (float)oracle_gauss(rng);
    const int64_t magnitude = (1000 + oracle_below(rng, 2001)) >> oracle_below(rng, 4);
    return (float)(oracle_next(rng) & 1 ? magnitude : -magnitude) * 0x1p-10f;
}

void support_fill(const support *s, int rank, int step, float *x) {
    const uint64_t seed = (s->seed * 1009 + (uint64_t)step) * 65537;
    oracle_rng indices = {.key = seed + (s->kind == SUPPORT_IDENTICAL ? 0 : (uint64_t)rank + 1)};
    oracle_rng values = {.key = seed * 31 + (uint64_t)rank};
    for (int64_t i = 0; i < s->n; i++)
        x[i] = s->noise ? noise(s, &values) : 0.0f;
    for (int64_t j = 0; j < s->k; j++)
        x[index_of(s, s->kind, &indices, rank, step, j)] = large(s, &values);
}
