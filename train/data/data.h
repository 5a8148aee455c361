/* data.h - what an open data set is made of, and the functions between the files of this folder
 *
 *   dataset.c      the map: finds out what a name stands for and calls one loader
 *   load_idx.c  load_cifar.c  load_text.c     files -> image_split or token_split
 *   file.c  images.c  vocabulary.c            reading; normalisation; words and ids
 *   batches.c      turns an epoch and a step into examples
 */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include "base/error.h"
#include "data/dataset.h"

enum { PIXEL_LEVELS = 256, DEFAULT_CLASSES = 10 };

typedef struct image_split {
    int64_t count;
    uint8_t *pixels; /* [count][height][width][channels] */
    uint8_t *labels; /* [count] */
} image_split;

typedef struct sentence {
    int64_t first; /* position of its first token in the stream */
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

/* ---- Loaders ------------------------------------------------------------------------------------ */

/* Whether a path is for the loader; and the loader. load_idx with path NULL: the embedded set. */
bool is_idx(const char *path);
int load_idx(dataset *set, const char *path, const dataset_options *options);
bool is_cifar(const char *path);
int load_cifar(dataset *set, const char *path, const dataset_options *options);
bool is_text(const char *path);
int load_text(dataset *set, const char *path, const dataset_options *options);

/* ---- Files (file.c) ----------------------------------------------------------------------------- */

/* count * size zeroed bytes, free() them; NULL after TW_ERR_MEMORY. `name` is what they are for. */
void *data_alloc(const char *name, int64_t count, size_t size);

/* A whole file in memory. */
typedef struct bytes {
    uint8_t *at; /* [size], then one 0 */
    size_t size;
} bytes;

/* Reads the regular file `path`. Unpacks gzip by its magic, whatever the name. */
int bytes_read(bytes *out, const char *path);

/* Unpacks packed[size], which is gzip. `name` is what errors call it. */
int bytes_unpack(bytes *out, const char *name, const uint8_t *packed, size_t size);

void bytes_free(bytes *b);

/* Joins directory and file into path[PATH_ROOM]; cut where it is too long. */
enum { PATH_ROOM = 4096 };
void data_path(char *path, const char *directory, const char *file);
bool data_is_file(const char *directory, const char *file);

/* ---- Images (images.c) -------------------------------------------------------------------------- */

/* Room for `more` images after those of the split, which then counts them. */
int images_grow(dataset *set, dataset_split split, const char *name, int64_t more);

/* labels[count] below the number of classes, or an error that names the first that is not. */
int images_check_labels(const dataset *set, const char *name, const uint8_t *labels, int64_t count);

/* Keeps the first images only (0: all), then mean, std and levels from the training images. */
void images_finish(dataset *set, const dataset_options *options);

/* ---- Words (vocabulary.c) ----------------------------------------------------------------------- */

/* Counts the words of text[size], which must stay until vocabulary_forget. */
int vocabulary_count(vocabulary *v, const char *name, const char *text, size_t size);

/* Gives ids to the most frequent words: at most `size` ids (0: all), special ones included. */
int vocabulary_close(vocabulary *v, const char *name, int32_t size, bool masked);

/* The id of a word, until the table of words is forgotten; names and size stay. */
int32_t vocabulary_id(const vocabulary *v, const char *text, int64_t length);
void vocabulary_forget(vocabulary *v);
void vocabulary_free(vocabulary *v);

/* The next word at *at, which moves on, or NULL at the end. The end of a line is a word. */
const char *text_next(const char **at, const char *end, int64_t *length);

#endif
