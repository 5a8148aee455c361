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

/* TW_ERR_NAME: `value` is not accepted for `field`. name_at lists the accepted names, NULL past the
 * last. */
int tw__fail_name(const char *field, const char *value, const char *(*name_at)(int position));

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
