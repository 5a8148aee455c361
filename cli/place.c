/* place.c - the table of places, and how they say what failed */
#include "place.h"

#include <stdarg.h>
#include <stdio.h>

#include "errors.h"

static const place_kind *const kinds[] = {&place_cpu, &place_cuda};

const place_kind *place_kind_at(int position) {
    int count = (int)(sizeof kinds / sizeof kinds[0]);
    return position >= 0 && position < count ? kinds[position] : NULL;
}

const char *place_kind_name(int position) {
    const place_kind *kind = place_kind_at(position);
    return kind != NULL ? kind->name : NULL;
}

int place_failure(const place *here, const char *format, ...) {
    char text[RANK_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return here->seat != NULL ? rank_failure(here->seat, "%s", text) : failure("%s", text);
}

int place_library_failure(const place *here, const char *doing, int error) {
    return here->seat != NULL ? rank_library_failure(here->seat, doing, error)
                              : library_failure(doing, error);
}
