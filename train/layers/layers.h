/* layers.h - the layers of all models
 *
 * A layer is a struct and three functions: create asks a layout for parameters and memory, forward
 * turns x into y, backward turns dy into dx and the gradients of the parameters. backward follows a
 * forward with the same x and count, in training mode. Images are [count][height][width][channels].
 * Each layer states its formulas; dX is the gradient of the loss by X.
 */
#ifndef TRAIN_LAYERS_H
#define TRAIN_LAYERS_H

#include "layers/matrix.h"

/* ---- Linear and embedding (layer_linear.c) ------------------------------------------------------ */

/* y = x weight + bias, row by row
 *     dbias = column sums of dy,   dweight = x^T dy,   dx = dy weight^T */
typedef struct linear {
    int in, out;
    param weight; /* [in][out] */
    param bias;   /* [out]; n is 0 without */
} linear;

/* bound: of the initial weights, which are uniform; the bias begins at 0. */
void linear_create(linear *l, layout *to, const char *name, int in, int out, double bound,
                   bool bias);
void linear_forward(const linear *l, const pass *p, int rows, const real *x,  /* [rows][in] */
                    real *y);                                                 /* [rows][out] */
void linear_backward(const linear *l, const pass *p, int rows, const real *x, /* [rows][in] */
                     const real *dy,                                          /* [rows][out] */
                     real *dx); /* [rows][in], may be x; NULL: not wanted */

/* Rows of a table, one for each id.
 *     y[row] = table[ids[row]] (or added to y)     dtable[id] = sum of dy[row] over ids[row] == id */
typedef struct embedding {
    int entries, width;
    param table; /* [entries][width] */
} embedding;

/* bound: of the initial values, which are uniform. */
void embedding_create(embedding *e, layout *to, const char *name, int entries, int width,
                      double bound);
void embedding_forward(const embedding *e, int rows, /* ids: below entries, the caller checked */
                       const int32_t *ids,           /* [rows] */
                       bool add, real *y);           /* [rows][width] */
void embedding_backward(const embedding *e, const pass *p, int rows, const int32_t *ids,
                        const real *dy); /* [rows][width] */

/* ---- Convolution (layer_conv2d.c, winograd.c) --------------------------------------------------- */

/* The padding is kernel / 2: stride 1 keeps the size. */
typedef struct conv2d_shape {
    int height, width; /* of the input */
    int in, out;       /* channels */
    int kernel;        /* odd */
    int stride;
    bool bias;
} conv2d_shape;

/* Two-dimensional convolution.
 *     y[b,i,j,o] = bias[o] + sum over k,l,c of x[b, i*stride + k - pad, j*stride + l - pad, c]
 *                                              * weight[k,l,c,o]
 * with x zero beyond the border. Backward:
 *     dbias[o]        = sum over b,i,j of dy[b,i,j,o]
 *     dweight[k,l,c,o]= sum over b,i,j of x[b, i*stride + k - pad, j*stride + l - pad, c] dy[b,i,j,o]
 *     dx              = dy, spread by the stride, convolved with the kernel turned by 180 degrees
 * All three are products of patches (im2col) and matrices, tile by tile; or, where the shape suits,
 * Winograd's, with fewer products. */
typedef struct conv2d {
    conv2d_shape shape;
    int out_height, out_width;
    param weight;  /* [kernel][kernel][in][out] */
    param bias;    /* [out]; n is 0 without */
    real *kernels; /* [16][in][out] Winograd's transform of weight; NULL: by patches */
} conv2d;

void conv2d_create(conv2d *c, layout *to, const char *name, conv2d_shape shape);
void conv2d_forward(const conv2d *c, const pass *p, int count,
                    const real *x, /* [count][height][width][in] */
                    real *y);      /* [count][out_height][out_width][out] */
void conv2d_backward(const conv2d *c, const pass *p, int count,
                     const real *x,  /* [count][height][width][in] */
                     const real *dy, /* [count][out_height][out_width][out] */
                     real *dx);      /* [count][height][width][in], or NULL: not wanted */

/* The same by Winograd's method, for conv2d. create returns false where the shape does not suit. The
 * input gradient comes after a forward with the same weights. */
bool winograd_create(conv2d *c, layout *to);
void winograd_forward(const conv2d *c, const pass *p, int count, const real *x, real *y);
void winograd_input_gradient(const conv2d *c, const pass *p, int count, const real *dy, real *dx);
void winograd_weight_gradient(const conv2d *c, const pass *p, int count, const real *x,
                              const real *dy);

/* ---- Activations (layer_activations.c) ---------------------------------------------------------- */

/* Rectifier, in place: y = max(x, 0),  dx = dy where y > 0, else 0. */
void relu_forward(const pass *p, int64_t n, real *x);       /* [n] becomes y */
void relu_backward(const pass *p, int64_t n, const real *y, /* [n] */
                   real *dy);                               /* [n] becomes dx */

/* Gaussian error linear unit, the exact form (Hendrycks and Gimpel, 2016)
 *     y = x P(x),  P(x) = (1 + erf(x / sqrt 2)) / 2
 *     dx = dy (P(x) + x exp(-x^2 / 2) / sqrt(2 pi)) */
void gelu_forward(const pass *p, int64_t n, const real *x,  /* [n] */
                  real *y);                                 /* [n] */
void gelu_backward(const pass *p, int64_t n, const real *x, /* [n] */
                   real *dy);                               /* [n] becomes dx */

/* ---- Pooling (layer_pooling.c) ------------------------------------------------------------------ */

/* The largest of each 2 x 2 square of pixels, per channel.
 *     y[b,i,j,c] = max over k,l in {0,1} of x[b, 2i+k, 2j+l, c]; among equals the first wins
 *     dx[b, 2i+k, 2j+l, c] = dy[b,i,j,c] where (k,l) won, else 0
 * An odd last line or column of the input is left out and gets gradient 0. */
typedef struct maxpool {
    int height, width, channels;
    int out_height, out_width;
    uint8_t *winner; /* [max_batch][out_height][out_width][channels]: 2k + l */
} maxpool;

void maxpool_create(maxpool *m, layout *to, int max_batch, int height, int width, int channels);
void maxpool_forward(const maxpool *m, const pass *p, int count,
                     const real *x, /* [count][height][width][channels] */
                     real *y);      /* [count][out_height][out_width][channels] */
void maxpool_backward(const maxpool *m, const pass *p, int count,
                      const real *dy, /* [count][out_height][out_width][channels] */
                      real *dx);      /* [count][height][width][channels] */

/* The mean over all pixels of an image, per channel.
 *     y[b,c] = mean over pixels of x[b,pixel,c],   dx[b,pixel,c] = dy[b,c] / pixels */
typedef struct avgpool {
    int pixels, channels;
} avgpool;

void avgpool_forward(avgpool a, const pass *p, int count,
                     const real *x, /* [count][pixels][channels] */
                     real *y);      /* [count][channels] */
void avgpool_backward(avgpool a, const pass *p, int count, const real *dy, /* [count][channels] */
                      real *dx); /* [count][pixels][channels] */

/* ---- Norms (layer_norms.c) ---------------------------------------------------------------------- */

/* Batch normalisation over the channels of [rows][channels], and a rectifier. rows are the pixels of
 * all images of the batch. Per channel (Ioffe and Szegedy, 2015):
 *     mean, var  of x over the rows (training: of this batch, var / rows; else the running ones)
 *     xhat = (x - mean) / sqrt(var + epsilon),  y = scale * xhat + shift,  then max(y, 0) if asked
 *     running = 0.9 * running + 0.1 * batch, where the running variance takes var * rows / (rows-1)
 * Backward, with g = dy (where y > 0, if rectified):
 *     dshift = sum g,  dscale = sum g xhat,
 *     dx = scale / sqrt(var + epsilon) * (g - dshift / rows - xhat * dscale / rows)
 * The rectifier is in here because both directions are bound by memory: it saves a pass over y. */
typedef struct batch_norm {
    int channels;
    bool rectify;
    param scale;            /* [channels] */
    param shift;            /* [channels] */
    real *running_mean;     /* [channels] state */
    real *running_variance; /* [channels] state */
    double *mean;           /* [channels] of the last forward */
    double *inverse;        /* [channels] 1 / sqrt(var + epsilon) of it */
    real *slope, *constant; /* [channels] each: y = slope * x + constant of it */
} batch_norm;

void batch_norm_create(batch_norm *b, layout *to, const char *name, int channels, bool rectify);
void batch_norm_forward(const batch_norm *b, const pass *p, int64_t rows,
                        const real *x, /* [rows][channels] */
                        real *y);      /* [rows][channels] */
/* Finds from x where y was positive: one array less to read. */
void batch_norm_backward(const batch_norm *b, const pass *p, int64_t rows,
                         const real *x, /* [rows][channels] */
                         real *dy);     /* [rows][channels] becomes dx */

/* Layer normalisation: each row by its own mean and variance (Ba et al., 2016)
 *     mean, var of x[row][width] over the row;  xhat = (x - mean) / sqrt(var + epsilon)
 *     y = scale * xhat + shift
 * Backward, with g = dy * scale and means over the row:
 *     dshift = sum over rows of dy,   dscale = sum over rows of dy xhat
 *     dx = (g - mean(g) - xhat mean(g xhat)) / sqrt(var + epsilon) */
typedef struct layer_norm {
    int width;
    param scale;   /* [width] */
    param shift;   /* [width] */
    real *xhat;    /* [max_rows][width] */
    real *inverse; /* [max_rows] 1 / sqrt(var + epsilon) */
} layer_norm;

void layer_norm_create(layer_norm *l, layout *to, const char *name, int max_rows, int width);
void layer_norm_forward(const layer_norm *l, const pass *p, int rows,
                        const real *x, /* [rows][width] */
                        real *y);      /* [rows][width]; may be x */
void layer_norm_backward(const layer_norm *l, const pass *p, int rows,
                         real *dy); /* [rows][width] becomes dx */

/* ---- Attention (layer_attention.c) -------------------------------------------------------------- */

/* Multi-head self-attention (Vaswani et al., 2017), linear layers included. For each sequence, with
 * q, k, v = x qkv (three linear layers in one), split into heads of depth = width / heads columns;
 * per head, over positions s (from) and t (to) of the sequence:
 *     score[s][t] = q[s] . k[t] / sqrt(depth), for t before the padding
 *     weight[s] = softmax of score[s],   mixed[s] = sum over t of weight[s][t] v[t]
 *     y = mixed out
 * Backward per head, with dm the gradient of mixed:
 *     dv[t] = sum over s of weight[s][t] dm[s],    dweight[s][t] = dm[s] . v[t]
 *     dscore[s][t] = weight[s][t] (dweight[s][t] - sum over u of weight[s][u] dweight[s][u])
 *     dq[s] = sum over t of dscore[s][t] k[t] / sqrt(depth),  dk[t] the same from q[s] */
typedef struct attention {
    int width, heads, length;
    linear qkv;    /* width to 3 * width: q, k, v side by side */
    linear out;    /* width to width */
    real *joined;  /* [count * length][3][width] q k v, then their gradients */
    real *weights; /* [count][heads][length][length] */
    real *mixed;   /* [count * length][width] */
} attention;

void attention_create(attention *a, layout *to, const char *name, int max_batch, int length,
                      int width, int heads, double bound);
void attention_forward(const attention *a, const pass *p, int count,
                       const int32_t *lengths, /* [count] positions before the padding; NULL: all */
                       const real *x,          /* [count][length][width] */
                       real *y);               /* [count][length][width] */
void attention_backward(const attention *a, const pass *p, int count, const int32_t *lengths,
                        const real *x,  /* [count][length][width] */
                        const real *dy, /* [count][length][width] */
                        real *dx);      /* [count][length][width] */

/* ---- LSTM (layer_lstm.c) ------------------------------------------------------------------------ */

/* Long short-term memory over whole sequences, time first. For t = 0 .. length-1, from h[-1] = c[-1]
 * = 0, with all sequences of the batch side by side:
 *     a = x[t] x_weight + h[t-1] h_weight + bias         [count][4][width], parts i f g o
 *     i, f, o = sigmoid(a_i), sigmoid(a_f), sigmoid(a_o);   g = tanh(a_g)
 *     c[t] = f c[t-1] + i g;   h[t] = o tanh(c[t])
 * Backward, from the last t, dh and dc being 0 beyond it:
 *     dh = dy[t] + da[t+1] h_weight^T
 *     dc = dh o (1 - tanh(c)^2) + dc[t+1] f[t+1]
 *     da_i = dc g i (1-i),  da_f = dc c[t-1] f (1-f),  da_g = dc i (1-g^2),  da_o = dh tanh(c) o (1-o)
 *     dbias = sum of da,  dh_weight = sum of h[t-1]^T da[t],  dx_weight = x^T da,  dx = da x_weight^T
 * The products with x and the weights' gradients are one product each over all times. */
typedef struct lstm {
    int in, width, length;
    param x_weight; /* [in][4][width] */
    param h_weight; /* [width][4][width] */
    param bias;     /* [4][width]; that of f begins at 1: remember at first */
    real *gates;    /* [length][count][4][width] i f g o, then da */
    real *c;        /* [length + 1][count][width], c[-1] first */
    real *h;        /* [length + 1][count][width], h[-1] first */
    real *dh;       /* [count][width] */
    real *dc;       /* [count][width] */
} lstm;

void lstm_create(lstm *l, layout *to, const char *name, int max_batch, int length, int in,
                 int width);
/* x: [length][count][in]. Returns y: [length][count][width], which lives in the layer. */
const real *lstm_forward(const lstm *l, const pass *p, int count, const real *x);
void lstm_backward(const lstm *l, const pass *p, int count, const real *x, /* [length][count][in] */
                   const real *dy, /* [length][count][width] */
                   real *dx);      /* [length][count][in] */

/* ---- Cross entropy (layer_cross_entropy.c) ------------------------------------------------------ */

/* Softmax and cross entropy against labels.
 *     p = softmax(logits[row]),   loss = mean over counted rows of -log p[label]
 *     dlogits = (p - onehot(label)) / counted rows;  0 in rows whose label is MODEL_IGNORE
 * The gradient costs nothing extra: forward leaves it in place of the logits. */
typedef struct cross_entropy {
    int classes;
    struct row_loss *rows; /* [max_rows] */
} cross_entropy;

void cross_entropy_create(cross_entropy *e, layout *to, int max_rows, int classes);
/* Returns loss, count and correct; correct: no class was larger than the label, and none before it
 * as large. Labels are 0 .. classes - 1 or MODEL_IGNORE; the caller has checked. */
model_result cross_entropy_forward(const cross_entropy *e, const pass *p, int rows,
                                   const int32_t *labels, /* [rows] */
                                   real *logits);         /* [rows][classes] becomes dlogits */

/* ---- Blocks of layers (layer_blocks.c) ---------------------------------------------------------- */

/* Convolution, batch norm and (if asked) rectifier: the brick of vgg16 and resnet20. */
typedef struct conv_block {
    conv2d conv;
    batch_norm norm;
    int64_t pixels; /* of one output image */
    real *sums;     /* [max_batch][out_height][out_width][out] what the convolution gave */
    real *y;        /* [max_batch][out_height][out_width][out] */
} conv_block;

void conv_block_create(conv_block *b, layout *to, const char *name, int max_batch,
                       conv2d_shape shape, bool rectify);
/* x: [count][height][width][in]. Returns b->y. */
const real *conv_block_forward(const conv_block *b, const pass *p, int count, const real *x);
void conv_block_backward(const conv_block *b, const pass *p, int count, const real *x,
                         real *dy,  /* like y; is used up */
                         real *dx); /* like x, or NULL: not wanted */

/* Adds the shortcut of a residual block and rectifies (He et al., 2016).
 *     y[b,i,j,c] = max(a[b,i,j,c] + s[b,i,j,c], 0)
 *     s[b,i,j,c] = x[b, i*stride, j*stride, c] for c < in, else 0
 * The shortcut has no parameters ("option A"): every stride-th pixel, new channels zero. Backward,
 * with g = dy where y > 0:
 *     da = g,      dx[b, i*stride, j*stride, c] += g[b,i,j,c] for c < in */
typedef struct residual {
    int height, width, in; /* of x */
    int out, stride;       /* a, y: [height / stride][width / stride][out]; out >= in */
} residual;

void residual_forward(residual r, const pass *p, int count,
                      const real *a, /* [count][height/stride][width/stride][out] */
                      const real *x, /* [count][height][width][in] */
                      real *y);      /* like a; may be a */
void residual_backward(residual r, const pass *p, int count, const real *y, /* like a */
                       real *dy,                                            /* becomes g */
                       real *kept); /* like a: becomes g too, for residual_shortcut */
/* The shortcut's part: dx += shortcut backwards of g. */
void residual_shortcut(residual r, const pass *p, int count, const real *g, /* like a */
                       real *dx);                                           /* like x */

/* One encoder layer of BERT: attention, feed-forward, each with shortcut and norm.
 *     middle = norm1(x + attention(x)),   y = norm2(middle + contract(gelu(expand(middle)))) */
typedef struct encoder {
    int width, inner, length;
    attention attend;
    layer_norm norm1, norm2;
    linear expand;   /* width to inner */
    linear contract; /* inner to width */
    real *middle;    /* [rows][width], rows = count * length */
    real *expanded;  /* [rows][inner] */
    real *bent;      /* [rows][inner] after gelu, then the gradient of it */
    real *y;         /* [rows][width] */
} encoder;

typedef struct encoder_shape {
    int max_batch, length, width, heads, inner;
} encoder_shape;

void encoder_create(encoder *e, layout *to, const char *name, encoder_shape shape, double bound);
/* x: [count][length][width]; lengths as in attention_forward. Returns e->y. */
const real *encoder_forward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                            const real *x);
void encoder_backward(const encoder *e, const pass *p, int count, const int32_t *lengths,
                      const real *x,    /* [rows][width] */
                      real *dy,         /* [rows][width] becomes dx */
                      real *temporary); /* [rows][width] */

#endif
