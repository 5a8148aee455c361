/* options.c - parses options, refuses what it does not understand; help.c prints what they are
 *
 * Numbers are read whole: trailing characters, a leading blank, nan, inf and overflow are all
 * errors, never a value that merely looks right.
 */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "help.h"

#define TEXT_SIZE 512
#define NAME_MOST 32 /* letters of an option's name */

/* Around the limits or the choices of an option. */
static const struct {
    const char *before, *after;
} accepted_words[] = {
    [KIND_FLAG] = {"no value", ""},
    [KIND_INTEGER] = {"a whole number", " (suffixes K, M, G)"},
    [KIND_REAL] = {"a number", ""},
    [KIND_TEXT] = {"", ""}, /* the placeholder */
    [KIND_CHOICE] = {"one of", ""},
    [KIND_CHOICES] = {"all, or some of", " separated by commas"},
    [KIND_REALS] = {"numbers", ", separated by commas"},
};

static void describe_accepted(char text[TEXT_SIZE], const cli_option *option) {
    bool is_text = option->kind == KIND_TEXT;
    snprintf(text, TEXT_SIZE, "%s",
             is_text ? option->placeholder : accepted_words[option->kind].before);
    if (option->max > option->min)
        text_append(text, TEXT_SIZE, " from %.15g to %.15g", option->min, option->max);
    for (int i = 0; option->choice_at != NULL && option->choice_at(i) != NULL; i++)
        text_append(text, TEXT_SIZE, " %s", option->choice_at(i));
    text_append(text, TEXT_SIZE, "%s", accepted_words[option->kind].after);
}

/* value NULL: there is none. */
static int refuse_value(const option_set *set, const cli_option *option, const char *value) {
    char accepted[TEXT_SIZE];
    describe_accepted(accepted, option);
    if (value == NULL)
        return error_usage("%s: --%s needs a value: %s", set->command, option->name, accepted);
    return error_usage("%s: --%s '%s' is not accepted; give %s", set->command, option->name, value,
                       accepted);
}

static int least(int a, int b) {
    return a < b ? a : b;
}

/* How many letters to insert, remove or replace until typed[length] is name. */
static int count_edits(const char *typed, int length, const char *name) {
    int edits[NAME_MOST + 1]; /* from what was typed so far to the first j letters of name */
    int letters = (int)strlen(name);
    if (letters > NAME_MOST)
        return letters;
    for (int j = 0; j <= letters; j++)
        edits[j] = j;
    for (int i = 1; i <= length; i++) {
        int diagonal = edits[0];
        edits[0] = i;
        for (int j = 1; j <= letters; j++) {
            int replaced = diagonal + (typed[i - 1] != name[j - 1]);
            diagonal = edits[j];
            edits[j] = least(replaced, 1 + least(edits[j], edits[j - 1]));
        }
    }
    return edits[letters];
}

/* The option whose name is nearest to typed[length], NULL if none is near: an edit for every three
 * letters. */
static const cli_option *find_near(const option_set *set, const char *typed, int length) {
    const cli_option *near = NULL;
    int fewest = length / 3 + 1;
    for (int i = 0; i < set->noptions && length <= NAME_MOST; i++) {
        int edits = count_edits(typed, length, set->options[i].name);
        if (edits < fewest) {
            fewest = edits;
            near = &set->options[i];
        }
    }
    return near;
}

static int refuse_unknown(const option_set *set, const char *argument) {
    const char *command = set->command;
    if (argument[0] != '-')
        return error_usage("%s: '%s' is not an option, and nothing else is accepted; `thinwire %s "
                           "--help` lists the options",
                           command, argument, command);
    const char *name = argument + strspn(argument, "-");
    int length = (int)strcspn(name, "=");
    const cli_option *near = find_near(set, name, length);
    int dashes = (int)(name - argument);
    if (near == NULL)
        return error_usage("%s: unknown option '%.*s'; `thinwire %s --help` lists the options",
                           command, dashes + length, argument, command);
    return error_usage("%s: unknown option '%.*s'; did you mean '--%s'? `thinwire %s --help` lists "
                       "the options",
                       command, dashes + length, argument, near->name, command);
}

/* strtod and strtoll skip blanks and read "nan"; a number here starts like one. */
static bool starts_like_number(const char *text) {
    text += text[0] == '-' || text[0] == '+';
    text += text[0] == '.';
    return text[0] >= '0' && text[0] <= '9';
}

/* The power of 1000 that a suffix stands for, 0 if it is none. */
static int64_t suffix_factor(const char *suffix) {
    static const char letters[] = "KMG";
    int64_t factor = 1;
    if (suffix[0] == '\0')
        return factor;
    for (int i = 0; letters[i] != '\0'; i++) {
        factor *= 1000;
        if (suffix[0] == letters[i] && suffix[1] == '\0')
            return factor;
    }
    return 0;
}

static bool read_integer(const cli_option *option, const char *text, int64_t *value) {
    char *end;
    errno = 0;
    int64_t number = strtoll(text, &end, 10);
    int64_t factor = suffix_factor(end);
    if (!starts_like_number(text) || errno != 0 || factor == 0 || number > INT64_MAX / factor ||
        number < INT64_MIN / factor)
        return false;
    *value = number * factor;
    return (double)*value >= option->min && (double)*value <= option->max;
}

static bool read_real(const cli_option *option, const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return starts_like_number(text) && *end == '\0' && *value >= option->min &&
           *value <= option->max;
}

static bool read_choice(const cli_option *option, const char *text, int *position) {
    for (int i = 0; option->choice_at(i) != NULL; i++) {
        if (strcmp(option->choice_at(i), text) == 0) {
            *position = i;
            return true;
        }
    }
    return false;
}

/* Items separated by commas. One that does not fit becomes empty, which no reader accepts. */
static bool read_list(const cli_option *option, const char *text) {
    real_list *reals = option->kind == KIND_REALS ? option->to.reals : NULL;
    choice_list *choices = reals == NULL ? option->to.choices : NULL;
    int count = 0;
    for (; text != NULL && count < OPTION_LIST_MAX; count++) {
        char item[TEXT_SIZE];
        size_t length = strcspn(text, ",");
        snprintf(item, TEXT_SIZE, "%.*s", length < TEXT_SIZE ? (int)length : 0, text);
        text = text[length] == ',' ? text + length + 1 : NULL;
        if (reals != NULL ? !read_real(option, item, &reals->at[count])
                          : !read_choice(option, item, &choices->at[count]))
            return false;
    }
    *(reals != NULL ? &reals->count : &choices->count) = count;
    return text == NULL;
}

void options_take_all(const char *(*choice_at)(int position), choice_list *list) {
    for (list->count = 0; list->count < OPTION_LIST_MAX && choice_at(list->count) != NULL;
         list->count++)
        list->at[list->count] = list->count;
}

static bool read_value(const cli_option *option, const char *text) {
    switch (option->kind) {
    case KIND_INTEGER:
        return read_integer(option, text, option->to.integer);
    case KIND_REAL:
        return read_real(option, text, option->to.real);
    case KIND_CHOICE:
        return read_choice(option, text, option->to.choice);
    case KIND_CHOICES:
        if (strcmp(text, "all") == 0) {
            options_take_all(option->choice_at, option->to.choices);
            return true;
        }
        return read_list(option, text);
    case KIND_REALS:
        return read_list(option, text);
    case KIND_TEXT:
        *option->to.text = text;
        return text[0] != '\0';
    case KIND_FLAG:
        break;
    }
    return false;
}

/* The option that "--name" or "--name=value" names, NULL if none. */
static const cli_option *find_option(const option_set *set, const char *argument) {
    if (strncmp(argument, "--", 2) != 0)
        return NULL;
    size_t length = strcspn(argument + 2, "=");
    for (int i = 0; i < set->noptions; i++) {
        const char *name = set->options[i].name;
        if (strlen(name) == length && strncmp(name, argument + 2, length) == 0)
            return &set->options[i];
    }
    return NULL;
}

/* Handle argv[*at] and move *at past it and its value. */
static int parse_argument(const option_set *set, int argc, char **argv, int *at) {
    const char *argument = argv[(*at)++];
    const cli_option *option = find_option(set, argument);
    if (option == NULL)
        return refuse_unknown(set, argument);
    const char *equals = strchr(argument, '=');
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (option->kind == KIND_FLAG) {
        *option->to.flag = true;
        return value == NULL ? STATUS_OK : refuse_value(set, option, value);
    }
    if (value == NULL) {
        /* An option where a value should be is a forgotten value; a lone "-" is a file name. */
        bool missing = *at == argc || strncmp(argv[*at], "--", 2) == 0;
        if (missing && option->bare == NULL)
            return refuse_value(set, option, NULL);
        value = missing ? option->bare : argv[(*at)++];
    }
    return read_value(option, value) ? STATUS_OK : refuse_value(set, option, value);
}

int options_parse(const option_set *set, int argc, char **argv) {
    bool ended = false; /* all that follows a "--" alone is an operand */
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        help_format format = help_asked(argv[i]);
        if (format != HELP_NONE) {
            help_print_command(set, format);
            return STATUS_HELP;
        }
    }
    for (int at = 1; at < argc;) {
        const char *argument = argv[at];
        if (set->operands != NULL && !ended && strcmp(argument, "--") == 0) {
            ended = true;
            at++;
        } else if (set->operands != NULL && (ended || argument[0] != '-' || argument[1] == '\0')) {
            set->paths[(*set->npaths)++] = argv[at++];
        } else {
            TW_TRY(parse_argument(set, argc, argv, &at));
        }
    }
    return STATUS_OK;
}

int options_check_k(const char *command, int64_t k, int64_t n, bool given) {
    if (k > 0 && given)
        return error_usage("%s: give --k or --density, not both", command);
    return k <= n ? STATUS_OK
                  : error_usage("%s: --k %" PRId64 " is more than --n %" PRId64 "; give at most n",
                                command, k, n);
}

int options_settle_k(const char *command, int64_t k, int64_t n, real_list *densities,
                     const real_list *defaults) {
    TW_TRY(options_check_k(command, k, n, densities->count > 0));
    if (k > 0)
        *densities = (real_list){1, {(double)k / (double)n}};
    else if (densities->count == 0)
        *densities = *defaults;
    return STATUS_OK;
}
