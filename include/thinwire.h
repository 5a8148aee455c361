/* thinwire.h - sum gradients over thin wires: send the few values that matter, keep the rest
 *
 * Each training step a worker holds a gradient g of n numbers. Thinwire adds it to the residual e
 * of what earlier steps left unsent, picks the k entries of acc = g + e that matter, and keeps
 * everything else for later, so that nothing is lost:
 *
 *     gradient[n] -> feedback -> select -> (exchange) -> commit
 *                    acc = g+e   k of n                  e keeps what was not sent
 *
 * This header is the whole public interface, in reading order: version, errors, parameters, create
 * and free, one step, state, information.
 *
 * A complete step, without error handling:
 *
 *     tw_select_params params = TW_SELECT_PARAMS_INIT;
 *     params.density = 0.01;
 *     tw_selector *selector;
 *     tw_selector_create(&selector, n, &params);
 *     for (;;) {
 *         tw_sparse sparse;
 *         tw_selector_run(selector, grad, &sparse);      // sparse.idx[], sparse.val[]: send these
 *         tw_selector_commit(selector, NULL, 0);         // all sent: they leave the residual
 *     }
 *     tw_selector_free(selector);
 *
 * Rules that hold for every call
 *   - Glossary: n elements, k selected, density k/n, g gradient, e residual, acc = g + e.
 *   - A call returns TW_OK (0) or a negative error; tw_last_error() says in words which field was
 *     wrong and what is accepted. After an error nothing has changed.
 *   - The library never prints, never exits and never aborts.
 *   - A handle may be used by one thread at a time; different handles are independent.
 *   - Pointers into the caller's memory may have any alignment.
 *   - The selection depends on the inputs, the parameters and the seed alone: not on the number of
 *     threads, the kernels or the run. (How much work it took, in tw_select_info, does.)
 *
 * Caveats
 *   - acc is computed in the caller's floating-point environment, also by the library's threads:
 *     with flush-to-zero set, subnormal sums are flushed. Undo a step in the environment in which
 *     it ran.
 *   - Conservation (sent + residual = gradients) is exact up to the rounding of g + e in float32.
 */
#ifndef THINWIRE_H
#define THINWIRE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#else
#define TW_API
#endif

/* ---- 1. Version --------------------------------------------------------------------------- */

#define TW_VERSION_MAJOR 0
#define TW_VERSION_MINOR 1
#define TW_VERSION_PATCH 0

/* The version of the library that is loaded, as "0.1.0". */
TW_API const char *tw_version(void);

/* ---- 2. Errors ---------------------------------------------------------------------------- */

/* X(name, value, text): the one list that makes the enum and the texts. */
#define TW_ERRORS(X)                                                                               \
    X(TW_OK, 0, "success")                                                                         \
    X(TW_ERR_NULL, -1, "a required pointer is NULL")                                               \
    X(TW_ERR_SIZE, -2, "the number of elements is outside 1 .. 2147483647")                        \
    X(TW_ERR_K, -3, "k is outside 1 .. n")                                                         \
    X(TW_ERR_DENSITY, -4, "density is outside (0, 1]")                                             \
    X(TW_ERR_NAME, -5, "no such name")                                                             \
    X(TW_ERR_PARAM, -6, "a parameter is out of range")                                             \
    X(TW_ERR_NUMBER, -7, "the gradient holds NaN or infinity, or the sum overflows")               \
    X(TW_ERR_STATE, -8, "the calls came in the wrong order")                                       \
    X(TW_ERR_INDEX, -9, "the indices are not those of a selection")                                \
    X(TW_ERR_MEMORY, -10, "out of memory")

typedef enum {
#define TW_ERROR_ENUM(name, value, text) name = (value),
    TW_ERRORS(TW_ERROR_ENUM)
#undef TW_ERROR_ENUM
} tw_error;

/* The fixed text of an error, for instance "k is outside 1 .. n". Never NULL. */
TW_API const char *tw_error_text(int error);

/* What went wrong in the calling thread's last failed call: the field, its value and what is
 * accepted. Valid until that thread's next failing call; "" if none failed. */
TW_API const char *tw_last_error(void);

/* ---- 3. Parameters ------------------------------------------------------------------------ */

/* Element type of the gradients. Residuals and results are float32 always. */
typedef enum {
    TW_F32 = 0,
    TW_F16 = 1,  /* IEEE 754 binary16 */
    TW_BF16 = 2, /* upper half of a float32 */
} tw_type;

typedef enum {
    TW_FEEDBACK_ON = 0,  /* keep what was not sent and add it to the next gradient */
    TW_FEEDBACK_OFF = 1, /* select from the gradient itself; the rest is dropped */
} tw_feedback;

/* How to select. Zero means default in every field; start from TW_SELECT_PARAMS_INIT. Exactly one
 * of k and density must be given. A value that is not understood is refused, never replaced. */
typedef struct tw_select_params {
    const char *method; /* NULL: "exact". Names: see tw_select_method() */
    int64_t k;          /* entries per step, 1 .. n, or 0 to use density */
    double density;     /* k/n, in (0, 1]; k is rounded to nearest, at least 1 */
    int type;           /* tw_type of the gradient */
    int feedback;       /* tw_feedback */
    int threads;        /* 0: tw_default_threads(); at most 256 */
    uint64_t seed;      /* random: ranks that share a seed pick the same indices */

    /* Deep Gradient Compression (Lin et al., 2018) */
    float momentum;        /* in [0, 1): accumulate u = momentum * u + g instead of g */
    float clip_norm;       /* > 0: scale g down to this 2-norm first (global norm / sqrt(P)) */
    int32_t warmup_steps;  /* > 0: density falls exponentially to its final value over these */
    double warmup_density; /* density of the first warm-up step; 0: 0.25 */

    /* reuse (Ok-Topk, Li and Hoefler, 2022). A count outside k/4 .. 4k, which nudges would take
     * long to mend, has the threshold found anew at once. */
    int32_t reuse_period; /* exact threshold every so many steps; 0: 32 */
    float reuse_low;      /* lower the threshold when count < low * k; 0: 2/3 */
    float reuse_high;     /* raise it when count > high * k; 0: 5/4 */
    float reuse_nudge;    /* by this fraction; 0: 0.01 */

    int32_t gaussian_rounds; /* corrections of the threshold at most; 0: 4 */
    double dgc_sample;       /* fraction sampled for the threshold, 2048 at least; 0: 0.01 */

    uint32_t reserved[8]; /* zero */
} tw_select_params;

#ifdef __cplusplus
#define TW_SELECT_PARAMS_INIT                                                                      \
    {}
#else
#define TW_SELECT_PARAMS_INIT                                                                      \
    { 0 }
#endif

/* ---- 4. Create and free ------------------------------------------------------------------- */

/* One tensor's selector: its residual, its thresholds, its workspace. */
typedef struct tw_selector tw_selector;

/* Bytes that a selector takes. All of it is allocated by tw_selector_create; a step allocates
 * nothing. */
typedef struct tw_memory {
    size_t residual;  /* float32[n], none without feedback */
    size_t velocity;  /* 2 x float32[n] with momentum */
    size_t undo;      /* address space to restore the residual of a refused step: about 5.2 n. A
                         step touches 0.2 to 0.5 n of it, more when gradients suddenly grow by 100
                         times or more; none without feedback */
    size_t workspace; /* candidates and results: 32 k bytes, and as much address space per thread,
                         of which all threads together touch about half of one share; plus n/250 for
                         samples, with "dgc" n/25, with "random" n/8 */
    size_t total;     /* the sum */
} tw_memory;

/* What tw_selector_create would take with these parameters.
 * Errors: as tw_selector_create. */
TW_API int tw_selector_memory(int64_t n, const tw_select_params *params, tw_memory *memory);

/* Create a selector for vectors of n elements, residual zero. params is copied.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_K and TW_ERR_DENSITY (also when both or none are
 * given); TW_ERR_NAME for an unknown method, or for a THINWIRE_KERNELS that this machine lacks;
 * TW_ERR_PARAM; TW_ERR_MEMORY. On error *selector is NULL. */
TW_API int tw_selector_create(tw_selector **selector, int64_t n, const tw_select_params *params);

/* Free everything. NULL is fine. */
TW_API void tw_selector_free(tw_selector *selector);

/* ---- 5. One step -------------------------------------------------------------------------- */

/* A sparse vector: count entries, idx ascending, no index twice. The arrays belong to the
 * selector and stay valid until its next call. */
typedef struct tw_sparse {
    int64_t count;
    const int32_t *idx; /* [count] */
    const float *val;   /* [count], acc at idx */
} tw_sparse;

/* Fold grad into the residual and select: acc = grad + residual, sparse = the selected entries.
 *   grad   [n] of the selector's type; not changed, and to be left alone until commit or undo.
 *   sparse the selection. "exact" gives exactly min(k, non-zeros) entries, the largest
 *          magnitudes, of equal magnitudes the smaller index. "random" gives k. The threshold
 *          methods give what passes their threshold, or the best k if that is more than 4k.
 * The step is now open: end it with tw_selector_commit or tw_selector_undo. Without feedback there
 * is nothing to lose: the next run ends it too.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step with feedback is open; TW_ERR_NUMBER when grad
 * holds NaN or infinity or the sum overflows: tw_last_error() names the first such index,
 * tw_selector_info has it as bad_index, and the residual is bit for bit as before. */
TW_API int tw_selector_run(tw_selector *selector, const void *grad, tw_sparse *sparse);

/* End the step: the sent entries leave the residual (and the velocity), all else stays in it.
 *   idx [count] ascending indices that were sent, a subset of the selection;
 *       NULL with count 0: the whole selection. To commit nothing, pass a non-NULL idx and 0.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no step is open (never without feedback); TW_ERR_INDEX
 * when idx holds an index that was not selected, or is not ascending: the step stays open. */
TW_API int tw_selector_commit(tw_selector *selector, const int32_t *idx, int64_t count);

/* Take the step back: residual and velocity are bit for bit as before tw_selector_run.
 *   grad [n] the same numbers that were given to tw_selector_run.
 * For steps that fail after selection, for instance because another rank found a NaN. Whatever the
 * step learned goes too: the next one gives what it would have given without this one.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no step is open. */
TW_API int tw_selector_undo(tw_selector *selector, const void *grad);

/* ---- 6. State ----------------------------------------------------------------------------- */

/* Copy the residual out, [n] floats. Zeros without feedback.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step is open. */
TW_API int tw_selector_get_residual(tw_selector *selector, float *residual);

/* Replace the residual by [n] finite floats. The threshold is learned anew in the next step;
 * velocity and step counter stay.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step is open or feedback is off; TW_ERR_NUMBER. */
TW_API int tw_selector_set_residual(tw_selector *selector, const float *residual);

/* ---- 7. Information ----------------------------------------------------------------------- */

/* About the last step that ran. */
typedef struct tw_select_info {
    int64_t step;       /* steps committed so far (without feedback: steps run) */
    int64_t k;          /* entries asked for in the last step (falls during warm-up) */
    int64_t count;      /* entries selected */
    int64_t candidates; /* entries collected by the pass, among which was selected */
    int32_t rescans;    /* further reads of the vector because a guess missed */
    float threshold;    /* smallest magnitude selected, 0 if none */
    int64_t bad_index;  /* first NaN or infinity when the last step was refused, else -1 */
} tw_select_info;

/* Errors: TW_ERR_NULL. */
TW_API int tw_selector_info(const tw_selector *selector, tw_select_info *info);

/* The methods by position from 0: name and one line of description. Returns TW_ERR_NAME past the
 * last one. Either pointer may be NULL. */
TW_API int tw_select_method(int position, const char **name, const char **description);

/* Name of the kernels in use: "avx512", "avx2" or "ref", the fastest that this CPU runs, or what
 * the environment variable THINWIRE_KERNELS says. */
TW_API const char *tw_kernels(void);

/* The kernels that this build has, by position from 0, and whether this CPU runs them. Returns
 * TW_ERR_NAME past the last one. Either pointer may be NULL. */
TW_API int tw_kernels_at(int position, const char **name, int *usable);

/* Threads used when a parameter struct says 0: the environment variable THINWIRE_THREADS, or the
 * cores that this process may run on. */
TW_API int tw_default_threads(void);

/* The bare pass sum[i] += add[i] with the kernels and threads that selection uses. Error feedback
 * needs this pass in any case: it is the floor that selection is measured against.
 *   sum, add [n]; threads as in tw_select_params.
 * Threads are started for the call unless a selector with as many exists.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_PARAM; TW_ERR_NAME as in tw_selector_create. */
TW_API int tw_accumulate(float *sum, const float *add, int64_t n, int threads);

#ifdef __cplusplus
}
#endif

#endif
