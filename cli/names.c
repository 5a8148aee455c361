/* names.c - asks the library's tables for names */
#include "names.h"

#include <string.h>

#include "thinwire.h"

const char *method_at(int position) {
    const char *name;
    return tw_select_method(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *exchange_at(int position) {
    const char *name;
    return tw_exchange(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *wire_at(int position) {
    const char *name;
    return tw_wire(position, &name, NULL) == TW_OK ? name : NULL;
}

const char *scheme_at(int position) {
    const char *name;
    return tw_scheme(position, &name, NULL, NULL, NULL) == TW_OK ? name : NULL;
}

int scheme_named(const char *name) {
    int position = 0;
    while (scheme_at(position) != NULL && strcmp(scheme_at(position), name) != 0)
        position++;
    return position;
}
