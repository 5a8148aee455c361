/* vocabulary.c - the words of a text and their ids
 *
 * Words are what stands between white space, byte for byte. They are counted in a hash table (open
 * addressing, FNV-1a); ids then go by frequency, and by first appearance where that is equal, so
 * that they depend on the text alone. The text's own "<unk>" and "<eos>" are the special tokens.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/data.h"

#define FIRST_TABLE ((int64_t)1 << 12)
static const char *const special[TOKEN_MASKED_WORDS] = {"<unk>", "<eos>", "<pad>",
                                                        "<cls>", "<sep>", "<mask>"};

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

static uint64_t hash(const char *text, int64_t length) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < length; i++)
        h = (h ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

/* The slot of a word, or the empty one where it belongs. */
static word *find(word *table, int64_t size, const char *text, int64_t length) {
    assert(size > 0 && (size & (size - 1)) == 0);
    uint64_t i = hash(text, length);
    for (;; i++) {
        word *w = &table[i & (uint64_t)(size - 1)];
        if (w->text == NULL || (w->length == length && memcmp(w->text, text, (size_t)length) == 0))
            return w;
    }
}

/* At least a quarter of the table stays empty, so that searches stay short. */
static int make_room(vocabulary *v, const char *name) {
    if (v->table_count < v->table_size / 4 * 3)
        return TW_OK;
    const int64_t size = v->table_size ? 2 * v->table_size : FIRST_TABLE;
    word *table = data_alloc(name, size, sizeof *table);
    if (table == NULL)
        return TW_ERR_MEMORY;
    for (int64_t i = 0; i < v->table_size; i++) {
        const word *w = &v->table[i];
        if (w->text != NULL)
            *find(table, size, w->text, w->length) = *w;
    }
    free(v->table);
    v->table = table;
    v->table_size = size;
    return TW_OK;
}

static int add(vocabulary *v, const char *name, const char *text, int64_t length, int64_t seen) {
    TW_TRY(make_room(v, name));
    word *w = find(v->table, v->table_size, text, length);
    if (w->text == NULL)
        *w = (word){.text = text, .length = length, .id = (int32_t)v->table_count++};
    w->seen += seen;
    return TW_OK;
}

int vocabulary_count(vocabulary *v, const char *name, const char *text, size_t size) {
    const char *at = text, *next;
    int64_t length;
    while ((next = text_next(&at, text + size, &length)) != NULL)
        if (*next != '\n')
            TW_TRY(add(v, name, next, length, 1));
    return TW_OK;
}

static int by_frequency(const void *left, const void *right) {
    const word *a = *(word *const *)left;
    const word *b = *(word *const *)right;
    if (a->seen != b->seen)
        return a->seen > b->seen ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Special tokens are words that come before all others. */
static int add_special(vocabulary *v, const char *name) {
    for (int32_t id = 0; id < v->first_word; id++) {
        const int64_t length = (int64_t)strlen(special[id]);
        TW_TRY(add(v, name, special[id], length, 0));
        find(v->table, v->table_size, special[id], length)->seen = INT64_MAX - id;
    }
    return TW_OK;
}

/* Copies of the first `size` words, ended by 0, in the order of their ids. */
static int keep_names(vocabulary *v, const char *name, word *const *sorted) {
    int64_t room = 0;
    for (int32_t id = 0; id < v->size; id++)
        room += sorted[id]->length + 1;
    v->names = data_alloc(name, v->size, sizeof *v->names);
    char *at = v->name_room = data_alloc(name, room, 1);
    if (v->names == NULL || at == NULL)
        return TW_ERR_MEMORY;
    for (int32_t id = 0; id < v->size; id++) {
        v->names[id] = memcpy(at, sorted[id]->text, (size_t)sorted[id]->length);
        at += sorted[id]->length + 1;
    }
    return TW_OK;
}

int vocabulary_close(vocabulary *v, const char *name, int32_t size, bool masked) {
    v->first_word = masked ? TOKEN_MASKED_WORDS : TOKEN_WORDS;
    TW_TRY(add_special(v, name));
    word **sorted = data_alloc(name, v->table_count, sizeof(word *));
    if (sorted == NULL)
        return TW_ERR_MEMORY;
    int64_t number = 0;
    for (int64_t i = 0; i < v->table_size; i++)
        if (v->table[i].text != NULL)
            sorted[number++] = &v->table[i];
    assert(number == v->table_count);
    qsort(sorted, (size_t)number, sizeof(word *), by_frequency);
    v->size = (int32_t)(size > 0 && size < v->table_count ? size : v->table_count);
    for (int64_t i = 0; i < v->table_count; i++)
        sorted[i]->id = i < v->size ? (int32_t)i : TOKEN_UNK;
    const int status = keep_names(v, name, sorted);
    free(sorted);
    return status;
}

int32_t vocabulary_id(const vocabulary *v, const char *text, int64_t length) {
    assert(v->table != NULL);
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
