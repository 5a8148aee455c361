/* help.c - prints --help, man pages and words for completion; see help.h */
#include <stdio.h>
#include <string.h>

#include "help.h"

#include "cli.h"

#define LINE_WIDTH 96 /* of the help */
#define NAME_WIDTH 20 /* of "--name VALUE" */

static const cli_option help_option = {.name = "help", .help = "show this text", .kind = KIND_FLAG};

help_format help_asked(const char *argument) {
    static const struct {
        const char *argument;
        help_format format;
    } formats[] = {{"--help", HELP_TEXT},
                   {"-h", HELP_TEXT},
                   {"--help=man", HELP_MAN},
                   {"--help=words", HELP_WORDS}};
    for (int i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i].argument, argument) == 0)
            return formats[i].format;
    return HELP_NONE;
}

static const char *choice(const cli_option *option, int position) {
    return option->choice_at != NULL ? option->choice_at(position) : NULL;
}

/* ---- text */

/* A paragraph under way: words go to the next line, indented, where they do not fit. */
typedef struct paragraph {
    int indent;
    int column;
} paragraph;

static void print_words(paragraph *text, const char *words) {
    int length;
    for (; *words != '\0'; words += length + (words[length] == ' ')) {
        length = (int)strcspn(words, " ");
        if (length > 0 && text->column > text->indent) {
            bool fits = text->column + 1 + length <= LINE_WIDTH;
            printf(fits ? " " : "\n%*s", text->indent, "");
            text->column = fits ? text->column + 1 : text->indent;
        }
        printf("%.*s", length, words);
        text->column += length;
    }
}

static void print_option(const cli_option *option) {
    char usage[64];
    const char *placeholder = option->placeholder != NULL ? option->placeholder : "";
    snprintf(usage, sizeof usage, "--%s %s", option->name, placeholder);
    printf("  %-*s ", NAME_WIDTH, usage);
    paragraph text = {.indent = NAME_WIDTH + 3, .column = NAME_WIDTH + 3};
    print_words(&text, option->help);
    if (option->choice_at != NULL)
        print_words(&text, "One of:");
    const char *name;
    for (int i = 0; (name = choice(option, i)) != NULL; i++)
        print_words(&text, name);
    putchar('\n');
}

static void print_text(const option_set *set) {
    printf("Usage: thinwire %s%s%s [options]\n\n", set->command, set->operands != NULL ? " " : "",
           set->operands != NULL ? set->operands : "");
    print_words(&(paragraph){.indent = 0}, set->summary);
    printf("\n\nOptions:\n");
    for (int i = 0; i < set->noptions; i++)
        print_option(&set->options[i]);
    print_option(&help_option);
    if (set->notes != NULL) {
        putchar('\n');
        print_words(&(paragraph){.indent = 0}, set->notes);
        putchar('\n');
    }
    printf("\nExamples:\n%s", set->examples);
}

static void print_set_text(const command_set *set, FILE *stream) {
    fprintf(stream, "Usage: %s COMMAND [options]\n\n%s\n\nCommands:\n", set->name,
            set->description);
    for (int i = 0; i < set->ncommands; i++)
        fprintf(stream, "  %-10s %s\n", set->commands[i].name, set->commands[i].description);
    fprintf(stream, "\n`%s COMMAND --help` shows the options of a command.\n\nExamples:\n%s",
            set->name, set->examples);
}

/* ---- roff */

/* Backslashes and hyphens mean something to roff, and so does a dot that begins a line. */
static void print_roff(const char *text) {
    bool line_begins = true;
    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\''))
            fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        line_begins = *text == '\n';
    }
}

/* "thinwire bench select" as the name of a page: "thinwire-bench-select". */
static void print_page_name(const char *name) {
    for (; *name != '\0'; name++)
        putchar(*name == ' ' ? '-' : *name);
}

/* A page up to its description. */
static void begin_page(const char *name, const char *description, const char *arguments) {
    fputs(".TH \"", stdout);
    print_page_name(name);
    printf("\" 1 \"\" \"thinwire %s\" \"Thinwire\"\n.SH NAME\n", tw_version());
    print_page_name(name);
    fputs(" \\- ", stdout);
    print_roff(description);
    printf("\n.SH SYNOPSIS\n.B %s\n%s\n.SH DESCRIPTION\n", name, arguments);
}

static void end_page(const char *examples) {
    fputs(".SH EXAMPLES\n.nf\n", stdout);
    print_roff(examples);
    fputs(".fi\n.SH EXIT STATUS\n0: success. 1: the work failed. 2: the command line was not "
          "understood.\n.SH SEE ALSO\n.BR thinwire (1),\n.BR libthinwire (3)\n",
          stdout);
}

static void print_option_roff(const cli_option *option) {
    fputs(".TP\n\\fB\\-\\-", stdout);
    print_roff(option->name);
    printf("\\fR \\fI%s\\fR\n", option->placeholder != NULL ? option->placeholder : "");
    print_roff(option->help);
    if (option->choice_at != NULL)
        fputs("\nOne of:", stdout);
    const char *name;
    for (int i = 0; (name = choice(option, i)) != NULL; i++) {
        putchar(' ');
        print_roff(name);
    }
    putchar('\n');
}

/* The first sentence of a summary, without its stop. */
static void first_sentence(char *sentence, size_t size, const char *summary) {
    const char *stop = strstr(summary, ". ");
    size_t length = stop != NULL ? (size_t)(stop - summary) : strlen(summary);
    length -= stop == NULL && length > 0 && summary[length - 1] == '.';
    snprintf(sentence, size, "%.*s", (int)length, summary);
}

static void print_man(const option_set *set) {
    char name[64], sentence[256];
    snprintf(name, sizeof name, "thinwire %s", set->command);
    first_sentence(sentence, sizeof sentence, set->summary);
    begin_page(name, sentence, set->operands != NULL ? set->operands : "[options]");
    print_roff(set->summary);
    fputs("\n.SH OPTIONS\n", stdout);
    for (int i = 0; i < set->noptions; i++)
        print_option_roff(&set->options[i]);
    print_option_roff(&help_option);
    if (set->notes != NULL) {
        fputs(".SH NOTES\n", stdout);
        print_roff(set->notes);
        putchar('\n');
    }
    end_page(set->examples);
}

static void print_set_man(const command_set *set) {
    char sentence[256];
    first_sentence(sentence, sizeof sentence, set->description);
    begin_page(set->name, sentence, "COMMAND [options]");
    print_roff(set->description);
    fputs("\n.SH COMMANDS\n", stdout);
    for (int i = 0; i < set->ncommands; i++) {
        fputs(".TP\n.BR ", stdout);
        print_page_name(set->name);
        printf("\\-%s (1)\n", set->commands[i].name);
        print_roff(set->commands[i].description);
        putchar('\n');
    }
    end_page(set->examples);
}

/* ---- words */

static void print_option_words(const cli_option *option) {
    printf("--%s", option->name);
    const char *name;
    for (int i = 0; (name = choice(option, i)) != NULL; i++)
        printf(" %s", name);
    putchar('\n');
}

void help_print_set(const command_set *set, help_format format, FILE *stream) {
    if (format == HELP_TEXT)
        print_set_text(set, stream);
    else if (format == HELP_MAN)
        print_set_man(set);
    for (int i = 0; format == HELP_WORDS && i < set->ncommands; i++)
        fprintf(stream, "%s\n", set->commands[i].name);
}

void help_print_command(const option_set *set, help_format format) {
    if (format == HELP_TEXT)
        print_text(set);
    else if (format == HELP_MAN)
        print_man(set);
    for (int i = 0; format == HELP_WORDS && i < set->noptions; i++)
        print_option_words(&set->options[i]);
    if (format == HELP_WORDS)
        print_option_words(&help_option);
}
