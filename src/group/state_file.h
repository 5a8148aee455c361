/* state_file.h - one rank's state as a file
 *
 *     header | tensor 0: head, vectors | tensor 1 ... | checksum of all before
 *
 * The vectors of a tensor: residual[n]; velocity[n] with momentum; m[n] and v[n] with AdamW;
 *
 * in the byte order of the machine, and in words of 8 bytes: a vector of odd length is followed by
 * a zero. What the states of several ranks mean together is state.c's business. */
#ifndef TW_STATE_FILE_H
#define TW_STATE_FILE_H

#include "group/group.h"

/* What a tensor's part of it begins with. */
typedef struct tw__state_head {
    int64_t n;
    int64_t steps;
    uint32_t has_residual;
    uint32_t moments; /* vectors of moments: 0, 1 with momentum, 2 with AdamW */
    uint32_t global_threshold;
    uint32_t guess;
    double rank;
    double growth;
    double margin;
    float threshold;
    uint32_t zero;
    int64_t age;
    int64_t last_k;
    int64_t moment_steps;
} tw__state_head;

/* A file in memory. */
typedef struct tw__state {
    const char *path;
    char *bytes; /* the caller frees them, also after an error */
    size_t size;
    int rank, nranks, ntensors; /* of the group that was saved */
    uint32_t run;
} tw__state;

/* Write the group's state, whole or not at all.
 * Errors: TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DEVICE. */
int tw__state_write(tw_group *g, const char *path);

/* Read a file and check everything in it that does not depend on a group.
 * Errors: TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DAMAGED. */
int tw__state_read(const char *path, tw__state *state);
/* And the rest. Errors: TW_ERR_MISMATCH when it is not a state of this group; TW_ERR_DAMAGED. */
int tw__state_check(tw_group *g, const tw__state *state);
/* Whether a tensor, or a group, can have made so many steps. */
int tw__steps_possible(int64_t steps);
/* Whether a tensor can have made so many steps, and have this global threshold. */
int tw__state_possible(int64_t steps, int64_t threshold);

/* Go over the tensors of a state that was checked, each with its head and data, its vectors one
 * behind the other. Ends with the first error of a visit. */
typedef int tw__state_visit(tw__tensor *t, const tw__state_head *head, const char *data,
                            void *context);
int tw__state_each(tw_group *g, const tw__state *state, tw__state_visit *visit, void *context);

/* A tensor's vector in a file. */
static inline size_t tw__state_vector_bytes(int64_t n) {
    return sizeof(float) * (size_t)(n + n % 2);
}

/* All of a tensor's vectors in a file. */
static inline size_t tw__state_data_bytes(const tw__state_head *head) {
    size_t vectors = (size_t)(head->has_residual != 0) + head->moments;
    return tw__state_vector_bytes(head->n) * vectors;
}

#endif
