/* place.h - where a benchmark runs: this machine's CPU, or a GPU
 *
 * A place holds the vectors that are timed over and has the clock that times them. The rest of
 * `thinwire bench select` (making gradients, the loop over steps, the check) knows neither: it
 * brings a gradient there, times work there, and fetches results from there.
 *
 * `thinwire bench allreduce` has a place for every rank, with n 0: it uses mirrors of the host's
 * vectors, and the clock of the host, as tw_allreduce returns when all is done.
 */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include <stddef.h>
#include <stdint.h>

#include "gradients.h"
#include "ranks.h"

#define PLACE_NAME_SIZE 256

typedef struct place place;

/* Part of what is timed. Returns STATUS_OK, or prints why not. */
typedef int (*place_work)(void *context);

/* Functions return STATUS_OK, or print why not; a place with a seat notes it there. */
typedef struct place_kind {
    const char *name; /* as --device has it */

    /* Fill in the place, whose kind, n, type, threads and seat are set. After a failure nothing is
     * left to close. */
    int (*open)(place *here);
    void (*close)(place *here);

    /* Bytes that selectors or groups may take. NULL: no need to ask, as creating one that is too
     * large fails. */
    size_t (*room)(void);

    /* Memory there for bytes of the host's: on the CPU the host's own. Release it before close;
     * NULL is fine. */
    int (*mirror)(place *here, void *host, size_t bytes, void **there);
    void (*release)(place *here, void *there);

    /* Copy bytes from the host to there, or back. To itself costs nothing. */
    int (*put)(place *here, void *there, const void *from, size_t bytes);
    int (*fetch)(place *here, void *to, const void *there, size_t bytes);

    /* Make the gradient that was made on the host ready there. *there is valid until the next. */
    int (*bring)(place *here, const gradient *made, gradient *there);

    /* The bare pass e += g over a vector of its own, and that vector set to zero. */
    int (*bare_pass)(place *here, const gradient *there);
    int (*bare_clear)(place *here);

    /* Do works[count] in order and wait until they are done; us[count] are their times. Where work
     * is only queued, us[0] is the time of all of them and the others are 0. */
    int (*time)(place *here, const place_work *works, int count, void *context, double *us);
} place_kind;

struct place {
    const place_kind *kind;
    int64_t n;                  /* elements; 0: bring, bare_pass and time will not be used */
    int type;                   /* tw_type of the gradients */
    int threads;                /* as in tw_select_params; once open, how many: 0 on a GPU */
    const char *arch;           /* for reports: the kernels' name, or "cuda" */
    char name[PLACE_NAME_SIZE]; /* for reports: "cpu", or the GPU's name */
    void *stream;               /* for tw_select_params */
    rank_seat *seat;            /* of the rank that uses it; NULL: there are no ranks */
    void *own;                  /* the kind's */
};

/* For the kinds: tell that something failed, or that a call of the library returned error. Return
 * STATUS_FAILED. */
int place_failure(const place *here, const char *format, ...) __attribute__((format(printf, 2, 3)));
int place_library_failure(const place *here, const char *doing, int error);

/* The kinds by position, in the order of tw_device; NULL past the last one. */
const place_kind *place_kind_at(int position);
const char *place_kind_name(int position);

extern const place_kind place_cpu;
extern const place_kind place_cuda; /* cannot be opened where the build has no CUDA */

#endif
