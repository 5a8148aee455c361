/* observe.h - what a gradient looks like: its histogram, and what top-k would leave of it */
#ifndef TRAIN_OBSERVE_H
#define TRAIN_OBSERVE_H

#include "trainer.h"

/* Fill low, high, counts and contraction from u[n]; snapshot->n and k are set. */
void observe(const float *u, trainer_snapshot *snapshot);

#endif
