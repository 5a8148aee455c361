/* series.c - means, sums and curves of a run */
#include "report/series.h"

#include <math.h>
#include <string.h>

#define WORD 4.0 /* bytes */
#define MEGABYTE 1e6
#define WINDOW_SHARE 40 /* of the run's steps */
#define LOSS_LIMIT 2.0  /* times the first: beyond, a run diverges */

double series_member(const void *record, size_t offset) {
    double value;
    memcpy(&value, (const char *)record + offset, sizeof value);
    return value;
}

/* A mean over steps under way. */
typedef struct mean {
    double sum;
    double steps;
} mean;

static void mean_add(mean *of, const run_step *step, size_t offset) {
    double value = series_member(step, offset);
    if (!isnan(value)) {
        of->sum += value * step->stands_for;
        of->steps += step->stands_for;
    }
}

static double mean_value(const mean *of) {
    return of->steps > 0 ? of->sum / of->steps : NAN;
}

/* Of the `window` steps up to that of line `last`. */
static double mean_until(const run_log *run, int64_t last, size_t offset, double window) {
    mean of = {0};
    const run_step *steps = run->steps;
    for (int64_t i = last; i >= 0 && steps[i].step > steps[last].step - window; i--)
        mean_add(&of, &steps[i], offset);
    return mean_value(&of);
}

double series_last(const run_log *run, size_t offset, double window) {
    return mean_until(run, run->nsteps - 1, offset, window);
}

double series_mean(const run_log *run, size_t offset) {
    return series_last(run, offset, INFINITY);
}

double series_steps(const run_log *run) {
    const run_step *steps = run->steps;
    int64_t count = run->nsteps;
    return count > 0 ? steps[count - 1].step - steps[0].step + steps[0].stands_for : 0.0;
}

/* The distance that most lines have, by majority vote; 1 if there is none. */
static double usual_gap(const run_log *run) {
    double gap = 1.0;
    int64_t votes = 0, lines = 0;
    for (int64_t i = 1; i < run->nsteps; i++) {
        gap = votes == 0 ? run->steps[i].stands_for : gap;
        votes += run->steps[i].stands_for == gap ? 1 : -1;
    }
    for (int64_t i = 1; i < run->nsteps; i++)
        lines += run->steps[i].stands_for == gap;
    return 2 * lines > run->nsteps - 1 ? gap : 1.0;
}

double series_missing(const run_log *run) {
    double gap = usual_gap(run), missing = 0.0;
    for (int64_t i = 1; i < run->nsteps; i++)
        missing += fmax(0.0, ceil(run->steps[i].stands_for / gap) - 1.0);
    if (run->nsteps > 0 && isfinite(run->end_steps))
        missing +=
            fmax(0.0, floor((run->end_steps - 1.0 - run->steps[run->nsteps - 1].step) / gap));
    return missing;
}

double series_dense_bytes(const run_log *run) {
    return 2.0 * WORD * run->parameters * (run->nranks - 1.0) / run->nranks;
}

bool series_is_dense(const run_log *run) {
    return strcmp(run->scheme, "dense") == 0;
}

double series_seconds(const run_log *run) {
    if (run->has_end && !isnan(run->end_seconds))
        return run->end_seconds;
    return run->nsteps > 0 ? run->steps[run->nsteps - 1].elapsed_s : NAN;
}

double series_last_accuracy(const run_log *run) {
    if (run->nevaluations > 0)
        return run->evaluations[run->nevaluations - 1].accuracy;
    return run->has_end ? run->end_accuracy : NAN;
}

static double longest(const run_log *runs, int nruns) {
    double steps = 0.0;
    for (int i = 0; i < nruns; i++)
        steps = fmax(steps, series_steps(&runs[i]));
    return steps;
}

double series_gap(const run_log *runs, int nruns) {
    double gap = 1.0;
    for (int i = 0; i < nruns; i++)
        gap = runs[i].nsteps > 0 ? fmax(gap, runs[i].steps[0].stands_for) : gap;
    return gap;
}

double series_window(const run_log *runs, int nruns) {
    return fmax(floor(longest(runs, nruns) / WINDOW_SHARE), series_gap(runs, nruns));
}

double series_bin(const run_log *runs, int nruns) {
    return fmax(ceil(longest(runs, nruns) / SERIES_POINTS), series_gap(runs, nruns));
}

double series_loss_limit(const run_log *runs, int nruns) {
    double highest = NAN;
    for (int i = 0; i < nruns; i++) {
        int64_t first = 0;
        while (first < runs[i].nsteps && isnan(runs[i].steps[first].loss))
            first++;
        highest = first < runs[i].nsteps ? fmax(highest, runs[i].steps[first].loss) : highest;
    }
    return LOSS_LIMIT * highest;
}

/* The step that point p of `points` shows, out of `steps`: evenly spaced, the last included. */
static int64_t step_of_point(int64_t p, int64_t points, int64_t steps) {
    return points > 1 ? p * (steps - 1) / (points - 1) : steps - 1;
}

/* Add y at what the axis says of a step, its end and the bytes sent until then. */
static void add_point(series *curve, series_axis axis, double step, double bytes, double seconds,
                      double y) {
    const double x[] = {
        [AXIS_STEP] = step, [AXIS_MEGABYTES] = bytes / MEGABYTE, [AXIS_SECONDS] = seconds};
    curve->x[curve->count] = x[axis];
    curve->y[curve->count++] = y;
}

void series_loss(series *curve, const run_log *run, series_axis axis, double window) {
    int64_t points = run->nsteps < SERIES_POINTS ? run->nsteps : SERIES_POINTS;
    mean bytes = {0};
    curve->count = 0;
    for (int64_t i = 0; i < run->nsteps; i++) {
        mean_add(&bytes, &run->steps[i], offsetof(run_step, sent));
        if (i == step_of_point(curve->count, points, run->nsteps))
            add_point(curve, axis, run->steps[i].step, bytes.sum, run->steps[i].elapsed_s,
                      mean_until(run, i, offsetof(run_step, loss), window));
    }
}

void series_binned(series *curve, const run_log *run, size_t offset, double bin) {
    int64_t at = 0;
    curve->count = 0;
    while (at < run->nsteps && curve->count < SERIES_POINTS) {
        mean of = {0};
        double first = run->steps[at].step;
        do /* one step at least: a bin is nothing beside a step of 1e300 */
            mean_add(&of, &run->steps[at++], offset);
        while (at < run->nsteps && run->steps[at].step < first + bin);
        curve->x[curve->count] = first;
        curve->y[curve->count++] = mean_value(&of);
    }
}

void series_accuracy(series *curve, const run_log *run, series_axis axis) {
    int64_t points = run->nevaluations < SERIES_POINTS ? run->nevaluations : SERIES_POINTS;
    mean bytes = {0};
    int64_t at = 0; /* the first step that is not in bytes yet */
    curve->count = 0;
    for (int64_t i = 0; i < run->nevaluations; i++) {
        const run_evaluation *evaluation = &run->evaluations[i];
        for (; at < run->nsteps && run->steps[at].step < evaluation->step; at++)
            mean_add(&bytes, &run->steps[at], offsetof(run_step, sent));
        if (i == step_of_point(curve->count, points, run->nevaluations))
            add_point(curve, axis, evaluation->step, bytes.sum, evaluation->elapsed_s,
                      100.0 * evaluation->accuracy);
    }
}
