/* train_trace.c - the trace event format: an array of complete events ("ph":"X"), times in us
 *
 * Names are the trainer's own words and need no escaping.
 */
#include "train_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"

struct train_trace {
    FILE *file;
    char *path;
    pthread_mutex_t lock;
    double origin;   /* time 0 of the timeline: the first span; negative before it */
    uint64_t *named; /* [(ranks seen + 63) / 64] bits: ranks whose rows have names */
    int rows;
};

int train_trace_open(train_trace **out, const char *path, int first_rank) {
    *out = NULL;
    if (path == NULL)
        return STATUS_OK;
    train_trace *trace = calloc(1, sizeof *trace);
    size_t length = strlen(path) + 16;
    char *name = malloc(length);
    if (trace == NULL || name == NULL) {
        free(trace);
        free(name);
        return failure("not enough memory for a trace");
    }
    snprintf(name, length, first_rank == 0 ? "%s" : "%s.%d", path, first_rank);
    trace->path = name;
    trace->file = fopen(name, "w");
    if (trace->file == NULL) {
        int status = failure("cannot write '%s': %s", name, strerror(errno));
        free(name);
        free(trace);
        return status;
    }
    pthread_mutex_init(&trace->lock, NULL);
    trace->origin = -1.0;
    fputs("[\n", trace->file);
    *out = trace;
    return STATUS_OK;
}

/* Rows come with their names when a rank is first seen. */
static void name_rows(train_trace *trace, int rank) {
    static const char *const rows[] = {"training", "exchange"};
    for (int row = 0; row < 2; row++) {
        fprintf(trace->file,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"name\":\"%s\"}},\n",
                rank, row, rows[row]);
    }
    fprintf(
        trace->file,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}},\n",
        rank, rank);
}

static bool first_time(train_trace *trace, int rank) {
    int words = rank / 64 + 1;
    if (words > trace->rows) {
        uint64_t *more = realloc(trace->named, (size_t)words * sizeof *more);
        if (more == NULL)
            return false;
        memset(more + trace->rows, 0, (size_t)(words - trace->rows) * sizeof *more);
        trace->named = more;
        trace->rows = words;
    }
    bool first = (trace->named[rank / 64] >> (rank % 64) & 1) == 0;
    trace->named[rank / 64] |= UINT64_C(1) << (rank % 64);
    return first;
}

void train_trace_span(train_trace *trace, int rank, const trainer_span *span) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    if (trace->origin < 0.0)
        trace->origin = span->begin;
    if (first_time(trace, rank))
        name_rows(trace, rank);
    fprintf(trace->file,
            "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.1f,\"dur\":%.1f,"
            "\"args\":{\"step\":%" PRId64 "}},\n",
            span->name, rank, span->background ? 1 : 0, (span->begin - trace->origin) * 1e6,
            (span->end - span->begin) * 1e6, span->step);
    pthread_mutex_unlock(&trace->lock);
}

int train_trace_close(train_trace *trace) {
    if (trace == NULL)
        return STATUS_OK;
    fputs("{\"name\":\"end\",\"ph\":\"M\",\"pid\":0}\n]\n", trace->file);
    bool bad = ferror(trace->file) != 0;
    bad = fclose(trace->file) != 0 || bad;
    int status = bad ? failure("cannot write all of '%s'", trace->path) : STATUS_OK;
    pthread_mutex_destroy(&trace->lock);
    free(trace->named);
    free(trace->path);
    free(trace);
    return status;
}
