/* thinwire.h - sum gradients over thin wires: send the few values that matter, keep the rest
 *
 * Each training step every one of P workers, the ranks, holds a gradient g of n numbers. Thinwire
 * adds it to the residual e of what earlier steps left unsent, picks the k entries of acc = g + e
 * that matter, sums them over all ranks, and keeps everything else for later, so that nothing is
 * lost:
 *
 *     gradient[n] -> feedback -> select -> exchange -> commit -> mean gradient[n], or idx/val
 *                    acc = g+e   k of n    over a      e keeps
 *                                          transport   what did not arrive
 *
 * This header is the whole public interface, in reading order: version, errors, parameters;
 * transports, groups, allreduce and their state, which is all that most programs need; then the
 * selector alone, for those who bring their own exchange; information.
 *
 * One rank of a training loop, without error handling:
 *
 *     tw_group_params params = TW_GROUP_PARAMS_INIT;
 *     params.scheme = "oktopk";
 *     params.select.density = 0.01;
 *     tw_group *group;
 *     tw_group_create(&group, transport, &params);
 *     tw_group_add(group, n, NULL, NULL);                // tensor 0; others as they come
 *     tw_group_open(group);
 *     for (;;)
 *         tw_allreduce(group, 0, grad, grad);            // grad becomes the mean over all ranks
 *     tw_group_free(group);
 *
 * Rules that hold for every call
 *   - Glossary: n elements, k selected, density k/n, P ranks (nranks), g gradient, e residual,
 *     acc = g + e.
 *   - A call returns TW_OK (0) or a negative error; tw_last_error() says in words which field was
 *     wrong and what is accepted. After an error nothing has changed, unless the call says otherwise.
 *   - The library never prints, never exits and never aborts.
 *   - A handle may be used by one thread at a time; different handles are independent.
 *   - "Collective" calls must be made by all ranks, in the same order. They end with the same
 *     status on all of them, but for errors that a call lists as this rank's alone, within the
 *     deadline of the group.
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
    X(TW_ERR_MEMORY, -10, "out of memory")                                                         \
    X(TW_ERR_TRANSPORT, -11, "the transport failed, or this build does not have it")               \
    X(TW_ERR_TIMEOUT, -12, "ranks are missing: they did not answer before the deadline")           \
    X(TW_ERR_MISMATCH, -13, "ranks, or a saved state and its group, do not agree")                 \
    X(TW_ERR_PROTOCOL, -14, "a message from another rank is malformed")                            \
    X(TW_ERR_FILE, -15, "a file cannot be read or written")                                        \
    X(TW_ERR_DAMAGED, -16, "a saved state is damaged, or of another version")                      \
    X(TW_ERR_DEVICE, -17, "a device failed, is missing, or memory is not where it should be")

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

/* Where gradients lie and selection runs. */
typedef enum {
    TW_CPU = 0,
    TW_CUDA = 1, /* an NVIDIA GPU; see tw_cuda_device() */
} tw_device;

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

    /* With TW_CUDA gradients, results and outputs are memory of one GPU, aligned to their elements,
     * and work is ordered by a stream. Selections are bit for bit those of the CPU. */
    int device;   /* tw_device */
    int ordinal;  /* which GPU, as CUDA counts them */
    void *stream; /* cudaStream_t in which gradients become ready and results are used; NULL: the
                     default stream */

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

/* Bytes that a selector, or a group of them, takes. All of it is allocated when it is created or
 * opened; a step allocates nothing. */
typedef struct tw_memory {
    size_t residual;  /* float32[n], none without feedback */
    size_t velocity;  /* 2 x float32[n] with momentum */
    size_t undo;      /* address space to restore the residual of a refused step: about 5.2 n. A
                         step touches 0.2 to 0.5 n of it, more when gradients suddenly grow by 100
                         times or more; on a GPU a second residual, float32[n]; none without
                         feedback */
    size_t workspace; /* candidates and results: 32 k bytes, and as much address space per thread,
                         of which all threads together touch about half of one share; plus n/250 for
                         samples, with "dgc" n/25, with "random" n/8. On a GPU 64 k bytes and n/2 */
    size_t total;     /* the sum. With TW_CUDA it is the GPU's, but for what passes through the host
                         in a group's exchange, which is pinned memory there */
} tw_memory;

/* ---- 4. Transports ------------------------------------------------------------------------ */

/* One rank's end of a set of P ranks that can send bytes to each other. A transport moves bytes
 * and counts them; it knows nothing of gradients. It carries one group at a time and must outlive
 * it. Four kinds are built in; the header thinwire_mpi.h adds MPI, thinwire_nccl.h lets any of
 * them use NCCL between GPUs. */
typedef struct tw_transport tw_transport;

/* The only rank of a job of one.
 * Errors: TW_ERR_NULL; TW_ERR_MEMORY. */
TW_API int tw_transport_self(tw_transport **transport);

/* Ranks as threads of this process: transports[nranks] gets one end for each rank, to be used and
 * freed by the thread that plays it. nranks is 1 .. 65536.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_MEMORY. */
TW_API int tw_transport_threads(tw_transport **transports, int nranks);

/* Ranks as processes with connected stream sockets between them, TCP or Unix: sockets[nranks] has
 * one to each other rank; the one at [rank] is not looked at. How they find each other is the
 * caller's affair, and so is whom to trust. The transport closes them when it is freed.
 * Errors, with all sockets left to the caller: TW_ERR_NULL; TW_ERR_PARAM; TW_ERR_MEMORY. */
TW_API int tw_transport_sockets(tw_transport **transport, const int *sockets, int rank, int nranks);

/* A network to simulate, as a model of its links. Zero means default where one is named. */
typedef struct tw_network {
    double latency;         /* seconds that a message is under way between hosts */
    double bandwidth;       /* bytes per second of a host's link, each way */
    int host_ranks;         /* ranks on a host, which share its link evenly; 0: 1 */
    double local_latency;   /* within a host; 0: as between hosts */
    double local_bandwidth; /* likewise, of each rank */
    double jitter;          /* 0 .. 1: latency varies by this fraction, by chance */
    double slowdown;        /* > 0: the links of rank `straggler` are so many times slower */
    int straggler;
    uint64_t seed;        /* of the chance */
    double overhead;      /* seconds that a rank is busy with a message, sending as well as
                             receiving */
    double payload_scale; /* a byte of payload takes the time of so many, to stand for vectors that
                             are so many times as long; 0: 1 */
    double computing;     /* a second of CPU time of a rank's own takes so many, and as many times
                             payload_scale; 0: what ranks compute takes no time */
} tw_network;

/* As tw_transport_threads, over a network that is not there: every rank has a clock that moves by
 * what its messages would take, and by what it computes if network->computing says so. Without that
 * the same job takes the same time, however its threads are scheduled.
 * Errors: those of tw_transport_threads; TW_ERR_PARAM naming the field of the network. */
TW_API int tw_transport_simulated(tw_transport **transports, int nranks, const tw_network *network);
/* Seconds on a rank's clock; 0 where the network is not simulated. To be called by the thread that
 * plays the rank. */
TW_API double tw_transport_clock(const tw_transport *transport);
/* Let time pass on a rank's clock: instead of what it has computed since it last used the transport.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when the network is not simulated; TW_ERR_PARAM. */
TW_API int tw_transport_elapse(tw_transport *transport, double seconds);

/* How the library sends and receives: implement these to lend it a network of your own. All calls
 * of one transport come from one thread at a time. None of them may block, except idle.
 *
 * Messages from one rank to another under one tag arrive in the order in which they were sent, and
 * receives match them in the order in which they were started. Sends need not wait for a receive.
 * A message may be empty. A call returns 0, or a negative error; to say more, it may call
 * tw_transport_explain. */
typedef struct tw_transport_calls {
    const char *name; /* for messages to humans; copied */

    /* Start to send data[bytes] to a peer. The data stay as they are until the request is done.
     * tag is 0 .. 3. *request is for test and cancel, not NULL. */
    int (*send)(void *context, int peer, int tag, const void *data, size_t bytes, void **request);
    /* Start to receive a message of at most `capacity` bytes from a peer; a longer one is an
     * error. */
    int (*recv)(void *context, int peer, int tag, void *data, size_t capacity, void **request);
    /* 1: done, *bytes is the length of the message, the request is gone; 0: still under way;
     * negative: failed, the request is gone. */
    int (*test)(void *context, void *request, size_t *bytes);
    /* Give up a request that is not done: afterwards its data are not touched any more. */
    void (*cancel)(void *context, void *request);
    /* Wait until something may have happened, at most so long. NULL: the library yields. */
    void (*idle)(void *context, int64_t microseconds);
    /* The transport is being freed. NULL: nothing to do. */
    void (*close)(void *context);
    /* The lowest rank that runs on the same host as this one, for "twolevel". NULL: unknown, each
     * rank may be on a host of its own. */
    int (*host)(void *context, int rank);
} tw_transport_calls;

/* A transport made of the caller's functions; calls is copied, context is passed back.
 * examples/custom_transport.c is one over socket pairs.
 * Errors: TW_ERR_NULL; TW_ERR_PARAM when rank is outside 0 .. nranks-1; TW_ERR_MEMORY: close is
 * not called then. */
TW_API int tw_transport_custom(tw_transport **transport, const tw_transport_calls *calls,
                               void *context, int rank, int nranks);

/* For the functions of a custom transport: set the text that tw_last_error() will return, as
 * printf, and return TW_ERR_TRANSPORT. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
TW_API int
tw_transport_explain(const char *format, ...);

/* A message between the memories of GPUs. */
typedef struct tw_device_message {
    int peer;
    int sending; /* 1: data[bytes] goes there; 0: it comes from there */
    void *data;
    size_t bytes; /* both ends know how many */
} tw_device_message;

/* Queue messages[count] on a cudaStream_t as one: the peers queue theirs, so none of them may wait
 * for another to come first. Returns 0, or a negative error, explained by tw_transport_explain. */
typedef int tw_device_exchange(void *context, const tw_device_message *messages, int count,
                               void *stream);

/* Groups on a GPU: have entries go from GPU to GPU by a way of your own; what ranks tell each other
 * beside still goes by the transport. Without one, entries pass through the host's memory, or, with
 * ranks that are threads, are copied directly. All ranks must have one, or none. Butterfly (with
 * which oktopk serves k < 8P), twolevel, fulltopk and "auto" go through the host all the same.
 * NCCL's is in thinwire_nccl.h.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when the transport has a group. */
TW_API int tw_transport_set_device(tw_transport *transport, tw_device_exchange *exchange,
                                   void *context);

/* Close and free; its group must be freed before. NULL is fine. */
TW_API void tw_transport_free(tw_transport *transport);

/* What a rank sent and received since its transport was created, in bytes. Payload are the
 * gradient entries, control is all else: counts, histograms, agreement. */
typedef struct tw_traffic {
    int64_t payload_sent;
    int64_t payload_received;
    int64_t control_sent;
    int64_t control_received;
    int64_t messages_sent;
} tw_traffic;

/* Who this is, and what was moved. Each pointer but the first may be NULL.
 * Errors: TW_ERR_NULL. */
TW_API int tw_transport_info(const tw_transport *transport, const char **name, int *rank,
                             int *nranks, tw_traffic *traffic);

/* ---- 5. Groups ---------------------------------------------------------------------------- */

/* Tensors whose gradients are summed over the ranks of a transport. */
typedef struct tw_group tw_group;

typedef enum {
    TW_MEAN = 0, /* the sum over ranks divided by P */
    TW_SUM = 1,
} tw_result;

typedef enum {
    TW_GLOBAL_EXACT = 0, /* oktopk: exactly the k largest of the sums, every step; where extreme
                            crowding would break the bound, of what the ranks could send */
    TW_GLOBAL_REUSE = 1, /* oktopk: the sums above the threshold of earlier steps, as long as that
                            gives 2k/3 .. k of them; else exact. Fewer messages per step */
} tw_global;

/* Zero means default in every field; start from TW_GROUP_PARAMS_INIT. All but timeout and, in
 * select, threads, seed, ordinal and stream must be the same on all ranks. */
typedef struct tw_group_params {
    const char *scheme;      /* NULL: "oktopk". Names: see tw_scheme(); "auto": see tw_choice */
    const char *exchange;    /* NULL: the scheme's. Names: see tw_exchange(), and "auto" */
    const char *wire;        /* how entries are written: NULL: "raw", with "auto" "raw" or "bf16".
                                Names: see tw_wire(). What rounding takes away stays in the residual
                                of the rank that rounds; dense is always raw. Not with momentum on a
                                GPU */
    tw_select_params select; /* of tensors that bring none; method NULL: the scheme's */
    int result;              /* tw_result */
    int global;              /* tw_global */
    double timeout;          /* seconds that a call waits for other ranks; 0: 300 */
    int64_t bucket;          /* merge started tensors into messages up to this many elements;
                                0: 4 Mi, with "auto" what suits the network; 1: each tensor alone.
                                Does not change results of any one exchange, but which rank rounds
                                a sum where the wire format does */
    uint32_t reserved[8];    /* zero */
} tw_group_params;

#ifdef __cplusplus
#define TW_GROUP_PARAMS_INIT                                                                       \
    {}
#else
#define TW_GROUP_PARAMS_INIT                                                                       \
    { 0 }
#endif

/* Create a group without tensors. params is copied. Not collective.
 * Errors: TW_ERR_NULL; TW_ERR_NAME; TW_ERR_PARAM; TW_ERR_STATE when the transport has a group, or
 * failed under an earlier one; TW_ERR_MEMORY. On error *group is NULL. */
TW_API int tw_group_create(tw_group **group, tw_transport *transport,
                           const tw_group_params *params);

/* Add a tensor of n elements, before tw_group_open. Not collective.
 *   select  as in tw_selector_create; NULL: the group's. Scheme "dense" ignores all but type and
 *           threads.
 *   tensor  gets its number, 0, 1, 2 ...; may be NULL.
 * Add them in the order in which their gradients will be ready: they travel in this order.
 * Errors: TW_ERR_NULL; TW_ERR_STATE after tw_group_open; those of tw_selector_create. */
TW_API int tw_group_add(tw_group *group, int64_t n, const tw_select_params *select, int *tensor);

/* Bytes that tw_group_open will take, or took (with "auto", before opening, at most): residuals,
 * velocities and undo logs of all tensors; workspace is O(k + P) for oktopk, O(k log P + P) for
 * gtopk, butterfly and twolevel, O(kP) where the result itself is (allgather, dsa), 8 MiB at most
 * for dense, on a GPU 8 bytes an element; for fulltopk oktopk's and dense's.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no tensor was added; TW_ERR_MEMORY. */
TW_API int tw_group_memory(const tw_group *group, tw_memory *memory);

/* Compare the parameters of all ranks, allocate everything; with "auto" measure between the ranks,
 * in some ten milliseconds or twenty latencies. Collective.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when there is no tensor or the group is open; TW_ERR_MISMATCH
 * naming the rank and the field that differs; TW_ERR_MEMORY with the rank that ran out;
 * TW_ERR_DEVICE; TW_ERR_TIMEOUT; TW_ERR_TRANSPORT; TW_ERR_PROTOCOL. A failed group can only be
 * freed. */
TW_API int tw_group_open(tw_group *group);

/* Free the group; tensors under way are abandoned. NULL is fine. Not collective. */
TW_API void tw_group_free(tw_group *group);

/* ---- 6. Allreduce ------------------------------------------------------------------------- */

/* Sum one tensor's gradient over all ranks. Collective.
 *   grad [n] of the tensor's type; left alone by the library, and to be left alone by the caller
 *        until the call returns.
 *   out  [n] floats: the mean (or sum) of what was applied, zero elsewhere; may be grad itself when
 *        its type is f32, but not that of another tensor. NULL: see tw_group_result. "dense" and
 *        "auto" need it.
 * What was not applied is in the residuals of the ranks. All ranks get bitwise the same numbers.
 * The sum of an element is taken in the order of ranks, whatever the exchange, but for gtopk,
 * butterfly and twolevel: in the order of their trees.
 * Errors, the same on all ranks: TW_ERR_NUMBER when a rank's gradient holds NaN or infinity, or a
 * sum overflows; TW_ERR_NULL for a pointer that is NULL on any rank, TW_ERR_DEVICE for one that is
 * not the memory of the tensor's GPU, or a stream that failed: all residuals are then bit
 * for bit as before and the group goes on; out is as before too, but when a sum overflows: then it
 * holds nothing of use, unless it is grad and the scheme is not "dense", which sums in place.
 * TW_ERR_MISMATCH when ranks exchange different tensors or steps, TW_ERR_TIMEOUT naming the missing
 * ranks, TW_ERR_PROTOCOL, TW_ERR_TRANSPORT, and TW_ERR_DEVICE once entries travel: this rank's
 * residual is as before if the step was not complete here; the group is broken and can only be
 * asked for its state and freed. A call on a broken group gives the error that broke it. On this
 * rank alone: TW_ERR_NULL for the group, TW_ERR_INDEX for a wrong tensor number, TW_ERR_STATE when
 * the group is not open or tensors are under way. */
TW_API int tw_allreduce(tw_group *group, int tensor, const void *grad, float *out);

/* The same in the background: start returns at once, wait ends it. Any number of tensors may be
 * under way; they are merged into buckets in the order in which they were added, whatever the order
 * of starting, and a bucket travels when all of its tensors were started or one of them is waited
 * for. grad and out belong to the library from start to wait.
 *   tensor  for tw_allreduce_wait also TW_ALL: all that were started.
 * Errors of start: TW_ERR_NULL for the group; TW_ERR_INDEX; TW_ERR_STATE when the group is not open
 * or the tensor is under way; TW_ERR_MEMORY when no thread can be started; the error that broke the
 * group. Of wait: those of tw_allreduce; TW_ERR_STATE when the tensor was not started. If a tensor
 * fails, all that travel with it fail. */
#define TW_ALL (-1)
TW_API int tw_allreduce_start(tw_group *group, int tensor, const void *grad, float *out);
TW_API int tw_allreduce_wait(tw_group *group, int tensor);

/* A sparse vector: count entries, idx ascending, no index twice. */
typedef struct tw_sparse {
    int64_t count;
    const int32_t *idx; /* [count] */
    const float *val;   /* [count] */
} tw_sparse;

/* The tensor's last result, sparse; zeros are left out. The arrays belong to the group and stay
 * valid until the tensor's next step begins.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE when there was no step yet, the last one failed or
 * was dense, or one is under way. */
TW_API int tw_group_result(tw_group *group, int tensor, tw_sparse *result);

/* About a tensor's last step. Bytes and times are those of the bucket in which it travelled. */
typedef struct tw_step_info {
    int64_t step;         /* steps that succeeded so far */
    int64_t k;            /* entries asked for */
    int64_t selected;     /* entries that this rank selected */
    int64_t applied;      /* entries of the result */
    const char *exchange; /* that was used: oktopk and fulltopk leave k < 8P to butterfly */
    const char *wire;     /* likewise */
    int tensors;          /* in the bucket */
    tw_traffic traffic;   /* of this rank */
    double began;         /* seconds on CLOCK_MONOTONIC, or on a simulated network's clock; the
                             stages follow each other from here */
    double select_seconds;
    double agree_seconds; /* until all ranks were there: waiting for the slowest */
    double exchange_seconds;
    double apply_seconds;
} tw_step_info;

/* Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE when a step is under way. */
TW_API int tw_group_info(tw_group *group, int tensor, tw_step_info *info);

/* What a group with exchange "auto" does. It measures latency and bandwidth when it is opened,
 * predicts the time of a step for each pair of exchange and wire format, tries those that have a
 * chance for a few steps each, and keeps the fastest; every 64 steps it looks whether that still
 * holds. All ranks always choose alike. Every step is a whole allreduce, whichever way it goes:
 * residuals belong to the tensors, and a dense step sends them along with the gradient, so nothing
 * is lost from one way to another. But which entries are applied depends on the exchange, and so on
 * times: runs repeat bit by bit in simulation only.
 *
 * Candidates are all exchanges but twolevel and fulltopk, each with wire "raw" and "bf16"; a group
 * whose params name an exchange besides scheme "auto", or a wire, keeps to it. The selection is the
 * group's, "exact" unless it says otherwise. Left out are exchanges that would take more than 40
 * bytes of workspace per element (and 64 MiB), and dense for groups with a tensor on a GPU, with
 * momentum or without feedback. */
#define TW_CANDIDATES 24
typedef struct tw_candidate {
    const char *exchange;
    const char *wire;
    double predicted; /* seconds of a step: exchange and application of the slowest rank; not the
                         selection and the agreement before, which all have in common */
    double measured;  /* the shortest of the last steps that went this way; 0: not tried */
    int64_t steps;    /* that went this way */
} tw_candidate;

typedef struct tw_choice {
    const char *select;
    const char *exchange; /* of the next step */
    const char *wire;
    double predicted, measured; /* as in its tw_candidate */
    int settled;                /* 1: it was tried, and is the fastest of those that were */
    int dense_is_faster;        /* 1: than any that sends less, by what was measured or else
                                   predicted */
    double latency;             /* seconds that a message is under way */
    double overhead;            /* seconds that each further message takes of a rank */
    double bandwidth;           /* bytes per second that a rank gets when all send at once; 0 for a
                                   rank that is alone */
    int64_t bucket;             /* elements, see tw_group_params */
    int ncandidates;
    tw_candidate candidates[TW_CANDIDATES]; /* in the order of predicted */
    char words[200];                        /* dense against the others, for humans */
} tw_choice;

/* What was chosen for the steps in which the tensor travels: its bucket, or itself alone. Not
 * collective.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE when a step is under way, the group is not open,
 * or its exchange is fixed. */
TW_API int tw_group_choice(tw_group *group, int tensor, tw_choice *choice);

/* Copy the tensor's residual out, [n] floats; zeros without feedback.
 * Errors: TW_ERR_NULL; TW_ERR_INDEX; TW_ERR_STATE when the group is not open or the step is under
 * way; TW_ERR_DEVICE. */
TW_API int tw_group_get_residual(tw_group *group, int tensor, float *residual);

/* Write this rank's state (residuals, velocities, thresholds, step counters) to a file, whole or
 * not at all: a file of that name stays until the new one is complete. Not collective.
 * Errors: TW_ERR_NULL; TW_ERR_STATE; TW_ERR_FILE; TW_ERR_MEMORY; TW_ERR_DEVICE. */
TW_API int tw_group_save(tw_group *group, const char *path);

/* Go on from saved states. Collective. The group may have another number of ranks than the one
 * that was saved: then every rank names the files that it takes over, each file being taken by
 * exactly one rank, and what it takes is added up. With as many ranks as before, each naming its
 * own file, the run continues bit for bit; "auto" chooses anew.
 *   paths [npaths]; npaths may be 0 for ranks that take none.
 * Errors, the same on all ranks, with nothing changed on any: TW_ERR_FILE; TW_ERR_DAMAGED;
 * TW_ERR_MISMATCH naming the field (tensors, n, momentum ...), or the saved rank that nobody or
 * more than one took; TW_ERR_NUMBER when what a rank takes overflows as it is added up; TW_ERR_NULL
 * for a path; TW_ERR_PARAM when npaths is negative; TW_ERR_MEMORY. With TW_ERR_TIMEOUT,
 * TW_ERR_TRANSPORT and TW_ERR_PROTOCOL the group is broken, as by tw_allreduce; with TW_ERR_DEVICE
 * its residuals are of no use either. On this rank alone: TW_ERR_NULL for the group; TW_ERR_STATE;
 * the error that broke the group. */
TW_API int tw_group_load(tw_group *group, const char *const *paths, int npaths);

/* ---- 7. The selector alone ---------------------------------------------------------------- */

/* What a group runs for each tensor, for programs that bring their own exchange:
 *
 *     tw_selector_create(&selector, n, &params);
 *     for (;;) {
 *         tw_sparse sparse;
 *         tw_selector_run(selector, grad, &sparse);      // sparse.idx[], sparse.val[]: send these
 *         tw_selector_commit(selector, NULL, 0);         // all sent: they leave the residual
 *     }
 *     tw_selector_free(selector);
 */
typedef struct tw_selector tw_selector;

/* What tw_selector_create would take with these parameters.
 * Errors: as tw_selector_create. */
TW_API int tw_selector_memory(int64_t n, const tw_select_params *params, tw_memory *memory);

/* Create a selector for vectors of n elements, residual zero. params is copied.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_K and TW_ERR_DENSITY (also when both or none are
 * given); TW_ERR_NAME for an unknown method, or for a THINWIRE_KERNELS that this machine lacks;
 * TW_ERR_PARAM; TW_ERR_MEMORY; TW_ERR_DEVICE when the GPU cannot be used. On error *selector is
 * NULL. */
TW_API int tw_selector_create(tw_selector **selector, int64_t n, const tw_select_params *params);

/* Free everything. NULL is fine. */
TW_API void tw_selector_free(tw_selector *selector);

/* Fold grad into the residual and select: acc = grad + residual, sparse = the selected entries.
 *   grad   [n] of the selector's type; not changed, and to be left alone until commit or undo.
 *   sparse the selection, acc at idx; the arrays belong to the selector and stay valid until its
 *          next call. "exact" gives exactly min(k, non-zeros) entries, the largest
 *          magnitudes, of equal magnitudes the smaller index. "random" gives k. The threshold
 *          methods give what passes their threshold, or the best k if that is more than 4k.
 * The step is now open: end it with tw_selector_commit or tw_selector_undo. Without feedback there
 * is nothing to lose: the next run ends it too.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step with feedback is open; TW_ERR_NUMBER when grad
 * holds NaN or infinity or the sum overflows: tw_last_error() names the first such index,
 * tw_selector_info has it as bad_index, and the residual is bit for bit as before; TW_ERR_DEVICE
 * when grad is not memory of the GPU, or the step cannot be queued. */
TW_API int tw_selector_run(tw_selector *selector, const void *grad, tw_sparse *sparse);

/* With TW_CUDA, tw_selector_run returns as soon as the step is queued on the stream: idx and val are
 * the GPU's memory, and count is -1. This waits for the step and fills in the count. On the CPU
 * nothing is left to wait for.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no step is open; TW_ERR_NUMBER as tw_selector_run: the
 * step is then closed; TW_ERR_DEVICE when the stream failed. */
TW_API int tw_selector_wait(tw_selector *selector, tw_sparse *sparse);

/* End the step: the sent entries leave the residual (and the velocity), all else stays in it.
 *   idx [count] ascending indices that were sent, a subset of the selection, with TW_CUDA in the
 *       GPU's memory; NULL with count 0: the whole selection. To commit nothing, pass a non-NULL
 *       idx and 0.
 * With TW_CUDA a whole selection may be committed without waiting for it: if the step turns out to
 * be refused, nothing has changed but the step counter.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no step is open (never without feedback); TW_ERR_INDEX
 * when idx holds an index that was not selected, or is not ascending, and TW_ERR_DEVICE: the step
 * stays open. */
TW_API int tw_selector_commit(tw_selector *selector, const int32_t *idx, int64_t count);

/* Take the step back: residual and velocity are bit for bit as before tw_selector_run.
 *   grad [n] the same numbers that were given to tw_selector_run.
 * For steps that fail after selection, for instance because another rank found a NaN. Whatever the
 * step learned goes too: the next one gives what it would have given without this one.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when no step is open. */
TW_API int tw_selector_undo(tw_selector *selector, const void *grad);

/* Copy the residual out, [n] floats in the host's memory. Zeros without feedback.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step is open; TW_ERR_DEVICE. */
TW_API int tw_selector_get_residual(tw_selector *selector, float *residual);

/* Replace the residual by [n] finite floats in the host's memory. The threshold is learned anew in
 * the next step; velocity and step counter stay.
 * Errors: TW_ERR_NULL; TW_ERR_STATE when a step is open or feedback is off; TW_ERR_NUMBER;
 * TW_ERR_DEVICE. */
TW_API int tw_selector_set_residual(tw_selector *selector, const float *residual);

/* About the last step that ran. */
typedef struct tw_select_info {
    int64_t step;       /* steps committed so far (without feedback: steps run) */
    int64_t k;          /* entries asked for in the last step (falls during warm-up) */
    int64_t count;      /* entries selected */
    int64_t candidates; /* entries collected by the pass, among which was selected */
    int32_t rescans;    /* further reads of the vector because a guess missed */
    float threshold;    /* smallest magnitude selected, 0 if none */
    int64_t bad_index;  /* first NaN or infinity when the last step was refused, else -1 */
    int64_t refused;    /* steps refused so far; on a GPU also those that were committed unseen */
} tw_select_info;

/* With TW_CUDA this waits for the step. Errors: TW_ERR_NULL; TW_ERR_DEVICE. */
TW_API int tw_selector_info(const tw_selector *selector, tw_select_info *info);

/* ---- 8. Information ----------------------------------------------------------------------- */

/* The schemes by position from 0: name, the selection method and the exchange that it pairs ("auto"
 * for the scheme of that name), one line of description. Returns TW_ERR_NAME past the last one.
 * Each pointer may be NULL. */
TW_API int tw_scheme(int position, const char **name, const char **select, const char **exchange,
                     const char **description);

/* The exchanges by position from 0: name and one line of description. Returns TW_ERR_NAME past the
 * last one. Either pointer may be NULL. */
TW_API int tw_exchange(int position, const char **name, const char **description);

/* The wire formats by position from 0: name and one line of description. Returns TW_ERR_NAME past
 * the last one. Either pointer may be NULL. */
TW_API int tw_wire(int position, const char **name, const char **description);

/* What the papers say that an exchange costs: payload words (of 4 bytes) that a rank sends, and
 * receives, per step at least and at most. An entry is two words, index and value. For oktopk
 * `most` is 6k, which this library never exceeds; on supports that are spread evenly 6k(P-1)/P.
 * Errors: TW_ERR_NULL; TW_ERR_NAME; TW_ERR_PARAM. */
typedef struct tw_cost {
    double least;
    double most;
} tw_cost;
TW_API int tw_exchange_cost(const char *exchange, int64_t n, int64_t k, int nranks, tw_cost *cost);

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

/* The same on a GPU: sum and add are its memory, stream is a cudaStream_t. Returns when queued.
 * Errors: TW_ERR_NULL; TW_ERR_SIZE; TW_ERR_DEVICE. */
TW_API int tw_cuda_accumulate(float *sum, const float *add, int64_t n, void *stream);

/* The GPUs that this build can use, from ordinal 0. The name is valid until the thread's next call.
 * Errors: TW_ERR_DEVICE when there is no such GPU, or none at all: tw_last_error() says why. */
TW_API int tw_cuda_device(int ordinal, const char **name);

#ifdef __cplusplus
}
#endif

#endif
