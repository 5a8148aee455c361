/* train.c - `thinwire train`: the options of a training run, and its last lines */
#include "train/train.h"

#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "options.h"

static const char help_summary[] =
    "Train a model with data-parallel workers whose gradients are summed by libthinwire. Workers "
    "are threads of this process; under mpirun every process is one. Gradients go to the exchange "
    "as their layers finish, in buckets, in the background. All replicas end bitwise equal, which "
    "is checked.";

static const char help_notes[] =
    "Data: the embedded fashion-mnist; a directory with IDX files, the binary batches of CIFAR-10 "
    "or train.txt and test.txt; or one text file. Models: cnn and mlp take 28x28 images, vgg16 and "
    "resnet20 CIFAR-10, lstm and bert text. --log writes JSON lines that `thinwire report` turns "
    "into a page; --trace a timeline for Chrome's tracing page or Perfetto.";

static const char help_examples[] =
    "  thinwire train --scheme oktopk --density 0.01 --log run.jsonl\n"
    "  thinwire train --model vgg16 --data cifar-10-batches-bin --ranks 8 --epochs 3\n"
    "  thinwire train --local-steps 30 --scheme topka --density 0.015625 --wire q2\n"
    "  thinwire train --checkpoint saved --every 100        then, after a crash, with --resume\n"
    "  mpirun -n 4 thinwire train --scheme gtopk\n"
    "  thinwire train --elastic --meet node1:7000 --secret-file key --ranks 4 --rank 0\n"
    "  thinwire train --elastic --meet node1:7000 --secret-file key --ranks 4 --join\n";

#define UNSET (-1.0) /* an option that takes no negative number, before it is given */

/* In the order of tw_warmup. */
static const char *density_schedule_name(int position) {
    static const char *const names[] = {"exponential", "linear", "cosine"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

/* Means of a round. */
static const char *result_name(int position) {
    static const char *const names[] = {"mean", "mean_of_senders"};
    return position < COUNT_OF(names) ? names[position] : NULL;
}

static int parse(train_settings *s, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICE("model", "NAME", &s->model, train_model_name, "(default cnn)."),
        OPTION_TEXT("size", "SIZE", &s->size, "of bert: tiny (default) or base"),
        OPTION_TEXT("data", "PATH", &s->data, "data set (default fashion-mnist, embedded)"),
        OPTION_CHOICE("scheme", "NAME", &s->scheme, names_scheme, "(default oktopk)."),
        OPTION_CHOICE("select", "NAME", &s->select, names_method,
                      "in place of the scheme's selection."),
        OPTION_CHOICE("exchange", "NAME", &s->exchange, names_exchange,
                      "in place of the scheme's exchange."),
        OPTION_CHOICE("wire", "NAME", &s->wire, names_wire,
                      "how entries are written (default raw; auto chooses)."),
        OPTION_REAL(
            "density", "D", &s->density, 1e-10, 1,
            "k/n (default 0.01). topka takes k entries from each worker, oktopk and gtopk apply "
            "k in all"),
        OPTION_FLAG(
            "per-rank", &s->per_rank,
            "density is what each worker may send, as in topka: oktopk then applies (P-1)/3 "
            "times as many entries with no more bytes"),
        OPTION_INTEGER("density-warmup", "N", &s->density_warmup, 0, 1e9,
                       "first steps, in which density falls from 0.25 to --density (default 0)"),
        OPTION_CHOICE("density-schedule", "NAME", &s->density_schedule, density_schedule_name,
                      "how density falls (default exponential)."),
        OPTION_INTEGER("ranks", "N", &s->ranks, 1, 1e9, "workers as threads (default 4)"),
        JOB_TCP_OPTIONS(&s->tcp),
        OPTION_FLAG(
            "elastic", &s->tcp.elastic,
            "with --meet: go on when ranks are lost, and let others join; on SIGTERM a rank "
            "hands its residual to another one and leaves (docs/membership.md)"),
        OPTION_FLAG("join", &s->tcp.join,
                    "with --elastic, instead of --rank: join the job that runs"),
        OPTION_INTEGER("batch", "N", &s->batch, 1, 1e9,
                       "samples per worker and step (default 32; text 16)"),
        OPTION_INTEGER("epochs", "N", &s->epochs, 1, 1e9, "over the training data (default 1)"),
        OPTION_INTEGER("steps", "N", &s->steps, 1, 1e9, "instead of --epochs"),
        OPTION_INTEGER("limit", "N", &s->limit, 1, 1e9, "training images or tokens (default all)"),
        OPTION_INTEGER("test-limit", "N", &s->test_limit, 1, 1e9,
                       "test images or tokens (default all)"),
        OPTION_INTEGER("length", "N", &s->length, 2, 1e9, "tokens in a sequence (default 32)"),
        OPTION_INTEGER("vocabulary", "N", &s->vocabulary, 8, 1e9, "words at most (default all)"),
        OPTION_INTEGER("width", "N", &s->width, 1, 1e9,
                       "of embeddings and hidden states (default the model's)"),
        OPTION_INTEGER("layers", "N", &s->layers, 1, 1e9, "of lstm or bert (default the model's)"),
        OPTION_CHOICE(
            "optimizer", "NAME", &s->optimizer, optimizer_name,
            "(default sgd; text adamw). adamw-before: each worker's AdamW comes before "
            "selection, and updates are exchanged instead of gradients (not with dense)."),
        OPTION_REAL("lr", "X", &s->rate, 0, 1e3,
                    "learning rate (default 0.05; lstm 0.002, bert 0.001)"),
        OPTION_REAL("momentum", "X", &s->momentum, 0, 0.9999, "of sgd (default 0.9)"),
        OPTION_FLAG("momentum-correction", &s->correct_momentum,
                    "momentum before selection, as in Deep Gradient Compression (not with dense)"),
        OPTION_REAL("weight-decay", "X", &s->weight_decay, 0, 10, "(default 0.0005)"),
        OPTION_CHOICE("schedule", "NAME", &s->schedule, schedule_name,
                      "of the learning rate (default constant)."),
        OPTION_INTEGER("warmup", "N", &s->warmup, 0, 1e9,
                       "steps in which the learning rate rises (default 0)"),
        OPTION_INTEGER("drop-every", "N", &s->drop_every, 1, 1e9,
                       "steps, with --schedule step (default a third of all)"),
        OPTION_REAL("drop-factor", "X", &s->drop_factor, 0, 1,
                    "with --schedule step (default 0.1)"),
        OPTION_INTEGER("local-steps", "H", &s->local_steps, 1, 1e9,
                       "each worker trains alone for H steps, then all exchange what changed "
                       "(docs/local_steps.md); default an exchange in each step"),
        OPTION_REAL("outer-lr", "X", &s->outer_rate, 0, 100,
                    "with --local-steps: rate of the outer step (default 1)"),
        OPTION_REAL("outer-momentum", "X", &s->outer_momentum, 0, 0.9999,
                    "with --local-steps: of Nesterov's kind (default 0)"),
        OPTION_REAL("decay", "B", &s->decay, 1e-6, 1,
                    "with --local-steps: residuals are multiplied by it in each round (default "
                    "0.95)"),
        OPTION_FLAG(
            "delayed", &s->delayed,
            "with --local-steps: a round's exchange runs while the next round computes, and "
            "is applied at its end"),
        OPTION_CHOICE(
            "result", "NAME", &s->result, result_name,
            "with --local-steps: mean over all workers, or over those that sent the entry "
            "(default the latter with exchange allgather, as topka's, unless --delayed)."),
        OPTION_FLAG("augment", &s->augment, "random crops and flips of training images"),
        OPTION_INTEGER("evaluate", "N", &s->evaluate_every, 1, 1e9,
                       "test every N steps (default an epoch)"),
        OPTION_INTEGER("snapshots", "N", &s->snapshot_every, 1, 1e9,
                       "histogram of acc every N steps"),
        OPTION_INTEGER("seed", "N", &s->seed, 0, 1e9, "of parameters and batches (default 1)"),
        OPTION_REAL("timeout", "SECONDS", &s->timeout, 0.001, 1e6,
                    "to wait for other workers (default 300)"),
        OPTION_CHOICE("checksum", "HOW", &s->checksum, names_checksum,
                      "of messages between processes, under mpirun (default on)."),
        OPTION_TEXT("checkpoint", "DIR", &s->checkpoints,
                    "write checkpoints to DIR and keep the newest two; DIR must not hold those of "
                    "another run"),
        OPTION_INTEGER("every", "N", &s->checkpoint_every, 1, 1e9,
                       "steps between checkpoints (default 100)"),
        OPTION_FLAG("resume", &s->resume,
                    "go on from the newest whole checkpoint, and with the same log"),
        OPTION_TEXT("log", "FILE", &s->log_path, "run log as JSON lines; - for stdout"),
        OPTION_TEXT("trace", "FILE", &s->trace_path, "timeline of all stages"),
        OPTION_TEXT("name", "NAME", &s->name, "of the run, in the log (default the scheme)"),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "train", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

static bool is_step(const train_settings *s) {
    return strcmp(schedule_name(s->schedule), "step") == 0;
}

static int check_elastic(const train_settings *s) {
    if (!s->tcp.elastic && s->tcp.join)
        return error_usage(
            "train: --join needs --elastic, which the job must have been started with");
    if (!s->tcp.elastic)
        return STATUS_OK;
    if (s->tcp.meet == NULL)
        return error_usage(
            "train: --elastic needs --meet HOST:PORT; threads, and processes of mpirun, "
            "cannot be lost or join one by one");
    if (s->checkpoints != NULL)
        return error_usage(
            "train: --checkpoint saves the states of fixed ranks, and with --elastic "
            "they change; leave one of them out");
    if (s->local_steps > 0)
        return error_usage("train: --local-steps needs fixed ranks: leave out --elastic");
    if (s->per_rank)
        return error_usage(
            "train: --per-rank sets k by the number of ranks, and with --elastic that "
            "changes; leave one of them out");
    return STATUS_OK;
}

/* Options that would do nothing. Those that were not given are negative, or 0: see UNSET. */
static int check_idle(const train_settings *s) {
    const struct {
        const char *name, *needs;
        bool given, used;
    } options[] = {
        {"outer-lr", "--local-steps H", s->outer_rate >= 0.0, s->local_steps > 0},
        {"outer-momentum", "--local-steps H", s->outer_momentum >= 0.0, s->local_steps > 0},
        {"decay", "--local-steps H", s->decay >= 0.0, s->local_steps > 0},
        {"delayed", "--local-steps H", s->delayed, s->local_steps > 0},
        {"density-schedule", "--density-warmup N", s->density_schedule >= 0, s->density_warmup > 0},
        {"every", "--checkpoint DIR", s->checkpoint_every > 0, s->checkpoints != NULL},
        {"drop-every", "--schedule step", s->drop_every > 0, is_step(s)},
        {"drop-factor", "--schedule step", s->drop_factor >= 0.0, is_step(s)},
        {"momentum", "--optimizer sgd, or --momentum-correction", s->momentum >= 0.0,
         s->correct_momentum || strcmp(train_optimizer(s), "sgd") == 0},
    };
    for (int i = 0; i < COUNT_OF(options); i++)
        if (options[i].given && !options[i].used)
            return error_usage("train: --%s needs %s", options[i].name, options[i].needs);
    if (s->result >= 0 && s->local_steps == 0)
        return error_usage("train: --result needs --local-steps H; a step takes the mean");
    return STATUS_OK;
}

static int check(const train_settings *s) {
    if (s->epochs > 0 && s->steps > 0)
        return error_usage("train: give --epochs or --steps, not both");
    if (s->correct_momentum && strcmp(names_scheme(s->scheme), "dense") == 0) {
        return error_usage("train: --momentum-correction needs a sparse scheme; dense has nothing "
                           "to correct");
    }
    bool before = s->optimizer >= 0 && optimizer_is_before(optimizer_name(s->optimizer));
    if (before && strcmp(names_scheme(s->scheme), "dense") == 0)
        return error_usage("train: --optimizer adamw-before needs a sparse scheme; take adamw");
    if (s->per_rank && strcmp(names_scheme(s->scheme), "auto") == 0)
        return error_usage("train: --per-rank needs a fixed scheme; auto chooses its exchange");
    if (before && s->snapshot_every > 0)
        return error_usage("train: --snapshots shows gradient + residual, which adamw-before does "
                           "not select from; leave it out");
    if (s->local_steps > 0 && (before || s->correct_momentum || s->snapshot_every > 0))
        return error_usage("train: --local-steps exchanges what changed, not gradients; leave out "
                           "adamw-before, --momentum-correction and --snapshots");
    if (s->local_steps > 0 && s->checkpoints != NULL)
        return error_usage("train: --checkpoint saves one optimiser for all workers, and with "
                           "--local-steps each has its own; leave it out");
    TW_TRY(check_idle(s));
    TW_TRY(check_elastic(s));
    if (s->resume && s->checkpoints == NULL)
        return error_usage("train: --resume needs --checkpoint DIR, to know from where");
    return STATUS_OK;
}

static void print_outcome(const train_settings *s, const train_outcome *o, FILE *stream) {
    const trainer_times *t = &o->times;
    fprintf(stream,
            "%s: %" PRId64 " parameters, %" PRId64 " steps in %.1f s, test accuracy %.2f %%, loss "
            "%.4f\n",
            names_scheme(s->scheme), o->parameters, o->end.steps, o->end.seconds,
            100.0 * o->end.accuracy, o->end.loss);
    fprintf(stream,
            "per step: %.1f kB sent; data %.2f, forward %.2f, backward %.2f, exchange not hidden "
            "%.2f, optimiser %.2f ms\n",
            o->bytes_per_step * 1e-3, 1e3 * t->data, 1e3 * t->forward, 1e3 * t->backward,
            1e3 * t->exposed, 1e3 * t->optimiser);
    for (int i = 0; i < o->end.nchoices; i++) {
        const trainer_choice *c = &o->end.choices[i];
        fprintf(stream,
                "auto: %" PRId64 " elements of %d tensors by %s, %s entries; predicted %.3f ms, "
                "measured %.3f ms; %s\n",
                c->n, c->tensors, c->choice.exchange, c->choice.wire, 1e3 * c->choice.predicted,
                1e3 * c->choice.measured, c->choice.words);
    }
    fprintf(stream, "replicas bitwise equal, hash %016" PRIx64 "; skipped steps: %" PRId64 "\n",
            o->end.hash, o->end.skipped);
}

static int run_job(const job_handle *job, void *context) {
    const train_settings *settings = context;
    train_outcome outcome;
    TW_TRY(train_execute(settings, job, &outcome));
    if (outcome.prints) {
        bool log_on_stdout = settings->log_path != NULL && settings->log_path[0] == '-';
        print_outcome(settings, &outcome, log_on_stdout ? stderr : stdout);
    }
    return STATUS_OK;
}

static void settle(double *option, double otherwise) {
    *option = *option < 0.0 ? otherwise : *option;
}

static void settle_unset(train_settings *s) {
    static const train_settings defaults = TRAIN_SETTINGS_INIT;
    settle(&s->momentum, defaults.momentum);
    settle(&s->drop_factor, defaults.drop_factor);
    settle(&s->outer_rate, defaults.outer_rate);
    settle(&s->outer_momentum, defaults.outer_momentum);
    settle(&s->decay, defaults.decay);
    s->density_schedule = s->density_schedule >= 0 ? s->density_schedule : 0;
    s->checkpoint_every = s->checkpoint_every > 0 ? s->checkpoint_every : 100;
}

int command_train(int argc, char **argv) {
    train_settings settings = TRAIN_SETTINGS_INIT;
    settings.scheme = names_find_scheme("oktopk");
    settings.momentum = settings.drop_factor = UNSET;
    settings.density_schedule = -1;
    settings.outer_rate = settings.outer_momentum = settings.decay = UNSET;
    job_silence_others(argc, argv);
    int status = parse(&settings, argc, argv);
    settings.tcp.timeout = settings.timeout;
    if (status == STATUS_OK)
        status = check(&settings);
    settle_unset(&settings);
    return job_execute(status, settings.ranks, 4, &settings.tcp, run_job, &settings);
}
