/* error.c - error texts, fixed and per thread; see error.h */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

int tw__fail(int error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return error;
}

int tw__known_error(int error) {
    switch (error) {
#define TW_ERROR_CASE(name, value, text) case name:
        TW_ERRORS(TW_ERROR_CASE)
#undef TW_ERROR_CASE
        return error != TW_OK ? error : TW_ERR_PROTOCOL;
    default:
        return TW_ERR_PROTOCOL;
    }
}

int tw__fail_name(const char *field, const char *value, const char *(*name_at)(int position)) {
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; name_at(i) != NULL && used < sizeof names; i++) {
        const char *before = i == 0 ? "" : name_at(i + 1) != NULL ? ", " : " or ";
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", before, name_at(i));
    }
    return tw__fail(TW_ERR_NAME, "%s: '%.40s' is not known; accepted is %s", field, value, names);
}

int tw__fail_number(int64_t index) {
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
        return "unknown error";
    }
}

#define TW_STRING_(x) #x
#define TW_STRING(x) TW_STRING_(x)

const char *tw_version(void) {
    return TW_STRING(TW_VERSION_MAJOR) "." TW_STRING(TW_VERSION_MINOR) "." TW_STRING(
        TW_VERSION_PATCH);
}
