/* main.c - the thinwire command: the tables of subcommands, and how one is found and run
 *
 * The command reaches the library through its public headers, so a program that links libthinwire
 * can do the same; `bench wire` alone looks inside. Exit status: 0 success, 1 the work failed, 2
 * the command line was not understood.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "help.h"

static int command_bench(int argc, char **argv);

#ifndef TW_HAVE_TRAINER
int command_train(int argc, char **argv) {
    (void)argc, (void)argv;
    return error_report("this build has no trainer: it lacks a CBLAS or zlib; 'make deps' installs "
                        "both, then build again");
}

int command_demo(int argc, char **argv) {
    return command_train(argc, argv);
}
#endif

static const help_command commands[] = {
    {"demo", "train under six schemes and compare, in a minute", command_demo},
    {"train", "train a model with workers that exchange sparse gradients", command_train},
    {"info", "what this build has and what this machine uses", command_info},
    {"bench", "measure: selection against the bare pass, allreduce against dense", command_bench},
    {"simulate", "what a step would take on another network, with up to 2048 ranks",
     command_simulate},
    {"bounds", "what top-k leaves behind, against the bounds of theory", command_bounds},
    {"report", "a page with tables and plots from the logs of training runs", command_report},
};

static const command_set thinwire = {
    .name = "thinwire",
    .description = "Sum gradients over thin wires: send the few values that matter, keep the rest.",
    .others = "help --help --version",
    .examples = "  thinwire demo\n"
                "  thinwire train --scheme oktopk --log run.jsonl\n"
                "  thinwire bench select --n 10M --density 0.01\n"
                "  thinwire bench allreduce --ranks 8 --verify\n"
                "  thinwire simulate --network 10gbe --ranks 8,64,256\n"
                "  thinwire help bounds\n",
    .commands = commands,
    .ncommands = COUNT_OF(commands),
};

static const help_command benches[] = {
    {"select", "time of one selection step against the bare pass e += g", command_bench_select},
    {"allreduce", "time and bytes of one allreduce step against dense", command_bench_allreduce},
    {"overlap", "many tensors, exchanged one by one and in the background", command_bench_overlap},
    {"wire", "size and speed of messages in each wire format", command_bench_wire},
};

static const command_set bench = {
    .name = "thinwire bench",
    .description = "Benchmarks. Each checks what it times.",
    .others = "help --help",
    .examples = "  thinwire bench select\n"
                "  thinwire bench select --method exact,reuse --density 0.001 --json -\n"
                "  thinwire bench allreduce --ranks 8 --verify\n",
    .commands = benches,
    .ncommands = COUNT_OF(benches),
};

static int dispatch(const command_set *set, int argc, char **argv) {
    if (argc < 2) {
        help_print_set(set, HELP_TEXT, stderr);
        return STATUS_USAGE;
    }
    if (strcmp(argv[1], "help") == 0) { /* "help bench select" becomes "bench select --help" */
        static char help_flag[] = "--help";
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = help_flag;
    }
    help_format format = help_asked(argv[1]);
    if (format != HELP_NONE) {
        help_print_set(set, format, stdout);
        return STATUS_OK;
    }
    char names[256] = "";
    for (int i = 0; i < set->ncommands; i++) {
        if (strcmp(set->commands[i].name, argv[1]) == 0)
            return set->commands[i].run(argc - 1, argv + 1);
        text_append(names, sizeof names, " %s", set->commands[i].name);
    }
    return error_usage("unknown command '%s'; accepted after `%s`:%s %s", argv[1], set->name, names,
                       set->others);
}

static int command_bench(int argc, char **argv) {
    return dispatch(&bench, argc, argv);
}

int main(int argc, char **argv) {
    int status = STATUS_OK;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        printf("thinwire %s\n", tw_version());
    else
        status = dispatch(&thinwire, argc, argv);
    status = status == STATUS_HELP ? STATUS_OK : status;
    /* A full disk shows up only when the last buffer is written. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int failed = error_report("cannot write to standard output");
        return status == STATUS_OK ? failed : status;
    }
    return status;
}
