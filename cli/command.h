/* command.h - subcommands as rows, at both levels: `thinwire SUB` and `thinwire bench SUB`
 *
 * Help, the list in an error message and the dispatch come from the same table, so they cannot
 * drift apart. A new subcommand is one file cmd_<name>.c, its declaration here and one row.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

typedef struct command {
    const char *name;
    const char *description;           /* one line */
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns the exit status */
} command;

typedef struct command_group {
    const char *name;        /* as typed: "thinwire bench" */
    const char *description; /* one line */
    const char *others;      /* what is accepted beside the commands: "help --help" */
    const char *examples;    /* indented lines, each ending in \n */
    const command *commands; /* [ncommands] */
    int ncommands;
} command_group;

/* Run the command that argv[1] names; handles --help, -h and `help SUB`.
 * Returns the exit status. */
int command_dispatch(const command_group *group, int argc, char **argv);

/* The subcommands of `thinwire`. */
int cmd_info(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_simulate(int argc, char **argv);
int cmd_bounds(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_demo(int argc, char **argv);

/* The subcommands of `thinwire bench`. */
int bench_select(int argc, char **argv);
int bench_allreduce(int argc, char **argv);
int bench_overlap(int argc, char **argv);
int bench_wire(int argc, char **argv);

#endif
