/* cmd_bench.c - `thinwire bench`: the table of benchmarks, each in its own file */
#include "command.h"

static const command benches[] = {
    {"select", "time of one selection step against the bare pass e += g", bench_select},
    {"allreduce", "time and bytes of one allreduce step against dense", bench_allreduce},
    {"overlap", "many tensors, exchanged one by one and in the background", bench_overlap},
    {"wire", "size and speed of messages in each wire format", bench_wire},
};

static const command_group bench = {
    .name = "thinwire bench",
    .description = "Benchmarks. Each checks what it times.",
    .others = "help --help",
    .examples = "  thinwire bench select\n"
                "  thinwire bench select --method exact,reuse --density 0.001 --json -\n"
                "  thinwire bench allreduce --ranks 8 --verify\n",
    .commands = benches,
    .ncommands = sizeof benches / sizeof benches[0],
};

int cmd_bench(int argc, char **argv) {
    return command_dispatch(&bench, argc, argv);
}
