/* selector.h - selection with error feedback: what every backend's selector has in common
 *
 *   params.c     what the caller asked for, checked, with defaults
 *   selector.c   create, run, commit, undo, free: checks the order of calls, counts steps
 *   methods.c    the table of methods; select_*.c one file each
 *
 * The work itself is the backend's (backend/backend.h). */
#ifndef TW_SELECT_SELECTOR_H
#define TW_SELECT_SELECTOR_H

#include "backend/backend.h"
#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tw__method;

struct tw_selector {
    const tw__backend *backend;
    void *state;                    /* the backend's */
    const tw_select_params *params; /* with defaults filled in; outlive the selector */
    const struct tw__method *method;
    tw__pieces pieces;    /* of gradients */
    int64_t extent[2];    /* 0 and n: the starts of a vector in one piece */
    int64_t step;         /* steps committed (without feedback: run) */
    int64_t k;            /* that the caller set; 0: by the schedule */
    int64_t last_k;       /* of the last committed step; 0: none yet */
    double rate;          /* of AdamW */
    int64_t moment_steps; /* gradients that are in AdamW's moments */
    int open;             /* a step is open: it was run, and not ended */
    tw_select_info info;
};

/* ---- params.c */

/* The k of a step, and the largest over all steps. */
int64_t tw__k_at(const tw_select_params *params, int64_t n, int64_t step);
int64_t tw__k_max(const tw_select_params *params, int64_t n);
/* The k of a density that the caller sets, times `factor`. Errors: TW_ERR_PARAM; TW_ERR_DENSITY. */
int tw__k_from_caller(const tw_select_params *params, int64_t n, double density, double factor,
                      int64_t *k);
/* Vectors of moments: 2 with AdamW, 1 with momentum, else 0. */
static inline uint32_t tw__moments_of(const tw_select_params *params) {
    return params->before == TW_BEFORE_ADAMW ? 2 : params->momentum != 0.0f;
}
/* Errors: TW_ERR_PARAM. */
int tw__check_rate(const tw_select_params *params, double rate);
/* 0 .. last. Errors: TW_ERR_PARAM. */
int tw__check_choice(const char *field, int value, int last);
/* Checks what does not depend on n; neither k nor density need be set. Errors: as tw__params_resolve. */
int tw__params_check(const tw_select_params *params);
/* Checks params, fills in defaults, finds the method and the backend.
 * Errors: TW_ERR_SIZE; TW_ERR_K; TW_ERR_DENSITY; TW_ERR_NAME; TW_ERR_PARAM; TW_ERR_DEVICE. */
int tw__params_resolve(tw_select_params *params, int64_t n, const struct tw__method **method,
                       const tw__backend **backend);

/* ---- selector.c: for groups and exchanges */

/* As tw_selector_create, for a group: params are resolved and outlive the selector, as do the starts
 * of pieces (NULL: gradients lie in one). It works on the group's stream and in its scratch. */
int tw__selector_create(tw_selector **selector, int64_t n, const tw__pieces *pieces,
                        const tw_select_params *params, tw__stream *stream,
                        const tw__scratch *scratch);
/* Bytes that it takes, without scratch, and bytes of scratch. */
int tw__selector_memory(int64_t n, int pieces, const tw_select_params *params, tw_memory *memory,
                        size_t *scratch);
/* tw_selector_run in three parts, so that a backend runs the tasks of several selectors at once:
 * begin, the backend's run, end. Errors: TW_ERR_STATE. */
int tw__selector_begin(tw_selector *s, const void *const *grads, tw__select_task *task);
void tw__selector_end(tw_selector *s, const tw__select_task *task);
/* tw_selector_undo with a gradient in pieces. */
int tw__selector_undo(tw_selector *s, const void *const *grads);
/* For a step that sends all of acc: fold, and select nothing. *acc is there until the step ends.
 * tw__selector_close_whole ends it with a residual of zeros, or it is undone. With feedback, on
 * backends that have it. Errors: as tw_selector_run. */
int tw__selector_fold(tw_selector *s, const void *const *grads, const float **acc);
int tw__selector_close_whole(tw_selector *s);
/* End the open step as an exchange says. Errors: TW_ERR_DEVICE. */
int tw__selector_apply(tw_selector *s, const tw__outcome *outcome);
/* Whether acc would overflow if the entries `sent` left it and `kept` were added. on_device: both
 * lists lie in the backend's memory. Indices are those of the vector plus base.
 * Errors: TW_ERR_DEVICE. */
int tw__selector_overflows(tw_selector *s, int on_device, const tw__list *kept,
                           const tw__list *sent, int64_t base, int *yes);
/* As tw_selector_set_density, with a density that is multiplied by `factor`. */
int tw__selector_set_density(tw_selector *s, double density, double factor);
/* The k of the next step. */
int64_t tw__selector_k(const tw_selector *s);
/* Forget what was learned about earlier steps: the next one learns it anew. Residual, moments and step
 * counter stay. Errors: TW_ERR_DEVICE. */
int tw__selector_forget(tw_selector *s);
/* Continue from a saved state: as created, after so many steps. Errors: TW_ERR_DEVICE. */
int tw__selector_reset(tw_selector *s, int64_t steps);

#ifdef __cplusplus
}
#endif

#endif
