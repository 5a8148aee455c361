/* model_calls.h - what each model file gives to model.c: a row of the table of models
 *
 * A model file has a struct of layers and buffers (its "net") and these functions over it. Adding a
 * model: one file with a row, one line in model_table.c, one in CMakeLists.txt.
 */
#ifndef TRAIN_MODEL_CALLS_H
#define TRAIN_MODEL_CALLS_H

#include "model.h"
#include "pass.h"
#include "plan.h"

typedef struct model_calls {
    size_t bytes; /* of the net */

    /* Fill in defaults, refuse what cannot be: MODEL_OK or an error with its words. */
    int (*complete)(model_spec *spec, model_error *error);

    /* Build the net, once to measure and once for good; see plan.h. */
    void (*build)(void *net, plan *p, const model_spec *spec);

    /* Loss and predictions; the batch has been checked. */
    model_result (*forward)(void *net, const pass *p, const model_batch *batch);

    /* All gradients, pass_ready for each tensor from the last to the first. */
    void (*backward)(void *net, const pass *p, const model_batch *batch);
} model_calls;

extern const model_kind model_cnn;
extern const model_kind model_vgg16;
extern const model_kind model_resnet20;
extern const model_kind model_lstm;
extern const model_kind model_bert;

/* For `complete`: images have nothing to choose. */
int model_complete_images(model_spec *spec, model_error *error);

/* For `complete`: use `standard` where *field is 0, refuse what is outside low .. high. */
int model_complete_field(int *field, const char *name, int standard, int low, int high,
                         model_error *error);

/* Write the words of an error, as printf, and return the code. error may be NULL. */
int model_refuse(model_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
