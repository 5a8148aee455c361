/* model_mlp.c - a perceptron with two hidden layers for 28x28 grey images
 *
 *     images [28][28][1]
 *     linear to 128, relu; linear to 64, relu; linear to 10
 * 109,386 parameters, nine tenths of them in the first layer: the smallest model on which thresholds
 * from a fitted distribution can be seen to fail.
 */
#include "models/models.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, WIDTH1 = 128, WIDTH2 = 64 };

typedef struct mlp {
    linear first, second, classifier;
    cross_entropy loss;
    real *y1;      /* [max_batch][WIDTH1] rectified */
    real *y2;      /* [max_batch][WIDTH2] rectified */
    real *logits;  /* [max_batch][CLASSES] becomes their gradient */
    real *grad[2]; /* [max_batch][WIDTH1] each: gradients on their way back, in turn */
} mlp;

static void build(void *self, layout *to, const model_spec *spec) {
    mlp *net = self;
    const int most = spec->max_batch;
    linear_create(&net->first, to, "first", PIXELS, WIDTH1, bound_he(PIXELS), true);
    linear_create(&net->second, to, "second", WIDTH1, WIDTH2, bound_he(WIDTH1), true);
    linear_create(&net->classifier, to, "classifier", WIDTH2, CLASSES,
                  bound_xavier(WIDTH2, CLASSES), true);
    cross_entropy_create(&net->loss, to, most, CLASSES);
    net->y1 = layout_reals(to, (int64_t)most * WIDTH1);
    net->y2 = layout_reals(to, (int64_t)most * WIDTH2);
    net->logits = layout_reals(to, (int64_t)most * CLASSES);
    for (int i = 0; i < 2; i++)
        net->grad[i] = layout_reals(to, (int64_t)most * WIDTH1);
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    const mlp *net = self;
    const int count = batch->count;
    linear_forward(&net->first, p, count, batch->images, net->y1);
    relu_forward(p, (int64_t)count * WIDTH1, net->y1);
    linear_forward(&net->second, p, count, net->y1, net->y2);
    relu_forward(p, (int64_t)count * WIDTH2, net->y2);
    linear_forward(&net->classifier, p, count, net->y2, net->logits);
    return cross_entropy_forward(&net->loss, p, count, batch->labels, net->logits);
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const mlp *net = self;
    const int count = batch->count;
    real *a = net->grad[0], *b = net->grad[1];
    linear_backward(&net->classifier, p, count, net->y2, net->logits, a);
    relu_backward(p, (int64_t)count * WIDTH2, net->y2, a);
    linear_backward(&net->second, p, count, net->y1, a, b);
    relu_backward(p, (int64_t)count * WIDTH1, net->y1, b);
    linear_backward(&net->first, p, count, batch->images, b, NULL);
}

const model_kind model_mlp = {
    .name = "mlp",
    .description = "perceptron for 28x28 grey images, 109,386 parameters",
    .input = MODEL_IMAGES,
    .height = SIDE,
    .width = SIDE,
    .channels = 1,
    .classes = CLASSES,
    .net_bytes = sizeof(mlp),
    .complete = complete_images,
    .build = build,
    .forward = forward,
    .backward = backward,
};
