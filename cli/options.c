/* options.c - parses options and refuses what it does not understand
 *
 * Numbers are read whole: trailing characters, a leading blank, nan, inf and overflow are all
 * errors, never a value that merely looks right. The help text is in options_help.c.
 */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"

#define TEXT_SIZE 512

/* ---- What is accepted, in words ------------------------------------------------------------- */

static void append(char text[TEXT_SIZE], const char *addition) {
    size_t used = strlen(text);
    snprintf(text + used, TEXT_SIZE - used, "%s", addition);
}

static void append_choices(char text[TEXT_SIZE], const cli_option *option) {
    for (int i = 0; option->choice_at(i) != NULL; i++) {
        append(text, i > 0 ? " " : "");
        append(text, option->choice_at(i));
    }
}

static void append_range(char text[TEXT_SIZE], const cli_option *option) {
    char range[64];
    snprintf(range, sizeof range, "from %.15g to %.15g", option->min, option->max);
    append(text, range);
}

static void describe_accepted(char text[TEXT_SIZE], const cli_option *option) {
    text[0] = '\0';
    switch (option->kind) {
    case OPTION_FLAG:
        append(text, "no value");
        break;
    case OPTION_INTEGER:
        append(text, "a whole number ");
        append_range(text, option);
        append(text, " (suffixes K, M, G)");
        break;
    case OPTION_REAL:
        append(text, "a number ");
        append_range(text, option);
        break;
    case OPTION_REALS:
        append(text, "numbers ");
        append_range(text, option);
        append(text, ", separated by commas");
        break;
    case OPTION_TEXT:
        append(text, option->placeholder);
        break;
    case OPTION_CHOICE:
        append(text, "one of ");
        append_choices(text, option);
        break;
    case OPTION_CHOICES:
        append(text, "all, or some of ");
        append_choices(text, option);
        append(text, " separated by commas");
        break;
    }
}

static int refuse_value(const option_set *set, const cli_option *option, const char *value) {
    char accepted[TEXT_SIZE];
    describe_accepted(accepted, option);
    return usage_error("%s: --%s '%s' is not accepted; give %s", set->command, option->name, value,
                       accepted);
}

static int refuse_missing(const option_set *set, const cli_option *option) {
    char accepted[TEXT_SIZE];
    describe_accepted(accepted, option);
    return usage_error("%s: --%s needs a value: %s", set->command, option->name, accepted);
}

static int refuse_unknown(const option_set *set, const char *argument) {
    char names[TEXT_SIZE] = "";
    for (int i = 0; i < set->noptions; i++) {
        append(names, " --");
        append(names, set->options[i].name);
    }
    return usage_error("%s: unknown option '%s'; accepted:%s --help", set->command, argument,
                       names);
}

/* ---- Values --------------------------------------------------------------------------------- */

/* strtod and strtoll skip blanks and read "nan"; a number here starts like one. */
static bool starts_like_number(const char *text) {
    text += text[0] == '-' || text[0] == '+';
    text += text[0] == '.';
    return text[0] >= '0' && text[0] <= '9';
}

static bool in_range(const cli_option *option, double value) {
    return value >= option->min && value <= option->max;
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
    return in_range(option, (double)*value);
}

static bool read_real(const cli_option *option, const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return starts_like_number(text) && *end == '\0' && in_range(option, *value);
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

/* Copy the text up to the next comma into item; returns what follows, NULL at the end. An item
 * that does not fit comes back empty, which no reader accepts. */
static const char *split_item(const char *text, char item[TEXT_SIZE]) {
    size_t length = strcspn(text, ",");
    snprintf(item, TEXT_SIZE, "%.*s", length < TEXT_SIZE ? (int)length : 0, text);
    return text[length] == ',' ? text + length + 1 : NULL;
}

static bool read_reals(const cli_option *option, const char *text, real_list *list) {
    char item[TEXT_SIZE];
    list->count = 0;
    while (text != NULL && list->count < OPTION_LIST_MAX) {
        text = split_item(text, item);
        if (!read_real(option, item, &list->at[list->count++]))
            return false;
    }
    return text == NULL;
}

void options_take_all(const char *(*choice_at)(int position), choice_list *list) {
    list->count = 0;
    while (list->count < OPTION_LIST_MAX && choice_at(list->count) != NULL) {
        list->at[list->count] = list->count;
        list->count++;
    }
}

static bool read_choices(const cli_option *option, const char *text, choice_list *list) {
    if (strcmp(text, "all") == 0) {
        options_take_all(option->choice_at, list);
        return true;
    }
    char item[TEXT_SIZE];
    list->count = 0;
    while (text != NULL && list->count < OPTION_LIST_MAX) {
        text = split_item(text, item);
        if (!read_choice(option, item, &list->at[list->count++]))
            return false;
    }
    return text == NULL;
}

static bool read_value(const cli_option *option, const char *text) {
    switch (option->kind) {
    case OPTION_INTEGER:
        return read_integer(option, text, option->to.integer);
    case OPTION_REAL:
        return read_real(option, text, option->to.real);
    case OPTION_REALS:
        return read_reals(option, text, option->to.reals);
    case OPTION_CHOICE:
        return read_choice(option, text, option->to.choice);
    case OPTION_CHOICES:
        return read_choices(option, text, option->to.choices);
    case OPTION_TEXT:
        *option->to.text = text;
        return text[0] != '\0';
    case OPTION_FLAG:
        break;
    }
    return false;
}

/* ---- Arguments ------------------------------------------------------------------------------ */

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
    if (option->kind == OPTION_FLAG) {
        *option->to.flag = true;
        return value == NULL ? OPTIONS_CONTINUE : refuse_value(set, option, value);
    }
    if (value == NULL) {
        /* An option where a value should be is a forgotten value; a lone "-" is a file name. */
        if (*at == argc || strncmp(argv[*at], "--", 2) == 0)
            return refuse_missing(set, option);
        value = argv[(*at)++];
    }
    return read_value(option, value) ? OPTIONS_CONTINUE : refuse_value(set, option, value);
}

int options_parse(const option_set *set, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            options_print_help(set);
            return STATUS_OK;
        }
    }
    int status = OPTIONS_CONTINUE;
    for (int at = 1; at < argc && status == OPTIONS_CONTINUE;)
        status = parse_argument(set, argc, argv, &at);
    return status;
}
