/* team.h - the threads that one model works with
 *
 * A job is a number of tasks whose bounds depend on shapes alone; who runs which task, and how many
 * threads there are, changes the time and never a bit. Each worker has scratch memory of its own,
 * and the team has one piece that all share. A team of one runs its tasks in order on the caller.
 */
#ifndef TRAIN_TEAM_H
#define TRAIN_TEAM_H

#include <stddef.h>

typedef struct team team;

/* A task; scratch is the memory of the worker that runs it, good until the task returns. */
typedef void (*team_task)(void *context, int task, void *scratch);

/* `scratch` bytes for each worker and `common` bytes for all. 0, or -1 out of memory or threads. */
int team_create(team **out, int threads, size_t scratch, size_t common);
void team_free(team *t);

/* Run tasks 0 .. ntasks - 1, on the caller too, and return when all are done. */
void team_run(team *t, int ntasks, team_task task, void *context);

/* The memory that all share: good until the layer's function returns. */
void *team_common(team *t);

/* Bytes rounded up to whole cache lines. */
size_t team_round(size_t bytes);

#endif
