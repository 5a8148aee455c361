/* kernels.c - which kernels this machine runs
 *
 * Rows from fastest to slowest. TW_HAVE_X86_KERNELS and TW_HAVE_NEON_KERNELS are set by the build;
 * whether an x86 CPU has the instructions is asked at run time. */
#include "backend/cpu/kernels.h"
#include "base/error.h"

#include <stdlib.h>

static const tw__kernels *table_ref(void) {
    return &tw__kernels_ref;
}

static const tw__kernels *table_plain(void) {
    return &tw__kernels_plain;
}

static int always(void) {
    return 1;
}

#if defined(TW_HAVE_X86_KERNELS)
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi");
}

static int has_avx2(void) { /* and with it F16C: no CPU has the one without the other */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
}
#endif

typedef struct row {
    const char *name;
    int (*usable)(void);
    const tw__kernels *(*table)(void);
} row;

static const row rows[] = {
#if defined(TW_HAVE_X86_KERNELS)
    {"avx512", has_avx512, tw__kernels_avx512},
    {"avx2", has_avx2, tw__kernels_avx2},
#endif
#if defined(TW_HAVE_NEON_KERNELS)
    {"neon", always, tw__kernels_neon},
#endif
    {"plain", always, table_plain},
    {"ref", always, table_ref},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static const row *fastest(void) {
    const row *r = rows;
    while (!r->usable())
        r++;
    return r;
}

/* The row that the environment asks for, else the fastest; NULL when that cannot be. */
static const row *wanted(void) {
    const char *forced = getenv("THINWIRE_KERNELS");
    if (forced == NULL || *forced == '\0')
        return fastest();
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, forced) == 0 && rows[i].usable())
            return &rows[i];
    return NULL;
}

int tw__kernels_choose(const tw__kernels **kernels) {
    const row *r = wanted();
    if (r == NULL)
        return tw__fail(TW_ERR_NAME,
                        "THINWIRE_KERNELS: '%s' is not usable here; the fastest usable is '%s'",
                        getenv("THINWIRE_KERNELS"), fastest()->name);
    *kernels = r->table();
    return TW_OK;
}

const char *tw_kernels(void) {
    const row *r = wanted();
    return r != NULL ? r->name : fastest()->name;
}

int tw_kernels_at(int position, const char **name, int *usable) {
    if (position < 0 || position >= ROWS)
        return TW_ERR_NAME;
    tw__tell(name, rows[position].name);
    if (usable != NULL)
        *usable = rows[position].usable();
    return TW_OK;
}
