/* winograd_tiles.c - the transforms, vectorised over channels; see winograd.h */
#include "layers/winograd.h"

#include "layers/vector.h"

/* Where a tile stands. */
typedef struct spot {
    const real *image;
    int line, column; /* of its first pixel */
} spot;

static spot find_spot(tiling t, const real *images, int64_t tile) {
    const int64_t each = tiling_each(t), within = tile % each;
    const int across = t.width / 2;
    return (spot){.image = images + tile / each * t.height * t.width * t.channels,
                  .line = (int)(within / across) * 2,
                  .column = (int)(within % across) * 2};
}

/* ---- Inputs -------------------------------------------------------------------------------------- */

VECTOR static void input_tile(const real *const d[PLANES], int64_t n, real *to, int64_t plane) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        real t[PLANES];
        for (int j = 0; j < 4; j++) { /* B^T d */
            real d0 = d[j][c], d1 = d[4 + j][c], d2 = d[8 + j][c], d3 = d[12 + j][c];
            t[j] = d0 - d2;
            t[4 + j] = d1 + d2;
            t[8 + j] = d2 - d1;
            t[12 + j] = d1 - d3;
        }
        for (int i = 0; i < PLANES; i += 4) { /* times B */
            to[i * plane + c] = t[i] - t[i + 2];
            to[(i + 1) * plane + c] = t[i + 1] + t[i + 2];
            to[(i + 2) * plane + c] = t[i + 2] - t[i + 1];
            to[(i + 3) * plane + c] = t[i + 1] - t[i + 3];
        }
    }
}

void winograd_inputs(tiling t, const real *images, range tiles, real *to, int64_t plane) {
    static const real zeros[WINOGRAD_CHANNELS];
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const spot s = find_spot(t, images, tile);
        const real *d[PLANES];
        for (int k = 0; k < PLANES; k++) {
            const int line = s.line - 1 + k / 4, column = s.column - 1 + k % 4;
            const bool inside = line >= 0 && line < t.height && column >= 0 && column < t.width;
            d[k] = inside ? s.image + ((int64_t)line * t.width + column) * t.channels : zeros;
        }
        input_tile(d, t.channels, to, plane);
        to += t.channels;
    }
}

/* ---- Outputs ------------------------------------------------------------------------------------- */

VECTOR static void output_tile(const real *m, int64_t plane, const real *bias, int64_t n, real *y,
                               real *below) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        real t[8];
        for (int j = 0; j < 4; j++) { /* A^T m */
            real m0 = m[j * plane + c], m1 = m[(4 + j) * plane + c];
            real m2 = m[(8 + j) * plane + c], m3 = m[(12 + j) * plane + c];
            t[j] = m0 + m1 + m2;
            t[4 + j] = m1 - m2 - m3;
        }
        const real add = bias ? bias[c] : 0;
        y[c] = t[0] + t[1] + t[2] + add;
        y[n + c] = t[1] - t[2] - t[3] + add;
        below[c] = t[4] + t[5] + t[6] + add;
        below[n + c] = t[5] - t[6] - t[7] + add;
    }
}

void winograd_outputs(tiling t, const real *from, int64_t plane, const real *bias, range tiles,
                      real *images) {
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const spot s = find_spot(t, images, tile);
        const int64_t line = (int64_t)t.width * t.channels;
        real *y = images + (s.image - images) + s.line * line + (int64_t)s.column * t.channels;
        output_tile(from, plane, bias, t.channels, y, y + line);
        from += t.channels;
    }
}

/* ---- Gradients of outputs ------------------------------------------------------------------------ */

VECTOR static void gradient_tile(const real *dy, const real *below, int64_t n, real *to,
                                 int64_t plane) {
    INDEPENDENT
    for (int64_t c = 0; c < n; c++) {
        const real a = dy[c], b = dy[n + c], e = below[c], f = below[n + c];
        const real left[4] = {a, a + e, a - e, -e}, right[4] = {b, b + f, b - f, -f}; /* A dy */
        for (int i = 0; i < 4; i++) { /* times A^T */
            to[4 * i * plane + c] = left[i];
            to[(4 * i + 1) * plane + c] = left[i] + right[i];
            to[(4 * i + 2) * plane + c] = left[i] - right[i];
            to[(4 * i + 3) * plane + c] = -right[i];
        }
    }
}

void winograd_gradients(tiling t, const real *images, range tiles, real *to, int64_t plane) {
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        const spot s = find_spot(t, images, tile);
        const int64_t line = (int64_t)t.width * t.channels;
        const real *dy = s.image + s.line * line + (int64_t)s.column * t.channels;
        gradient_tile(dy, dy + line, t.channels, to, plane);
        to += t.channels;
    }
}

/* ---- Kernels ------------------------------------------------------------------------------------- */

VECTOR void winograd_kernels(const real *kernels, int64_t n, range r, real *to) {
    const real half = (real)0.5;
    INDEPENDENT
    for (int64_t c = r.begin; c < r.end; c++) {
        real t[12];
        for (int j = 0; j < 3; j++) { /* G g */
            real g0 = kernels[j * n + c], g1 = kernels[(3 + j) * n + c];
            real g2 = kernels[(6 + j) * n + c];
            t[j] = g0;
            t[3 + j] = half * (g0 + g1 + g2);
            t[6 + j] = half * (g0 - g1 + g2);
            t[9 + j] = g2;
        }
        for (int i = 0; i < 4; i++) { /* times G^T */
            real g0 = t[3 * i], g1 = t[3 * i + 1], g2 = t[3 * i + 2];
            to[4 * i * n + c] = g0;
            to[(4 * i + 1) * n + c] = half * (g0 + g1 + g2);
            to[(4 * i + 2) * n + c] = half * (g0 - g1 + g2);
            to[(4 * i + 3) * n + c] = g2;
        }
    }
}

VECTOR void winograd_kernel_gradients(const real *from, int64_t n, range r, real *kernels) {
    const real half = (real)0.5;
    INDEPENDENT
    for (int64_t c = r.begin; c < r.end; c++) {
        real t[12];
        for (int j = 0; j < 4; j++) { /* G^T u */
            real u0 = from[j * n + c], u1 = from[(4 + j) * n + c];
            real u2 = from[(8 + j) * n + c], u3 = from[(12 + j) * n + c];
            t[j] = u0 + half * (u1 + u2);
            t[4 + j] = half * (u1 - u2);
            t[8 + j] = half * (u1 + u2) + u3;
        }
        for (int i = 0; i < 3; i++) { /* times G */
            real u0 = t[4 * i], u1 = t[4 * i + 1], u2 = t[4 * i + 2], u3 = t[4 * i + 3];
            kernels[3 * i * n + c] = u0 + half * (u1 + u2);
            kernels[(3 * i + 1) * n + c] = half * (u1 - u2);
            kernels[(3 * i + 2) * n + c] = half * (u1 + u2) + u3;
        }
    }
}
