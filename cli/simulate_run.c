/* simulate_run.c - one row: every rank a thread that runs the real exchange on a virtual clock
 *
 * Steps begin together, as where training computes in between: after each, ranks meet, and all clocks
 * are put forward to the latest. A step takes from there to the latest clock after it, as a mean over
 * the steps that count.
 *
 * Where vectors are 1/scale of what they should be, a byte of payload counts as scale bytes; control
 * is as large as it should be.
 *
 * `auto` tries what it might choose; its steps count once it has settled.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "buffer.h"
#include "errors.h"
#include "names.h"
#include "patterns.h"
#include "simulate.h"

#define STACK ((size_t)256 << 10)
#define TIMEOUT 3600 /* real seconds: the whole machine may be one core for 2048 ranks */
#define PAIR 1500    /* bytes for the messages between two ranks: 1024 ranks took 1.5 GB of them */
#define TEXT 512
#define MOST_TRIALS 120 /* steps that auto may take to settle: 24 candidates of 3 to 5 each */

typedef struct sim_rank {
    struct sim_crew *crew;
    pthread_t thread;
    int rank;
    tw_transport *transport;
    float *grad;       /* [n] */
    double *clocks;    /* [steps + 1] */
    double *exchanges; /* [steps]: seconds of each */
    int64_t payload, control, messages;
    tw_step_info last;
    tw_choice choice; /* of auto */
    int64_t trials;
    char text[TEXT]; /* what failed; "" if nothing did */
} sim_rank;

typedef struct sim_crew {
    const simulate_settings *settings;
    const simulate_row *row;
    simulate_size size;
    pattern_spec made;
    tw_transport **transports; /* [nranks] */
    sim_rank *ranks;           /* [nranks] */
    float *grads;              /* [nranks][n] */
    double *clocks;            /* [nranks][steps + 1] */
    double *exchanges;         /* [nranks][steps] */
    pthread_mutex_t gate;      /* held until all threads exist; guards what follows */
    pthread_cond_t met;
    bool called_off;
    int present, waiting; /* ranks that have not left, and that wait for the others */
    int64_t meetings;
} sim_crew;

/* ---- One rank ------------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int create_group(const sim_crew *crew, tw_transport *transport, tw_group **group) {
    tw_group_params params = TW_GROUP_PARAMS_INIT;
    params.scheme = crew->row->scheme;
    params.wire = crew->row->wire;
    params.select.k = crew->row->dense ? 0 : crew->size.k;
    params.select.threads = 1;
    params.select.seed = (uint64_t)crew->settings->seed;
    params.timeout = TIMEOUT;
    int error = tw_group_create(group, transport, &params);
    return error == TW_OK ? tw_group_add(*group, crew->size.n, NULL, NULL) : error;
}

static int one_step(sim_rank *self, tw_group *group, int64_t step) {
    const sim_crew *crew = self->crew;
    pattern_fill(&crew->made, self->rank, step, 0, crew->size.n, self->grad);
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

static double latest(const sim_crew *crew, int64_t moment) {
    double last = 0.0;
    for (int r = 0; r < crew->row->nranks; r++) {
        double clock = crew->clocks[r * (crew->settings->steps + 1) + moment];
        last = clock > last ? clock : last;
    }
    return last;
}

/* The gate is held. */
static void meet_if_complete(sim_crew *crew) {
    if (crew->waiting == crew->present) {
        crew->waiting = 0;
        crew->meetings++;
        pthread_cond_broadcast(&crew->met);
    }
}

/* Waits until all ranks that have not left are here. */
static void meet(sim_crew *crew) {
    pthread_mutex_lock(&crew->gate);
    int64_t meeting = crew->meetings;
    crew->waiting++;
    meet_if_complete(crew);
    while (crew->meetings == meeting)
        pthread_cond_wait(&crew->met, &crew->gate);
    pthread_mutex_unlock(&crew->gate);
}

static void leave(sim_crew *crew) {
    pthread_mutex_lock(&crew->gate);
    crew->present--;
    meet_if_complete(crew);
    pthread_mutex_unlock(&crew->gate);
}

/* Notes the rank's clock, and puts it forward to that of the latest rank. */
static int meet_at(sim_rank *self, int64_t moment) {
    double clock = tw_transport_clock(self->transport);
    self->clocks[moment] = clock;
    meet(self->crew);
    return tw_transport_elapse(self->transport, latest(self->crew, moment) - clock);
}

static int all_steps(sim_rank *self, tw_group *group) {
    const sim_crew *crew = self->crew;
    int error = tw_group_open(group);
    if (error == TW_OK && crew->row->automatic)
        error = settle(self, group);
    if (error == TW_OK)
        error = meet_at(self, 0);
    for (int64_t step = 0; step < crew->settings->steps && error == TW_OK; step++) {
        error = one_step(self, group, self->trials + step);
        if (error == TW_OK) {
            note_step(self, step);
            error = meet_at(self, step + 1);
        }
    }
    return error;
}

static void *play_rank(void *argument) {
    sim_rank *self = argument;
    sim_crew *crew = self->crew;
    pthread_mutex_lock(&crew->gate);
    bool off = crew->called_off;
    pthread_mutex_unlock(&crew->gate);
    tw_group *group = NULL;
    int error = off ? TW_OK : create_group(crew, self->transport, &group);
    if (error == TW_OK && !off)
        error = all_steps(self, group);
    leave(crew);
    if (error != TW_OK)
        library_failure_text(self->text, sizeof self->text, "simulating", error);
    tw_group_free(group);
    return NULL;
}

/* ---- All of them ---------------------------------------------------------------------------- */

static int start_and_join(sim_crew *crew) {
    int nranks = crew->row->nranks, started = 0;
    pthread_attr_t small;
    if (pthread_attr_init(&small) != 0 || pthread_attr_setstacksize(&small, STACK) != 0)
        return failure("threads with small stacks cannot be had");
    pthread_mutex_lock(&crew->gate);
    while (started < nranks && pthread_create(&crew->ranks[started].thread, &small, play_rank,
                                              &crew->ranks[started]) == 0)
        started++;
    crew->called_off = started < nranks;
    pthread_mutex_unlock(&crew->gate);
    for (int r = 0; r < started; r++)
        pthread_join(crew->ranks[r].thread, NULL);
    pthread_attr_destroy(&small);
    if (started < nranks) {
        return failure("only %d of %d threads could be started; try fewer --ranks", started,
                       nranks);
    }
    for (int r = 0; r < nranks; r++)
        if (crew->ranks[r].text[0] != '\0')
            return failure("rank %d: %s", r, crew->ranks[r].text);
    return STATUS_OK;
}

/* Refuse what the kernel would promise and then kill us for. Half of a group's undo space is more
 * than a step touches; of a stack a few pages are used. */
static int check_memory(const sim_crew *crew) {
    tw_group *group = NULL;
    tw_memory memory = {0};
    int error = create_group(crew, crew->transports[0], &group);
    if (error == TW_OK)
        error = tw_group_memory(group, &memory);
    tw_group_free(group);
    if (error != TW_OK)
        return library_failure("preparing", error);
    double vector = (double)crew->size.n * sizeof(float);
    double each = vector + (double)memory.total - 0.5 * (double)memory.undo + 64e3;
    double nranks = crew->row->nranks;
    double bytes = each * nranks + PAIR * nranks * nranks;
    if (bytes > (double)buffer_available()) {
        return failure("%s with %d ranks takes %.1f GB, more than the %.1f GB that are free; try "
                       "fewer --ranks",
                       crew->row->scheme, crew->row->nranks, bytes * 1e-9,
                       (double)buffer_available() * 1e-9);
    }
    return STATUS_OK;
}

static int seat_ranks(sim_crew *crew) {
    size_t nranks = (size_t)crew->row->nranks, n = (size_t)crew->size.n;
    size_t steps = (size_t)crew->settings->steps, moments = steps + 1;
    crew->ranks = calloc(nranks, sizeof *crew->ranks);
    crew->grads = malloc(nranks * n * sizeof *crew->grads);
    crew->clocks = calloc(nranks * moments, sizeof *crew->clocks);
    crew->exchanges = calloc(nranks * steps, sizeof *crew->exchanges);
    if (crew->ranks == NULL || crew->grads == NULL || crew->clocks == NULL ||
        crew->exchanges == NULL)
        return failure("not enough memory for %zu ranks; try fewer --ranks", nranks);
    for (size_t r = 0; r < nranks; r++) {
        crew->ranks[r] = (sim_rank){.crew = crew,
                                    .rank = (int)r,
                                    .transport = crew->transports[r],
                                    .grad = crew->grads + r * n,
                                    .clocks = crew->clocks + r * moments,
                                    .exchanges = crew->exchanges + r * steps};
    }
    return STATUS_OK;
}

/* ---- Results -------------------------------------------------------------------------------- */

/* Of the slowest rank, as a mean over the steps but the first. */
static double mean_exchange(const sim_crew *crew) {
    int64_t steps = crew->settings->steps;
    double sum = 0.0;
    for (int64_t step = 1; step < steps; step++) {
        double longest = 0.0;
        for (int r = 0; r < crew->row->nranks; r++) {
            double its = crew->ranks[r].exchanges[step];
            longest = its > longest ? its : longest;
        }
        sum += longest;
    }
    return sum / (double)(steps - 1);
}

static void summarise(const sim_crew *crew, simulate_result *result) {
    int64_t steps = crew->settings->steps;
    *result = (simulate_result){.size = crew->size};
    for (int r = 0; r < crew->row->nranks; r++) {
        const sim_rank *one = &crew->ranks[r];
        result->payload = larger(result->payload, one->payload);
        result->control = larger(result->control, one->control);
        result->messages = larger(result->messages, one->messages);
    }
    result->choice = crew->ranks[0].choice;
    result->trials = crew->ranks[0].trials;
    snprintf(result->exchange, sizeof result->exchange, "%s", crew->ranks[0].last.exchange);
    snprintf(result->wire, sizeof result->wire, "%s", crew->ranks[0].last.wire);
    result->time = (latest(crew, steps) - latest(crew, 1)) / (double)(steps - 1);
    result->exchanging = mean_exchange(crew);
    result->payload = (int64_t)((double)result->payload * crew->size.scale + 0.5);
}

static int connect_ranks(sim_crew *crew) {
    tw_network network = crew->settings->network;
    network.payload_scale = crew->size.scale;
    network.seed = (uint64_t)crew->settings->seed;
    crew->transports = calloc((size_t)crew->row->nranks, sizeof(tw_transport *));
    if (crew->transports == NULL)
        return failure("not enough memory for %d ranks; try fewer --ranks", crew->row->nranks);
    int error = tw_transport_simulated(crew->transports, crew->row->nranks, &network);
    return error == TW_OK ? STATUS_OK : library_failure("connecting the ranks", error);
}

int simulate_run(const simulate_settings *settings, const simulate_row *row,
                 simulate_result *result) {
    sim_crew crew = {.settings = settings,
                     .row = row,
                     .size = row->size.scale > 0.0 ? row->size : simulate_size_of(row),
                     .gate = PTHREAD_MUTEX_INITIALIZER,
                     .met = PTHREAD_COND_INITIALIZER,
                     .present = row->nranks};
    crew.made = (pattern_spec){.kind = settings->pattern,
                               .n = crew.size.n,
                               .k = row->dense ? 0 : crew.size.k,
                               .seed = (uint64_t)settings->seed};
    int status = connect_ranks(&crew);
    if (status == STATUS_OK)
        status = check_memory(&crew);
    if (status == STATUS_OK)
        status = seat_ranks(&crew);
    if (status == STATUS_OK)
        status = start_and_join(&crew);
    if (status == STATUS_OK) {
        summarise(&crew, result);
        simulate_formula(row, &settings->network, result);
    }
    for (int r = 0; crew.transports != NULL && r < row->nranks; r++)
        tw_transport_free(crew.transports[r]);
    free(crew.transports);
    free(crew.ranks);
    free(crew.grads);
    free(crew.clocks);
    free(crew.exchanges);
    return status;
}
