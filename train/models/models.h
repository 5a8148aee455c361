/* models.h - what model files share
 *
 * Adding a model: a file with its row (model_kind in model.h), a line in models.c, a build line.
 */
#ifndef TRAIN_MODELS_H
#define TRAIN_MODELS_H

#include "base/error.h"
#include "layers/layers.h"

/* For `complete`: image models have nothing to choose. */
int complete_images(model_spec *spec);

/* For `complete`: use `standard` where *field is 0, refuse what is outside low .. high. */
int complete_field(int *field, const char *name, int standard, int low, int high);

/* For backward: gradients go back through two buffers in turn. */
static inline void swap_reals(real **a, real **b) {
    real *kept = *a;
    *a = *b;
    *b = kept;
}

#endif
