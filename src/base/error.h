/* error.h - how a failing call explains itself
 *
 * A function that fails returns tw__fail(TW_ERR_..., "field: ..."): the text waits in the calling
 * thread for tw_last_error(). TW_TRY passes an error on unchanged. */
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

/* What another rank says that its error is; TW_ERR_PROTOCOL where there is none such. */
int tw__known_error(int error);

/* TW_ERR_NAME about this value of a field; name_at gives what is accepted, NULL past the last. */
int tw__fail_name(const char *field, const char *value, const char *(*name_at)(int position));

/* TW_ERR_NUMBER about this element of a gradient. */
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
