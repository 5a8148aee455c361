/* simulate_run.c - one row: every rank a thread that runs the real exchange on a simulated clock
 *
 * Steps begin together, as where training computes in between: after each comes a barrier, and all
 * clocks advance to the latest. The time of a step is from there to the latest clock after it, as a
 * mean over the steps that count.
 *
 * Where vectors are 1/scale of what they should be, a byte of payload counts as scale bytes;
 * control is as large as it should be.
 *
 * `auto` tries what it might choose; its steps count once it has settled.
 */
#include "simulate/simulate.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "bench/patterns.h"
#include "job.h"
#include "vector.h"

#define STACK ((size_t)256 << 10)
#define TIMEOUT 3600 /* real seconds: the whole machine may be one core for 2048 ranks */
#define PAIR 1500    /* bytes for the messages between two ranks: 1024 ranks took 1.5 GB of them */
#define MOST_TRIALS 120 /* steps that auto may take to settle: 24 candidates of 3 to 5 each */

typedef struct sim_rank {
    struct sim_run *run;
    int rank;
    tw_transport *transport;
    float *grad;       /* [n] */
    double *clocks;    /* [steps + 1] */
    double *exchanges; /* [steps]: seconds of each */
    int64_t payload, control, messages;
    tw_step_info last;
    tw_choice choice; /* of auto */
    int64_t trials;
    error_capture error;
} sim_rank;

typedef struct sim_run {
    const simulate_settings *settings;
    const simulate_row *row;
    simulate_size size;
    pattern_spec made;
    tw_transport **transports; /* [nranks] */
    sim_rank *ranks;           /* [nranks] */
    float *grads;              /* [nranks][n] */
    double *times;             /* [nranks][2 steps + 1]: clocks and exchanges */
    pthread_mutex_t lock;      /* guards what follows */
    pthread_cond_t released;
    int present, waiting; /* ranks that have not left, and that wait for the others */
    int64_t generation;   /* of the barrier */
} sim_run;

static int create_group(const sim_run *run, tw_transport *transport, tw_group **group) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = run->row->scheme;
    params.wire = run->row->wire;
    params.select.k = run->row->dense ? 0 : run->size.k;
    params.select.threads = 1;
    params.select.seed = (uint64_t)run->settings->seed;
    params.timeout = TIMEOUT;
    TW_TRY(tw_group_create(group, transport, &params));
    return tw_group_add(*group, run->size.n, NULL, NULL);
}

static int one_step(sim_rank *self, tw_group *group, int64_t step) {
    const sim_run *run = self->run;
    pattern_fill(&run->made, self->rank, step, 0, run->size.n, self->grad);
    int error = tw_transport_elapse(self->transport, 0.0); /* making gradients takes no time */
    if (error == TW_OK)
        error = tw_allreduce(group, 0, self->grad, self->grad);
    return error == TW_OK ? tw_group_info(group, 0, &self->last) : error;
}

static void note_step(sim_rank *self, int64_t step) {
    const tw_traffic *moved = &self->last.traffic;
    self->exchanges[step] = self->last.exchange_seconds;
    if (step == 0)
        return;
    self->payload = larger(self->payload, moved->payload_sent);
    self->control = larger(self->control, larger(moved->control_sent, moved->control_received));
    self->messages = larger(self->messages, moved->messages_sent);
}

/* Steps until the group has chosen, the same number on all ranks. */
static int settle(sim_rank *self, tw_group *group) {
    int error = tw_group_choice(group, 0, &self->choice);
    while (error == TW_OK && !self->choice.settled && self->trials < MOST_TRIALS) {
        error = one_step(self, group, self->trials++);
        if (error == TW_OK)
            error = tw_group_choice(group, 0, &self->choice);
    }
    return error;
}

static double latest(const sim_run *run, int64_t moment) {
    double last = 0.0;
    for (int r = 0; r < run->row->nranks; r++) {
        double clock = run->ranks[r].clocks[moment];
        last = clock > last ? clock : last;
    }
    return last;
}

/* The lock is held. */
static void release_if_complete(sim_run *run) {
    if (run->waiting == run->present) {
        run->waiting = 0;
        run->generation++;
        pthread_cond_broadcast(&run->released);
    }
}

/* Waits for all ranks that have not left. */
static void barrier(sim_run *run) {
    pthread_mutex_lock(&run->lock);
    int64_t generation = run->generation;
    run->waiting++;
    release_if_complete(run);
    while (run->generation == generation)
        pthread_cond_wait(&run->released, &run->lock);
    pthread_mutex_unlock(&run->lock);
}

static void leave(sim_run *run) {
    pthread_mutex_lock(&run->lock);
    run->present--;
    release_if_complete(run);
    pthread_mutex_unlock(&run->lock);
}

/* Notes the rank's clock, and advances it to that of the latest rank. */
static int synchronise(sim_rank *self, int64_t moment) {
    double clock = tw_transport_clock(self->transport);
    self->clocks[moment] = clock;
    barrier(self->run);
    return tw_transport_elapse(self->transport, latest(self->run, moment) - clock);
}

static int all_steps(sim_rank *self, tw_group *group) {
    const sim_run *run = self->run;
    int error = tw_group_open(group);
    if (error == TW_OK && run->row->automatic)
        error = settle(self, group);
    if (error == TW_OK)
        error = synchronise(self, 0);
    for (int64_t step = 0; step < run->settings->steps && error == TW_OK; step++) {
        error = one_step(self, group, self->trials + step);
        if (error == TW_OK) {
            note_step(self, step);
            error = synchronise(self, step + 1);
        }
    }
    return error;
}

static void rank_main(void *context, int rank) {
    sim_run *run = context;
    sim_rank *self = &run->ranks[rank];
    tw_group *group = NULL;
    error_capture_in(&self->error);
    int error = create_group(run, self->transport, &group);
    if (error == TW_OK)
        error = all_steps(self, group);
    leave(run);
    (void)error_check("simulating", error);
    tw_group_free(group);
}

/* Refuse what the kernel would promise and then kill us for. Half of a group's undo space is more
 * than a step touches; of a stack a few pages are used. */
static int check_memory(const sim_run *run) {
    tw_group *group = NULL;
    tw_memory memory = {0};
    int error = create_group(run, run->transports[0], &group);
    if (error == TW_OK)
        error = tw_group_memory(group, &memory);
    tw_group_free(group);
    if (error != TW_OK)
        return error_check("preparing", error);
    double vector = (double)run->size.n * sizeof(float);
    double each = vector + (double)memory.total - 0.5 * (double)memory.undo + 64e3;
    double nranks = run->row->nranks;
    double bytes = each * nranks + PAIR * nranks * nranks;
    if (bytes > (double)vector_available()) {
        return error_report("%s with %d ranks takes %.1f GB, more than the %.1f GB that are free; "
                            "try fewer --ranks",
                            run->row->scheme, run->row->nranks, bytes * 1e-9,
                            (double)vector_available() * 1e-9);
    }
    return STATUS_OK;
}

static int make_ranks(sim_run *run) {
    size_t nranks = (size_t)run->row->nranks, n = (size_t)run->size.n;
    size_t steps = (size_t)run->settings->steps, times = 2 * steps + 1;
    run->ranks = calloc(nranks, sizeof *run->ranks);
    run->grads = malloc(nranks * n * sizeof *run->grads);
    run->times = calloc(nranks * times, sizeof *run->times);
    if (run->ranks == NULL || run->grads == NULL || run->times == NULL)
        return error_report("not enough memory for %zu ranks; try fewer --ranks", nranks);
    for (size_t r = 0; r < nranks; r++) {
        run->ranks[r] = (sim_rank){.run = run,
                                   .rank = (int)r,
                                   .transport = run->transports[r],
                                   .grad = run->grads + r * n,
                                   .clocks = run->times + r * times,
                                   .exchanges = run->times + r * times + steps + 1};
    }
    return STATUS_OK;
}

/* Of the slowest rank, as a mean over the steps but the first. */
static double mean_exchange(const sim_run *run) {
    int64_t steps = run->settings->steps;
    double sum = 0.0;
    for (int64_t step = 1; step < steps; step++) {
        double longest = 0.0;
        for (int r = 0; r < run->row->nranks; r++) {
            double its = run->ranks[r].exchanges[step];
            longest = its > longest ? its : longest;
        }
        sum += longest;
    }
    return sum / (double)(steps - 1);
}

static void summarise(const sim_run *run, simulate_result *result) {
    int64_t steps = run->settings->steps;
    *result = (simulate_result){.size = run->size};
    for (int r = 0; r < run->row->nranks; r++) {
        const sim_rank *one = &run->ranks[r];
        result->payload = larger(result->payload, one->payload);
        result->control = larger(result->control, one->control);
        result->messages = larger(result->messages, one->messages);
    }
    result->choice = run->ranks[0].choice;
    result->trials = run->ranks[0].trials;
    snprintf(result->exchange, sizeof result->exchange, "%s", run->ranks[0].last.exchange);
    snprintf(result->wire, sizeof result->wire, "%s", run->ranks[0].last.wire);
    result->time = (latest(run, steps) - latest(run, 1)) / (double)(steps - 1);
    result->exchanging = mean_exchange(run);
    result->payload = (int64_t)((double)result->payload * run->size.scale + 0.5);
}

static int connect_ranks(sim_run *run) {
    tw_network network = run->settings->network;
    network.payload_scale = run->size.scale;
    network.seed = (uint64_t)run->settings->seed;
    run->transports = calloc((size_t)run->row->nranks, sizeof(tw_transport *));
    if (run->transports == NULL)
        return error_report("not enough memory for %d ranks; try fewer --ranks", run->row->nranks);
    return error_check("connecting the ranks",
                       tw_transport_simulated(run->transports, run->row->nranks, &network));
}

int simulate_run(const simulate_settings *settings, const simulate_row *row,
                 simulate_result *result) {
    assert(settings->steps >= 2 && row->nranks >= 1);
    sim_run run = {.settings = settings,
                   .row = row,
                   .size = row->size.scale > 0.0 ? row->size : simulate_size_of(row),
                   .lock = PTHREAD_MUTEX_INITIALIZER,
                   .released = PTHREAD_COND_INITIALIZER,
                   .present = row->nranks};
    run.made = (pattern_spec){.kind = settings->pattern,
                              .n = run.size.n,
                              .k = row->dense ? 0 : run.size.k,
                              .seed = (uint64_t)settings->seed};
    int status = connect_ranks(&run);
    if (status == STATUS_OK)
        status = check_memory(&run);
    if (status == STATUS_OK)
        status = make_ranks(&run);
    if (status == STATUS_OK)
        status = job_threads(row->nranks, STACK, rank_main, &run);
    for (int r = 0; r < row->nranks && status == STATUS_OK; r++)
        if (run.ranks[r].error.text[0] != '\0')
            status = error_report("rank %d: %s", r, run.ranks[r].error.text);
    if (status == STATUS_OK) {
        summarise(&run, result);
        simulate_formula(row, &settings->network, result);
    }
    for (int r = 0; run.transports != NULL && r < row->nranks; r++)
        tw_transport_free(run.transports[r]);
    free(run.transports);
    free(run.ranks);
    free(run.grads);
    free(run.times);
    return status;
}
