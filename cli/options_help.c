/* options_help.c - makes the --help text of a subcommand from its rows */
#include "options.h"

#include <stdio.h>
#include <string.h>

#define LINE_WIDTH 96
#define NAME_WIDTH 20 /* of "--name VALUE" */

/* A paragraph under way: words go to the next line, indented, where they do not fit. */
typedef struct paragraph {
    int indent;
    int column;
} paragraph;

static void print_word(paragraph *text, const char *word, int length) {
    if (text->column > text->indent) {
        if (text->column + 1 + length > LINE_WIDTH) {
            printf("\n%*s", text->indent, "");
            text->column = text->indent;
        } else {
            putchar(' ');
            text->column++;
        }
    }
    printf("%.*s", length, word);
    text->column += length;
}

static void print_words(paragraph *text, const char *words) {
    while (*words != '\0') {
        int length = (int)strcspn(words, " ");
        if (length > 0)
            print_word(text, words, length);
        words += length;
        words += *words == ' ';
    }
}

static void print_choices(paragraph *text, const cli_option *option) {
    print_words(text, "One of:");
    for (int i = 0; option->choice_at(i) != NULL; i++)
        print_words(text, option->choice_at(i));
}

static void print_option(const cli_option *option) {
    char usage[64];
    const char *placeholder = option->placeholder != NULL ? option->placeholder : "";
    snprintf(usage, sizeof usage, "--%s %s", option->name, placeholder);
    printf("  %-*s ", NAME_WIDTH, usage);
    paragraph text = {.indent = NAME_WIDTH + 3, .column = NAME_WIDTH + 3};
    print_words(&text, option->help);
    if (option->choice_at != NULL)
        print_choices(&text, option);
    putchar('\n');
}

static void print_paragraph(const char *words) {
    paragraph text = {.indent = 0, .column = 0};
    print_words(&text, words);
    putchar('\n');
}

void options_print_help(const option_set *set) {
    static const cli_option help = {.name = "help", .help = "show this text", .kind = OPTION_FLAG};
    printf("Usage: thinwire %s [options]\n\n", set->command);
    print_paragraph(set->summary);
    printf("\nOptions:\n");
    for (int i = 0; i < set->noptions; i++)
        print_option(&set->options[i]);
    print_option(&help);
    if (set->notes != NULL) {
        putchar('\n');
        print_paragraph(set->notes);
    }
    printf("\nExamples:\n%s", set->examples);
}
