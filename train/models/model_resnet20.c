/* model_resnet20.c - ResNet-20 for CIFAR-10 (He et al., 2016, section 4.2)
 *
 *     images [32][32][3]
 *     conv 3x3 to 16, norm, relu                        -> [32][32][16]
 *     3 x (conv, norm, relu, conv, norm, + x, relu) 16  -> [32][32][16]
 *     the same with 32 channels, the first stride 2     -> [16][16][32]
 *     the same with 64 channels, the first stride 2     -> [8][8][64]
 *     mean over pixels, linear to 10
 * Convolutions without bias, shortcuts without parameters: 269,722 parameters, as published (0.27 M).
 */
#include "models/models.h"

enum { STAGES = 3, DEPTH = 3, BLOCKS = STAGES * DEPTH, WIDTH = 16 };
enum { SIDE = 32, COLOURS = 3, CLASSES = 10 };

typedef struct block {
    conv_block first;  /* rectified */
    conv_block second; /* not: the shortcut comes before its rectifier */
    residual join;
    real *y; /* like second.y */
} block;

typedef struct resnet20 {
    conv_block stem;
    block blocks[BLOCKS];
    avgpool pool;
    linear classifier;
    cross_entropy loss;
    real *pooled;  /* [max_batch][64] */
    real *logits;  /* [max_batch][CLASSES] becomes their gradient */
    real *grad[3]; /* [max_batch][SIDE][SIDE][WIDTH] each: gradients on their way back */
} resnet20;

static void build_block(block *b, layout *to, int number, int max_batch) {
    const int stage = number / DEPTH, stride = stage > 0 && number % DEPTH == 0 ? 2 : 1;
    const int out = WIDTH << stage, in = out / stride, side = (SIDE >> stage) * stride;
    conv2d_shape shape = {side, side, in, out, .kernel = 3, .stride = stride};
    conv_block_create(&b->first, to, name_part("block%d.1", number + 1).text, max_batch, shape,
                      true);
    shape = (conv2d_shape){side / stride, side / stride, out, out, .kernel = 3, .stride = 1};
    conv_block_create(&b->second, to, name_part("block%d.2", number + 1).text, max_batch, shape,
                      false);
    b->join = (residual){.height = side, .width = side, .in = in, .out = out, .stride = stride};
    b->y = layout_reals(to, max_batch * b->second.pixels * out);
}

static void build(void *self, layout *to, const model_spec *spec) {
    resnet20 *net = self;
    const int most = spec->max_batch, last = WIDTH << (STAGES - 1), side = SIDE >> (STAGES - 1);
    conv2d_shape stem = {SIDE, SIDE, COLOURS, WIDTH, .kernel = 3, .stride = 1};
    conv_block_create(&net->stem, to, "stem", most, stem, true);
    for (int i = 0; i < BLOCKS; i++)
        build_block(&net->blocks[i], to, i, most);
    net->pool = (avgpool){.pixels = side * side, .channels = last};
    linear_create(&net->classifier, to, "classifier", last, CLASSES, bound_xavier(last, CLASSES),
                  true);
    cross_entropy_create(&net->loss, to, most, CLASSES);
    net->pooled = layout_reals(to, (int64_t)most * last);
    net->logits = layout_reals(to, (int64_t)most * CLASSES);
    for (int i = 0; i < 3; i++)
        net->grad[i] = layout_reals(to, (int64_t)most * SIDE * SIDE * WIDTH);
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    const resnet20 *net = self;
    const int count = batch->count;
    const real *x = conv_block_forward(&net->stem, p, count, batch->images);
    for (int i = 0; i < BLOCKS; i++) {
        const block *b = &net->blocks[i];
        const real *a = conv_block_forward(&b->first, p, count, x);
        a = conv_block_forward(&b->second, p, count, a);
        residual_forward(b->join, p, count, a, x, b->y);
        x = b->y;
    }
    avgpool_forward(net->pool, p, count, x, net->pooled);
    linear_forward(&net->classifier, p, count, net->pooled, net->logits);
    return cross_entropy_forward(&net->loss, p, count, batch->labels, net->logits);
}

/* grad[0] holds the gradient of the block's y, then that of its x. */
static void block_backward(const block *b, const pass *p, int count, const real *x,
                           real *const grad[3]) {
    residual_backward(b->join, p, count, b->y, grad[0], grad[2]);
    conv_block_backward(&b->second, p, count, b->first.y, grad[0], grad[1]);
    conv_block_backward(&b->first, p, count, x, grad[1], grad[0]);
    residual_shortcut(b->join, p, count, grad[2], grad[0]);
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const resnet20 *net = self;
    const int count = batch->count;
    linear_backward(&net->classifier, p, count, net->pooled, net->logits, net->grad[1]);
    avgpool_backward(net->pool, p, count, net->grad[1], net->grad[0]);
    for (int i = BLOCKS - 1; i >= 0; i--) {
        const real *x = i > 0 ? net->blocks[i - 1].y : net->stem.y;
        block_backward(&net->blocks[i], p, count, x, net->grad);
    }
    conv_block_backward(&net->stem, p, count, batch->images, net->grad[0], NULL);
}

const model_kind model_resnet20 = {
    .name = "resnet20",
    .description = "ResNet-20 for 32x32 colour images, 269,722 parameters",
    .input = MODEL_IMAGES,
    .height = SIDE,
    .width = SIDE,
    .channels = COLOURS,
    .classes = CLASSES,
    .net_bytes = sizeof(resnet20),
    .complete = complete_images,
    .build = build,
    .forward = forward,
    .backward = backward,
};
