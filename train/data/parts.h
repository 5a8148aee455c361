/* parts.h - what an open data set is made of, and the functions between the files of this folder
 *
 * dataset.c is the map: it finds out what a name stands for and calls one loader; later it turns an
 * epoch and a step into examples and calls one batch maker.
 *
 *   load_idx.c  load_cifar.c  load_text.c     files -> image_split or token_split
 *   fashion.c                                 the embedded files
 *   images.c  vocabulary.c  sentences.c       normalisation; words and ids; sentence pairs
 *   batch_images.c  batch_words.c  batch_masked.c
 */
#ifndef TRAIN_DATA_PARTS_H
#define TRAIN_DATA_PARTS_H

#include "bytes.h"

enum { PIXEL_LEVELS = 256, DEFAULT_CLASSES = 10 };

typedef struct image_split {
    int64_t count;
    uint8_t *pixels; /* [count][height][width][channels] */
    uint8_t *labels; /* [count] */
} image_split;

typedef struct sentence {
    int64_t first; /* place of its first token in the stream */
    int32_t words;
    bool followed; /* by the next sentence, with no empty line between */
} sentence;

typedef struct token_split {
    int64_t count;
    int32_t *tokens; /* [count], lines end with TOKEN_EOS */
    int64_t sentence_count;
    sentence *sentences; /* [sentence_count], in the order of the text */
    int64_t pair_count;
    int64_t *pairs; /* [pair_count] sentences that are followed by another */
} token_split;

typedef struct word {
    const char *text; /* [length] in the text, not ended by 0 */
    int64_t length;
    int64_t seen; /* how often */
    int32_t id;   /* which word of the text it is, then its id; TOKEN_UNK where it has none */
} word;

typedef struct vocabulary {
    int32_t size;        /* ids */
    int32_t first_word;  /* the first id that is not special */
    const char **names;  /* [size] ended by 0 */
    char *name_room;     /* what they point into */
    word *table;         /* [table_size] open addressing; empty where text is NULL */
    int64_t table_size;  /* a power of two */
    int64_t table_count; /* words in it */
} vocabulary;

struct dataset {
    dataset_info info;
    image_split images[DATASET_SPLITS];
    float levels[DATASET_CHANNELS][PIXEL_LEVELS]; /* a byte's normalised value */
    token_split text[DATASET_SPLITS];
    vocabulary words;
};

/* ---- Loaders ------------------------------------------------------------------------------------- */

/* From the embedded files. */
int load_fashion(dataset *set, const dataset_options *options, dataset_error *error);

/* From a directory that holds the first file that each of these asks for. */
bool is_idx_directory(const char *path);
int load_idx(dataset *set, const char *path, const dataset_options *options, dataset_error *error);
bool is_cifar_directory(const char *path);
int load_cifar(dataset *set, const char *path, const dataset_options *options,
               dataset_error *error);
bool is_text_directory(const char *path);
int load_text(dataset *set, const char *path, const dataset_options *options, dataset_error *error);

/* One split from two IDX files in memory; the names are for errors. */
int idx_split(dataset *set, dataset_split split, const char *images_name, const bytes *images,
              const char *labels_name, const bytes *labels, dataset_error *error);

/* Join directory and file into path[PATH_ROOM]; cut where it is too long. */
enum { PATH_ROOM = 4096 };
void data_path(char *path, const char *directory, const char *file);
bool data_is_file(const char *directory, const char *file);

/* ---- Images -------------------------------------------------------------------------------------- */

/* Room for `more` images after those of the split, which then counts them. */
int images_grow(dataset *set, dataset_split split, const char *name, int64_t more,
                dataset_error *error);

/* labels[count] below the number of classes, or an error that names the first that is not. */
int images_check_labels(const dataset *set, const char *name, const uint8_t *labels, int64_t count,
                        dataset_error *error);

/* Keep the first images only (0: all), then mean, std and levels from the training images. */
void images_finish(dataset *set, const dataset_options *options);

/* ---- Text ---------------------------------------------------------------------------------------- */

/* Count the words of text[size], which must stay until vocabulary_forget. */
int vocabulary_count(vocabulary *v, const char *name, const char *text, size_t size,
                     dataset_error *error);

/* Give ids to the most frequent words: at most `size` ids (0: all), special ones included. */
int vocabulary_close(vocabulary *v, const char *name, int32_t size, bool masked,
                     dataset_error *error);

/* The id of a word, until the table of words is forgotten; names and size stay. */
int32_t vocabulary_id(const vocabulary *v, const char *text, int64_t length);
void vocabulary_forget(vocabulary *v);
void vocabulary_free(vocabulary *v);

/* The next word at *at, which moves on, or NULL at the end. A line's end is a word of its own. */
const char *text_next(const char **at, const char *end, int64_t *length);

/* Find the sentences and pairs of a split. */
int sentences_find(token_split *split, const vocabulary *v, const char *name, dataset_error *error);

/* ---- Batches ------------------------------------------------------------------------------------- */

/* One example into row `row` of the buffers. `key` is its own in this epoch. */
void batch_image(const dataset *set, const batch_plan *plan, int64_t example, uint64_t key,
                 const batch_buffers *buffers, int64_t row);
void batch_window(const dataset *set, const batch_plan *plan, int64_t window,
                  const batch_buffers *buffers, int64_t row);
void batch_masked(const dataset *set, const batch_plan *plan, int64_t example, uint64_t key,
                  const batch_buffers *buffers, int64_t row);

#endif
