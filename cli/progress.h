/* progress.h - how far long work has come, on stderr
 *
 * On a terminal a bar that redraws itself; elsewhere a plain line every ten seconds, so that short
 * work stays silent and logs stay short. One bar at a time, as there is one stderr.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

/* Start: label is kept by pointer until progress_end. */
void progress_begin(const char *label, int64_t total);

/* done of total is finished. Cheap: draws a few times a second at most. */
void progress_to(int64_t done);

/* Wipe the bar off the line, before something else is printed. The next progress_to redraws it. */
void progress_clear(void);

/* Finish and leave no trace on the terminal. */
void progress_end(void);

#endif
