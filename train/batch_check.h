/* batch_check.h - whether a batch is one that its model can take */
#ifndef TRAIN_BATCH_CHECK_H
#define TRAIN_BATCH_CHECK_H

#include "model.h"

/* MODEL_OK, or MODEL_ERR_BATCH with words that name the sample. */
int batch_check(const model *m, const model_batch *batch, model_error *error);

#endif
