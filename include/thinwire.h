/* thinwire.h - sparse allreduce: send the few gradient values that matter, keep the rest
 *
 * P ranks (worker processes or threads) train together. A tensor is a vector of n numbers that all
 * ranks have, for instance the weights of one layer. In each step every rank has a gradient of n
 * numbers for it. To this it adds its residual, which is what earlier steps did not apply. It
 * selects k entries (index and value) of acc = gradient + residual. The ranks sum their entries,
 * and every rank applies the result. What was not applied is the new residual. Nothing is lost.
 *
 *     gradient[n] -> feedback  -> select -> exchange -> apply -> mean gradient[n], or idx/val
 *                    acc = g+e    k of n    over a      e keeps
 *                                           transport   what was not applied
 *
 * Objects
 *   tw_transport   moves messages between ranks                        section 4
 *   tw_group       tensors whose gradients are summed over the ranks   sections 5 to 8
 *   tw_selector    selection without an exchange                       section 9
 *
 * Symbols in this header
 *   n   elements of a tensor           g     gradient
 *   k   entries selected per step      e     residual
 *   P   ranks (nranks)                 acc   g + e
 *   density: k / n
 *   moments: what momentum, or AdamW before selection, keeps of each element
 *
 * One rank of a training loop, over a transport of section 4, without error handling:
 *
 *     tw_group_params params = TW_GROUP_PARAMS_INIT;
 *     params.scheme = "oktopk";
 *     params.select.density = 0.01;
 *     tw_group *group;
 *     tw_group_create(&group, transport, &params);
 *     tw_group_add(group, n, NULL, NULL);                // tensor 0
 *     tw_group_open(group);
 *     for (int i = 0; i < steps; i++)                    // the backward pass fills grad[n]
 *         tw_allreduce(group, 0, grad, grad);            // grad becomes the mean
 *     tw_group_free(group);
 *
 * Rules for every call
 *   - Status. A call returns TW_OK (0) or a negative tw_error. tw_last_error() explains the error.
 *     A failed call has changed nothing, unless its comment says otherwise.
 *   - The library never prints, exits or aborts.
 *   - Reserved fields are 0 in what the library returns. The caller sets them to 0, or NULL, in
 *     what it passes.
 *   - Threads. One thread at a time may use a handle. A group and its transport count as one
 *     handle. While a step is in progress (from tw_allreduce_start to tw_allreduce_wait), call no
 *     function of the transport except tw_transport_info. Other handles are independent.
 *   - Fork. The child of a fork() has copies of selectors on the CPU and may use them. It must
 *     neither use nor free groups, transports or anything on a GPU: their threads, connections and
 *     GPUs stay with the parent. If the parent has used a GPU, the child cannot use any.
 *   - Collective. All ranks must make a call marked "Collective", in the same order. Its status is
 *     the same on all ranks, with two exceptions. If the group breaks (section 6), a rank that has
 *     already finished the call returns TW_OK and gets the error from its next call. Errors "of
 *     this rank alone" stay on one rank: the others wait for that rank and get TW_ERR_TIMEOUT.
 *     Calls without the mark do not wait for other ranks, except tw_group_shrink and
 *     tw_transport_join.
 *   - Memory. Pointers to the caller's memory on the CPU may have any alignment.
 *   - Machines. Sizes are computed in size_t, which must have 64 bits: 32-bit machines are refused
 *     when the library is built.
 *   - Bad numbers. A step is refused on all ranks if a gradient holds NaN or infinity, or a sum
 *     overflows. A refused step changes nothing: no residual, no moment, no step counter.
 *   - Reproducibility. A selection depends on inputs, parameters and seed only. The number of
 *     threads and the instruction set do not change it.
 *
 * Caveats
 *   - Conservation (applied + new residuals = gradients + old residuals, summed over all ranks) is
 *     exact, with two exceptions: g + e is rounded to float32, and wire formats q8, q4 and q2 round
 *     what they leave in residuals.
 *     With clip_norm, momentum or AdamW, it holds for clipped gradients, velocities or updates
 *     instead of gradients. Without feedback, what is not applied is dropped. With decay, residuals
 *     lose something in each step, and the library counts it:
 *     applied + new residuals + decayed = gradients + old residuals.
 *   - All threads of the library compute in the caller's floating-point environment. With
 *     flush-to-zero, subnormal sums become 0. Call tw_selector_undo in the environment in which the
 *     step ran.
 *
 * More headers: thinwire_mpi.h (MPI), thinwire_nccl.h (NCCL), thinwire_sim.h (simulated networks).
 * docs/glossary.md defines every term. */
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
#define TW_VERSION_MINOR 2
#define TW_VERSION_PATCH 0

/* Until 1.0 a new minor version may require changes in your sources: so find_package(thinwire 0.2)
 * accepts 0.2.x only. A program that is already linked runs with every library of the same soname,
 * libthinwire.so.0.1, whatever its version. */

/* The version of the loaded library, for instance "0.2.0". */
TW_API const char *tw_version(void);

/* ---- 2. Errors ---------------------------------------------------------------------------- */

/* X(name, value, text): the enum and the texts are made from this list. */
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
    X(TW_ERR_MEMORY, -10, "out of memory")                                                         \
    X(TW_ERR_TRANSPORT, -11, "the transport failed, or this build does not have it")               \
    X(TW_ERR_TIMEOUT, -12, "ranks are missing: they did not answer before the deadline")           \
    X(TW_ERR_MISMATCH, -13, "ranks, or a saved state and its group, do not agree")                 \
    X(TW_ERR_PROTOCOL, -14, "a message from another rank is malformed")                            \
    X(TW_ERR_FILE, -15, "a file cannot be read or written")                                        \
    X(TW_ERR_DAMAGED, -16, "a saved state is damaged, or of another version")                      \
    X(TW_ERR_DEVICE, -17, "a device failed, is missing, or memory is not where it should be")      \
    X(TW_ERR_QUORUM, -18, "too few ranks of the last membership are left to go on")                \
    X(TW_ERR_EXCLUDED, -19, "the other ranks go on without this one")

typedef enum {
#define TW_ERROR_ENUM(name, value, text) name = (value),
    TW_ERRORS(TW_ERROR_ENUM)
#undef TW_ERROR_ENUM
} tw_error;

/* The fixed text of an error, for instance "k is outside 1 .. n". Never NULL. */
TW_API const char *tw_error_text(int error);

/* The details of the calling thread's last failed call: the field, its value and what is accepted,
 * or the rank at fault. "" if no call of this thread has failed. Valid until the next call of this
 * thread. */
TW_API const char *tw_last_error(void);

/* ---- 3. Parameters ------------------------------------------------------------------------ */

/* Names that parameters take. A scheme is a selection method with an exchange. "oktopk" is the
 * default.
 *
 *     method     how a rank selects    exact reuse gaussian dgc random redsync gaussian_published
 *     exchange   how ranks sum         dense allgather dsa gtopk oktopk fulltopk butterfly twolevel
 *     wire       how entries are sent  raw f32 f16 bf16 q8 q4 q2
 *
 *     scheme     method + exchange      scheme     method + exchange
 *     dense      all values are sent    oktopk     reuse + oktopk
 *     topka      exact + allgather      fulltopk   reuse + fulltopk
 *     topkdsa    exact + dsa            logtopk    exact + butterfly
 *     gtopk      exact + gtopk          twolevel   exact + twolevel
 *     gaussiank  gaussian + allgather   randomk    random + allgather
 *     dgc        dgc + allgather        auto       exact + the fastest exchange, see tw_choice
 *
 * tw_scheme(), tw_select_method(), tw_exchange() and tw_wire() list them with a description. See
 * docs/selection.md, docs/exchange.md and docs/wire_format.md. */

/* Element type of gradients. Residuals and results are always float32. */
typedef enum {
    TW_F32 = 0,
    TW_F16 = 1,  /* IEEE 754 binary16 */
    TW_BF16 = 2, /* upper half of a float32 */
} tw_type;

typedef enum {
    TW_FEEDBACK_ON = 0,  /* keep what was not applied and add it to the next gradient */
    TW_FEEDBACK_OFF = 1, /* select from the gradient itself and drop the rest */
} tw_feedback;

/* The optimiser that a rank runs on g before selection. Momentum has a field of its own. */
typedef enum {
    TW_BEFORE_NOTHING = 0, /* none: the residual accumulates g, or with momentum its velocity */
    TW_BEFORE_ADAMW = 1,   /* AdamW: the residual accumulates its updates of the weights */
} tw_before;

/* How density falls during warm-up. */
typedef enum {
    TW_WARMUP_EXPONENTIAL = 0, /* by the same factor in each step */
    TW_WARMUP_LINEAR = 1,
    TW_WARMUP_COSINE = 2, /* half a cosine wave */
    TW_WARMUP_CALLER = 3, /* tw_group_set_density sets it, up or down; warmup_steps must be 0 */
} tw_warmup;

/* Where gradients lie and where selection runs. */
typedef enum {
    TW_CPU = 0,
    TW_CUDA = 1, /* an NVIDIA GPU; see tw_cuda_device() */
} tw_device;

/* How to select. Start from TW_SELECT_PARAMS_INIT: zero means default in every field but k and
 * density, of which exactly one must be set. A value that the library does not know is refused,
 * never replaced. */
typedef struct tw_select_params {
    const char *method; /* Names: tw_select_method(). NULL: "exact" in tw_selector_create; in a
                           group the method of tw_group_params.select or, if that is NULL too, of
                           the scheme */
    int64_t k;          /* entries per step, 1 .. n; 0: use density */
    double density;     /* k / n, in (0, 1]; k is rounded to nearest, at least 1 */
    int type;           /* tw_type of the gradient */
    int feedback;       /* tw_feedback */
    int threads;        /* 0: tw_default_threads(); at most 256 */
    uint64_t seed;      /* method "random": ranks with equal seeds select equal indices */

    /* With TW_CUDA, gradients, outputs and results lie in the memory of one GPU, aligned to their
     * element type. Selections equal the CPU's bit for bit.
     * Order of work: a selector queues its work on `stream`. A group has a stream of its own. Its
     * steps begin after the work that was in `stream` when tw_allreduce or tw_allreduce_start was
     * called. They are complete when tw_allreduce or tw_allreduce_wait returns.
     * CUDA graphs: the host takes part in every step. So a step on a stream that is being captured
     * fails with TW_ERR_DEVICE, and the capture is spoilt.
     * Calls leave the CUDA device of the calling thread as it is, and create a context on GPU
     * `ordinal` only. */
    int device;   /* tw_device */
    int ordinal;  /* number of the GPU, as in CUDA; with TW_CPU: 0 */
    void *stream; /* cudaStream_t of the caller, which must exist until the selector or group is
                     freed; NULL: the default stream. With TW_CPU: NULL */

    float clip_norm; /* > 0: if the 2-norm of g (this tensor, this rank) is larger, g is scaled
                        down to it first. For a norm c over all ranks set c / sqrt(P). 0: off */

    /* Momentum before selection (Deep Gradient Compression, Lin et al., 2018) */
    float momentum; /* in [0, 1): the residual accumulates the velocity u = momentum * u + g
                       instead of g; an entry that was applied loses its velocity. Needs
                       feedback. 0: off */

    /* AdamW before selection (Loshchilov and Hutter, 2019). Each rank keeps the moments m and v of
     * its own gradients. The residual accumulates
     *     u = rate * m' / (sqrt(v') + eps)
     * where m' and v' are m and v corrected for their start at zero. With TW_MEAN, subtract the
     * result from the weights. The caller does the weight decay: multiply the weights by
     * 1 - rate * weight_decay. A gradient that makes v overflow is refused as infinity is. AdamW
     * needs feedback and excludes momentum. Without AdamW leave beta1, beta2, eps and rate 0. */
    int before;          /* tw_before */
    double beta1, beta2; /* decay of m and of v, in [0, 1). Both 0: 0.9 and 0.999. If one is set, a
                            0 in the other means 0 */
    double eps;          /* > 0; 0: 1e-8 */
    double rate;         /* learning rate until tw_group_set_rate changes it; > 0; 0: 0.001 */

    /* Warm-up: in the first steps density falls from warmup_density to density. It never rises: if
     * warmup_density is not the larger one, there is no warm-up. Transformers need about a fifth of
     * the run (docs/recipes.md). */
    int warmup;            /* tw_warmup */
    int32_t warmup_steps;  /* 0: none. TW_WARMUP_CALLER needs 0 */
    double warmup_density; /* density of the first step, and the highest that
                              tw_group_set_density may set; 0: 0.25 */

    /* Method "reuse" (Ok-Topk, Li and Hoefler, 2022) keeps a threshold and corrects it in small
     * steps. `count` is the number of entries that pass it. If count leaves k/4 .. 4k, an exact
     * threshold is computed at once. */
    int32_t reuse_period; /* steps from one exact threshold to the next; 0: 32 */
    float reuse_low;      /* lower the threshold if count < reuse_low * k; 0: 2/3 */
    float reuse_high;     /* raise it if count > reuse_high * k; 0: 5/4 */
    float reuse_nudge;    /* fraction by which to lower or raise it; 0: 0.01 */

    /* Method "gaussian": the largest number of corrections of the threshold; 0: 4. If count is then
     * outside k/4 .. 4k, the k largest are selected. "gaussian_published" is the authors' rule, for
     * comparison: three thresholds at most, 0 to n entries, on the CPU only. */
    int32_t gaussian_rounds;
    double dgc_sample; /* method "dgc": fraction sampled, 2048 elements at least; 0: 0.01 */

    /* Decay of the residual, as local steps need it (docs/local_steps.md). At the end of a step e
     * becomes decay * e, each element rounded to float32. This takes one more pass over the
     * residual, on a GPU three. A refused or undone step does not decay. tw_select_info.decayed and
     * tw_step_info.decayed tell what was lost. Needs feedback. */
    float decay; /* in (0, 1]; 0: 1, none */

    uint32_t reserved[7]; /* zero */
} tw_select_params;

#ifdef __cplusplus
#define TW_SELECT_PARAMS_INIT                                                                      \
    {}
#else
#define TW_SELECT_PARAMS_INIT                                                                      \
    { 0 }
#endif

/* Memory of a selector or a group, in bytes. tw_selector_create or tw_group_open allocates all of
 * it. A step allocates nothing, but a transport may: see tw_transport_sockets.
 *
 * undo: memory that is needed to restore the residual after a refused step. On the CPU it is about
 * 5.2 * n bytes of address space. A step touches 0.2 * n to 0.5 * n of them, and more if gradients
 * suddenly grow 100 times. On a GPU it is a second residual.
 *
 * workspace of a selector on the CPU is the sum of the lines below. k is the largest k of the run:
 * with a warm-up from 0.25, 32 * k is 8 * n.
 *   32 * k              results
 *   32 * k per thread   address space, of which all threads together touch about 16 * k
 *   n / 250             samples; method "dgc": n / 25, "random": n / 8
 * Method "gaussian_published": 8 * n for results and 8 * n per thread, instead of 32 * k.
 * The tensors of a group share the memory per thread and the samples, sized for the largest tensor.
 * Beside its residual, undo log and results, a small tensor takes 2 kB.
 * On a GPU, workspace is 64 * k + n / 2. */
typedef struct tw_memory {
    size_t residual;  /* float32[n]; 0 without feedback */
    size_t moments;   /* velocity, or m and v of AdamW; each twice, for undo: 2 or 4 x float32[n] */
    size_t undo;      /* 0 without feedback */
    size_t workspace; /* see tw_group_memory for groups */
    size_t total;     /* the sum. With TW_CUDA it counts GPU memory, and a group's pinned host
                         memory */
    size_t reserved[4];
} tw_memory;

/* ---- 4. Transports ------------------------------------------------------------------------ */

/* What connects one rank to the others. A transport moves bytes and counts them. It knows nothing
 * about gradients. It serves one group at a time and must outlive that group. The caller frees it
 * with tw_transport_free. On error, a call that creates one transport sets *transport to NULL. */
typedef struct tw_transport tw_transport;

/* For a job of one rank.
 * Errors: TW_ERR_NULL; TW_ERR_MEMORY. */
TW_API int tw_transport_self(tw_transport **transport);

/* Ranks as threads of this process. One thread makes this call, for all ranks.
 *   transports [nranks] gets one for each rank. The thread of a rank uses and frees its own. If a
 *              rank frees its transport while others wait for it, they get TW_ERR_TRANSPORT within
 *              50 ms.
 *   nranks     1 .. 65536.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_MEMORY. */
TW_API int tw_transport_threads(tw_transport **transports, int nranks);

/* Ranks as processes that are joined by stream sockets, TCP or Unix.
 *   sockets [nranks] one connected socket to each other rank; sockets[rank] is ignored.
 * The caller connects the ranks and decides whom to trust. The transport owns the sockets from now
 * on and closes them when it is freed. After an error the caller still owns them. Messages that
 * arrive before their receive take 64 MiB of memory at most for each peer.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_MEMORY. */
TW_API int tw_transport_sockets(tw_transport **transport, const int *sockets, int rank, int nranks);

/* Ranks as processes that find each other over TCP, IPv4 or IPv6. All name the same address. A
 * process that can listen on it is the meeting point; it may have any rank. The others register
 * there, and get the addresses of all ranks. Then every two ranks connect.
 *
 * A secret keeps other processes out. Both ends of every connection prove that they know it
 * (HMAC-SHA-256 of two nonces); it is never sent. Take 16 random bytes or more: who reaches the
 * port can test guesses of the secret against a proof. Without a secret, whoever reaches the port
 * may join. Messages are neither encrypted nor signed: who can change packets on the way can change
 * gradients. Use a network that you trust, or a tunnel. */
typedef struct tw_tcp_params {
    const char *meet;   /* "host:port", or several with commas: the first that answers is used.
                           An IPv6 address stands in brackets */
    int rank, nranks;   /* this rank, 0 .. nranks-1, and the number of ranks, 1 .. 65536 */
    const void *secret; /* [secret_bytes], the same on all ranks; NULL: none */
    size_t secret_bytes;
    const char *job; /* a name that keeps jobs with one secret apart; NULL: "" */
    double timeout;  /* seconds in which all ranks must come; 0: 300. Ranks do not return from this
                        call at the same time. The first ones wait for the others in tw_group_open,
                        for the group's timeout: do not set that lower than this one */
    uint32_t reserved[8];
} tw_tcp_params;

/* Collective. params is copied. A process that is refused gets TW_ERR_MISMATCH; the others go on
 * waiting for a process of that rank.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_MEMORY; TW_ERR_MISMATCH if this process has another
 * secret, number of ranks or version than the meeting point, or a rank that another process has;
 * TW_ERR_TRANSPORT if another program listens at `meet`; TW_ERR_TIMEOUT: at the meeting point the
 * text names the ranks that did not come. */
TW_API int tw_transport_tcp(tw_transport **transport, const tw_tcp_params *params);

/* Join a job that runs over tw_transport_tcp, with an elastic group (section 7). The call waits
 * until the ranks of the job call tw_group_grow, `timeout` at most.
 *   params  those of the job, with rank 0 and nranks 0; copied.
 * Then create an elastic group with the same parameters and tensors as theirs, and call
 * tw_group_open at once: the ranks wait for it in tw_group_grow. After that make the calls that
 * they make after tw_group_grow, for instance tw_group_broadcast, then tw_group_verify, then the
 * next step. New ranks have the highest numbers: tw_transport_info tells this one's. Its residuals
 * are zero, or those of a state that it has saved (tw_group_load_residuals). It takes over the step
 * counters: tw_group_info tells.
 * Errors: those of tw_transport_tcp; TW_ERR_TIMEOUT also if the ranks go on without this
 * process. */
TW_API int tw_transport_join(tw_transport **transport, const tw_tcp_params *params);

/* The functions of a custom transport: implement them to run Thinwire over your own network. One
 * thread at a time calls the functions of one transport; it may be a thread of the library. Only
 * idle and close may block.
 *
 * Order: messages from one rank to another with the same tag arrive in the order in which they were
 * sent. Receives match them in the order in which they were started. A send may complete before its
 * receive was started. A message may be empty. Messages must arrive unchanged: the library checks
 * their form, not every bit. If your network can damage them, add a checksum of your own.
 *
 * Status: send and recv return 0, or a negative number on failure. The library reports every
 * failure as TW_ERR_TRANSPORT, with the text that tw_transport_explain has set. */
typedef struct tw_transport_calls {
    const char *name; /* for messages to humans; copied */

    /* Start to send data[bytes] to a peer with a tag 0 .. 3. data stays valid and unchanged until
     * the request is done or cancelled. Set *request to something that is not NULL: test and
     * cancel get it. */
    int (*send)(void *context, int peer, int tag, const void *data, size_t bytes, void **request);
    /* Start to receive a message of at most `capacity` bytes from a peer. A longer message is an
     * error. */
    int (*recv)(void *context, int peer, int tag, void *data, size_t capacity, void **request);
    /* 1: done; *bytes is the length of a received message. 0: not done yet. Negative: failed.
     * After 1 or a negative result the request no longer exists. */
    int (*test)(void *context, void *request, size_t *bytes);
    /* End a request that is not done. The transport must not touch its data afterwards. */
    void (*cancel)(void *context, void *request);
    /* Wait until a request may have made progress, at most `microseconds`. NULL: the library yields
     * the CPU instead. */
    void (*idle)(void *context, int64_t microseconds);
    /* The transport is being freed. NULL: nothing to do. */
    void (*close)(void *context);
    /* The lowest rank on the same host as `rank`; exchange "twolevel" asks. NULL: unknown. */
    int (*host)(void *context, int rank);
    /* Whether messages are sent with a checksum from now on; see tw_checksum. NULL: this transport
     * has none, or needs none. */
    void (*checksum)(void *context, int on);
    void (*reserved[4])(void); /* NULL */
} tw_transport_calls;

/* A transport made of the caller's functions. calls is copied; context is passed to each function.
 * examples/custom_transport.c is a complete one over socket pairs.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM if nranks is outside 1 .. 65536, rank outside 0 .. nranks-1, or
 * a reserved field is not NULL; TW_ERR_MEMORY. After an error close is not called. */
TW_API int tw_transport_custom(tw_transport **transport, const tw_transport_calls *calls,
                               void *context, int rank, int nranks);

/* For the functions of a custom transport: set the text of tw_last_error(), with the arguments of
 * printf, and return TW_ERR_TRANSPORT. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
TW_API int
tw_transport_explain(const char *format, ...);

/* A message between GPU memories. Both ranks know its length. */
typedef struct tw_device_message {
    int peer;
    int sending; /* 1: to the peer; 0: from the peer */
    void *data;  /* [bytes] in GPU memory */
    size_t bytes;
    size_t reserved[2];
} tw_device_message;

/* The functions that move GPU memory between ranks. One thread at a time calls them. It is a thread
 * of the library, whose current CUDA device is the group's GPU, or the thread that called the
 * library, whose CUDA device is left as it is. On failure call tw_transport_explain and return a
 * negative number. */
typedef struct tw_device_calls {
    /* Queue messages[count] on a cudaStream_t, all at once: no message may wait until another one
     * is complete. The peers queue theirs at the same time. Do not wait for the stream. Return 0.
     * messages is valid during the call only. The data of the messages stay valid until the stream
     * has sent and received them. */
    int (*exchange)(void *context, const tw_device_message *messages, int count, void *stream);
    /* Return 0 if the exchange is queued completely, 1 if not yet, a negative number if it has
     * failed. The library asks until the stream has completed the exchange, also after 0, or until
     * its deadline. NULL: `exchange` queues everything before it returns, and the stream ends even
     * if the exchange fails. */
    int (*progress)(void *context);
    /* Return 0 if the functions work on this GPU. tw_group_open asks. NULL: they work on any. */
    int (*check)(void *context, int ordinal);
    void (*reserved[4])(void); /* NULL */
} tw_device_calls;

/* For groups on a GPU: use these functions to send entries from GPU to GPU. Control messages still
 * use the transport. All ranks must set them, or none: else tw_group_open returns TW_ERR_MISMATCH.
 * calls is copied; NULL: none. thinwire_nccl.h sets NCCL. Not with an elastic group: the functions
 * would not know that ranks are numbered anew.
 *
 * If none are set, entries pass through host memory. Exception: between threads of one process the
 * library copies them directly, if k is 16384 or more, averaged over the tensors. Entries always
 * pass through host memory
 *   - with exchanges "butterfly" (also as the fallback of oktopk for k < 8P), "twolevel" and
 *     "fulltopk";
 *   - with "auto" as scheme or exchange;
 *   - if a tensor of the group lies on the CPU.
 * Errors: TW_ERR_NULL, also if calls->exchange is; TW_ERR_PARAM if a reserved field is not NULL;
 * TW_ERR_STATE if the transport has a group. */
TW_API int tw_transport_set_device(tw_transport *transport, const tw_device_calls *calls,
                                   void *context);

/* Close and free. Free its group first. NULL is fine. Over MPI this is collective. */
TW_API void tw_transport_free(tw_transport *transport);

/* Bytes that a rank has sent and received since its transport was created. Payload is entries,
 * values of dense vectors, the bandwidth test of "auto", the data of tw_group_broadcast, and what
 * tw_group_leave hands over. Control is everything else: counts, histograms, agreement. Liveness
 * checks and abort notices are not counted. */
typedef struct tw_traffic {
    int64_t payload_sent;
    int64_t payload_received;
    int64_t control_sent;
    int64_t control_received;
    int64_t messages_sent; /* a count */
    int64_t reserved[3];
} tw_traffic;

/* The name, rank, number of ranks and traffic of a transport. Each pointer except the first may be
 * NULL. name belongs to the transport. Any thread may ask at any time: during a step the traffic is
 * what has been sent and received so far.
 * Errors: TW_ERR_NULL. */
TW_API int tw_transport_info(const tw_transport *transport, const char **name, int *rank,
                             int *nranks, tw_traffic *traffic);

/* ---- 5. Groups ---------------------------------------------------------------------------- */

/* Tensors whose gradients are summed over the ranks of a transport. Life of a group: create, add
 * tensors, open, any number of steps, free. */
typedef struct tw_group tw_group;

/* What a step gives the caller. If ranks have weights (tw_group_set_weight), TW_MEAN divides by the
 * sum of all weights, TW_MEAN_OF_SENDERS by that of the senders. */
typedef enum {
    TW_MEAN = 0, /* the sum over ranks divided by P */
    TW_SUM = 1,
    /* The sum divided by the number of ranks that sent the entry. Only with exchange "allgather",
     * and with "dense", where every rank sends every entry. */
    TW_MEAN_OF_SENDERS = 2,
} tw_result;

/* Which sums exchanges "oktopk" and "fulltopk" apply. */
typedef enum {
    /* The k largest sums of what the ranks sent. A rank sends the entries that it selected, but no
     * more than its k largest. Exception: if almost all entries fall into one range of indices,
     * ranks hold some back, so that no rank receives more than 6k words (of 4 bytes). */
    TW_GLOBAL_EXACT = 0,
    /* All sums above the threshold of earlier steps, if there are 2k/3 to k of them; else as
     * TW_GLOBAL_EXACT. Takes fewer messages per step. */
    TW_GLOBAL_REUSE = 1,
} tw_global;

/* What k and density of a tensor count. */
typedef enum {
    /* allgather and dsa (topka, topkdsa ...): k entries from each rank; a step may apply up to kP.
     * oktopk, gtopk, butterfly, twolevel and fulltopk: each rank selects k, and k of the sums are
     * applied. */
    TW_COUNT_OF_SCHEME = 0,
    /* To compare schemes: k sets the upper bound of the bytes, which is allgather's with this k (see
     * tw_exchange_cost). On usual data oktopk then sends 60 % of what allgather does. The library
     * computes from it the k that the exchange works with, for oktopk k(P-1)/3. tw_step_info.k
     * tells it. dsa keeps k, dense ignores it, and butterfly in place of oktopk (k < 8P) may send
     * more. Not with "auto". */
    TW_COUNT_PER_RANK = 1,
} tw_count;

/* Whether messages between processes, over sockets, TCP and MPI, carry a checksum of their contents
 * (CRC-32C). If bits were changed on the way, the step fails with TW_ERR_TRANSPORT on all ranks;
 * the text names the rank that the message came from. Without a checksum such a step may return a
 * wrong result, or different results on different ranks. The checksum takes 0.3 % of the time of a
 * sparse step, see docs/exchange.md. Messages that stay in a process, and those of NCCL, have none.
 * A custom transport may have one of its own. */
typedef enum {
    TW_CHECKSUM_ON = 0,
    TW_CHECKSUM_OFF = 1,
} tw_checksum;

/* Whether the ranks of a group can change. A group whose ranks can is elastic: see section 7. */
typedef enum {
    TW_MEMBERSHIP_FIXED = 0,
    /* Needs a transport of threads, sockets or tcp. Not with TW_COUNT_PER_RANK, nor with NCCL or
     * other functions of tw_transport_set_device. Each step takes one more round of short messages:
     * no rank applies a result before all ranks have theirs. */
    TW_MEMBERSHIP_ELASTIC = 1,
} tw_membership;

/* How a group works. Start from TW_GROUP_PARAMS_INIT: zero means default in every field.
 * Exception: set k or density of `select`, unless every tensor brings its own or the scheme is
 * "dense". All fields must be equal on all ranks, except timeout and, in select, threads, seed,
 * ordinal and stream. */
typedef struct tw_group_params {
    const char *scheme;      /* NULL: "oktopk". Names: tw_scheme(). "auto": see tw_choice */
    const char *exchange;    /* NULL: the scheme's. Names: tw_exchange(), and "auto" */
    const char *wire;        /* wire format of entries; NULL: "raw", with "auto" "raw" or "bf16".
                                Names: tw_wire(). The rank that rounds a value keeps the difference
                                in its residual. dense is always raw */
    tw_select_params select; /* for tensors that are added without one; method NULL: the scheme's */
    int result;              /* tw_result */
    int global;              /* tw_global */
    int count;               /* tw_count */
    int checksum;            /* tw_checksum */
    double timeout;          /* seconds that one wait for messages may take; 0: 300. A wait that
                                takes longer is an error, which names the silent ranks: in the last
                                part of the time (half of it, 2 s at most) all ranks are asked
                                whether they are there. A step has several waits (oktopk: 9 or
                                more), so it may take longer than `timeout` without an error. On a
                                GPU a rank also waits for `stream`, and for its own work: each for
                                `timeout` less that last part. After that it is the rank at fault */
    int64_t bucket;          /* tw_allreduce_start merges tensors into buckets of up to this many
                                elements; 0: 4 Mi, with "auto" what suits the network; 1: each
                                tensor alone. Results do not depend on it, with one exception: if
                                the wire format rounds, it decides which rank rounds a sum */
    int membership;          /* tw_membership */
    uint32_t reserved[7];    /* zero */
} tw_group_params;

#ifdef __cplusplus
#define TW_GROUP_PARAMS_INIT                                                                       \
    {}
#else
#define TW_GROUP_PARAMS_INIT                                                                       \
    { 0 }
#endif

/* Create a group without tensors. params is copied; its strings need not outlive the call. The
 * transport stays the caller's.
 * Errors: TW_ERR_NULL; TW_ERR_NAME; TW_ERR_PARAM; for fields of `select` those of
 * tw_selector_create; TW_ERR_TRANSPORT if membership is elastic and the ranks of this transport
 * cannot change, or it has functions of tw_transport_set_device; TW_ERR_STATE if the transport has
 * a group, or failed under an earlier one; TW_ERR_MEMORY. On error *group is NULL. */
TW_API int tw_group_create(tw_group **group, tw_transport *transport,
                           const tw_group_params *params);

/* Add a tensor of n elements, before tw_group_open.
 *   select  as params of tw_selector_create, and copied like these; NULL: that of tw_group_params.
 *           Exchange "dense" uses only type, threads, device, ordinal and stream. It refuses AdamW.
 *   tensor  gets the number of the tensor: 0, 1, 2 ...; may be NULL.
 * Add tensors in the order in which the backward pass makes their gradients. They are exchanged in
 * this order. Some tensors may lie on the CPU and others on a GPU, but a group uses one GPU at
 * most.
 * Errors: TW_ERR_NULL; TW_ERR_STATE after tw_group_open; TW_ERR_PARAM for a second GPU; those of
 * tw_selector_create. */
TW_API int tw_group_add(tw_group *group, int64_t n, const tw_select_params *select, int *tensor);

/* Add a tensor whose gradient lies in pieces, for instance one for each parameter of a model. The k
 * values are selected from all pieces together, and no gradient needs to be copied.
 *   sizes [npieces] elements of each piece, copied. The tensor's n is their sum; its elements are
 *         those of piece 0, then those of piece 1, and so on. Results, residuals and states are as
 *         if they lay in one vector. Other ranks may have other pieces; n must be the same.
 * Start its steps with tw_allreduce_start_pieces. Not with exchange "dense", nor with "auto" as
 * scheme or exchange.
 * Errors: those of tw_group_add; TW_ERR_SIZE with the piece; TW_ERR_PARAM for npieces, "dense" or
 * "auto"; TW_ERR_MEMORY. */
TW_API int tw_group_add_pieces(tw_group *group, const int64_t *sizes, int npieces,
                               const tw_select_params *select, int *tensor);

/* Bytes that tw_group_open will allocate or has allocated. With "auto", before opening: the most
 * that it may allocate. Residuals, moments and undo logs are the sums over all tensors.
 * Workspace:
 *
 *     oktopk                      O(k + P)
 *     gtopk, butterfly, twolevel  O(k log P + P)
 *     allgather, dsa              O(kP), as their results may have kP entries
 *     dense                       8 MiB at most; on a GPU 8 bytes per element
 *     fulltopk                    that of oktopk and that of dense
 *
 * Errors: TW_ERR_NULL; TW_ERR_STATE if no tensor was added; TW_ERR_MEMORY. */
TW_API int tw_group_memory(const tw_group *group, tw_memory *memory);

/* Compare the parameters of all ranks and allocate everything. With "auto", also measure the
 * network, which takes about ten milliseconds, or twenty latencies if that is longer. Collective.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if the group has no tensor or is open; TW_ERR_MISMATCH with the
 * rank and the field that differs; TW_ERR_MEMORY with the rank that has too little; TW_ERR_DEVICE;
 * TW_ERR_TIMEOUT; TW_ERR_TRANSPORT; TW_ERR_PROTOCOL. TW_ERR_NULL and TW_ERR_STATE are of this rank
 * alone and change nothing. After any other error the group can only be freed. Exception: if a rank
 * was lost while an elastic group opened, tw_group_shrink opens it with the others. On a rank that
 * joins, every error but TW_ERR_NULL and TW_ERR_STATE is returned only after the others have agreed
 * on who goes on, or after 2 * `timeout` + 20 s: see tw_group_grow. */
TW_API int tw_group_open(tw_group *group);

/* Free the group. NULL is fine. Does not wait for other ranks. A step that is in progress is
 * abandoned: the other ranks' groups break, and the transport can only be freed. A bucket's step is
 * in progress once all its tensors and all buckets before it were started, or once a tensor of it or
 * of a later bucket is waited for.
 *
 * On a GPU, first abort the work of a failed step (see tw_allreduce). If the GPU is still at work
 * on it, or functions of tw_transport_set_device have not queued all of it, the group's GPU memory
 * and pinned memory stay allocated until the process ends. CUDA frees memory only when no stream of
 * the GPU is at work: so this call waits even for a stuck stream of somebody else. */
TW_API void tw_group_free(tw_group *group);

/* ---- 6. Allreduce ------------------------------------------------------------------------- */

/* Sum the gradient of one tensor over all ranks. Collective.
 *   grad [n] of the tensor's type. Do not change it during the call.
 *   out  [n] floats: the mean (or the sum) of the applied entries, 0 elsewhere. out is either grad
 *        itself, if the type is f32, or does not overlap with it. Nor may it overlap with grad or
 *        out of another tensor in progress; this is not checked. NULL: read the result with
 *        tw_group_result. "dense" and "auto" do not accept NULL.
 * All ranks get bitwise the same result. The residuals keep what was not applied. Sums are taken in
 * the order of ranks; gtopk, butterfly and twolevel sum in the order of their trees.
 *
 * Errors that all ranks get. The group goes on. Residuals, moments and step counters are bit for
 * bit as before:
 *   TW_ERR_NUMBER    a gradient holds NaN or infinity, or a sum overflows
 *   TW_ERR_NULL      a pointer is NULL on some rank
 *   TW_ERR_PARAM     on some rank grad and out overlap in part, or are the same although the type
 *                    is not f32
 *   TW_ERR_DEVICE    a pointer is not memory of the tensor's GPU, or a stream failed
 *   TW_ERR_MISMATCH  ranks have set different rates, densities or common values: the text begins
 *                    with "rate:", "density:" or "common value". Set them alike and repeat the
 *                    step
 * out is unchanged too, except if a sum overflows: then out is undefined. (If out is grad and the
 * exchange is not "dense", out is unchanged even then.)
 *
 * Errors after which the group is broken:
 *   TW_ERR_MISMATCH   ranks exchange different tensors or steps
 *   TW_ERR_TIMEOUT    the text names the missing ranks. A rank that computes for longer than
 *                     `timeout` outside of the library counts as missing, and so does a rank
 *                     whose GPU does not end what was queued in `stream` before the step
 *   TW_ERR_STATE      another rank freed its group between tw_allreduce_start and
 *                     tw_allreduce_wait
 *   TW_ERR_PROTOCOL, TW_ERR_TRANSPORT
 *   TW_ERR_DEVICE     after the exchange has begun
 * This rank's residuals and moments are then as before the step, and out is undefined. Exception:
 * after TW_ERR_DEVICE, some tensors of a bucket may be applied already. A broken group can still be
 * asked for results, information and residuals, and can be saved and freed. Steps, settings and
 * loading return the error that broke it. TW_ERR_MISMATCH and TW_ERR_DEVICE are in both lists. If
 * the group is broken, the text of the next step's error begins with "the group is broken".
 *
 * On a GPU a step may fail while work is stuck: in `stream`, or in functions of
 * tw_transport_set_device, for instance NCCL. Then the call returns at its deadline, but the GPU
 * may read grad, and write out, whenever that work goes on, even after tw_group_free. So grad and
 * out belong to the library until the GPU has ended that work: after ncclCommAbort, or once
 * `stream` is idle. Until then residuals can neither be read nor saved (TW_ERR_TIMEOUT).
 *
 * The ranks of a broken group may differ by one step of a tensor: a rank may have completed the
 * step in which the others failed. They never differ by more, because no rank ends a step before
 * all ranks have begun it. tw_step_info.step tells how many steps a rank has completed. To go on
 * together, restart from a state that all ranks have saved or, in an elastic group, call
 * tw_group_shrink (section 7). In an elastic group a rank may have the result of the failed step
 * without knowing whether others have applied it. Until tw_group_shrink decides that, its residuals
 * can neither be read nor saved (TW_ERR_STATE).
 *
 * Errors of this rank alone: TW_ERR_NULL for the group; TW_ERR_INDEX for a wrong tensor number;
 * TW_ERR_PARAM if the tensor has several pieces; TW_ERR_STATE if the group is not open or a
 * background step is in progress. */
TW_API int tw_allreduce(tw_group *group, int tensor, const void *grad, float *out);

/* The same in the background: start returns at once, wait waits for the result. Any number of
 * tensors may be in progress. Collective: all ranks must make the same waits in the same order, and
 * start the same tensors before each wait. The order of starting may differ.
 *   tensor     for tw_allreduce_wait also TW_ALL: all that were started.
 *   grad, out  as in tw_allreduce. They belong to the library from start to wait.
 * Tensors are merged into buckets in the order in which they were added, whatever the order of
 * starting. Buckets are exchanged in order. A bucket begins when all its tensors were started and
 * all earlier buckets have begun. A wait for a tensor begins its bucket and all earlier ones at
 * once, with those of their tensors that were started. If one tensor of a bucket fails, the whole
 * bucket fails. Other buckets do not: their tensors are applied, and their out is valid. To learn
 * which failed, wait for each tensor, or compare tw_step_info.step (in an elastic group before
 * tw_group_shrink).
 * Errors of start, of this rank alone: TW_ERR_NULL for the group; TW_ERR_INDEX; TW_ERR_PARAM if the
 * tensor has several pieces; TW_ERR_STATE if the group is not open or the tensor is in progress;
 * TW_ERR_MEMORY if no thread can be started; the error that broke the group.
 * Errors of wait: those of the step, as in tw_allreduce. TW_ALL returns the first error, and TW_OK
 * if nothing was started. Of this rank alone: TW_ERR_NULL for the group; TW_ERR_INDEX; TW_ERR_STATE
 * if the group is not open or the tensor was not started. */
#define TW_ALL (-1)
TW_API int tw_allreduce_start(tw_group *group, int tensor, const void *grad, float *out);
TW_API int tw_allreduce_wait(tw_group *group, int tensor);

/* tw_allreduce_start of a tensor in pieces.
 *   grads [npieces] the pieces of the gradient, as grad of tw_allreduce. Each may have an alignment
 *         of its own, on a GPU that of its elements.
 *   outs  [npieces] the pieces of out. Each is either the same piece of grads, if the type is f32,
 *         or does not overlap with it. outs NULL: read the result with tw_group_result, or take it
 *         with tw_group_subtract. No single piece may be NULL.
 * The arrays of pointers are copied. An error names the piece, and the element in it.
 * Errors: those of tw_allreduce_start; TW_ERR_NULL for grads; TW_ERR_PARAM if the tensor has
 * another number of pieces. A tensor of tw_group_add has one. */
TW_API int tw_allreduce_start_pieces(tw_group *group, int tensor, const void *const *grads,
                                     float *const *outs, int npieces);

/* Set the learning rate of AdamW for all further steps. Here 0 means 0. The call does not wait, but
 * all ranks must set the same rate before the same step, or that step returns TW_ERR_MISMATCH.
 *   tensor  or TW_ALL: all that have AdamW; at least one must, and none may be in progress.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_PARAM if rate is negative, NaN or infinite, or the
 * tensor has no AdamW; TW_ERR_STATE if the group is not open or the tensor is in progress; the
 * error that broke the group. */
TW_API int tw_group_set_rate(tw_group *group, int tensor, double rate);

/* Set the density of all further steps, with TW_WARMUP_CALLER. If it is never called, the first
 * step has warmup_density and the others have `density`: so call it before the first step. The call
 * does not wait, but all ranks must set the same density before the same step, or that step returns
 * TW_ERR_MISMATCH.
 *   tensor   or TW_ALL: all that have TW_WARMUP_CALLER.
 *   density  from `density` (or k / n) to `warmup_density` of the tensor's tw_select_params.
 * Errors: as tw_group_set_rate; TW_ERR_DENSITY if density is outside of that range. */
TW_API int tw_group_set_density(tw_group *group, int tensor, double density);

/* Set the weight of this rank in all further steps, for instance the number of samples in its
 * batch. The caller multiplies its gradient by the weight. TW_MEAN then divides the sum by
 * the sum of all weights, TW_MEAN_OF_SENDERS by the sum of the senders' weights; TW_SUM does not
 * divide. Every rank sets its own weight; it is 1 until then. Does not wait.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM if weight is outside 1e-30 .. 1e30; TW_ERR_STATE if
 * the group is not open or a tensor is in progress; the error that broke the group. */
TW_API int tw_group_set_weight(tw_group *group, double weight);

/* Set numbers that this rank applies to results itself, for instance the learning rate and the
 * weight decay of SGD. The library only compares them: all ranks must set the same before the same
 * step, or that step returns TW_ERR_MISMATCH, and its text names the first that differs. They stay
 * until the next call. Does not wait. A step sends no byte more for them. In an elastic group a rank
 * that has joined sets them too, before its first step. Memory: 8 bytes for each value. It grows if
 * a call has more values than all before, and tw_group_memory does not count it.
 *   values  [count] copied; compared bit by bit: -0.0 is not 0.0, and a NaN equals the same NaN. May be
 *           NULL if count is 0
 *   count   up to TW_MOST_COMMON; 0, as at the start: none
 * Errors: TW_ERR_NULL; TW_ERR_PARAM for count; TW_ERR_MEMORY; TW_ERR_STATE if the group is not open
 * or a tensor is in progress; the error that broke the group. */
#define TW_MOST_COMMON 1000000
TW_API int tw_group_set_common(tw_group *group, const double *values, int count);

/* A sparse vector of `count` entries. idx ascends strictly. */
typedef struct tw_sparse {
    int64_t count;
    const int32_t *idx; /* [count] */
    const float *val;   /* [count] */
    int64_t reserved;
} tw_sparse;

/* The last result of a tensor as a sparse vector without zeros. The group owns the arrays, which
 * with TW_CUDA are GPU memory. They are valid until the tensor is passed to tw_allreduce or
 * tw_allreduce_start, the group is loaded or freed, or its ranks change.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE if there was no step yet, the last one failed or
 * was dense, or one is in progress. */
TW_API int tw_group_result(tw_group *group, int tensor, tw_sparse *result);

/* Subtract the last result of a tensor from params, as an optimiser does. Only the elements of the
 * result are read and written. Not collective.
 *   params [npieces] pointers to floats, one for each piece of the gradient and as large as that. A
 *          tensor of tw_group_add has one piece.
 * On a GPU this is queued on the tensor's stream, and the next step of the tensor waits for it.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM for npieces; those of tw_group_result; TW_ERR_DEVICE if a piece
 * is not memory of the GPU. */
TW_API int tw_group_subtract(tw_group *group, int tensor, float *const *params, int npieces);

/* The last successful step of a tensor. Before the first: zeros, and the group's names. Bytes and
 * times are those of its whole bucket. */
typedef struct tw_step_info {
    int64_t step;         /* successful steps so far */
    int64_t k;            /* entries asked for */
    int64_t selected;     /* entries that this rank selected */
    int64_t applied;      /* entries of the result */
    const char *exchange; /* the one used; if k < 8P, butterfly in place of oktopk and fulltopk */
    const char *wire;     /* the wire format used */
    int tensors;          /* tensors in the bucket */
    tw_traffic traffic;   /* of this rank in this step */
    double began;         /* when it began, in seconds of CLOCK_MONOTONIC or of the simulated clock;
                             the four stages below follow in this order */
    double select_seconds;
    double agree_seconds; /* mostly waiting for the slowest rank */
    double exchange_seconds;
    double apply_seconds;
    double decayed; /* the sum of what this rank's residual of the tensor lost to decay */
    int64_t reserved[3];
} tw_step_info;

/* Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE if the group is not open or the tensor is in
 * progress. */
TW_API int tw_group_info(tw_group *group, int tensor, tw_step_info *info);

/* What scheme or exchange "auto" does. A plan is an exchange with a wire format. When the group
 * opens, the ranks measure the network and predict the time of a step for every candidate plan. The
 * first steps try the promising plans; then the group keeps the fastest. Every 64 steps it checks
 * its choice. All ranks choose alike. docs/auto.md explains the model.
 *
 * Nothing is lost when the plan changes: residuals belong to tensors, and a dense step sends them
 * along with the gradient. But the plan decides which entries are applied, and it depends on
 * measured times. So runs repeat bit for bit in simulation only.
 *
 * Candidates: every exchange except twolevel and fulltopk, with wire "raw" and with "bf16". A group
 * with scheme "auto" and a named exchange or wire keeps to that name. The selection is the group's,
 * "exact" by default. Left out:
 *   - a plan that needs more than 40 bytes of workspace per element and more than 64 MiB in all;
 *   - oktopk, if all tensors have k < 8P;
 *   - dense, if a tensor lies on a GPU, has momentum or AdamW, or has no feedback. */
#define TW_CANDIDATES 24
typedef struct tw_candidate {
    const char *exchange;
    const char *wire;
    double predicted; /* seconds to exchange and apply, on the slowest rank; selection and agreement
                         are the same for all plans and not included */
    double measured;  /* the shortest of its last steps, in seconds; 0: not tried */
    int64_t steps;    /* steps with this plan so far */
    int64_t reserved[2];
} tw_candidate;

typedef struct tw_choice {
    const char *select;
    const char *exchange; /* of the next step */
    const char *wire;
    double predicted, measured; /* as in tw_candidate */
    int settled;                /* 1: this plan was tried, and is the fastest of those tried */
    int dense_is_faster;        /* 1: dense beats every sparse plan, by measured time, or by
                                   predicted time if it was not tried */
    double latency;             /* seconds from sending a message to receiving it */
    double overhead;            /* seconds that a rank spends on each further message */
    double bandwidth;           /* bytes per second of a rank when all ranks send; 0 if P = 1 */
    int64_t bucket;             /* elements; see tw_group_params */
    int ncandidates;
    tw_candidate candidates[TW_CANDIDATES]; /* [ncandidates], by predicted time */
    char words[200];                        /* a sentence: dense against the best sparse plan */
    int64_t reserved[8];
} tw_choice;

/* The choice for the steps in which this tensor is exchanged.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE if a step is in progress, the group is not open,
 * or neither its scheme nor its exchange is "auto". */
TW_API int tw_group_choice(tw_group *group, int tensor, tw_choice *choice);

/* ---- 7. Ranks that are lost, leave or join ------------------------------------------------ */

/* The ranks of an elastic group (TW_MEMBERSHIP_ELASTIC) can change. Its members are the ranks that
 * it has at a time. If a rank dies, the others go on without it:
 *
 *     int error = tw_allreduce(group, 0, grad, out);
 *     while (error == TW_ERR_TIMEOUT || error == TW_ERR_TRANSPORT) {
 *         error = tw_group_shrink(group, NULL);
 *         if (error == TW_OK)
 *             error = tw_allreduce(group, 0, grad, out);     // repeat what failed
 *     }                                                      // other errors: give up
 *
 * TW_ERR_STATE of a step may mean that another rank freed its group. tw_group_shrink works then
 * too. If it returns TW_ERR_STATE itself, the error had another cause.
 *
 * After a change the members are numbered anew, in the order that they had; new ones come last.
 * docs/membership.md describes how they agree. */

/* A rank that is not a member any more. */
typedef struct tw_lost_rank {
    int rank;     /* its number before */
    int heir;     /* the rank that took over its residuals, by its number now; -1: they are lost */
    double norm;  /* 2-norm of its residuals, as it last told the others (every 64 steps); -1: not
                     known */
    int64_t step; /* after which this was its norm */
    int64_t reserved[2];
} tw_lost_rank;

/* The ranks after a change. If earlier calls have failed after ranks had changed, this tells of all
 * these changes as one: `before` and `lost` have the numbers that the caller knows. A process that
 * has joined and is lost since then is in neither. The arrays belong to the group and are valid
 * until its next change. */
typedef struct tw_members {
    int64_t version;                /* changes so far */
    int rank, nranks;               /* this rank, and the number of ranks, now */
    int rank_before, nranks_before; /* the same before the change */
    const int *before;              /* [nranks] the number that each rank had; -1: it is new */
    const tw_lost_rank *lost;       /* [nlost], ascending by rank */
    int nlost;
    int completed;  /* 1: tw_group_shrink has completed the failed step: see there */
    int64_t step;   /* steps that all members have completed; each bucket counts as one */
    double seconds; /* that the call took */
    int64_t reserved[8];
} tw_members;

/* Go on with the ranks that are left, after an error that broke the group, such as TW_ERR_TIMEOUT
 * or TW_ERR_TRANSPORT. All ranks that are left must call this. They agree on who they are.
 * Transport and group then have these ranks, and the group is whole again.
 *   members  gets the ranks after the change; may be NULL.
 *
 * Who goes on: more than half of the ranks of the last membership, or half of them with its rank 0.
 * So if a job falls apart, one part at most goes on. A rank whose connection is closed is lost at
 * once. A rank that does not answer is waited for: `timeout` + 0.5 s at most, or 0.2 s if it did
 * not answer in the failed step either. If two ranks cannot reach each other, the lower one stays.
 * To agree takes 2 * `timeout` + 20 s at most. Then the group opens; each wait in that ends after
 * `timeout`.
 *
 * The failed step: repeat every failed call with the same arguments. If it was a tw_allreduce_wait,
 * start again the tensors that failed, and only these, and wait again. Find them before this call:
 * wait for each tensor, or compare tw_step_info.step. Repeat them even if this call has completed
 * their step.
 *   - If all members have their results of the step, it is completed on all of them. The repeated
 *     call returns TW_OK at once, and out is as if the call had not failed.
 *   - Otherwise the step is undone on all members. The repeated call makes it anew among the ranks
 *     that are left, bit for bit as a fresh group with the same residuals, moments and step
 *     counters would ("auto" measures and chooses anew).
 * Only the residuals of lost ranks are lost. Until this call returns, grad and out of the failed
 * calls belong to the library: neither free nor change them. With "dense", out should not be grad:
 * a failed step may have overwritten it, and the gradient cannot be sent again.
 *
 * If tw_group_open failed because a rank was lost, this call opens the group.
 *
 * Errors after which this rank cannot go on. Its residuals are as before the step:
 *   TW_ERR_QUORUM    too few are left; the text names the missing ranks and the rule
 *   TW_ERR_EXCLUDED  the others go on without this rank, because it was silent for too long; or
 *                    this rank had not joined yet: free all, and join again
 * Errors after which the call may be repeated: TW_ERR_TIMEOUT and TW_ERR_TRANSPORT, if another rank
 * was lost meanwhile; TW_ERR_MEMORY; TW_ERR_DEVICE; TW_ERR_PROTOCOL.
 * Errors that change nothing: TW_ERR_NULL; TW_ERR_STATE if
 *   - the group is not open, not elastic or not broken;
 *   - tensors are in progress: call tw_allreduce_wait first, which returns the error;
 *   - this rank's device failed in a step that others had completed, or as it took over residuals;
 *   - the group ran out of memory, or its device failed, when it first opened on this rank. */
TW_API int tw_group_shrink(tw_group *group, tw_members *members);

/* Let ranks leave and join between steps. Collective: all ranks must make one of these calls at the
 * same point. Those that leave call tw_group_leave, all others tw_group_grow. If nobody leaves or
 * joins, this costs one round of short messages, and nothing changes.
 *
 * Joining: a process calls tw_transport_join, then tw_group_open. Up to 16 processes join in one
 * call of tw_group_grow, and no more than there are ranks: these can go on if all new ones fail. In
 * a call in which ranks leave nobody joins: those that wait join in the next one. Between two calls
 * a rank listens for them at an address of tw_tcp_params.meet. It is any rank that can; if it is
 * lost, another one takes its place. Give the new ranks the parameters of the model
 * (tw_group_broadcast), then call tw_group_verify on all ranks. If a rank is lost before the new
 * ones have opened their groups, tw_group_open fails on these, and the others go on without them.
 * But they count when the others agree on who goes on, so tw_group_open waits until that is done,
 * as tw_group_shrink does. Then the new ones free their group and their transport, and may join
 * again.
 *
 * Leaving: the rank hands its residuals and moments to its heir, which adds them to its own by the
 * rules of tw_group_load. Nothing is lost. After TW_OK it can only free its group and its
 * transport.
 *
 * Members are numbered anew, and "auto" chooses anew, as after tw_group_shrink.
 *   heir     a rank that stays; TW_ANY_RANK: the library chooses one.
 *   members  gets the ranks; may be NULL. If nobody has left or joined, nranks is nranks_before,
 *            and the arrays may be NULL.
 *
 * Errors that all ranks get and that change nothing: TW_ERR_PARAM if an heir is no rank or leaves
 * too, or if nobody stays; TW_ERR_NUMBER if a sum of residuals or moments overflows; TW_ERR_MEMORY.
 * TW_ERR_MISMATCH: the group of a new rank differs. The text names the rank and the field. The
 * group is whole and goes on without all ranks that joined in this call; those whose groups agree
 * may join again. The same holds after TW_ERR_MEMORY and TW_ERR_DEVICE, if the group could not open
 * with them.
 * Errors after which the group is broken: those of tw_allreduce; TW_ERR_MEMORY, if the group could
 * not open after a leave. Call tw_group_shrink, then go on with the next step. Do not repeat the
 * failed call at once: other ranks may have completed it. A rank whose tw_group_leave fails has not
 * left (but see the last paragraph). Others may have: `members` of tw_group_shrink tells.
 * TW_ERR_QUORUM and TW_ERR_EXCLUDED as in tw_group_shrink.
 * Errors of this rank alone: TW_ERR_NULL; TW_ERR_STATE if the group is not open or not elastic, or
 * a tensor is in progress.
 *
 * After a loss all ranks must go on with the same step. Ranks that failed in tw_group_grow or
 * tw_group_leave do not repeat the call. Ranks that failed before it skip it, once, in two cases:
 *   - tw_group_shrink has completed the step before the call (tw_members.completed is 1);
 *   - tw_group_open failed, and tw_group_shrink has opened the group.
 *
 * A rank may be lost at the last moment of a leave. Then tw_group_leave can return
 * TW_ERR_TRANSPORT, because the heir does not have the residuals, or because another rank with the
 * same heir has stayed, although this rank is not a member any more. A call of tw_group_shrink then
 * returns TW_ERR_EXCLUDED, or TW_ERR_QUORUM if the others have ended. */
#define TW_ANY_RANK (-1)
TW_API int tw_group_leave(tw_group *group, int heir);
TW_API int tw_group_grow(tw_group *group, tw_members *members);

/* Compare a hash of the parameters, or of whatever else must be equal on all ranks. Call it before
 * the first step with new ranks. Ranks whose hash differs from that of rank 0 are removed.
 * Collective.
 *   hash     [bytes] of the caller's own making; bytes is 1 .. 64.
 *   members  gets the ranks if some were removed; may be NULL.
 * Errors: TW_ERR_MISMATCH on all ranks if a hash differs; the text names the first such rank. A
 * rank that was removed can only free its group and its transport. For the others the group is
 * whole and goes on. TW_ERR_NULL; TW_ERR_PARAM; otherwise as tw_group_grow. */
TW_API int tw_group_verify(tw_group *group, const void *hash, size_t bytes, tw_members *members);

/* Send what is no gradient, for instance losses, or the parameters to new ranks. Collective,
 * between steps, in any open group. The bytes arrive as they were.
 *   tw_group_allgather  sends the record of each rank to all.
 *       records  [nranks][bytes]: fill records[rank]; the call fills the others.
 *   tw_group_broadcast  sends the memory of rank `root` to all ranks that want it.
 *       data     [bytes]; NULL on a rank that does not want it.
 * records and data are host memory. bytes must be the same on all ranks. In tw_group_allgather it
 * is 1 or more, and a difference breaks the group.
 * Errors that all ranks get and that change nothing: TW_ERR_MISMATCH if root or bytes of a
 * broadcast differ; TW_ERR_MEMORY.
 * Errors after which the group is broken: those of tw_allreduce. Other ranks may have completed the
 * call. So after tw_group_shrink tell each other who has what, before you send it again.
 * Errors of this rank alone: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_STATE if the group is not open or a
 * tensor is in progress. */
TW_API int tw_group_allgather(tw_group *group, void *records, size_t bytes);
TW_API int tw_group_broadcast(tw_group *group, int root, void *data, size_t bytes);

/* ---- 8. State of a group ------------------------------------------------------------------ */

/* Copy the residual of a tensor to residual[n] on the host. Zeros without feedback. Works on a
 * broken group too, with the exceptions that tw_allreduce names.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE if the group is not open or a step is in
 * progress; TW_ERR_DEVICE. */
TW_API int tw_group_get_residual(tw_group *group, int tensor, float *residual);

/* Write this rank's state to a file of its own: residuals, moments, thresholds and step counters.
 * Not collective, but all ranks must save after the same step, or the files cannot be loaded
 * together; nor can files of two groups, or of one before and after tw_group_load or a change of
 * its ranks. An existing file of that name is replaced only when the new one is complete and on
 * disk; a directory, pipe or device is an error. A process that is killed meanwhile may leave a
 * file PATH.part-..., which is not used again and may be deleted.
 * Works on a broken group too, with the exceptions that tw_allreduce names. There some ranks may be
 * one step ahead: compare tw_step_info.step.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if the group is not open or a tensor is in progress;
 * TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DEVICE. */
TW_API int tw_group_save(tw_group *group, const char *path);

/* Continue from saved states. Collective.
 *   paths [npaths] the files that this rank takes; npaths may be 0.
 * The group must be open, and have the tensors of the saved run. Each file of the saved run must be
 * taken by exactly one rank. With as many ranks as before, each with its own file, the run
 * continues bit for bit ("auto" chooses anew). With another number of ranks, a rank that takes
 * several files adds up their residuals and velocities and takes the mean of AdamW's moments; one
 * that takes none starts with zeros. Rates and densities that the caller has set are not saved: set
 * them again.
 * Errors that all ranks get. Nothing has changed on any of them:
 *   TW_ERR_FILE      also for a directory, pipe or device
 *   TW_ERR_DAMAGED, TW_ERR_MEMORY
 *   TW_ERR_MISMATCH  with the field that differs (tensors, n, moments ...), or with the saved rank
 *                    that nobody or that several ranks took; also for files of two runs or steps
 *   TW_ERR_NUMBER    a sum of residuals, velocities or moments that a rank takes overflows
 *   TW_ERR_NULL      a path is NULL
 *   TW_ERR_PARAM     npaths is negative
 * Errors after which the group is broken, as in tw_allreduce: TW_ERR_TIMEOUT; TW_ERR_TRANSPORT;
 * TW_ERR_PROTOCOL; TW_ERR_DEVICE, which also leaves the residuals undefined.
 * Errors of this rank alone: TW_ERR_NULL for the group; TW_ERR_STATE if the group is not open or a
 * tensor is in progress; the error that broke the group. */
TW_API int tw_group_load(tw_group *group, const char *const *paths, int npaths);

/* States that no rank has loaded. */
#define TW_MISSING 16
typedef struct tw_missing {
    int saved;             /* ranks that had saved their states together */
    int count;             /* of these, ranks whose states are missing */
    int ranks[TW_MISSING]; /* [count] their numbers, TW_MISSING at most */
    int64_t reserved[4];
} tw_missing;

/* As tw_group_load, but the states of ranks that were lost may be missing. Their residuals are
 * lost: the group begins with those that are there. Collective: all ranks must make this call, and
 * none tw_group_load.
 *   missing  gets the states that no rank has taken; may be NULL.
 * Errors: those of tw_group_load, except for a saved rank that nobody took. */
TW_API int tw_group_load_some(tw_group *group, const char *const *paths, int npaths,
                              tw_missing *missing);

/* Take residuals and moments from one saved state, in place of this rank's own. Step counters stay.
 * Not collective. For a rank that was lost, has joined its job again and had saved its state: call
 * this after tw_group_open. Do not call it after tw_group_leave: the heir has these residuals, and
 * they would count twice.
 * Errors that change nothing: TW_ERR_NULL; TW_ERR_STATE if the group is not open or a tensor is in
 * progress; the error that broke the group; TW_ERR_FILE; TW_ERR_DAMAGED; TW_ERR_MEMORY;
 * TW_ERR_MISMATCH with the field that differs.
 * TW_ERR_DEVICE leaves the residuals undefined. */
TW_API int tw_group_load_residuals(tw_group *group, const char *path);

/* ---- 9. The selector alone ---------------------------------------------------------------- */

/* What a group runs for each tensor, for programs with an exchange of their own:
 *
 *     tw_selector_create(&selector, n, &params);
 *     for (;;) {
 *         tw_sparse sparse;
 *         tw_selector_run(selector, grad, &sparse);      // send sparse.idx[] and sparse.val[]
 *         tw_selector_commit(selector, NULL, 0);         // all sent: they leave the residual
 *     }
 *     tw_selector_free(selector);
 *
 * A step is open from tw_selector_run to tw_selector_commit or tw_selector_undo. */
typedef struct tw_selector tw_selector;

/* Bytes that tw_selector_create would allocate.
 * Errors: those of tw_selector_create. */
TW_API int tw_selector_memory(int64_t n, const tw_select_params *params, tw_memory *memory);

/* Create a selector for vectors of n elements, with a residual of zeros. params is copied; its
 * strings need not outlive the call.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_DENSITY; TW_ERR_K, also if both k and density are given,
 * or neither; TW_ERR_NAME for a method that is unknown or not there on this device, or if
 * THINWIRE_KERNELS names kernels that this machine lacks; TW_ERR_PARAM; TW_ERR_MEMORY;
 * TW_ERR_DEVICE if the GPU cannot be used. On error *selector is NULL. */
TW_API int tw_selector_create(tw_selector **selector, int64_t n, const tw_select_params *params);

/* Free everything. NULL is fine. */
TW_API void tw_selector_free(tw_selector *selector);

/* Compute acc = grad + residual, select from it, and open the step. With momentum or AdamW, the
 * velocity or the update takes the place of grad.
 *   grad   [n] of the selector's type. Do not change it before commit or undo.
 *   sparse the selected entries of acc. The selector owns the arrays; they are valid until commit,
 *          undo or the next run.
 * Method "exact" returns exactly min(k, non-zeros) entries: the largest magnitudes, and of equal
 * ones the smaller index. "random" returns k, "redsync" k to 2k. The other methods return what
 * passes their threshold. They return the k largest instead if that count is outside k/4 .. 4k
 * ("reuse", "gaussian"), or above 4k/3 ("dgc"). "gaussian_published" returns whatever passes, 0 to
 * n. Without feedback the step need not be ended: the next run ends it too.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if a step with feedback is open; TW_ERR_NUMBER if grad holds
 * NaN or infinity, or the sum overflows; TW_ERR_DEVICE if grad is not memory of the GPU, or the
 * step cannot be queued. After TW_ERR_NUMBER residual and moments are as before, and bad_index
 * of tw_selector_info is the first index at fault. */
TW_API int tw_selector_run(tw_selector *selector, const void *grad, tw_sparse *sparse);

/* Wait for a step on a GPU. On a GPU tw_selector_run returns as soon as the step is queued on the
 * stream: idx and val are GPU memory, and count is -1. tw_selector_wait waits and sets count. It
 * has no deadline: it waits for the stream as cudaStreamSynchronize does. On the CPU it returns at
 * once.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if no step is open; TW_ERR_NUMBER as in tw_selector_run, after
 * which the step is no longer open; TW_ERR_DEVICE if the stream failed. */
TW_API int tw_selector_wait(tw_selector *selector, tw_sparse *sparse);

/* Set the rate of AdamW, or the density with TW_WARMUP_CALLER, from the next step on.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if a step with feedback is open; TW_ERR_PARAM and
 * TW_ERR_DENSITY as in tw_group_set_rate and tw_group_set_density. */
TW_API int tw_selector_set_rate(tw_selector *selector, double rate);
TW_API int tw_selector_set_density(tw_selector *selector, double density);

/* End the step. The sent entries leave the residual, and their velocity becomes 0. All others stay,
 * and so do m and v of AdamW.
 *   idx [count] the indices that were sent, ascending, a subset of the selection; on a GPU in its
 *       memory. idx NULL and count 0: the whole selection. To commit nothing, pass count 0 and an
 *       idx that is not NULL.
 * On a GPU the whole selection may be committed without tw_selector_wait. If the step is then
 * refused, nothing but the step counter has changed. With decay this call waits for the step.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if no step is open (never without feedback); TW_ERR_INDEX if
 * idx does not ascend or holds an index that was not selected; TW_ERR_DEVICE. After the last two
 * the step stays open. */
TW_API int tw_selector_commit(tw_selector *selector, const int32_t *idx, int64_t count);

/* Undo the step: residual and moments are bit for bit as before tw_selector_run.
 *   grad [n] the numbers that were given to tw_selector_run.
 * For a step that fails after selection, for instance because another rank found a NaN. The
 * selector also restores its threshold.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if no step is open. */
TW_API int tw_selector_undo(tw_selector *selector, const void *grad);

/* Copy the residual to residual[n] on the host. Zeros without feedback.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if a step is open; TW_ERR_DEVICE. */
TW_API int tw_selector_get_residual(tw_selector *selector, float *residual);

/* Replace the residual by residual[n], finite floats on the host. The next step learns its
 * threshold anew. Moments and step counter stay.
 * Errors: TW_ERR_NULL; TW_ERR_STATE if a step is open or feedback is off; TW_ERR_NUMBER;
 * TW_ERR_DEVICE. */
TW_API int tw_selector_set_residual(tw_selector *selector, const float *residual);

/* The last step. */
typedef struct tw_select_info {
    int64_t step;       /* steps committed so far; without feedback: steps run */
    int64_t k;          /* entries asked for; falls during warm-up */
    int64_t count;      /* entries selected */
    int64_t candidates; /* entries that the pass collected, from which the selection was made */
    int32_t rescans;    /* further reads of the vector, because a guess of the threshold missed */
    float threshold;    /* smallest selected magnitude; 0 if none */
    int64_t bad_index;  /* first index at fault, if the last step was refused; else -1 */
    int64_t refused;    /* steps refused so far; on a GPU also those already committed */
    double decayed;     /* the sum of what the residual lost to decay when the step was committed */
    int64_t reserved[1];
} tw_select_info;

/* On a GPU this waits for the step. candidates and rescans tell how much work the step took: they
 * may depend on threads and instruction set.
 * Errors: TW_ERR_NULL; TW_ERR_DEVICE. */
TW_API int tw_selector_info(const tw_selector *selector, tw_select_info *info);

/* ---- 10. Information ---------------------------------------------------------------------- */

/* The tables of the library. Ask for position 0, 1, 2 ... until the call returns TW_ERR_NAME, which
 * leaves tw_last_error() as it is. Each pointer may be NULL. The strings belong to the library and
 * stay valid. */

/* Schemes: name, selection method, exchange ("auto" for scheme "auto"), description. */
TW_API int tw_scheme(int position, const char **name, const char **select, const char **exchange,
                     const char **description);

/* Exchanges: name, description. */
TW_API int tw_exchange(int position, const char **name, const char **description);

/* Wire formats: name, description. */
TW_API int tw_wire(int position, const char **name, const char **description);

/* Transports: name, description. */
TW_API int tw_transport_kind(int position, const char **name, const char **description);

/* The theoretical cost of an exchange, from its paper where there is one: payload words that a rank
 * sends per step, at least and at most. It receives as many. A word is 4 bytes; an entry is two
 * words.
 *   oktopk  `most` is 6k, which this library never exceeds for k >= 8P. If the selected indices
 *           are spread evenly, it needs 6k(P-1)/P at most. For smaller k the library uses
 *           butterfly: ask for the cost of that.
 *   gtopk   `most` counts the path of an entry up the tree and down again. A rank sends at most
 *           half of it, and receives as much.
 * Errors: TW_ERR_NULL; TW_ERR_NAME; TW_ERR_PARAM. */
typedef struct tw_cost {
    double least;
    double most;
    double latencies; /* as the papers count them: messages that a rank sends one after the other */
    double reserved[3];
} tw_cost;
TW_API int tw_exchange_cost(const char *exchange, int64_t n, int64_t k, int nranks, tw_cost *cost);

/* Selection methods: name, description. */
TW_API int tw_select_method(int position, const char **name, const char **description);

/* The kernels in use: "avx512", "avx2", "neon", "plain" or "ref". These are the fastest that this
 * CPU runs, or those that the environment variable THINWIRE_KERNELS names. If it names kernels that
 * cannot be used here, this returns the fastest all the same, but creating a selector fails. */
TW_API const char *tw_kernels(void);

/* The kernels of this build: name, and 1 if this CPU runs them. A table like those above. */
TW_API int tw_kernels_at(int position, const char **name, int *usable);

/* The number of threads that a parameter of 0 means: what the environment variable THINWIRE_THREADS
 * says, else the number of cores that this process may use. An invalid THINWIRE_THREADS is ignored
 * here, but creating a selector or group with threads 0 then returns TW_ERR_PARAM. */
TW_API int tw_default_threads(void);

/* The bare pass sum[i] += add[i], with the kernels and threads of selection. Error feedback needs
 * this pass in any case. So it is the floor that selection is measured against.
 *   sum, add [n]; threads as in tw_select_params.
 * Starts threads for this call, unless a selector with as many threads exists.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_PARAM; TW_ERR_NAME as in tw_selector_create. */
TW_API int tw_accumulate(float *sum, const float *add, int64_t n, int threads);

/* The bare pass over the memory of AdamW before selection: e[i] += g[i], m[i] += g[i] and
 * v[i] += g[i]. It is the floor for selection with TW_BEFORE_ADAMW.
 * Errors: as tw_accumulate. */
TW_API int tw_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n,
                               int threads);

/* tw_accumulate on a GPU: sum and add are GPU memory, stream is a cudaStream_t. Returns when
 * queued.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_DEVICE. */
TW_API int tw_cuda_accumulate(float *sum, const float *add, int64_t n, void *stream);

/* tw_accumulate_adamw on a GPU: e, m, v and g are GPU memory, stream is a cudaStream_t. Returns
 * when queued.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_DEVICE. */
TW_API int tw_cuda_accumulate_adamw(float *e, float *m, float *v, const float *g, int64_t n,
                                    void *stream);

/* The name of a GPU that this build can use, from ordinal 0. Valid until this thread calls again.
 * Errors: TW_ERR_DEVICE if there is no such GPU, or its compute capability is lower than this build
 * was compiled for; tw_last_error() says which. */
TW_API int tw_cuda_device(int ordinal, const char **name);

#ifdef __cplusplus
}
#endif

#endif
