/* group_state.h - groups that are saved and loaded: their tensors, steps and files
 *
 * Files lie in a temporary directory, which state_begin makes and state_end removes: pass both to
 * cmocka_run_group_tests.
 */
#ifndef GROUP_STATE_H
#define GROUP_STATE_H

#include "ranks.h"

enum { STATE_RANKS = 8, STATE_TENSORS = 2, STATE_PATH = 128 };
extern const int64_t state_sizes[STATE_TENSORS];
extern oracle_data state_data; /* of the gradients; a test that changes it sets it back */
extern char state_directory[64];

int state_begin(void **state);
int state_end(void **state);

/* ---- Files */

/* The path of a rank's file of this name, in one of 64 static buffers. */
const char *state_path(const char *name, int rank);

/* The whole file; the caller frees it. */
char *state_read(const char *path, int64_t *size);
void state_write(const char *path, const char *bytes, int64_t size);

/* ---- Saving and loading */

/* Which files each rank loads. */
typedef struct state_files {
    const char *paths[STATE_RANKS][STATE_RANKS];
    int count[STATE_RANKS];
} state_files;

/* File i goes to rank (i * stride) mod P. */
state_files state_spread(const char *name, int files, int nranks, int stride);

/* For ranks_run with state_files as context: load them. */
int state_load(ranks *r, int rank, void *context);

/* Every rank saves its file of this name, or loads it; the caller checks statuses of loading. */
void state_save_all(ranks *r, const char *name);
void state_load_all(ranks *r, const char *name);

/* ---- Steps */

tw_group_params state_params(const char *scheme);

/* Steps first .. last - 1 of all tensors; gradients depend on the step. */
void state_steps(ranks *r, int first, int last);

void state_same_residuals(ranks *a, ranks *b);

/* Both give the same, step by step. Returns in how many steps tensor 0 got fewer entries than k,
 * which only a reused global threshold does. */
int state_same_steps(ranks *a, ranks *b, int first, int last);

#endif
