/* model_table.c - the models there are, and what their specifications share */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model_calls.h"

static const model_kind *const table[] = {&model_cnn, &model_vgg16, &model_resnet20, &model_lstm,
                                          &model_bert};

enum { NKINDS = sizeof table / sizeof table[0] };

const model_kind *model_kind_at(int position) {
    return position >= 0 && position < NKINDS ? table[position] : NULL;
}

const model_kind *model_kind_named(const char *name) {
    for (int i = 0; name && i < NKINDS; i++)
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    return NULL;
}

int model_refuse(model_error *error, int code, const char *format, ...) {
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return code;
}

int model_complete_field(int *field, const char *name, int standard, int low, int high,
                         model_error *error) {
    *field = *field ? *field : standard;
    if (*field < low || *field > high) {
        return model_refuse(error, MODEL_ERR_SPEC, "%s is %d; %d .. %d is accepted", name, *field,
                            low, high);
    }
    return MODEL_OK;
}

int model_complete_images(model_spec *spec, model_error *error) {
    if (spec->size) {
        return model_refuse(error, MODEL_ERR_NAME, "%s has one size only, not '%s'", spec->name,
                            spec->size);
    }
    if (spec->vocabulary || spec->length || spec->width || spec->layers || spec->heads ||
        spec->inner)
        return model_refuse(error, MODEL_ERR_SPEC, "%s takes no sizes of text models", spec->name);
    return MODEL_OK;
}
