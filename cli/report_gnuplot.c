/* report_gnuplot.c - runs gnuplot as a child
 *
 * Script, output and errors go through nameless temporary files rather than pipes: whatever their
 * sizes, neither side waits for the other, and nothing is left behind. The user's own gnuplot
 * settings are not read (-d), so a page looks the same everywhere.
 */
#include "report_gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Run gnuplot with one argument and the files in place of stdin, stdout and stderr. Returns 0, or
 * an errno; *exit_status is as of waitpid. */
static int run_child(const char *argument, const int files[3], int *exit_status) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    for (int i = 0; i < 3 && error == 0; i++)
        error = posix_spawn_file_actions_adddup2(&actions, files[i], i);
    char name[] = "gnuplot";
    char *copy = strdup(argument);
    char *arguments[] = {name, copy, NULL};
    pid_t child = 0;
    if (error == 0) {
        error =
            copy != NULL ? posix_spawnp(&child, name, &actions, NULL, arguments, environ) : ENOMEM;
    }
    while (error == 0 && waitpid(child, exit_status, 0) < 0)
        error = errno == EINTR ? 0 : errno;
    posix_spawn_file_actions_destroy(&actions);
    free(copy);
    return error;
}

bool gnuplot_available(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return false;
    const int files[3] = {null, null, null};
    int exit_status = 0;
    int error = run_child("--version", files, &exit_status);
    close(null);
    return error == 0 && WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0;
}

/* The whole file as a text, NULL if it cannot be had. */
static char *read_back(FILE *file) {
    if (fseek(file, 0, SEEK_END) != 0)
        return NULL;
    long size = ftell(file);
    rewind(file);
    char *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    if (text != NULL) {
        size_t length = fread(text, 1, (size_t)size, file);
        text[length] = '\0';
    }
    return text;
}

/* The line of gnuplot's complaint that says what is wrong: the last. */
static void complaint(FILE *errors, char *reason, size_t size) {
    char *text = read_back(errors);
    size_t length = text != NULL ? strlen(text) : 0;
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
        text[--length] = '\0';
    const char *line = text != NULL ? strrchr(text, '\n') : NULL;
    line = line != NULL ? line + 1 : text;
    snprintf(reason, size, "%s", length > 0 ? line : "gnuplot drew nothing");
    free(text);
}

static char *draw(FILE *in, FILE *drawn, FILE *errors, char *reason, size_t size) {
    const int files[3] = {fileno(in), fileno(drawn), fileno(errors)};
    int exit_status = 0;
    int error = run_child("-d", files, &exit_status);
    if (error != 0) {
        snprintf(reason, size, "cannot run gnuplot: %s", strerror(error));
        return NULL;
    }
    char *svg = read_back(drawn);
    if (exit_status == 0 && svg != NULL && strstr(svg, "</svg>") != NULL)
        return svg;
    complaint(errors, reason, size);
    free(svg);
    return NULL;
}

void gnuplot_run(const char *script, char **svg, char *reason, size_t size) {
    *svg = NULL;
    FILE *in = tmpfile(), *drawn = tmpfile(), *errors = tmpfile();
    if (in == NULL || drawn == NULL || errors == NULL || fputs(script, in) == EOF ||
        fflush(in) != 0) {
        snprintf(reason, size, "no temporary file: %s", strerror(errno));
    } else {
        rewind(in);
        *svg = draw(in, drawn, errors, reason, size);
    }
    FILE *files[] = {in, drawn, errors};
    for (int i = 0; i < 3; i++)
        if (files[i] != NULL)
            (void)fclose(files[i]);
}
