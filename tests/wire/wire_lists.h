/* wire_lists.h - lists of entries for the tests of the wire formats */
#ifndef WIRE_LISTS_H
#define WIRE_LISTS_H

#include "check.h"
#include "exchange/entries.h"

/* `count` different indices within lo .. hi-1, random or (clustered) as close as they can lie, and
 * values of a kind. Free with wire_list_free. */
tw__list wire_list(int64_t count, int64_t lo, int64_t hi, int clustered, oracle_data kind,
                   uint64_t seed);
void wire_list_free(tw__list *list);

/* The kernels that THINWIRE_KERNELS asks for. */
const tw__kernels *wire_kernels(void);

#endif
