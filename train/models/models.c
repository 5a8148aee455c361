/* models.c - the table of models, and what their specifications share */
#include "models/models.h"

#include <string.h>

extern const model_kind model_cnn, model_mlp, model_vgg16, model_resnet20, model_lstm, model_bert;

static const model_kind *const table[] = {
    &model_cnn, &model_mlp, &model_vgg16, &model_resnet20, &model_lstm, &model_bert,
};

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

int complete_field(int *field, const char *name, int standard, int low, int high) {
    *field = *field ? *field : standard;
    if (*field < low || *field > high)
        return tw__fail(TW_ERR_PARAM, "%s is %d; %d .. %d is accepted", name, *field, low, high);
    return TW_OK;
}

int complete_images(model_spec *spec) {
    if (spec->size)
        return tw__fail(TW_ERR_NAME, "%s has one size only, not '%s'", spec->name, spec->size);
    if (spec->vocabulary || spec->length || spec->width || spec->layers || spec->heads ||
        spec->inner)
        return tw__fail(TW_ERR_PARAM, "%s takes no sizes of text models", spec->name);
    return TW_OK;
}
