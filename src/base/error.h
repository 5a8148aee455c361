/* error.h - status codes and the text of the last error
 *
 * A function that fails returns tw__fail(TW_ERR_..., "field: ..."), which keeps the text for
 * tw_last_error() in the calling thread. TW_TRY returns an error unchanged. */
#ifndef TW_BASE_ERROR_H
#define TW_BASE_ERROR_H

#include "thinwire.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int tw__fail(int error, const char *format, ...);

/* An error code that came from another rank: itself if it is one, else TW_ERR_PROTOCOL. */
int tw__known_error(int error);

/* The names of a table by position; NULL past the last. */
typedef const char *tw__name_at(int position);
/* The position of a name, or behind the last one. */
int tw__name_position(const char *name, tw__name_at *name_at);
/* The same for what the caller gave as `field`. Errors: TW_ERR_NAME, listing the names. */
int tw__name_find(const char *field, const char *name, tw__name_at *name_at, int *position);

/* An answer that the caller may not want. */
static inline void tw__tell(const char **to, const char *text) {
    if (to != NULL)
        *to = text;
}

/* TW_ERR_NUMBER: this element of the gradient is NaN or infinite, or overflows. */
int tw__fail_number(int64_t index);

#define TW_TRY(call)                                                                               \
    do {                                                                                           \
        int tw__error_ = (call);                                                                   \
        if (tw__error_ != TW_OK)                                                                   \
            return tw__error_;                                                                     \
    } while (0)

#define TW_REQUIRE(pointer, name)                                                                  \
    do {                                                                                           \
        if ((pointer) == NULL)                                                                     \
            return tw__fail(TW_ERR_NULL, "%s: is NULL; a valid pointer is required", (name));      \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
