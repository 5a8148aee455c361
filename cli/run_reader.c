/* run_reader.c - reads run logs through jansson
 *
 * A line's keys are rows {key, type, where it goes}. Text is made harmless here, once: control
 * characters become blanks, so that any name can stand in a page and in a message.
 */
#include "run_reader.h"

#include "errors.h"

#ifdef TW_HAVE_JANSSON

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BINS 4096
#define REASON_SIZE 256

typedef enum field_type {
    FIELD_REAL,  /* any number; NaN if it is null or missing */
    FIELD_COUNT, /* a number of at least 0; NaN if it is null or missing */
    FIELD_TEXT,  /* "" if missing */
} field_type;

typedef struct field {
    const char *key;
    field_type type;
    size_t offset; /* of the double or char * */
} field;

typedef struct reader {
    run_log *run;
    int64_t line;
    int64_t step_room, evaluation_room, snapshot_room; /* allocated elements */
    double elapsed_before;    /* of the runs that this one resumes, where its clock started anew */
    char reason[REASON_SIZE]; /* why the line is refused */
} reader;

static const field run_fields[] = {
    {"name", FIELD_TEXT, offsetof(run_log, name)},
    {"model", FIELD_TEXT, offsetof(run_log, model)},
    {"data", FIELD_TEXT, offsetof(run_log, data)},
    {"scheme", FIELD_TEXT, offsetof(run_log, scheme)},
    {"select", FIELD_TEXT, offsetof(run_log, select)},
    {"exchange", FIELD_TEXT, offsetof(run_log, exchange)},
    {"transport", FIELD_TEXT, offsetof(run_log, transport)},
    {"optimizer", FIELD_TEXT, offsetof(run_log, optimizer)},
    {"version", FIELD_COUNT, offsetof(run_log, version)},
    {"parameters", FIELD_COUNT, offsetof(run_log, parameters)},
    {"density", FIELD_COUNT, offsetof(run_log, density)},
    {"nranks", FIELD_COUNT, offsetof(run_log, nranks)},
    {"batch", FIELD_COUNT, offsetof(run_log, batch)},
    {"steps", FIELD_COUNT, offsetof(run_log, planned_steps)},
    {"epochs", FIELD_COUNT, offsetof(run_log, epochs)},
    {"seed", FIELD_REAL, offsetof(run_log, seed)},
    {"lr", FIELD_REAL, offsetof(run_log, lr)},
    {"momentum", FIELD_REAL, offsetof(run_log, momentum)},
    {"weight_decay", FIELD_REAL, offsetof(run_log, weight_decay)},
};

static const field step_fields[] = {
    {"step", FIELD_COUNT, offsetof(run_step, step)},
    {"epoch", FIELD_COUNT, offsetof(run_step, epoch)},
    {"loss", FIELD_REAL, offsetof(run_step, loss)},
    {"accuracy", FIELD_REAL, offsetof(run_step, accuracy)},
    {"lr", FIELD_REAL, offsetof(run_step, lr)},
    {"k", FIELD_COUNT, offsetof(run_step, k)},
    {"selected", FIELD_COUNT, offsetof(run_step, selected)},
    {"applied", FIELD_COUNT, offsetof(run_step, applied)},
    {"payload_sent", FIELD_COUNT, offsetof(run_step, payload_sent)},
    {"payload_recv", FIELD_COUNT, offsetof(run_step, payload_recv)},
    {"control", FIELD_COUNT, offsetof(run_step, control)},
    {"time_s", FIELD_COUNT, offsetof(run_step, time_s)},
    {"data_s", FIELD_COUNT, offsetof(run_step, data_s)},
    {"forward_s", FIELD_COUNT, offsetof(run_step, forward_s)},
    {"backward_s", FIELD_COUNT, offsetof(run_step, backward_s)},
    {"optimiser_s", FIELD_COUNT, offsetof(run_step, optimiser_s)},
    {"exposed_s", FIELD_COUNT, offsetof(run_step, exposed_s)},
    {"select_s", FIELD_COUNT, offsetof(run_step, select_s)},
    {"wait_s", FIELD_COUNT, offsetof(run_step, wait_s)},
    {"exchange_s", FIELD_COUNT, offsetof(run_step, exchange_s)},
    {"apply_s", FIELD_COUNT, offsetof(run_step, apply_s)},
    {"elapsed_s", FIELD_COUNT, offsetof(run_step, elapsed_s)},
    {"skipped", FIELD_COUNT, offsetof(run_step, skipped)},
};

static const field evaluation_fields[] = {
    {"step", FIELD_COUNT, offsetof(run_evaluation, step)},
    {"epoch", FIELD_COUNT, offsetof(run_evaluation, epoch)},
    {"loss", FIELD_REAL, offsetof(run_evaluation, loss)},
    {"accuracy", FIELD_REAL, offsetof(run_evaluation, accuracy)},
    {"elapsed_s", FIELD_COUNT, offsetof(run_evaluation, elapsed_s)},
};

static const field snapshot_fields[] = {
    {"step", FIELD_COUNT, offsetof(run_snapshot, step)},
    {"n", FIELD_COUNT, offsetof(run_snapshot, n)},
    {"k", FIELD_COUNT, offsetof(run_snapshot, k)},
    {"low", FIELD_REAL, offsetof(run_snapshot, low)},
    {"high", FIELD_REAL, offsetof(run_snapshot, high)},
    {"contraction", FIELD_COUNT, offsetof(run_snapshot, contraction)},
    {"bound_topk", FIELD_COUNT, offsetof(run_snapshot, bound_topk)},
    {"bound_random", FIELD_COUNT, offsetof(run_snapshot, bound_random)},
};

static const field end_fields[] = {
    {"seconds", FIELD_COUNT, offsetof(run_log, end_seconds)},
    {"accuracy", FIELD_REAL, offsetof(run_log, end_accuracy)},
    {"skipped", FIELD_COUNT, offsetof(run_log, end_skipped)},
};

#define FIELDS(rows) rows, sizeof(rows) / sizeof(rows)[0]

/* ---- Keys ----------------------------------------------------------------------------------- */

static bool refuse(reader *in, const char *reason) {
    snprintf(in->reason, sizeof in->reason, "%s", reason);
    return false;
}

/* A copy without control characters. NULL if there is no memory. */
static char *harmless_copy(const char *text) {
    char *copy = strdup(text);
    for (char *at = copy; at != NULL && *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = ' ';
    return copy;
}

static bool read_text(reader *in, const field *what, const json_t *value, char **to) {
    if (value != NULL && !json_is_string(value)) {
        snprintf(in->reason, sizeof in->reason, "\"%s\" is not a text", what->key);
        return false;
    }
    free(*to);
    *to = harmless_copy(value != NULL ? json_string_value(value) : "");
    return *to != NULL || refuse(in, "out of memory");
}

static bool read_number(reader *in, const field *what, const json_t *value, double *to) {
    *to = NAN;
    if (value == NULL || json_is_null(value))
        return true;
    if (!json_is_number(value)) {
        snprintf(in->reason, sizeof in->reason, "\"%s\" is not a number", what->key);
        return false;
    }
    *to = json_number_value(value);
    if (what->type == FIELD_COUNT && *to < 0) {
        snprintf(in->reason, sizeof in->reason, "\"%s\" is negative", what->key);
        return false;
    }
    return true;
}

/* Fill the members of *base that the rows name. */
static bool read_fields(reader *in, const json_t *object, const field *rows, size_t nrows,
                        void *base) {
    for (size_t i = 0; i < nrows; i++) {
        const json_t *value = json_object_get(object, rows[i].key);
        void *to = (char *)base + rows[i].offset;
        bool good = rows[i].type == FIELD_TEXT ? read_text(in, &rows[i], value, to)
                                               : read_number(in, &rows[i], value, to);
        if (!good)
            return false;
    }
    return true;
}

/* array with room for one more than its count elements of the size; NULL if there is no memory. */
static void *grown(reader *in, void *array, int64_t count, int64_t *room, size_t size) {
    if (count < *room)
        return array;
    int64_t larger = *room > 0 ? 2 * *room : 64;
    void *moved = reallocarray(array, (size_t)larger, size);
    if (moved == NULL) {
        (void)refuse(in, "out of memory");
        return NULL;
    }
    *room = larger;
    return moved;
}

/* ---- Kinds of lines ------------------------------------------------------------------------- */

/* A log holds one run, whose line comes again where it was resumed. */
static bool read_run(reader *in, const json_t *object) {
    run_log *run = in->run;
    const char *scheme = json_string_value(json_object_get(object, "scheme"));
    double parameters = json_number_value(json_object_get(object, "parameters"));
    if (run->name != NULL &&
        (strcmp(run->scheme, scheme != NULL ? scheme : "") != 0 || run->parameters != parameters))
        return refuse(in, "another run begins here; give each run a file of its own");
    if (!read_fields(in, object, FIELDS(run_fields), run))
        return false;
    if (run->version != RUN_LOG_VERSION) {
        snprintf(in->reason, sizeof in->reason, "log version %g; this thinwire reads version %d",
                 run->version, RUN_LOG_VERSION);
        return false;
    }
    return true;
}

/* A resumed run goes over steps again: forget what is at `step` and later. */
static void rewind_to(run_log *run, double step) {
    while (run->nsteps > 0 && run->steps[run->nsteps - 1].step >= step)
        run->nsteps--;
    while (run->nevaluations > 0 && run->evaluations[run->nevaluations - 1].step > step)
        run->nevaluations--;
    while (run->nsnapshots > 0 && run->snapshots[run->nsnapshots - 1].step >= step)
        free(run->snapshots[--run->nsnapshots].counts);
    run->has_end = false;
}

static bool read_step(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_step step;
    if (!read_fields(in, object, FIELDS(step_fields), &step))
        return false;
    if (isnan(step.step))
        return refuse(in, "\"step\" is missing");
    if (run->has_end || (run->nsteps > 0 && run->steps[run->nsteps - 1].step >= step.step))
        rewind_to(run, step.step);
    double before = run->nsteps > 0 ? run->steps[run->nsteps - 1].elapsed_s : 0.0;
    if (step.elapsed_s + in->elapsed_before < before)
        in->elapsed_before = before;
    step.elapsed_s += in->elapsed_before;
    run_step *steps = grown(in, run->steps, run->nsteps, &in->step_room, sizeof step);
    if (steps == NULL)
        return false;
    run->steps = steps;
    run->steps[run->nsteps++] = step;
    return true;
}

static bool read_evaluation(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_evaluation evaluation;
    if (!read_fields(in, object, FIELDS(evaluation_fields), &evaluation))
        return false;
    if (isnan(evaluation.step))
        return refuse(in, "\"step\" is missing");
    evaluation.elapsed_s += in->elapsed_before;
    run_evaluation *evaluations =
        grown(in, run->evaluations, run->nevaluations, &in->evaluation_room, sizeof evaluation);
    if (evaluations == NULL)
        return false;
    run->evaluations = evaluations;
    run->evaluations[run->nevaluations++] = evaluation;
    return true;
}

/* The array of a snapshot into its counts, if it has a range. */
static bool read_counts(reader *in, const json_t *array, run_snapshot *snapshot) {
    static const field bin = {"counts", FIELD_COUNT, 0};
    size_t count = json_array_size(array);
    if (count == 0)
        return array == NULL || json_is_array(array) || refuse(in, "\"counts\" is not an array");
    if (count > MAX_BINS || snapshot->low > snapshot->high)
        return refuse(in, "the histogram has too many bins or a wrong range");
    if (!(snapshot->low < snapshot->high))
        return true; /* all values are the same: nothing to draw */
    snapshot->counts = calloc(count, sizeof *snapshot->counts);
    if (snapshot->counts == NULL)
        return refuse(in, "out of memory");
    snapshot->ncounts = (int)count;
    for (size_t i = 0; i < count; i++)
        if (!read_number(in, &bin, json_array_get(array, i), &snapshot->counts[i]))
            return false;
    return true;
}

static bool read_snapshot(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_snapshot snapshot = {0};
    if (!read_fields(in, object, FIELDS(snapshot_fields), &snapshot))
        return false;
    if (isnan(snapshot.step))
        return refuse(in, "\"step\" is missing");
    run_snapshot *snapshots =
        grown(in, run->snapshots, run->nsnapshots, &in->snapshot_room, sizeof snapshot);
    if (snapshots == NULL)
        return false;
    run->snapshots = snapshots;
    if (!read_counts(in, json_object_get(object, "counts"), &snapshot)) {
        free(snapshot.counts);
        return false;
    }
    run->snapshots[run->nsnapshots++] = snapshot;
    return true;
}

static bool read_end(reader *in, const json_t *object) {
    in->run->has_end = true;
    return read_fields(in, object, FIELDS(end_fields), in->run);
}

/* ---- Lines ---------------------------------------------------------------------------------- */

static bool read_object(reader *in, const json_t *object) {
    static const struct {
        const char *name;
        bool (*read)(reader *in, const json_t *object);
    } kinds[] = {
        {"run", read_run},           {"step", read_step}, {"evaluation", read_evaluation},
        {"snapshot", read_snapshot}, {"end", read_end},
    };
    const char *kind = json_string_value(json_object_get(object, "kind"));
    if (kind == NULL)
        return refuse(in, "no line of a run log: it has no \"kind\"");
    if (in->run->name == NULL && strcmp(kind, "run") != 0)
        return refuse(in, "the first line of a run log has \"kind\":\"run\"");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind, kinds[i].name) == 0)
            return kinds[i].read(in, object);
    return true;
}

/* text[length] with the newline, which only a line that was cut off lacks. */
static bool read_line(reader *in, const char *text, size_t length) {
    bool whole = length > 0 && text[length - 1] == '\n';
    if (strspn(text, " \t\r\n") == length)
        return true;
    json_error_t error;
    json_t *object = json_loadb(text, length, 0, &error);
    if (object == NULL && !whole && in->run->name != NULL) {
        in->run->half_line = true;
        return true;
    }
    if (object == NULL) {
        snprintf(in->reason, sizeof in->reason, "damaged: %.200s", error.text);
        return false;
    }
    bool good = read_object(in, object);
    json_decref(object);
    return good;
}

static int read_stream(reader *in, FILE *stream) {
    const char *path = in->run->path;
    char *text = NULL;
    size_t room = 0;
    int status = STATUS_OK;
    while (status == STATUS_OK) {
        errno = 0;
        ssize_t length = getline(&text, &room, stream);
        if (length < 0)
            break;
        in->line++;
        if (!read_line(in, text, (size_t)length))
            status = failure("report: %s: line %lld: %s", path, (long long)in->line, in->reason);
    }
    if (status == STATUS_OK && !feof(stream))
        status = failure("report: %s: cannot read: %s", path, strerror(errno));
    else if (status == STATUS_OK && in->run->name == NULL)
        status = failure("report: %s: no run in it; `thinwire train --log FILE` writes one", path);
    free(text);
    return status;
}

/* The first line has none before it; the gap behind it is the best guess. */
static void weigh_steps(run_log *run) {
    for (int64_t i = 1; i < run->nsteps; i++)
        run->steps[i].stands_for = run->steps[i].step - run->steps[i - 1].step;
    if (run->nsteps > 0)
        run->steps[0].stands_for = run->nsteps > 1 ? run->steps[1].stands_for : 1.0;
}

int run_log_read(run_log *run, const char *path) {
    *run = (run_log){.end_seconds = NAN, .end_accuracy = NAN, .end_skipped = NAN};
    run->path = harmless_copy(path);
    if (run->path == NULL)
        return failure("report: %s: out of memory", path);
    FILE *stream = fopen(path, "r");
    if (stream == NULL)
        return failure("report: %s: cannot read: %s", path, strerror(errno));
    reader in = {.run = run};
    int status = read_stream(&in, stream);
    weigh_steps(run);
    (void)fclose(stream);
    return status;
}

void run_log_free(run_log *run) {
    for (int64_t i = 0; i < run->nsnapshots; i++)
        free(run->snapshots[i].counts);
    free(run->snapshots);
    free(run->evaluations);
    free(run->steps);
    free(run->path);
    for (size_t i = 0; i < sizeof run_fields / sizeof run_fields[0]; i++)
        if (run_fields[i].type == FIELD_TEXT)
            free(*(char **)((char *)run + run_fields[i].offset));
    *run = (run_log){0};
}

#else

int run_log_read(run_log *run, const char *path) {
    *run = (run_log){0};
    return usage_error("report %s: this build lacks JSON; install libjansson-dev and rebuild",
                       path);
}

void run_log_free(run_log *run) {
    (void)run;
}

#endif
