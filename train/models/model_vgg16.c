/* model_vgg16.c - VGG-16 with batch norm for CIFAR-10 (Simonyan and Zisserman, 2015)
 *
 *     images [32][32][3]
 *     2 x (conv 3x3 to  64, norm, relu), pool -> [16][16][64]
 *     2 x (conv 3x3 to 128, norm, relu), pool -> [8][8][128]
 *     3 x (conv 3x3 to 256, norm, relu), pool -> [4][4][256]
 *     3 x (conv 3x3 to 512, norm, relu), pool -> [2][2][512]
 *     3 x (conv 3x3 to 512, norm, relu), pool -> [512]
 *     linear to 10
 * Convolutions have biases, though the norms make them idle: with them the parameters are the
 * 14,728,266 of the papers' workload.
 */
#include "models/models.h"

enum { STAGES = 5, MOST_BLOCKS = 3, SIDE = 32, COLOURS = 3, CLASSES = 10 };

static const int stage_width[STAGES] = {64, 128, 256, 512, 512};
static const int stage_blocks[STAGES] = {2, 2, 3, 3, 3};

typedef struct stage {
    int nblocks;
    conv_block blocks[MOST_BLOCKS];
    maxpool pool;
    real *y; /* [max_batch][side / 2][side / 2][width] pooled */
} stage;

typedef struct vgg16 {
    stage stages[STAGES];
    linear classifier;
    cross_entropy loss;
    real *logits;  /* [max_batch][CLASSES] becomes their gradient */
    real *grad[2]; /* [max_batch][SIDE][SIDE][64] each: gradients on their way back, in turn */
} vgg16;

static void build_stage(stage *s, layout *to, int number, int max_batch, int in) {
    const int side = SIDE >> number, out = stage_width[number];
    s->nblocks = stage_blocks[number];
    for (int i = 0; i < s->nblocks; i++) {
        conv2d_shape shape = {side, side, i == 0 ? in : out, out, .kernel = 3, .stride = 1};
        shape.bias = true;
        conv_block_create(&s->blocks[i], to, name_part("stage%d.block%d", number + 1, i + 1).text,
                          max_batch, shape, true);
    }
    maxpool_create(&s->pool, to, max_batch, side, side, out);
    s->y = layout_reals(to, (int64_t)max_batch * (side / 2) * (side / 2) * out);
}

static void build(void *self, layout *to, const model_spec *spec) {
    vgg16 *net = self;
    const int most = spec->max_batch;
    for (int i = 0; i < STAGES; i++)
        build_stage(&net->stages[i], to, i, most, i == 0 ? COLOURS : stage_width[i - 1]);
    const int width = stage_width[STAGES - 1];
    linear_create(&net->classifier, to, "classifier", width, CLASSES, bound_xavier(width, CLASSES),
                  true);
    cross_entropy_create(&net->loss, to, most, CLASSES);
    net->logits = layout_reals(to, (int64_t)most * CLASSES);
    for (int i = 0; i < 2; i++)
        net->grad[i] = layout_reals(to, (int64_t)most * SIDE * SIDE * stage_width[0]);
}

static const real *stage_forward(const stage *s, const pass *p, int count, const real *x) {
    for (int i = 0; i < s->nblocks; i++)
        x = conv_block_forward(&s->blocks[i], p, count, x);
    maxpool_forward(&s->pool, p, count, x, s->y);
    return s->y;
}

static model_result forward(void *self, const pass *p, const model_batch *batch) {
    const vgg16 *net = self;
    const real *x = batch->images;
    for (int i = 0; i < STAGES; i++)
        x = stage_forward(&net->stages[i], p, batch->count, x);
    linear_forward(&net->classifier, p, batch->count, x, net->logits);
    return cross_entropy_forward(&net->loss, p, batch->count, batch->labels, net->logits);
}

/* Takes the gradient of the stage's output from grad[0]; leaves that of its input x there. */
static void stage_backward(const stage *s, const pass *p, int count, const real *x, bool first,
                           real *grad[2]) {
    maxpool_backward(&s->pool, p, count, grad[0], grad[1]);
    for (int i = s->nblocks - 1; i >= 0; i--) {
        swap_reals(&grad[0], &grad[1]);
        conv_block_backward(&s->blocks[i], p, count, i > 0 ? s->blocks[i - 1].y : x, grad[0],
                            first && i == 0 ? NULL : grad[1]);
    }
    swap_reals(&grad[0], &grad[1]);
}

static void backward(void *self, const pass *p, const model_batch *batch) {
    const vgg16 *net = self;
    real *grad[2] = {net->grad[0], net->grad[1]};
    linear_backward(&net->classifier, p, batch->count, net->stages[STAGES - 1].y, net->logits,
                    grad[0]);
    for (int i = STAGES - 1; i >= 0; i--) {
        const real *x = i > 0 ? net->stages[i - 1].y : batch->images;
        stage_backward(&net->stages[i], p, batch->count, x, i == 0, grad);
    }
}

const model_kind model_vgg16 = {
    .name = "vgg16",
    .description = "VGG-16 with batch norm for 32x32 colour images, 14,728,266 parameters",
    .input = MODEL_IMAGES,
    .height = SIDE,
    .width = SIDE,
    .channels = COLOURS,
    .classes = CLASSES,
    .net_bytes = sizeof(vgg16),
    .complete = complete_images,
    .build = build,
    .forward = forward,
    .backward = backward,
};
