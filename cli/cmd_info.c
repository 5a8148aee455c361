/* cmd_info.c - `thinwire info`: what this build has, what this machine uses, how to change it
 *
 * Only reports; everything comes from the library's own tables, so a new method or kernel shows up
 * here by itself.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "errors.h"
#include "json.h"
#include "options.h"
#include "ranks_kinds.h"
#include "thinwire.h"

#define LINE_SIZE 256

/* Those that the library always has. */
static const struct {
    const char *name;
    const char *description;
} transports[] = {
    {"self", "the only rank of a job of one"},
    {"threads", "ranks as threads of one process"},
    {"sockets", "ranks as processes with connected sockets between them"},
    {"custom", "functions of the caller's own"},
};

/* The CPU's name as Linux tells it, "unknown" elsewhere. */
static void read_cpu_model(char model[LINE_SIZE]) {
    snprintf(model, LINE_SIZE, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL)
        return;
    char line[LINE_SIZE];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", strlen("model name")) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(model, LINE_SIZE, "%s", colon + 1 + (colon[1] == ' '));
            break;
        }
    }
    fclose(file);
}

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value != NULL ? value : "not set";
}

static void print_kernels(FILE *stream) {
    const char *name;
    int usable;
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++) {
        const char *state = usable ? "usable" : "in the build, but this CPU lacks it";
        const char *chosen = strcmp(name, tw_kernels()) == 0 ? ", in use" : "";
        fprintf(stream, "%-10s %-10s %s%s\n", i == 0 ? "kernels" : "", name, state, chosen);
    }
    const char *forced = environment("THINWIRE_KERNELS");
    bool refused = getenv("THINWIRE_KERNELS") != NULL && strcmp(forced, tw_kernels()) != 0;
    fprintf(stream, "%-10s force with THINWIRE_KERNELS=NAME (now: %s%s)\n", "", forced,
            refused ? ", not usable: selectors will refuse it" : "");
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

static void print_methods(FILE *stream) {
    const char *name;
    const char *description;
    for (int i = 0; tw_select_method(i, &name, &description) == TW_OK; i++)
        fprintf(stream, "%-10s %-10s %s\n", i == 0 ? "select" : "", name, description);
}

static void print_exchanges(FILE *stream) {
    const char *name;
    const char *description;
    for (int i = 0; tw_exchange(i, &name, &description) == TW_OK; i++)
        fprintf(stream, "%-10s %-10s %s\n", i == 0 ? "exchange" : "", name, description);
    for (int i = 0; tw_scheme(i, &name, NULL, NULL, &description) == TW_OK; i++)
        fprintf(stream, "%-10s %-10s %s\n", i == 0 ? "scheme" : "", name, description);
}

static void print_wires(FILE *stream) {
    const char *name;
    const char *description;
    for (int i = 0; tw_wire(i, &name, &description) == TW_OK; i++)
        fprintf(stream, "%-10s %-10s %s\n", i == 0 ? "wire" : "", name, description);
}

static void print_transports(FILE *stream) {
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
        fprintf(stream, "%-10s %-10s %s\n", i == 0 ? "transport" : "", transports[i].name,
                transports[i].description);
    }
    fprintf(stream, "%-10s %-10s %s\n", "", "mpi",
            ranks_mpi_available() ? "one rank per process, started by mpirun"
                                  : "not in this build: install libopenmpi-dev and rebuild");
}

static void print_info(FILE *stream, const char *cpu_model) {
    fprintf(stream, "%-10s %s\n", "thinwire", tw_version());
    fprintf(stream, "%-10s %s\n", "cpu", cpu_model);
    print_kernels(stream);
    fprintf(stream, "%-10s %d by default; change with THINWIRE_THREADS=N (now: %s)\n", "threads",
            tw_default_threads(), environment("THINWIRE_THREADS"));
    print_gpus(stream);
    print_methods(stream);
    print_exchanges(stream);
    print_wires(stream);
    print_transports(stream);
    fprintf(stream, "%-10s %s\n", "json",
            jsonl_available() ? "yes" : "no: install libjansson-dev and rebuild");
}

static void write_json(jsonl *json, const char *cpu_model) {
    const char *name;
    int usable;
    jsonl_text(json, "version", tw_version());
    jsonl_text(json, "cpu", cpu_model);
    jsonl_text(json, "kernels", tw_kernels());
    for (int i = 0; tw_kernels_at(i, &name, &usable) == TW_OK; i++) {
        jsonl_append(json, "kernels_built", name);
        if (usable)
            jsonl_append(json, "kernels_usable", name);
    }
    jsonl_integer(json, "threads", tw_default_threads());
    for (int i = 0; tw_cuda_device(i, &name) == TW_OK; i++)
        jsonl_append(json, "gpus", name);
    for (int i = 0; tw_select_method(i, &name, NULL) == TW_OK; i++)
        jsonl_append(json, "methods", name);
    for (int i = 0; tw_exchange(i, &name, NULL) == TW_OK; i++)
        jsonl_append(json, "exchanges", name);
    for (int i = 0; tw_scheme(i, &name, NULL, NULL, NULL) == TW_OK; i++)
        jsonl_append(json, "schemes", name);
    for (int i = 0; tw_wire(i, &name, NULL) == TW_OK; i++)
        jsonl_append(json, "wires", name);
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++)
        jsonl_append(json, "transports", transports[i].name);
    if (ranks_mpi_available())
        jsonl_append(json, "transports", "mpi");
    jsonl_write(json);
}

int cmd_info(int argc, char **argv) {
    const char *json_path = NULL;
    const cli_option options[] = {
        {.name = "json",
         TAKES_TEXT("FILE", &json_path),
         .help = "write one JSON object to FILE, or to stdout with -"},
    };
    const option_set set = {
        .command = "info",
        .summary = "Show version, kernels, threads, GPUs, selection methods, exchanges, schemes, "
                   "wire formats and transports, and how to choose them.",
        .examples = "  thinwire info\n"
                    "  thinwire info --json -\n"
                    "  THINWIRE_KERNELS=ref thinwire info\n",
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    int status = options_parse(&set, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return status;
    jsonl *json;
    status = jsonl_open(&json, json_path);
    if (status != STATUS_OK)
        return status;
    char cpu_model[LINE_SIZE];
    read_cpu_model(cpu_model);
    print_info(jsonl_table_stream(json), cpu_model);
    write_json(json, cpu_model);
    return jsonl_close(json);
}
