/* patches.c - gathers patches line by line; see patches.h */
#include "patches.h"

#include <string.h>

/* A tile of patches is written, then read by the product at once: it should stay in the cache that a
 * core has for itself, beside the packed operands. (256 KiB to 1 MiB make no difference to vgg16,
 * where only the first layer comes this way.) */
#define TILE_BYTES (512 * 1024)
#define TILE_LEAST 128 /* rows: fewer make thin products, which pack the kernel too often */

int patches_lines(const patches *g, int lines) {
    int64_t row = (int64_t)lines * g->kernel * g->channels * (int64_t)sizeof(real);
    int64_t rows = TILE_BYTES / row;
    rows = rows > TILE_LEAST ? rows : TILE_LEAST;
    int64_t made = rows / g->target_width;
    return made > 1 ? (int)made : 1;
}

/* Pieces of images with few channels are so short that calling memcpy would be most of the work. */
#define SHORT 16

static void copy(real *restrict to, const real *restrict from, int64_t n) {
    if (n > SHORT) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

static void clear(real *to, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] = 0;
}

/* One line of a neighbourhood whose taps are neighbours in the source: [kernel][channels]. */
static void gather_dense(const patches *g, const real *line, int left, real *out) {
    const int64_t pixel = g->channels;
    int begin = left < 0 ? -left : 0;
    int end = left + g->kernel > g->width ? g->width - left : g->kernel;
    begin = begin < g->kernel ? begin : g->kernel;
    end = end > begin ? end : begin;
    clear(out, begin * pixel);
    copy(out + begin * pixel, line + (left + begin) * pixel, (end - begin) * pixel);
    clear(out + end * pixel, (g->kernel - end) * pixel);
}

/* The same where only every spread-th tap meets a source pixel. */
static void gather_spread(const patches *g, const real *line, int left, real *out) {
    const size_t pixel = (size_t)g->channels;
    for (int tap = 0; tap < g->kernel; tap++) {
        int at = left + tap;
        bool inside = at >= 0 && at % g->spread == 0 && at / g->spread < g->width;
        if (inside)
            memcpy(out, line + (size_t)(at / g->spread) * pixel, pixel * sizeof *out);
        else
            memset(out, 0, pixel * sizeof *out);
        out += pixel;
    }
}

/* The source line of a target line and a tap, or NULL outside. */
static const real *source_line(const patches *g, const real *image, int target, int tap) {
    int at = target * g->step + tap - g->pad;
    if (at < 0 || at % g->spread != 0 || at / g->spread >= g->height)
        return NULL;
    return image + (int64_t)(at / g->spread) * g->width * g->channels;
}

/* One line of targets, one line of the kernel: out steps by `row` from target to target. */
static void gather_line(const patches *g, const real *line, int64_t row, real *out) {
    const size_t piece = (size_t)g->kernel * (size_t)g->channels;
    for (int x = 0; x < g->target_width; x++) {
        int left = x * g->step - g->pad;
        if (!line)
            memset(out, 0, piece * sizeof *out);
        else if (g->spread == 1)
            gather_dense(g, line, left, out);
        else
            gather_spread(g, line, left, out);
        out += row;
    }
}

void patches_gather(const patches *g, const real *source, range target, int first, int lines,
                    real *out) {
    const int64_t piece = (int64_t)g->kernel * g->channels;
    const int64_t image = (int64_t)g->height * g->width * g->channels;
    for (int64_t line = target.begin; line < target.end; line++) {
        const real *from = source + line / g->target_height * image;
        int y = (int)(line % g->target_height);
        for (int tap = 0; tap < lines; tap++)
            gather_line(g, source_line(g, from, y, first + tap), lines * piece, out + tap * piece);
        out += g->target_width * lines * piece;
    }
}
