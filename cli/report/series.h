/* series.h - the numbers behind a report: means, sums and curves of a run
 *
 * Means and sums are over steps, not over lines of the log: a line counts as often as it stands
 * for. A curve has at most SERIES_POINTS points, however long the run: a page stays small, and more
 * could not be told apart in a plot. NaN is left out of means; a point that has no value is NaN.
 */
#ifndef CLI_SERIES_H
#define CLI_SERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report/run_log.h"

#define SERIES_POINTS 300

typedef enum series_axis { AXIS_STEP, AXIS_MEGABYTES, AXIS_SECONDS } series_axis;

typedef struct series {
    int count;
    double x[SERIES_POINTS];
    double y[SERIES_POINTS];
} series;

/* The double at an offset in a record of the log: offsetof(run_step, ...). */
double series_member(const void *record, size_t offset);

/* The mean of a member of run_step over all steps, or the last `window`; NaN if there are none. */
double series_mean(const run_log *run, size_t offset);
double series_last(const run_log *run, size_t offset, double window);

/* Steps that the log tells of. */
double series_steps(const run_log *run);

/* Lines that are missing between others, or before the end: most lines are equally many steps apart,
 * and some are further. */
double series_missing(const run_log *run);

/* What a dense allreduce sends per step and rank: 2n(P-1)/P words of 4 bytes. */
double series_dense_bytes(const run_log *run);

/* Whether everything is sent: nothing is selected. */
bool series_is_dense(const run_log *run);

/* Wall time of the run so far in seconds. */
double series_seconds(const run_log *run);

/* The accuracy of the last evaluation, or of the end line; NaN if there is none. */
double series_last_accuracy(const run_log *run);

/* Steps from one logged to the next, in the run that logs fewest. */
double series_gap(const run_log *runs, int nruns);

/* Steps to smooth the loss over: a fortieth of the longest run, and no less than the gap. */
double series_window(const run_log *runs, int nruns);

/* Where the axis of a loss may end: twice the highest first loss. NaN if there is none. */
double series_loss_limit(const run_log *runs, int nruns);

/* Steps that one point of series_binned stands for, in the longest run. */
double series_bin(const run_log *runs, int nruns);

/* The loss over the axis, each point the mean of the `window` steps that end there. */
void series_loss(series *curve, const run_log *run, series_axis axis, double window);

/* A member over steps, each point the mean of its own steps; the bin of series_bin. */
void series_binned(series *curve, const run_log *run, size_t offset, double bin);

/* Test accuracy in percent over the axis. */
void series_accuracy(series *curve, const run_log *run, series_axis axis);

#endif
