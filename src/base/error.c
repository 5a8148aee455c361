/* error.c - error codes and texts, and the version; see error.h */
#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];
static const char unknown[] = "unknown error";

int tw__fail(int error, const char *format, ...) {
    va_list args;
    assert(error <= 0); /* TW_OK only sets the text */
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return error;
}

int tw__known_error(int error) {
    return error != TW_OK && tw_error_text(error) != unknown ? error : TW_ERR_PROTOCOL;
}

int tw__name_position(const char *name, tw__name_at *name_at) {
    int at = 0;
    while (name_at(at) != NULL && strcmp(name, name_at(at)) != 0)
        at++;
    return at;
}

int tw__name_find(const char *field, const char *name, tw__name_at *name_at, int *position) {
    char names[256] = "";
    size_t used = 0;
    *position = tw__name_position(name, name_at);
    if (name_at(*position) != NULL)
        return TW_OK;
    for (int i = 0; name_at(i) != NULL && used < sizeof names; i++) {
        const char *before = i == 0 ? "" : name_at(i + 1) != NULL ? ", " : " or ";
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", before, name_at(i));
    }
    return tw__fail(TW_ERR_NAME, "%s: '%.40s' is not known; accepted is %s", field, name, names);
}

int tw__fail_number(int64_t index) {
    assert(index >= 0);
    return tw__fail(TW_ERR_NUMBER,
                    "grad: element %lld is NaN or infinite, or overflows with the residual; "
                    "skip this step or lower the loss scale",
                    (long long)index);
}

const char *tw_last_error(void) {
    return last_error;
}

const char *tw_error_text(int error) {
    switch (error) {
#define TW_ERROR_CASE(name, value, text)                                                           \
    case name:                                                                                     \
        return text;
        TW_ERRORS(TW_ERROR_CASE)
#undef TW_ERROR_CASE
    default:
        return unknown;
    }
}

#define TW_STRING_(x) #x
#define TW_STRING(x) TW_STRING_(x)

const char *tw_version(void) {
    return TW_STRING(TW_VERSION_MAJOR) "." TW_STRING(TW_VERSION_MINOR) "." TW_STRING(
        TW_VERSION_PATCH);
}
