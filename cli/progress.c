/* progress.c - the progress bar
 *
 * Draws rarely on purpose: a terminal emulator that wakes up for every step would take a core from
 * the code being timed. The state is static because stderr is shared by the whole process.
 */
#include "cli.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define BAR_WIDTH 30
static const char full_bar[] = "##############################";
static const char empty_bar[] = "..............................";
#define REDRAW_NS (TW__SECOND / 4)
#define PLAIN_LINE_NS (10 * TW__SECOND)

static struct {
    const char *label; /* NULL: nothing is under way */
    int64_t total;
    bool terminal; /* draw a bar rather than lines */
    bool visible;  /* a bar is on the line now */
    int64_t due;   /* tw__clock() from which the next bar or line may appear */
} bar;

void progress_begin(const char *label, int64_t total) {
    bar.label = label;
    bar.total = total > 0 ? total : 1;
    bar.terminal = isatty(STDERR_FILENO) == 1;
    bar.visible = false;
    /* The first bar appears at once; the first plain line only if the work turns out to be long. */
    bar.due = bar.terminal ? 0 : tw__clock() + PLAIN_LINE_NS;
}

void progress_to(int64_t done) {
    if (bar.label == NULL)
        return;
    assert(done >= 0 && done <= bar.total);
    int64_t now = tw__clock();
    if (now < bar.due)
        return;
    bar.due = now + (bar.terminal ? REDRAW_NS : PLAIN_LINE_NS);
    int percent = (int)(done * 100 / bar.total);
    if (!bar.terminal) {
        fprintf(stderr, "%s: %d %%\n", bar.label, percent);
        return;
    }
    int filled = (int)(done * BAR_WIDTH / bar.total);
    fprintf(stderr, "\r%s [%.*s%.*s] %3d %%", bar.label, filled, full_bar, BAR_WIDTH - filled,
            empty_bar, percent);
    fflush(stderr);
    bar.visible = true;
}

void progress_clear(void) {
    if (bar.visible) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bar.visible = false;
        bar.due = 0;
    }
}

void progress_end(void) {
    progress_clear();
    bar.label = NULL;
}
