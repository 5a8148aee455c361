/* gnuplot.c - runs gnuplot as a child; writes files as a whole or not at all
 *
 * Script, output and errors go through nameless temporary files rather than pipes: whatever their
 * sizes, neither process waits for the other, and nothing is left behind. The user's own gnuplot
 * settings are not read (-d), so a page looks the same everywhere.
 */
#include "report/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "cli.h"

/* Run gnuplot with one argument and the files in place of stdin, stdout and stderr. Returns 0, or
 * an errno; *exit_status is as of waitpid. */
static int run_child(char *argument, const int files[3], int *exit_status) {
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return error;
    for (int i = 0; i < 3 && error == 0; i++)
        error = posix_spawn_file_actions_adddup2(&actions, files[i], i);
    char name[] = "gnuplot";
    char *arguments[] = {name, argument, NULL};
    pid_t child = 0;
    if (error == 0)
        error = posix_spawnp(&child, name, &actions, NULL, arguments, environ);
    while (error == 0 && waitpid(child, exit_status, 0) < 0)
        error = errno == EINTR ? 0 : errno;
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

bool gnuplot_available(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return false;
    const int files[3] = {null, null, null};
    char option[] = "--version";
    int exit_status = 0;
    int error = run_child(option, files, &exit_status);
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
    if (text != NULL)
        text[fread(text, 1, (size_t)size, file)] = '\0';
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

static char *draw(FILE *const streams[3], char *reason, size_t size) {
    const int files[3] = {fileno(streams[0]), fileno(streams[1]), fileno(streams[2])};
    char option[] = "-d";
    int exit_status = 0;
    int error = run_child(option, files, &exit_status);
    if (error != 0) {
        snprintf(reason, size, "cannot run gnuplot: %s", strerror(error));
        return NULL;
    }
    char *svg = read_back(streams[1]);
    if (exit_status == 0 && svg != NULL && strstr(svg, "</svg>") != NULL)
        return svg;
    complaint(streams[2], reason, size);
    free(svg);
    return NULL;
}

char *gnuplot_run(const char *script, char *reason, size_t size) {
    char *svg = NULL;
    FILE *streams[3] = {tmpfile(), tmpfile(), tmpfile()}; /* script, drawing, errors */
    if (streams[0] == NULL || streams[1] == NULL || streams[2] == NULL ||
        fputs(script, streams[0]) == EOF || fflush(streams[0]) != 0) {
        snprintf(reason, size, "no temporary file: %s", strerror(errno));
    } else {
        rewind(streams[0]);
        svg = draw(streams, reason, size);
    }
    for (int i = 0; i < 3; i++)
        if (streams[i] != NULL)
            (void)fclose(streams[i]);
    return svg;
}

static int refuse(const char *path, int error) {
    return error_report("report: %s: cannot write: %s", path, strerror(error));
}

int plot_write_file(const char *path, const char *text, size_t size) {
    if (strcmp(path, "-") == 0)
        return fwrite(text, 1, size, stdout) == size ? STATUS_OK : refuse(path, errno);
    struct stat before;
    bool exists = stat(path, &before) == 0;
    if (exists && !S_ISREG(before.st_mode))
        return error_report("report: %s: not an ordinary file; give the name of one, or -", path);
    char *target = exists ? realpath(path, NULL) : strdup(path); /* a link stays a link */
    tw__output out;
    if (target == NULL)
        return refuse(path, errno);
    int error = tw__output_open(&out, target);
    if (error == TW_OK)
        error = tw__output_close(&out, tw__output_put(&out, text, size));
    free(target);
    return error == TW_OK ? STATUS_OK : error_report("report: %s", tw_last_error());
}
