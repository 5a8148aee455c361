/* main.c - the thinwire command: the table of subcommands
 *
 * The library is reached through its public headers, so whatever the command does, a program that
 * links libthinwire can do too; `bench wire` alone looks inside. Exit status: 0 success, 1 the work
 * failed, 2 the command line was not understood.
 */
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "errors.h"
#include "thinwire.h"

static const command commands[] = {
    {"demo", "train under six schemes and compare, in a minute", cmd_demo},
    {"train", "train a model with workers that exchange sparse gradients", cmd_train},
    {"info", "what this build has and what this machine uses", cmd_info},
    {"bench", "measure: selection against the bare pass, allreduce against dense", cmd_bench},
    {"simulate", "what a step would take on another network, with up to 2048 ranks", cmd_simulate},
    {"bounds", "what top-k leaves behind, against the bounds of theory", cmd_bounds},
    {"report", "a page with tables and plots from the logs of training runs", cmd_report},
};

static const command_group thinwire = {
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
    .ncommands = sizeof commands / sizeof commands[0],
};

/* A full disk shows up only when the last buffer is written. */
static int flush_stdout(int status) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int failed = failure("cannot write to standard output");
        return status == STATUS_OK ? failed : status;
    }
    return status;
}

int main(int argc, char **argv) {
    int status = STATUS_OK;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        printf("thinwire %s\n", tw_version());
    else
        status = command_dispatch(&thinwire, argc, argv);
    return flush_stdout(status);
}
