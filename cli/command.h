/* command.h - subcommands as rows, at both levels: `thinwire SUB` and `thinwire bench SUB`
 *
 * Help, the list in an error message and the dispatch come from the tables in main.c. A new
 * subcommand is its file, its declaration here and one row there. argv[0] is the command's name;
 * each returns a status of error.h.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

int command_info(int argc, char **argv);
int command_simulate(int argc, char **argv);
int command_bounds(int argc, char **argv);
int command_report(int argc, char **argv);
int command_train(int argc, char **argv);
int command_demo(int argc, char **argv);

/* The subcommands of `thinwire bench`. */
int command_bench_select(int argc, char **argv);
int command_bench_allreduce(int argc, char **argv);
int command_bench_overlap(int argc, char **argv);
int command_bench_wire(int argc, char **argv);

#endif
