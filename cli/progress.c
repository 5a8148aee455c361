/* progress.c - the progress bar
 *
 * Draws rarely on purpose: a terminal emulator that wakes up for every step would take a core from
 * the code being timed. The state is static because stderr is shared by the whole process.
 */
#include "progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "timer.h"

#define BAR_WIDTH 30
#define REDRAW_US 250e3
#define PLAIN_LINE_US 10e6

static struct {
    const char *label; /* NULL: nothing is under way */
    int64_t total;
    bool terminal;     /* draw a bar rather than lines */
    bool visible;      /* a bar is on the line now */
    double printed_at; /* timer_us() of the last bar or line */
} bar;

static void draw_bar(int64_t done, int percent) {
    int filled = (int)(done * BAR_WIDTH / bar.total);
    char cells[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++) {
        cells[i] = i < filled ? '#' : '.';
    }
    cells[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3d %%", bar.label, cells, percent);
    fflush(stderr);
    bar.visible = true;
}

void progress_begin(const char *label, int64_t total) {
    bar.label = label;
    bar.total = total > 0 ? total : 1;
    bar.terminal = isatty(STDERR_FILENO) == 1;
    bar.visible = false;
    /* The first bar appears at once; the first plain line only if the work turns out to be long. */
    bar.printed_at = bar.terminal ? -REDRAW_US : timer_us();
}

void progress_to(int64_t done) {
    if (bar.label == NULL) {
        return;
    }
    double now = timer_us();
    if (now - bar.printed_at < (bar.terminal ? REDRAW_US : PLAIN_LINE_US)) {
        return;
    }
    bar.printed_at = now;
    int percent = (int)(done * 100 / bar.total);
    if (bar.terminal) {
        draw_bar(done, percent);
    } else {
        fprintf(stderr, "%s: %d %%\n", bar.label, percent);
    }
}

void progress_clear(void) {
    if (bar.visible) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar.visible = false;
        bar.printed_at = -REDRAW_US;
    }
}

void progress_end(void) {
    progress_clear();
    bar.label = NULL;
}
