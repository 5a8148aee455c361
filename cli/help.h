/* help.h - what a command does and accepts, for people, for man and for the completion of a shell
 *
 * All three come from the tables of commands (main.c) and from the rows of options. */
#ifndef CLI_HELP_H
#define CLI_HELP_H

#include <stdio.h>

#include "options.h"

typedef enum help_format {
    HELP_NONE,
    HELP_TEXT, /* --help, -h */
    HELP_MAN,  /* --help=man: a page in roff, section 1 */
    HELP_WORDS, /* --help=words: a line for each word that may follow; after an option, its choices */
} help_format;

/* The format that an argument asks for. */
help_format help_asked(const char *argument);

typedef struct help_command {
    const char *name;
    const char *description; /* one line */
    int (*run)(int argc, char **argv);
} help_command;

typedef struct command_set {
    const char *name; /* as typed: "thinwire bench" */
    const char *description;
    const char *others;   /* accepted besides the commands */
    const char *examples; /* indented lines, each ending in \n */
    const help_command *commands;
    int ncommands;
} command_set;

void help_print_set(const command_set *set, help_format format, FILE *stream);
void help_print_command(const option_set *set, help_format format);

#endif
