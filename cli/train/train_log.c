/* train_log.c - the run log, and the timeline in the trace event format
 *
 * The timeline is an array of complete events ("ph":"X"), times in us. Names are the trainer's own
 * words and need no escaping.
 */
#include "train/train.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

void train_log_run(jsonl *log, const train_settings *s, const trainer_spec *spec,
                   int64_t parameters, const job_handle *job) {
    const char *scheme, *select, *exchange;
    (void)tw_scheme(s->scheme, &scheme, &select, &exchange, NULL);
    jsonl_set(log, J_TEXT("kind", "run"), J_INT("version", 1),
              J_TEXT("name", s->name != NULL ? s->name : scheme), J_TEXT("model", spec->model.name),
              J_INT("parameters", parameters), J_TEXT("data", s->data), J_TEXT("scheme", scheme),
              J_TEXT("select", s->select >= 0 ? names_method(s->select) : select),
              J_TEXT("exchange", s->exchange >= 0 ? names_exchange(s->exchange) : exchange),
              J_REAL("density", s->density), J_INT("nranks", job->nranks),
              J_TEXT("transport", job_transport_name(job)), J_INT("batch", spec->batch),
              J_INT("steps", spec->steps), J_INT("epochs", s->epochs), J_INT("seed", s->seed),
              J_TEXT("optimizer", spec->optimizer.name), J_REAL("lr", spec->schedule.rate),
              J_REAL("momentum", s->momentum), J_REAL("weight_decay", s->weight_decay),
              J_INT("local_steps", s->local_steps));
    if (s->local_steps > 0)
        jsonl_set(log, J_REAL("outer_lr", s->outer_rate),
                  J_REAL("outer_momentum", s->outer_momentum), J_REAL("decay", s->decay),
                  J_FLAG("delayed", s->delayed),
                  J_TEXT("result", spec->group.result == TW_MEAN ? "mean" : "mean_of_senders"));
    jsonl_write(log);
}

void train_log_step(jsonl *log, const trainer_step *step) {
    const trainer_times *t = &step->times;
    jsonl_set(log, J_TEXT("kind", "step"), J_INT("step", step->step), J_INT("epoch", step->epoch),
              J_REAL("loss", step->loss), J_REAL("accuracy", step->accuracy),
              J_REAL("lr", step->rate), J_INT("k", step->k), J_REAL("density", step->density),
              J_INT("selected", step->selected), J_INT("applied", step->applied),
              J_INT("payload_sent", step->traffic.payload_sent),
              J_INT("payload_recv", step->traffic.payload_received),
              J_INT("control", step->traffic.control_sent),
              J_REAL("time_s", t->data + t->forward + t->backward + t->exposed + t->optimiser),
              J_REAL("data_s", t->data), J_REAL("forward_s", t->forward),
              J_REAL("backward_s", t->backward), J_REAL("select_s", t->select),
              J_REAL("exchange_s", t->exchange), J_REAL("apply_s", t->apply),
              J_REAL("optimiser_s", t->optimiser), J_REAL("wait_s", t->wait),
              J_REAL("exposed_s", t->exposed), J_REAL("elapsed_s", step->elapsed),
              J_INT("skipped", step->skipped));
    jsonl_write(log);
}

void train_log_evaluation(jsonl *log, const trainer_evaluation *evaluation) {
    jsonl_set(log, J_TEXT("kind", "evaluation"), J_INT("step", evaluation->step),
              J_INT("epoch", evaluation->epoch), J_REAL("loss", evaluation->loss),
              J_REAL("accuracy", evaluation->accuracy), J_REAL("elapsed_s", evaluation->elapsed));
    jsonl_write(log);
}

void train_log_snapshot(jsonl *log, const trainer_snapshot *snapshot) {
    double rest = 1.0 - (double)snapshot->k / (double)snapshot->n;
    jsonl_set(log, J_TEXT("kind", "snapshot"), J_INT("step", snapshot->step),
              J_REAL("low", snapshot->low), J_REAL("high", snapshot->high));
    for (int i = 0; i < TRAINER_BINS; i++)
        jsonl_append(log, J_INT("counts", snapshot->counts[i]));
    jsonl_set(log, J_INT("n", snapshot->n), J_INT("k", snapshot->k),
              J_REAL("contraction", snapshot->contraction), J_REAL("bound_topk", rest * rest),
              J_REAL("bound_random", rest));
    jsonl_write(log);
}

/* Ranks by the numbers that they had; those that joined by the numbers that they have. */
void train_log_members(jsonl *log, const trainer_members *m) {
    jsonl_set(log, J_TEXT("kind", "members"), J_INT("step", m->step), J_INT("nranks", m->nranks),
              J_INT("nranks_before", m->nranks_before));
    for (int i = 0; i < m->nlost; i++)
        jsonl_append(log, J_INT(m->lost[i].heir >= 0 ? "left" : "lost", m->lost[i].rank));
    for (int r = m->nranks - m->joined; r < m->nranks; r++)
        jsonl_append(log, J_INT("joined", r));
    jsonl_set(log, J_REAL("seconds", m->seconds), J_REAL("elapsed_s", m->elapsed));
    jsonl_write(log);
}

void train_log_end(jsonl *log, const trainer_end *end, bool same) {
    jsonl_set(log, J_TEXT("kind", "end"), J_INT("steps", end->steps),
              J_REAL("seconds", end->seconds), J_REAL("loss", end->loss),
              J_REAL("accuracy", end->accuracy), J_INT("skipped", end->skipped),
              J_FLAG("replicas_equal", same));
    jsonl_write(log);
}

/* A JSON array that is complete after every line: each line is written over the closing bracket, with
 * a bracket of its own, in one call. So a run that is interrupted leaves a timeline that can be
 * read. */
struct train_trace {
    int file;
    char *path;
    pthread_mutex_t mutex; /* ranks that are threads share the file */
    off_t end;             /* where the bracket is */
    bool bad;              /* a write failed */
    double origin;         /* time 0 of the timeline: the first span; negative before it */
};

#define TRACE_END "\n]\n"
#define TRACE_LINE 512

/* Call it with the mutex held. */
static void append_line(train_trace *trace, const char *line) {
    char text[TRACE_LINE];
    int length =
        snprintf(text, sizeof text, "%s%s" TRACE_END, trace->end > 0 ? ",\n" : "[\n", line);
    if (length < 0 || length >= TRACE_LINE ||
        pwrite(trace->file, text, (size_t)length, trace->end) != length)
        trace->bad = true;
    else
        trace->end += length - (off_t)strlen(TRACE_END);
}

/* Names of the rows of a rank in the timeline. */
static void append_names(train_trace *trace, int rank) {
    static const char *const rows[] = {"training", "exchange"};
    char line[TRACE_LINE];
    for (int i = 0; i < COUNT_OF(rows); i++) {
        snprintf(line, sizeof line,
                 "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                 "\"%s\"}}",
                 rank, i, rows[i]);
        append_line(trace, line);
    }
    snprintf(line, sizeof line,
             "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
             rank, rank);
    append_line(trace, line);
}

int train_trace_open(train_trace **out, const char *path, const job_handle *job) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    train_trace *trace = calloc(1, sizeof *trace);
    char suffix[24] = "";
    if (job->first > 0)
        snprintf(suffix, sizeof suffix, ".%d", job->first);
    if (job->first < 0)
        snprintf(suffix, sizeof suffix, ".new-%d", (int)getpid());
    if (trace == NULL || asprintf(&trace->path, "%s%s", path, suffix) < 0) {
        free(trace);
        return error_report("not enough memory for a trace");
    }
    trace->origin = -1.0;
    trace->file = open(trace->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (trace->file < 0) {
        int status = error_report("cannot write '%s': %s", trace->path, strerror(errno));
        free(trace->path);
        free(trace);
        return status;
    }
    pthread_mutex_init(&trace->mutex, NULL);
    for (int r = job->first; r < (job->processes ? job->first + 1 : job->nranks); r++)
        append_names(trace, r < 0 ? job->nranks : r); /* a newcomer stands behind the others */
    *out = trace;
    return STATUS_OK;
}

void train_trace_span(train_trace *trace, int rank, const trainer_span *span) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->mutex);
    if (trace->origin < 0.0)
        trace->origin = span->begin;
    char line[TRACE_LINE];
    snprintf(line, sizeof line,
             "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f,"
             "\"args\":{\"step\":%" PRId64 "}}",
             span->name, rank, span->background ? 1 : 0, (span->begin - trace->origin) * 1e6,
             (span->end - span->begin) * 1e6, span->step);
    append_line(trace, line);
    pthread_mutex_unlock(&trace->mutex);
}

int train_trace_close(train_trace *trace, int status) {
    if (trace == NULL)
        return status;
    bool bad = close(trace->file) != 0 || trace->bad;
    if (bad) {
        int failed = error_report("cannot write all of '%s'", trace->path);
        status = status == STATUS_OK ? failed : status;
    }
    pthread_mutex_destroy(&trace->mutex);
    free(trace->path);
    free(trace);
    return status;
}
