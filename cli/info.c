/* info.c - `thinwire info`: what this build has, what this machine uses, how to change it
 *
 * Only reports; everything comes from the library's own tables, so a new method or kernel shows up
 * here by itself. The names of the rows of these tables, for all commands, are here too.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "job.h"
#include "json.h"
#include "options.h"

#ifdef TW_HAVE_JANSSON
#define JSON_STATE "yes"
#else
#define JSON_STATE "no: install libjansson-dev and rebuild"
#endif
#define LINE_SIZE 256 /* one more than what sscanf reads */

const char *names_method(int position) {
    const char *name;
    return tw_select_method(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *names_exchange(int position) {
    const char *name;
    return tw_exchange(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *names_checksum(int position) {
    static const char *const names[] = {"on", "off"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

const char *names_wire(int position) {
    const char *name;
    return tw_wire(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *names_scheme(int position) {
    const char *name;
    return tw_scheme(position, &name, NULL, NULL, NULL) == TW_OK ? name : NULL;
}

int names_find_scheme(const char *name) {
    int position = 0;
    while (names_scheme(position) != NULL && strcmp(names_scheme(position), name) != 0)
        position++;
    return position;
}

static int scheme_row(int position, const char **name, const char **description) {
    return tw_scheme(position, name, NULL, NULL, description);
}

static const struct {
    const char *title;
    const char *key; /* of the JSON array */
    int (*row)(int position, const char **name, const char **description);
} tables[] = {
    {"select", "methods", tw_select_method},
    {"exchange", "exchanges", tw_exchange},
    {"scheme", "schemes", scheme_row},
    {"wire", "wires", tw_wire},
    {"transport", "transports", tw_transport_kind},
};

/* Why a row of the library's tables cannot be used; NULL: it can. The library has MPI in its table
 * wherever it was built. */
static const char *missing(const char *name) {
    const char *cause = NULL;
    if (strcmp(name, "mpi") == 0 && job_mpi_load(&cause) != NULL)
        cause = NULL;
    return cause;
}

/* The CPU's name as Linux tells it, "unknown" elsewhere. */
static void read_cpu_model(char model[LINE_SIZE]) {
    snprintf(model, LINE_SIZE, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL)
        return;
    char line[LINE_SIZE];
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %255[^\n]", model) == 1)
            break;
    fclose(file);
}

/* A variable as the library sees it: an empty one is as good as none. */
static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value == NULL ? "not set" : value[0] == '\0' ? "empty, as if not set" : value;
}

/* What becomes of a selector with so many threads (0: the default): "" or that it is refused. */
static const char *refusal(int threads) {
    float sum = 0.0f;
    const float add = 0.0f;
    return tw_accumulate(&sum, &add, 1, threads) == TW_OK
               ? ""
               : ", not usable: selectors will refuse it";
}

static void print_kernels(FILE *stream) {
    const char *name, *refused = refusal(1);
    int usable;
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++) {
        const char *state = usable ? "usable" : "in the build, but this CPU lacks it";
        int chosen = refused[0] == '\0' && strcmp(name, tw_kernels()) == 0;
        fprintf(stream, "%-10s %-10s %s%s\n", i == 0 ? "kernels" : "", name, state,
                chosen ? ", in use" : "");
    }
    fprintf(stream, "%-10s force with THINWIRE_KERNELS=NAME (now: %s%s)\n", "",
            environment("THINWIRE_KERNELS"), refused);
}

static void print_gpus(FILE *stream) {
    const char *name;
    int count = 0;
    while (tw_cuda_device(count, &name) == TW_OK) {
        fprintf(stream, "%-10s %-10d %s\n", count == 0 ? "gpu" : "", count, name);
        count++;
    }
    if (count == 0)
        fprintf(stream, "%-10s %-10s %s\n", "gpu", "none", tw_last_error());
}

static void print_info(FILE *stream, const char *cpu_model) {
    const char *name, *description;
    fprintf(stream, "%-10s %s\n", "thinwire", tw_version());
    fprintf(stream, "%-10s %s\n", "cpu", cpu_model);
    print_kernels(stream);
    fprintf(stream, "%-10s %d by default; change with THINWIRE_THREADS=N (now: %s%s)\n", "threads",
            tw_default_threads(), environment("THINWIRE_THREADS"),
            refusal(1)[0] == '\0' ? refusal(0) : "");
    print_gpus(stream);
    for (int t = 0; t < COUNT_OF(tables); t++)
        for (int i = 0; tables[t].row(i, &name, &description) == TW_OK; i++)
            fprintf(stream, "%-10s %-10s %s%s\n", i == 0 ? tables[t].title : "", name,
                    missing(name) != NULL ? "not usable: " : "",
                    missing(name) != NULL ? missing(name) : description);
    fprintf(stream, "%-10s %s\n", "json", JSON_STATE);
}

static void write_json(jsonl *json, const char *cpu_model) {
    const char *name, *description;
    int usable;
    jsonl_set(json, J_TEXT("version", tw_version()), J_TEXT("cpu", cpu_model),
              J_TEXT("kernels", tw_kernels()));
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++) {
        jsonl_append(json, J_TEXT("kernels_built", name));
        if (usable)
            jsonl_append(json, J_TEXT("kernels_usable", name));
    }
    jsonl_set(json, J_INT("threads", tw_default_threads()));
    if (refusal(0)[0] != '\0') /* why selectors are refused: of two wrong variables the first */
        jsonl_set(json, J_TEXT("refused", tw_last_error()));
    for (int i = 0; tw_cuda_device(i, &name) == TW_OK; i++)
        jsonl_append(json, J_TEXT("gpus", name));
    for (int t = 0; t < COUNT_OF(tables); t++)
        for (int i = 0; tables[t].row(i, &name, &description) == TW_OK; i++)
            if (missing(name) == NULL)
                jsonl_append(json, J_TEXT(tables[t].key, name));
    jsonl_write(json);
}

int command_info(int argc, char **argv) {
    const char *json_path = NULL;
    const cli_option options[] = {
        OPTION_JSON(&json_path),
    };
    TW_TRY(OPTIONS_PARSE(options, argc, argv, .command = "info",
                         .summary = "Show version, kernels, threads, GPUs, selection methods, "
                                    "exchanges, schemes, wire formats and transports, and how to "
                                    "choose them.",
                         .examples = "  thinwire info\n"
                                     "  thinwire info --json\n"
                                     "  THINWIRE_KERNELS=ref thinwire info\n"));
    jsonl *json;
    char cpu_model[LINE_SIZE];
    TW_TRY(jsonl_open(&json, json_path, false));
    read_cpu_model(cpu_model);
    print_info(jsonl_table_stream(json), cpu_model);
    write_json(json, cpu_model);
    return jsonl_close(json, STATUS_OK);
}
