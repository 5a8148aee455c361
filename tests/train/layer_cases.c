/* layer_cases.c - the layers in small odd sizes; see layer_cases.h */
#include "layer_cases.h"

#include <string.h>

#include "layers/layers.h"

static void build_nothing(void *layer, layout *to) {
    (void)layer;
    (void)to;
}

/* ---- Convolutions: images x shape ----------------------------------------------------------------- */

#define CONV_CASE(label, COUNT, HEIGHT, WIDTH, IN, OUT, KERNEL, STRIDE, BIAS)                      \
    static void build_##label(void *layer, layout *to) {                                           \
        conv2d_create(layer, to, "conv",                                                           \
                      (conv2d_shape){HEIGHT, WIDTH, IN, OUT, KERNEL, STRIDE, BIAS});               \
    }                                                                                              \
    static void forward_##label(layer_run *r) {                                                    \
        conv2d_forward(r->layer, &r->fixture.pass, COUNT, r->x, r->y);                             \
    }                                                                                              \
    static void backward_##label(layer_run *r) {                                                   \
        conv2d_backward(r->layer, &r->fixture.pass, COUNT, r->x, r->dy, r->dx);                    \
    }

#define CONV_ROW(label, COUNT, HEIGHT, WIDTH, IN, OUT, STRIDE)                                     \
    {                                                                                              \
        .name = #label, .bytes = sizeof(conv2d), .nx = COUNT * HEIGHT * WIDTH * IN,                \
        .ny = COUNT * (((HEIGHT)-1) / STRIDE + 1) * (((WIDTH)-1) / STRIDE + 1) * OUT,              \
        .build = build_##label, .forward = forward_##label, .backward = backward_##label           \
    }

CONV_CASE(conv_3x3, 3, 5, 6, 3, 4, 3, 1, true)
CONV_CASE(conv_3x3_even, 3, 6, 4, 5, 7, 3, 1, true)
CONV_CASE(conv_3x3_one_image, 1, 4, 4, 2, 3, 3, 1, false)
CONV_CASE(conv_3x3_stride_2, 2, 6, 5, 3, 4, 3, 2, false)
CONV_CASE(conv_1x1, 2, 3, 4, 3, 5, 1, 1, true)
CONV_CASE(conv_1x1_stride_2, 2, 5, 4, 3, 5, 1, 2, true)
CONV_CASE(conv_5x5_on_2x2, 2, 2, 2, 3, 2, 5, 1, true)
CONV_CASE(conv_many_channels, 2, 3, 3, 130, 131, 3, 1, true)
CONV_CASE(conv_many_tiles, 9, 40, 40, 3, 4, 3, 1, true)
CONV_CASE(winograd_narrow, 3, 6, 4, 17, 19, 3, 1, true)
CONV_CASE(winograd_one_tile, 1, 2, 2, 16, 18, 3, 1, false)
CONV_CASE(winograd_tasks, 9, 30, 30, 16, 16, 3, 1, true)
CONV_CASE(winograd_wide, 3, 4, 6, 200, 193, 3, 1, true)
CONV_CASE(winograd_rounds, 3, 28, 28, 192, 192, 3, 1, true)

/* ---- Dense layers and activations ------------------------------------------------------------------ */

enum { ROWS = 5, IN = 7, OUT = 9, POINTS = 200 };

static void build_linear(void *layer, layout *to) {
    linear_create(layer, to, "linear", IN, OUT, 0.5, true);
}
static void forward_linear(layer_run *r) {
    linear_forward(r->layer, &r->fixture.pass, ROWS, r->x, r->y);
}
static void backward_linear(layer_run *r) {
    linear_backward(r->layer, &r->fixture.pass, ROWS, r->x, r->dy, r->dx);
}

enum { BIG_ROWS = 600, BIG_IN = 300, BIG_OUT = 290 }; /* several blocks each way */

static void build_linear_blocks(void *layer, layout *to) {
    linear_create(layer, to, "linear", BIG_IN, BIG_OUT, 0.1, false);
}
static void forward_linear_blocks(layer_run *r) {
    linear_forward(r->layer, &r->fixture.pass, BIG_ROWS, r->x, r->y);
}
static void backward_linear_blocks(layer_run *r) {
    linear_backward(r->layer, &r->fixture.pass, BIG_ROWS, r->x, r->dy, r->dx);
}

static void forward_relu(layer_run *r) {
    memcpy(r->y, r->x, POINTS * sizeof(real));
    relu_forward(&r->fixture.pass, POINTS, r->y);
}
static void backward_relu(layer_run *r) {
    memcpy(r->dx, r->dy, POINTS * sizeof(real));
    relu_backward(&r->fixture.pass, POINTS, r->y, r->dx);
}

static void forward_gelu(layer_run *r) {
    gelu_forward(&r->fixture.pass, POINTS, r->x, r->y);
}
static void backward_gelu(layer_run *r) {
    memcpy(r->dx, r->dy, POINTS * sizeof(real));
    gelu_backward(&r->fixture.pass, POINTS, r->x, r->dx);
}

/* ---- Pools ------------------------------------------------------------------------------------------ */

enum { POOLED = 3, POOL_HEIGHT = 7, POOL_WIDTH = 6, POOL_CHANNELS = 5 };

static void build_maxpool(void *layer, layout *to) {
    maxpool_create(layer, to, POOLED, POOL_HEIGHT, POOL_WIDTH, POOL_CHANNELS);
}
static void forward_maxpool(layer_run *r) {
    maxpool_forward(r->layer, &r->fixture.pass, POOLED, r->x, r->y);
}
static void backward_maxpool(layer_run *r) {
    maxpool_backward(r->layer, &r->fixture.pass, POOLED, r->dy, r->dx);
}

static const avgpool average = {.pixels = POOL_HEIGHT * POOL_WIDTH, .channels = POOL_CHANNELS};

static void forward_avgpool(layer_run *r) {
    avgpool_forward(average, &r->fixture.pass, POOLED, r->x, r->y);
}
static void backward_avgpool(layer_run *r) {
    avgpool_backward(average, &r->fixture.pass, POOLED, r->dy, r->dx);
}

/* ---- Norms ------------------------------------------------------------------------------------------ */

enum { NORM_ROWS = 150, CHANNELS = 6 }; /* three chunks of rows */

static void build_batch_norm(void *layer, layout *to) {
    batch_norm_create(layer, to, "norm", CHANNELS, false);
}
static void build_batch_norm_relu(void *layer, layout *to) {
    batch_norm_create(layer, to, "norm", CHANNELS, true);
}
static void forward_batch_norm(layer_run *r) {
    batch_norm_forward(r->layer, &r->fixture.pass, NORM_ROWS, r->x, r->y);
}
static void backward_batch_norm(layer_run *r) {
    memcpy(r->dx, r->dy, NORM_ROWS * CHANNELS * sizeof(real));
    batch_norm_backward(r->layer, &r->fixture.pass, NORM_ROWS, r->x, r->dx);
}

static void build_layer_norm(void *layer, layout *to) {
    layer_norm_create(layer, to, "norm", NORM_ROWS, 11);
}
static void forward_layer_norm(layer_run *r) {
    layer_norm_forward(r->layer, &r->fixture.pass, NORM_ROWS, r->x, r->y);
}
static void backward_layer_norm(layer_run *r) {
    memcpy(r->dx, r->dy, NORM_ROWS * 11 * sizeof(real));
    layer_norm_backward(r->layer, &r->fixture.pass, NORM_ROWS, r->dx);
}

/* ---- Residuals: x is the branch a, then the shortcut's input --------------------------------------- */

#define RESIDUAL_CASE(label, HEIGHT, WIDTH, INPUTS, OUTPUTS, STRIDE)                               \
    static const residual label = {HEIGHT, WIDTH, INPUTS, OUTPUTS, STRIDE};                        \
    static void forward_##label(layer_run *r) {                                                    \
        residual_forward(label, &r->fixture.pass, 2, r->x, r->x + r->c->ny, r->y);                 \
    }                                                                                              \
    static void backward_##label(layer_run *r) {                                                   \
        memset(r->dx, 0, (size_t)r->c->nx * sizeof(real));                                         \
        residual_backward(label, &r->fixture.pass, 2, r->y, r->dy, r->dx);                         \
        residual_shortcut(label, &r->fixture.pass, 2, r->dy, r->dx + r->c->ny);                    \
    }

RESIDUAL_CASE(residual_same, 3, 4, 5, 5, 1)
RESIDUAL_CASE(residual_half, 4, 6, 3, 6, 2)

/* ---- Sequences ---------------------------------------------------------------------------------------- */

enum { ENTRIES = 6, LOOKED_UP = 9 };
static const int32_t ids[LOOKED_UP] = {3, 0, 5, 3, 3, 1, 0, 5, 2};

static void build_embedding(void *layer, layout *to) {
    embedding_create(layer, to, "table", ENTRIES, IN, 0.5);
}
static void forward_embedding(layer_run *r) {
    memcpy(r->y, r->x, LOOKED_UP * IN * sizeof(real));
    embedding_forward(r->layer, LOOKED_UP, ids, true, r->y);
}
static void backward_embedding(layer_run *r) {
    embedding_backward(r->layer, &r->fixture.pass, LOOKED_UP, ids, r->dy);
    memcpy(r->dx, r->dy, LOOKED_UP * IN * sizeof(real));
}

enum { SEQUENCES = 10, TIMES = 4, LSTM_IN = 3, LSTM_WIDTH = 5 };

static void build_lstm(void *layer, layout *to) {
    lstm_create(layer, to, "lstm", SEQUENCES + 1, TIMES, LSTM_IN, LSTM_WIDTH);
}
static void forward_lstm(layer_run *r) {
    const real *y = lstm_forward(r->layer, &r->fixture.pass, SEQUENCES, r->x);
    memcpy(r->y, y, TIMES * SEQUENCES * LSTM_WIDTH * sizeof(real));
}
static void backward_lstm(layer_run *r) {
    lstm_backward(r->layer, &r->fixture.pass, SEQUENCES, r->x, r->dy, r->dx);
}

enum { COUNT = 3, LENGTH = 5, WIDTH = 8, HEADS = 2, INNER = 12 };
static const int32_t lengths[COUNT] = {5, 2, 3}; /* with padding */

static void build_attention(void *layer, layout *to) {
    attention_create(layer, to, "attention", COUNT, LENGTH, WIDTH, HEADS, 0.7);
}
static void forward_attention(layer_run *r) {
    attention_forward(r->layer, &r->fixture.pass, COUNT, lengths, r->x, r->y);
}
static void backward_attention(layer_run *r) {
    attention_backward(r->layer, &r->fixture.pass, COUNT, lengths, r->x, r->dy, r->dx);
}

static void build_encoder(void *layer, layout *to) {
    encoder_create(layer, to, "encoder", (encoder_shape){COUNT, LENGTH, WIDTH, HEADS, INNER}, 0.5);
}
static void forward_encoder(layer_run *r) {
    const real *y = encoder_forward(r->layer, &r->fixture.pass, COUNT, NULL, r->x);
    memcpy(r->y, y, COUNT * LENGTH * WIDTH * sizeof(real));
}
static void backward_encoder(layer_run *r) {
    real temporary[COUNT * LENGTH * WIDTH];
    memcpy(r->dx, r->dy, sizeof temporary);
    encoder_backward(r->layer, &r->fixture.pass, COUNT, NULL, r->x, r->dx, temporary);
}

/* ---- Loss ------------------------------------------------------------------------------------------- */

enum { LOSS_ROWS = 40, CLASSES = 9 };

static void build_cross_entropy(void *layer, layout *to) {
    cross_entropy_create(layer, to, LOSS_ROWS, CLASSES);
}
static void forward_cross_entropy(layer_run *r) {
    int32_t labels[LOSS_ROWS];
    for (int i = 0; i < LOSS_ROWS; i++)
        labels[i] = i % 4 == 3 ? MODEL_IGNORE : i % CLASSES;
    memcpy(r->y, r->x, LOSS_ROWS * CLASSES * sizeof(real));
    r->loss = cross_entropy_forward(r->layer, &r->fixture.pass, LOSS_ROWS, labels, r->y).loss;
}
static void backward_cross_entropy(layer_run *r) {
    memcpy(r->dx, r->y, LOSS_ROWS * CLASSES * sizeof(real));
}

/* ---- All of them ------------------------------------------------------------------------------------ */

#define ROW(label, type, inputs, outputs)                                                          \
    {                                                                                              \
        .name = #label, .bytes = sizeof(type), .nx = (inputs), .ny = (outputs),                    \
        .build = build_##label, .forward = forward_##label, .backward = backward_##label           \
    }
#define BARE_ROW(label, inputs, outputs)                                                           \
    {                                                                                              \
        .name = #label, .bytes = 1, .nx = (inputs), .ny = (outputs), .build = build_nothing,       \
        .forward = forward_##label, .backward = backward_##label                                   \
    }

const layer_case layer_cases[] = {
    CONV_ROW(conv_3x3, 3, 5, 6, 3, 4, 1),
    CONV_ROW(conv_3x3_even, 3, 6, 4, 5, 7, 1),
    CONV_ROW(conv_3x3_one_image, 1, 4, 4, 2, 3, 1),
    CONV_ROW(conv_3x3_stride_2, 2, 6, 5, 3, 4, 2),
    CONV_ROW(conv_1x1, 2, 3, 4, 3, 5, 1),
    CONV_ROW(conv_1x1_stride_2, 2, 5, 4, 3, 5, 2),
    CONV_ROW(conv_5x5_on_2x2, 2, 2, 2, 3, 2, 1),
    CONV_ROW(conv_many_channels, 2, 3, 3, 130, 131, 1),
    CONV_ROW(conv_many_tiles, 9, 40, 40, 3, 4, 1),
    CONV_ROW(winograd_narrow, 3, 6, 4, 17, 19, 1),
    CONV_ROW(winograd_one_tile, 1, 2, 2, 16, 18, 1),
    CONV_ROW(winograd_tasks, 9, 30, 30, 16, 16, 1),
    CONV_ROW(winograd_wide, 3, 4, 6, 200, 193, 1),
    CONV_ROW(winograd_rounds, 3, 28, 28, 192, 192, 1),
    ROW(linear, linear, ROWS *IN, ROWS *OUT),
    ROW(linear_blocks, linear, BIG_ROWS *BIG_IN, BIG_ROWS *BIG_OUT),
    BARE_ROW(relu, POINTS, POINTS),
    BARE_ROW(gelu, POINTS, POINTS),
    ROW(maxpool, maxpool, POOLED *POOL_HEIGHT *POOL_WIDTH *POOL_CHANNELS,
        POOLED *(POOL_HEIGHT / 2) * (POOL_WIDTH / 2) * POOL_CHANNELS),
    BARE_ROW(avgpool, POOLED *POOL_HEIGHT *POOL_WIDTH *POOL_CHANNELS, POOLED *POOL_CHANNELS),
    ROW(batch_norm, batch_norm, NORM_ROWS *CHANNELS, NORM_ROWS *CHANNELS),
    {.name = "batch_norm_relu",
     .bytes = sizeof(batch_norm),
     .nx = NORM_ROWS * CHANNELS,
     .ny = NORM_ROWS * CHANNELS,
     .build = build_batch_norm_relu,
     .forward = forward_batch_norm,
     .backward = backward_batch_norm},
    ROW(layer_norm, layer_norm, NORM_ROWS * 11, NORM_ROWS * 11),
    BARE_ROW(residual_same, 2 * 3 * 4 * (5 + 5), 2 * 3 * 4 * 5),
    BARE_ROW(residual_half, 2 * 2 * 3 * 6 + 2 * 4 * 6 * 3, 2 * 2 * 3 * 6),
    ROW(embedding, embedding, LOOKED_UP *IN, LOOKED_UP *IN),
    ROW(lstm, lstm, TIMES *SEQUENCES *LSTM_IN, TIMES *SEQUENCES *LSTM_WIDTH),
    ROW(attention, attention, COUNT *LENGTH *WIDTH, COUNT *LENGTH *WIDTH),
    ROW(encoder, encoder, COUNT *LENGTH *WIDTH, COUNT *LENGTH *WIDTH),
    {.name = "cross_entropy",
     .bytes = sizeof(cross_entropy),
     .nx = LOSS_ROWS * CLASSES,
     .ny = LOSS_ROWS * CLASSES,
     .build = build_cross_entropy,
     .forward = forward_cross_entropy,
     .backward = backward_cross_entropy,
     .own_loss = true},
};

const int layer_ncases = sizeof layer_cases / sizeof layer_cases[0];
