/* batch_images.c - one image of a batch: cropped, flipped, normalised
 *
 * Augmentation as is usual for CIFAR-10 (He et al., 2016): four black pixels are added on each side,
 * a window of the old size is cut out anywhere, and half of the images are turned left to right.
 */
#include "chance.h"
#include "parts.h"

enum { PADDING = 4, SHIFTS = 2 * PADDING + 1 };
enum { DRAW_DOWN, DRAW_RIGHT, DRAW_FLIP };

typedef struct view {
    int32_t down, right; /* pixel (0, 0) of the result is pixel (down, right) of the image */
    bool flip;
} view;

static view draw_view(const batch_plan *plan, uint64_t key) {
    if (!plan->augment || plan->split != DATASET_TRAIN)
        return (view){0};
    return (view){.down = (int32_t)chance_below(key, DRAW_DOWN, SHIFTS) - PADDING,
                  .right = (int32_t)chance_below(key, DRAW_RIGHT, SHIFTS) - PADDING,
                  .flip = chance_below(key, DRAW_FLIP, 2) == 1};
}

/* pixel[channels] at row y and column x, black outside. */
static void copy_pixel(const dataset *set, const uint8_t *image, int32_t y, int32_t x,
                       float *pixel) {
    const dataset_info *info = &set->info;
    const bool inside = y >= 0 && y < info->height && x >= 0 && x < info->width;
    const uint8_t *from = image + ((int64_t)y * info->width + x) * info->channels;
    for (int32_t c = 0; c < info->channels; c++)
        pixel[c] = set->levels[c][inside ? from[c] : 0];
}

void batch_image(const dataset *set, const batch_plan *plan, int64_t example, uint64_t key,
                 const batch_buffers *buffers, int64_t row) {
    const dataset_info *info = &set->info;
    const image_split *images = &set->images[plan->split];
    const int64_t size = (int64_t)info->height * info->width * info->channels;
    const uint8_t *image = images->pixels + example * size; /* [height][width][channels] */
    float *pixel = buffers->images + row * size;
    const view v = draw_view(plan, key);
    for (int32_t y = 0; y < info->height; y++) {
        for (int32_t x = 0; x < info->width; x++) {
            const int32_t from = v.flip ? info->width - 1 - x : x;
            copy_pixel(set, image, y + v.down, from + v.right, pixel);
            pixel += info->channels;
        }
    }
    buffers->labels[row] = images->labels[example];
}
