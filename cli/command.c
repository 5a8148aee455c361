/* command.c - finds a subcommand in its table and runs it
 *
 * `help SUB` is turned into `SUB --help`, so there is one way in which help is made.
 */
#include "command.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"

static void print_help(const command_group *group, FILE *stream) {
    fprintf(stream, "Usage: %s COMMAND [options]\n\n%s\n\nCommands:\n", group->name,
            group->description);
    for (int i = 0; i < group->ncommands; i++)
        fprintf(stream, "  %-10s %s\n", group->commands[i].name, group->commands[i].description);
    fprintf(stream, "\n`%s COMMAND --help` shows the options of a command.\n\nExamples:\n%s",
            group->name, group->examples);
}

static int unknown_command(const command_group *group, const char *given) {
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < group->ncommands && used < sizeof names; i++) {
        int length = snprintf(names + used, sizeof names - used, " %s", group->commands[i].name);
        used += (size_t)length;
    }
    return usage_error("unknown command '%s'; accepted after `%s`:%s %s", given, group->name, names,
                       group->others);
}

static const command *find(const command_group *group, const char *name) {
    for (int i = 0; i < group->ncommands; i++)
        if (strcmp(group->commands[i].name, name) == 0)
            return &group->commands[i];
    return NULL;
}

/* "help bench select" becomes "bench select --help". */
static void turn_help_around(int argc, char **argv) {
    static char help_flag[] = "--help";
    for (int i = 1; i + 1 < argc; i++)
        argv[i] = argv[i + 1];
    argv[argc - 1] = help_flag;
}

int command_dispatch(const command_group *group, int argc, char **argv) {
    if (argc < 2) {
        print_help(group, stderr);
        return STATUS_USAGE;
    }
    if (strcmp(argv[1], "help") == 0)
        turn_help_around(argc, argv);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(group, stdout);
        return STATUS_OK;
    }
    const command *chosen = find(group, argv[1]);
    if (chosen == NULL)
        return unknown_command(group, argv[1]);
    return chosen->run(argc - 1, argv + 1);
}
