/* run_log.c - reads run logs through jansson
 *
 * A line's keys are rows {key, type, where it goes}. Text is made harmless here, once: control
 * characters become blanks, so that any name can stand in a page and in a message.
 */
#include "report/run_log.h"

#include "cli.h"

#ifdef TW_HAVE_JANSSON

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BINS 4096
#define REASON_SIZE 256

typedef struct field {
    const char *key;
    /* A number; one of at least 0; such a one that must be there; a text, "" if missing. */
    enum { REAL, COUNT, REQUIRED, TEXT } type;
    size_t offset; /* of the double, NaN if null or missing, or the char * */
} field;

typedef struct reader {
    run_log *run;
    int64_t line;
    double elapsed_before;    /* of the runs that this one resumes, where its clock started anew */
    char reason[REASON_SIZE]; /* why the line is refused */
} reader;

/* A key that goes to the member of its name. */
#define FIELD(type, kind, member)                                                                  \
    { #member, kind, offsetof(type, member) }

#define RUN(kind, member) FIELD(run_log, kind, member)
static const field run_fields[] = {
    RUN(TEXT, name),         RUN(TEXT, model),
    RUN(TEXT, data),         RUN(TEXT, scheme),
    RUN(TEXT, select),       RUN(TEXT, exchange),
    RUN(TEXT, transport),    RUN(TEXT, optimizer),
    RUN(COUNT, version),     RUN(COUNT, parameters),
    RUN(COUNT, density),     RUN(COUNT, nranks),
    RUN(COUNT, batch),       {"steps", COUNT, offsetof(run_log, planned_steps)},
    RUN(COUNT, epochs),      RUN(REAL, seed),
    RUN(REAL, lr),           RUN(REAL, momentum),
    RUN(REAL, weight_decay), RUN(COUNT, local_steps),
};

#define STEP(kind, member) FIELD(run_step, kind, member)
static const field step_fields[] = {
    STEP(REQUIRED, step),      STEP(COUNT, epoch),      STEP(REAL, loss),
    STEP(REAL, accuracy),      STEP(REAL, lr),          STEP(COUNT, k),
    STEP(COUNT, selected),     STEP(COUNT, applied),    STEP(COUNT, payload_sent),
    STEP(COUNT, payload_recv), STEP(COUNT, control),    STEP(COUNT, time_s),
    STEP(COUNT, data_s),       STEP(COUNT, forward_s),  STEP(COUNT, backward_s),
    STEP(COUNT, optimiser_s),  STEP(COUNT, exposed_s),  STEP(COUNT, select_s),
    STEP(COUNT, wait_s),       STEP(COUNT, exchange_s), STEP(COUNT, apply_s),
    STEP(COUNT, elapsed_s),    STEP(COUNT, skipped),
};

#define EVALUATION(kind, member) FIELD(run_evaluation, kind, member)
static const field evaluation_fields[] = {
    EVALUATION(REQUIRED, step), EVALUATION(COUNT, epoch),     EVALUATION(REAL, loss),
    EVALUATION(REAL, accuracy), EVALUATION(COUNT, elapsed_s),
};

#define SNAPSHOT(kind, member) FIELD(run_snapshot, kind, member)
static const field snapshot_fields[] = {
    SNAPSHOT(REQUIRED, step),    SNAPSHOT(COUNT, n),
    SNAPSHOT(COUNT, k),          SNAPSHOT(REAL, low),
    SNAPSHOT(REAL, high),        SNAPSHOT(COUNT, contraction),
    SNAPSHOT(COUNT, bound_topk), SNAPSHOT(COUNT, bound_random),
};

#define MEMBERS(kind, member) FIELD(run_members, kind, member)
static const field members_fields[] = {
    MEMBERS(REQUIRED, step),
    MEMBERS(REQUIRED, nranks),
    MEMBERS(REQUIRED, nranks_before),
    MEMBERS(COUNT, seconds),
};

static const field end_fields[] = {
    {"steps", COUNT, offsetof(run_log, end_steps)},
    {"seconds", COUNT, offsetof(run_log, end_seconds)},
    {"accuracy", REAL, offsetof(run_log, end_accuracy)},
    {"skipped", COUNT, offsetof(run_log, end_skipped)},
};

__attribute__((format(printf, 2, 3))) static bool refuse(reader *in, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(in->reason, sizeof in->reason, format, arguments);
    va_end(arguments);
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
    if (value != NULL && !json_is_string(value))
        return refuse(in, "\"%s\" is not a text", what->key);
    free(*to);
    *to = harmless_copy(value != NULL ? json_string_value(value) : "");
    return *to != NULL || refuse(in, "out of memory");
}

static bool read_number(reader *in, const field *what, const json_t *value, double *to) {
    *to = NAN;
    if (value == NULL || json_is_null(value))
        return what->type != REQUIRED || refuse(in, "\"%s\" is missing", what->key);
    if (!json_is_number(value))
        return refuse(in, "\"%s\" is not a number", what->key);
    *to = json_number_value(value);
    return what->type == REAL || *to >= 0 || refuse(in, "\"%s\" is negative", what->key);
}

/* Fill the members of *base that the rows name. */
static bool read_fields(reader *in, const json_t *object, const field *rows, int nrows,
                        void *base) {
    bool good = true;
    for (int i = 0; i < nrows && good; i++) {
        const json_t *value = json_object_get(object, rows[i].key);
        void *to = (char *)base + rows[i].offset;
        good = rows[i].type == TEXT ? read_text(in, &rows[i], value, to)
                                    : read_number(in, &rows[i], value, to);
    }
    return good;
}

/* Append the element to the array at *array, whose room doubles at powers of two. */
static bool append(reader *in, void *array, int64_t *count, const void *element, size_t size) {
    void *at;
    memcpy(&at, array, sizeof at);
    if ((*count & (*count - 1)) == 0) {
        at = reallocarray(at, *count > 0 ? 2 * (size_t)*count : 1, size);
        if (at == NULL)
            return refuse(in, "out of memory");
        memcpy(array, &at, sizeof at);
    }
    memcpy((char *)at + (size_t)(*count)++ * size, element, size);
    return true;
}

/* A log holds one run, whose line comes again where it was resumed. */
static bool read_run(reader *in, const json_t *object) {
    run_log *run = in->run;
    const char *scheme = json_string_value(json_object_get(object, "scheme"));
    double parameters = json_number_value(json_object_get(object, "parameters"));
    if (run->name != NULL &&
        (strcmp(run->scheme, scheme != NULL ? scheme : "") != 0 || run->parameters != parameters))
        return refuse(in, "another run begins here; give each run a file of its own");
    if (!read_fields(in, object, run_fields, COUNT_OF(run_fields), run))
        return false;
    return run->version == RUN_LOG_VERSION ||
           refuse(in, "log version %g; this thinwire reads version %d", run->version,
                  RUN_LOG_VERSION);
}

/* A resumed run goes over steps again: forget what is at `step` and later. */
static void rewind_to(run_log *run, double step) {
    while (run->nsteps > 0 && run->steps[run->nsteps - 1].step >= step)
        run->nsteps--;
    while (run->nevaluations > 0 && run->evaluations[run->nevaluations - 1].step > step)
        run->nevaluations--;
    while (run->nsnapshots > 0 && run->snapshots[run->nsnapshots - 1].step >= step)
        free(run->snapshots[--run->nsnapshots].counts);
    while (run->nmembers > 0 && run->members[run->nmembers - 1].step > step)
        run->nmembers--;
    run->has_end = false;
}

static bool read_step(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_step step;
    if (!read_fields(in, object, step_fields, COUNT_OF(step_fields), &step))
        return false;
    if (run->has_end || (run->nsteps > 0 && run->steps[run->nsteps - 1].step >= step.step))
        rewind_to(run, step.step);
    double before = run->nsteps > 0 ? run->steps[run->nsteps - 1].elapsed_s : 0.0;
    if (step.elapsed_s + in->elapsed_before < before)
        in->elapsed_before = before;
    step.elapsed_s += in->elapsed_before;
    step.sent = step.payload_sent + (isnan(step.control) ? 0.0 : step.control);
    step.share = step.k > 0 ? step.selected / step.k : NAN;
    return append(in, &run->steps, &run->nsteps, &step, sizeof step);
}

static bool read_evaluation(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_evaluation evaluation;
    if (!read_fields(in, object, evaluation_fields, COUNT_OF(evaluation_fields), &evaluation))
        return false;
    evaluation.elapsed_s += in->elapsed_before;
    return append(in, &run->evaluations, &run->nevaluations, &evaluation, sizeof evaluation);
}

/* The array of a snapshot into its counts, if it has a range. */
static bool read_counts(reader *in, const json_t *array, run_snapshot *snapshot) {
    static const field bin = {"counts", COUNT, 0};
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
    if (read_fields(in, object, snapshot_fields, COUNT_OF(snapshot_fields), &snapshot) &&
        read_counts(in, json_object_get(object, "counts"), &snapshot) &&
        append(in, &run->snapshots, &run->nsnapshots, &snapshot, sizeof snapshot))
        return true;
    free(snapshot.counts);
    return false;
}

/* An array of ranks as text; what does not fit is cut off, with dots. */
static bool read_ranks(reader *in, const json_t *array, char text[RUN_RANKS]) {
    size_t used = 0;
    text[0] = '\0';
    if (array != NULL && !json_is_array(array))
        return refuse(in, "a list of ranks is not an array");
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *rank = json_array_get(array, i);
        if (!json_is_integer(rank))
            return refuse(in, "a rank is not a whole number");
        bool fits = used + 24 + sizeof " ..." <= RUN_RANKS;
        int length = fits ? snprintf(text + used, RUN_RANKS - used, "%s%lld", i > 0 ? ", " : "",
                                     (long long)json_integer_value(rank))
                          : snprintf(text + used, RUN_RANKS - used, " ...");
        used += (size_t)length;
        if (!fits)
            break;
    }
    return true;
}

static bool read_members(reader *in, const json_t *object) {
    run_log *run = in->run;
    run_members members = {0};
    return read_fields(in, object, members_fields, COUNT_OF(members_fields), &members) &&
           read_ranks(in, json_object_get(object, "lost"), members.lost) &&
           read_ranks(in, json_object_get(object, "left"), members.left) &&
           read_ranks(in, json_object_get(object, "joined"), members.joined) &&
           append(in, &run->members, &run->nmembers, &members, sizeof members);
}

static bool read_end(reader *in, const json_t *object) {
    in->run->has_end = true;
    return read_fields(in, object, end_fields, COUNT_OF(end_fields), in->run);
}

static bool read_object(reader *in, const json_t *object) {
    static const struct {
        const char *name;
        bool (*read)(reader *in, const json_t *object);
    } kinds[] = {
        {"run", read_run},           {"step", read_step},       {"evaluation", read_evaluation},
        {"snapshot", read_snapshot}, {"members", read_members}, {"end", read_end},
    };
    const char *kind = json_string_value(json_object_get(object, "kind"));
    if (kind == NULL)
        return refuse(in, "no line of a run log: it has no \"kind\"");
    if (in->run->name == NULL && strcmp(kind, "run") != 0)
        return refuse(in, "the first line of a run log has \"kind\":\"run\"");
    for (int i = 0; i < COUNT_OF(kinds); i++)
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
    if (object == NULL)
        return refuse(in, "damaged: %.200s", error.text);
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
            status =
                error_report("report: %s: line %lld: %s", path, (long long)in->line, in->reason);
    }
    if (status == STATUS_OK && !feof(stream))
        status = error_report("report: %s: cannot read: %s", path, strerror(errno));
    else if (status == STATUS_OK && in->run->name == NULL)
        status =
            error_report("report: %s: no run in it; `thinwire train --log FILE` writes one", path);
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
    *run = (run_log){.end_steps = NAN, .end_seconds = NAN, .end_accuracy = NAN, .end_skipped = NAN};
    run->path = harmless_copy(path);
    if (run->path == NULL)
        return error_report("report: %s: out of memory", path);
    FILE *stream = fopen(path, "r");
    if (stream == NULL)
        return error_report("report: %s: cannot read: %s", path, strerror(errno));
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
    free(run->members);
    free(run->evaluations);
    free(run->steps);
    free(run->path);
    for (int i = 0; i < COUNT_OF(run_fields); i++)
        if (run_fields[i].type == TEXT)
            free(*(char **)((char *)run + run_fields[i].offset));
    *run = (run_log){0};
}

#else

int run_log_read(run_log *run, const char *path) {
    *run = (run_log){0};
    return error_usage("report %s: this build lacks JSON; install libjansson-dev and rebuild",
                       path);
}

void run_log_free(run_log *run) {
    (void)run;
}

#endif
