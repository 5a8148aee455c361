/* place.c - the table of places */
#include "place.h"

static const place_kind *const kinds[] = {&place_cpu, &place_cuda};

const place_kind *place_kind_at(int position) {
    int count = (int)(sizeof kinds / sizeof kinds[0]);
    return position >= 0 && position < count ? kinds[position] : NULL;
}

const char *place_kind_name(int position) {
    const place_kind *kind = place_kind_at(position);
    return kind != NULL ? kind->name : NULL;
}
