/* vocabulary.c - the words of a text and their ids
 *
 * Words are what stands between white space, byte for byte. They are counted in a hash table (open
 * addressing, FNV-1a); ids then go by frequency, and by first appearance where that is equal, so
 * that they depend on the text alone. The text's own "<unk>" and "<eos>" are the special tokens.
 */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

#define FIRST_TABLE ((int64_t)1 << 12)
static const char *const special[TOKEN_MASKED_WORDS] = {"<unk>", "<eos>", "<pad>",
                                                        "<cls>", "<sep>", "<mask>"};

/* ---- Words ---------------------------------------------------------------------------------------- */

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

const char *text_next(const char **at, const char *end, int64_t *length) {
    const char *p = *at;
    while (p < end && *p != '\n' && is_space(*p))
        p++;
    const char *first = p;
    if (p < end && *p == '\n')
        p++;
    else
        while (p < end && !is_space(*p))
            p++;
    *at = p;
    *length = p - first;
    return p > first ? first : NULL;
}

/* ---- Table ---------------------------------------------------------------------------------------- */

static uint64_t hash(const char *text, int64_t length) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < length; i++)
        h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

/* The place of a word, or the empty one where it belongs. */
static word *find(word *table, int64_t size, const char *text, int64_t length) {
    uint64_t i = hash(text, length);
    for (;; i++) {
        word *w = &table[i & (uint64_t)(size - 1)];
        if (w->text == NULL || (w->length == length && memcmp(w->text, text, (size_t)length) == 0))
            return w;
    }
}

/* At least a quarter of the table stays empty, so that searches stay short. */
static int make_room(vocabulary *v, const char *name, dataset_error *error) {
    if (v->table_count < v->table_size / 4 * 3)
        return TW_OK;
    const int64_t size = v->table_size ? 2 * v->table_size : FIRST_TABLE;
    void *room;
    const int status = data_alloc(&room, name, size, sizeof *v->table, error);
    if (status != TW_OK)
        return status;
    for (int64_t i = 0; i < v->table_size; i++) {
        const word *w = &v->table[i];
        if (w->text != NULL)
            *find(room, size, w->text, w->length) = *w;
    }
    free(v->table);
    v->table = room;
    v->table_size = size;
    return TW_OK;
}

static int add(vocabulary *v, const char *name, const char *text, int64_t length, int64_t seen,
               dataset_error *error) {
    const int status = make_room(v, name, error);
    if (status != TW_OK)
        return status;
    word *w = find(v->table, v->table_size, text, length);
    if (w->text == NULL)
        *w = (word){.text = text, .length = length, .id = (int32_t)v->table_count++};
    w->seen += seen;
    return TW_OK;
}

int vocabulary_count(vocabulary *v, const char *name, const char *text, size_t size,
                     dataset_error *error) {
    const char *at = text;
    const char *end = text + size;
    int64_t length;
    const char *next = text_next(&at, end, &length);
    while (next != NULL) {
        const int status = *next == '\n' ? TW_OK : add(v, name, next, length, 1, error);
        if (status != TW_OK)
            return status;
        next = text_next(&at, end, &length);
    }
    return TW_OK;
}

/* ---- Ids ------------------------------------------------------------------------------------------ */

static int by_frequency(const void *left, const void *right) {
    const word *a = *(word *const *)left;
    const word *b = *(word *const *)right;
    if (a->seen != b->seen)
        return a->seen > b->seen ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Special tokens are words that come before all others. */
static int add_special(vocabulary *v, const char *name, dataset_error *error) {
    for (int32_t id = 0; id < v->first_word; id++) {
        const int64_t length = (int64_t)strlen(special[id]);
        const int status = add(v, name, special[id], length, 0, error);
        if (status != TW_OK)
            return status;
        find(v->table, v->table_size, special[id], length)->seen = INT64_MAX - id;
    }
    return TW_OK;
}

static void list_words(const vocabulary *v, word **sorted) {
    int64_t number = 0;
    for (int64_t i = 0; i < v->table_size; i++)
        if (v->table[i].text != NULL)
            sorted[number++] = &v->table[i];
    qsort(sorted, (size_t)number, sizeof(word *), by_frequency);
}

/* Copies of the first `size` words, ended by 0, in the order of their ids. */
static int keep_names(vocabulary *v, const char *name, word *const *sorted, dataset_error *error) {
    int64_t room = 0;
    for (int32_t id = 0; id < v->size; id++)
        room += sorted[id]->length + 1;
    void *names;
    int status = data_alloc(&names, name, v->size, sizeof *v->names, error);
    if (status != TW_OK)
        return status;
    v->names = names;
    void *text;
    status = data_alloc(&text, name, room, 1, error);
    if (status != TW_OK)
        return status;
    char *at = v->name_room = text;
    for (int32_t id = 0; id < v->size; id++) {
        v->names[id] = memcpy(at, sorted[id]->text, (size_t)sorted[id]->length);
        at += sorted[id]->length + 1;
    }
    return TW_OK;
}

int vocabulary_close(vocabulary *v, const char *name, int32_t size, bool masked,
                     dataset_error *error) {
    v->first_word = masked ? TOKEN_MASKED_WORDS : TOKEN_WORDS;
    int status = add_special(v, name, error);
    if (status != TW_OK)
        return status;
    void *room;
    status = data_alloc(&room, name, v->table_count, sizeof(word *), error);
    if (status != TW_OK)
        return status;
    word **sorted = room;
    list_words(v, sorted);
    v->size = (int32_t)(size > 0 && size < v->table_count ? size : v->table_count);
    for (int64_t i = 0; i < v->table_count; i++)
        sorted[i]->id = i < v->size ? (int32_t)i : TOKEN_UNK;
    status = keep_names(v, name, sorted, error);
    free(sorted);
    return status;
}

int32_t vocabulary_id(const vocabulary *v, const char *text, int64_t length) {
    const word *w = find(v->table, v->table_size, text, length);
    return w->text != NULL ? w->id : TOKEN_UNK;
}

void vocabulary_forget(vocabulary *v) {
    free(v->table);
    v->table = NULL;
    v->table_size = v->table_count = 0;
}

void vocabulary_free(vocabulary *v) {
    vocabulary_forget(v);
    free(v->names);
    free(v->name_room);
    *v = (vocabulary){0};
}
