/* model_cnn.c - a small network for 28x28 grey images, such as Fashion-MNIST: the demo's
 *
 *     images [28][28][1]
 *     conv 3x3 to 16, relu, pool -> [14][14][16]
 *     conv 3x3 to 32, relu, pool -> [7][7][32]
 *     linear to 64, relu; linear to 10
 * 105,866 parameters, most of them in the first linear layer.
 */
#include "models/models.h"

enum { SIDE = 28, CLASSES = 10, WIDTH1 = 16, WIDTH2 = 32, HIDDEN = 64 };

typedef struct cnn {
    conv2d conv1, conv2;
    maxpool pool1, pool2;
    linear hidden, classifier;
    cross_entropy loss;
    real *y1;      /* [max_batch][28][28][16] of conv1, rectified */
    real *pooled1; /* [max_batch][14][14][16] */
    real *y2;      /* [max_batch][14][14][32] of conv2, rectified */
    real *pooled2; /* [max_batch][7][7][32] */
    real *y3;      /* [max_batch][HIDDEN] rectified */
    real *logits;  /* [max_batch][CLASSES] becomes their gradient */
    real *grad[2]; /* [max_batch][28][28][16] each: gradients on their way back, in turn */
} cnn;

static void build(void *self, layout *to, const model_spec *spec) {
    cnn *net = self;
    const int most = spec->max_batch, half = SIDE / 2, quarter = SIDE / 4;
    const int flat = quarter * quarter * WIDTH2;
    conv2d_shape first = {SIDE, SIDE, 1, WIDTH1, .kernel = 3, .stride = 1, .bias = true};
    conv2d_shape second = {half, half, WIDTH1, WIDTH2, .kernel = 3, .stride = 1, .bias = true};
    conv2d_create(&net->conv1, to, "conv1", first);
    conv2d_create(&net->conv2, to, "conv2", second);
    maxpool_create(&net->pool1, to, most, SIDE, SIDE, WIDTH1);
    maxpool_create(&net->pool2, to, most, half, half, WIDTH2);
    linear_create(&net->hidden, to, "hidden", flat, HIDDEN, bound_he(flat), true);
    linear_create(&net->classifier, to, "classifier", HIDDEN, CLASSES,
                  bound_xavier(HIDDEN, CLASSES), true);
    cross_entropy_create(&net->loss, to, most, CLASSES);
    net->y1 = layout_reals(to, (int64_t)most * SIDE * SIDE * WIDTH1);
    net->pooled1 = layout_reals(to, (int64_t)most * half * half * WIDTH1);
    net->y2 = layout_reals(to, (int64_t)most * half * half * WIDTH2);
    net->pooled2 = layout_reals(to, (int64_t)most * flat);
    net->y3 = layout_reals(to, (int64_t)most * HIDDEN);
    net->logits = layout_reals(to, (int64_t)most * CLASSES);
    for (int i = 0; i < 2; i++)
        net->grad[i] = layout_reals(to, (int64_t)most * SIDE * SIDE * WIDTH1);
}

static int64_t outputs(const conv2d *c, int count) {
    return (int64_t)count * c->out_height * c->out_width * c->shape.out;
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    const cnn *net = self;
    const int count = batch->count;
    conv2d_forward(&net->conv1, p, count, batch->images, net->y1);
    relu_forward(p, outputs(&net->conv1, count), net->y1);
    maxpool_forward(&net->pool1, p, count, net->y1, net->pooled1);
    conv2d_forward(&net->conv2, p, count, net->pooled1, net->y2);
    relu_forward(p, outputs(&net->conv2, count), net->y2);
    maxpool_forward(&net->pool2, p, count, net->y2, net->pooled2);
    linear_forward(&net->hidden, p, count, net->pooled2, net->y3);
    relu_forward(p, (int64_t)count * HIDDEN, net->y3);
    linear_forward(&net->classifier, p, count, net->y3, net->logits);
    return cross_entropy_forward(&net->loss, p, count, batch->labels, net->logits);
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const cnn *net = self;
    const int count = batch->count;
    real *a = net->grad[0], *b = net->grad[1];
    linear_backward(&net->classifier, p, count, net->y3, net->logits, a);
    relu_backward(p, (int64_t)count * HIDDEN, net->y3, a);
    linear_backward(&net->hidden, p, count, net->pooled2, a, b);
    maxpool_backward(&net->pool2, p, count, b, a);
    relu_backward(p, outputs(&net->conv2, count), net->y2, a);
    conv2d_backward(&net->conv2, p, count, net->pooled1, a, b);
    maxpool_backward(&net->pool1, p, count, b, a);
    relu_backward(p, outputs(&net->conv1, count), net->y1, a);
    conv2d_backward(&net->conv1, p, count, batch->images, a, NULL);
}

const model_kind model_cnn = {
    .name = "cnn",
    .description = "small network for 28x28 grey images, 105,866 parameters",
    .input = MODEL_IMAGES,
    .height = SIDE,
    .width = SIDE,
    .channels = 1,
    .classes = CLASSES,
    .net_bytes = sizeof(cnn),
    .complete = complete_images,
    .build = build,
    .forward = forward,
    .backward = backward,
};
