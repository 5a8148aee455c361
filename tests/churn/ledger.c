/* ledger.c - what every process must hold after every step
 *
 * All numbers are integers, so sums are exact. After each step:
 *   - all members have the same results since the job began, by a hash
 *   - each began with the residual that the ledger has for it: nothing changed in between, but for what
 *     it inherited from one that left
 *   - all gradients given = all results applied + residuals of members + residuals lost with the dead
 *
 * A process may die in a step that the others complete with its gradient. Then its residual is that of a
 * twin: a fresh group of threads with the same residuals and gradients. The twin must give the others'
 * residuals and results too. */
#include "churn.h"

#include "group/group.h"
#include "oracle.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ledger {
    step_members last;
    int64_t counts[LIVES];                     /* steps of each life */
    float residuals[LIVES][N];                 /* after these */
    double given[N], applied[N], lost_with[N]; /* integers */
    int doubts;                                /* residuals that a twin has told */
};

ledger *ledger_open(void) {
    return calloc(1, sizeof(ledger));
}

int ledger_close(ledger *l) {
    int doubts = l->doubts;
    free(l);
    return doubts;
}

/* ---- who took part */

static int member_of(const step_members *m, int number) {
    for (int r = 0; r < m->nranks; r++)
        if (m->lives[r] == number)
            return 1;
    return 0;
}

/* The record of a life's next step; NULL: it has none. */
static const record *record_of(const ledger *l, int number) {
    const life *at = &j->lives[number];
    return at->done > l->counts[number] ? &at->records[l->counts[number] % RING] : NULL;
}

/* Any record of the next step; NULL: nobody has completed it. */
static const record *first_record(const ledger *l) {
    for (int i = 0; i < j->nlives; i++) {
        const record *r = record_of(l, i);
        if (r != NULL && r->step == j->checked + 1)
            return r;
    }
    return NULL;
}

/* Whether all that took part are known, and have said what they have to say. */
static int find_members(const ledger *l, const record *first, step_members *m) {
    *m = (step_members){.nranks = first->nranks};
    for (int r = 0; r < m->nranks; r++) {
        int number = m->lives[r] = j->who[first->version % VERSIONS][r] - 1;
        const record *own = record_of(l, number);
        if (own == NULL && ended[number] < 0)
            return 0;
        if (own != NULL && own->when > m->when)
            m->when = own->when;
    }
    for (int r = 0; r < l->last.nranks; r++)
        if (!member_of(m, l->last.lives[r]) && ended[l->last.lives[r]] < 0)
            return 0;
    return 1;
}

/* ---- those that went */

/* One that died or was excluded in tw_group_leave has handed its residual over, or not: its heir tells by the first
 * element that is not zero. ledger_next then compares all of them. */
static int has_left(const ledger *l, int number) {
    const life *at = &j->lives[number], *heir = &j->lives[at->heir];
    if (ended[number] == LEFT || !at->leaving)
        return ended[number] == LEFT;
    const float *before = heir->before[l->counts[at->heir] % RING];
    int i = 0;
    while (i < N - 1 && l->residuals[number][i] == 0)
        i++;
    return before[i] != l->residuals[at->heir][i];
}

static void move(ledger *l, int number, int to_heir) {
    const float *residual = l->residuals[number];
    float *heir = l->residuals[j->lives[number].heir];
    for (int i = 0; i < N; i++)
        if (to_heir)
            heir[i] += residual[i];
        else
            l->lost_with[i] += residual[i];
}

/* Those that left come before those that died: an heir may be among the dead. */
static void settle_gone(ledger *l, const step_members *m) {
    int left[2 * MOST] = {0};
    for (int r = 0; r < l->last.nranks; r++)
        left[r] = !member_of(m, l->last.lives[r]) && has_left(l, l->last.lives[r]);
    for (int r = 0; r < l->last.nranks; r++)
        if (left[r])
            move(l, l->last.lives[r], 1);
    for (int r = 0; r < l->last.nranks; r++)
        if (!left[r] && !member_of(m, l->last.lives[r]))
            move(l, l->last.lives[r], 0);
}

/* ---- the twin */

typedef struct twin_rank {
    ledger *l;
    int number;
    tw_transport *transport;
    float out[N], residual[N];
    int status;
    char text[256];
    pthread_t thread;
} twin_rank;

static int twin_step(twin_rank *t, tw_group *g) {
    float grad[N];
    tw_selector *selector = g->tensors[0].selector;
    if (selector != NULL)
        TW_TRY(tw_selector_set_residual(selector, t->l->residuals[t->number]));
    life_gradient(t->number, t->l->counts[t->number], grad);
    TW_TRY(tw_allreduce(g, 0, grad, t->out));
    return tw_group_get_residual(g, 0, t->residual);
}

static void *twin_main(void *context) {
    twin_rank *t = context;
    tw_group *g = NULL;
    tw_group_params params = life_params();
    params.membership = TW_MEMBERSHIP_FIXED;
    params.timeout = 60;
    t->status = tw_group_create(&g, t->transport, &params);
    if (t->status == TW_OK)
        t->status = tw_group_add(g, N, NULL, NULL);
    if (t->status == TW_OK)
        t->status = tw_group_open(g);
    if (t->status == TW_OK)
        t->status = twin_step(t, g);
    if (t->status != TW_OK)
        snprintf(t->text, sizeof t->text, "%s", tw_last_error());
    tw_group_free(g);
    tw_transport_free(t->transport);
    return NULL;
}

static int run_twin(ledger *l, const step_members *m, twin_rank *twins) {
    tw_transport *transports[2 * MOST];
    TW_TRY(tw_transport_threads(transports, m->nranks));
    for (int r = 0; r < m->nranks; r++) {
        twins[r] = (twin_rank){.l = l, .number = m->lives[r], .transport = transports[r]};
        if (pthread_create(&twins[r].thread, NULL, twin_main, &twins[r]) != 0)
            abort();
    }
    for (int r = 0; r < m->nranks; r++)
        pthread_join(twins[r].thread, NULL);
    return TW_OK;
}

/* ---- the comparison */

static int differ(const float *a, const float *b, const char *what, int number, char *text,
                  size_t size) {
    int64_t at = oracle_difference(a, b, N);
    if (at < 0)
        return 0;
    snprintf(text, size, "%s of process %d: [%d] is %g, not %g", what, number, (int)at, a[at],
             b[at]);
    return 1;
}

/* Results of the members, and what each had before. */
static int check_members(ledger *l, const step_members *m, const record *first, char *text,
                         size_t size) {
    for (int r = 0; r < m->nranks; r++) {
        int number = m->lives[r];
        const record *own = record_of(l, number);
        const life *at = &j->lives[number];
        if (differ(at->before[l->counts[number] % RING], l->residuals[number],
                   "residual before the step", number, text, size))
            return -1;
        if (own != NULL && (own->chain != first->chain || own->version != first->version ||
                            own->step != first->step || own->nranks != first->nranks)) {
            snprintf(text, size,
                     "process %d: step %lld, version %u, %d ranks, hash %llx; another: step %lld, "
                     "version %u, %d ranks, hash %llx",
                     number, (long long)own->step, own->version, own->nranks,
                     (unsigned long long)own->chain, (long long)first->step, first->version,
                     first->nranks, (unsigned long long)first->chain);
            return -1;
        }
    }
    return 0;
}

/* Residuals after the step, of the dead too. */
static int take_residuals(ledger *l, const step_members *m, const record *first, char *text,
                          size_t size) {
    static twin_rank twins[2 * MOST];
    int missing = 0;
    for (int r = 0; r < m->nranks; r++)
        missing += record_of(l, m->lives[r]) == NULL;
    if (missing > 0 && run_twin(l, m, twins) != TW_OK)
        abort();
    for (int r = 0; r < m->nranks; r++) {
        int number = m->lives[r];
        const record *own = record_of(l, number);
        if (missing > 0 && twins[r].status != TW_OK) {
            snprintf(text, size, "twin: %s", twins[r].text);
            return -1;
        }
        if (missing > 0 && (differ(first->out, twins[r].out, "result", number, text, size) ||
                            (own != NULL && differ(own->residual, twins[r].residual, "residual",
                                                   number, text, size))))
            return -1;
        memcpy(l->residuals[number], own != NULL ? own->residual : twins[r].residual,
               sizeof l->residuals[number]);
    }
    l->doubts += missing;
    return 0;
}

static int check_sums(ledger *l, const step_members *m, const record *first, char *text,
                      size_t size) {
    float grad[N];
    for (int r = 0; r < m->nranks; r++) {
        life_gradient(m->lives[r], l->counts[m->lives[r]], grad);
        for (int i = 0; i < N; i++)
            l->given[i] += grad[i];
    }
    for (int i = 0; i < N; i++) {
        double held = l->lost_with[i] + (l->applied[i] += first->out[i]);
        for (int r = 0; r < m->nranks; r++)
            held += l->residuals[m->lives[r]][i];
        if (held != l->given[i]) {
            snprintf(text, size, "step %lld, element %d: %g was given, %g is there",
                     (long long)first->step, i, l->given[i], held);
            return -1;
        }
    }
    return 0;
}

int ledger_next(ledger *l, step_members *complete, char *text, size_t size) {
    step_members m; /* those of the last step stay in *complete until this one is */
    const record *first = first_record(l);
    if (first == NULL || !find_members(l, first, &m))
        return 0;
    settle_gone(l, &m);
    if (check_members(l, &m, first, text, size) < 0 ||
        take_residuals(l, &m, first, text, size) < 0 || check_sums(l, &m, first, text, size) < 0)
        return -1;
    for (int r = 0; r < m.nranks; r++)
        l->counts[m.lives[r]]++;
    l->last = *complete = m;
    j->chains[first->step % RING] = first->chain;
    j->checked++;
    return 1;
}
