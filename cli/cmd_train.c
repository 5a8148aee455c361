/* cmd_train.c - `thinwire train`: the options of a training run, and its last lines */
#include "command.h"
#include "errors.h"

#ifdef TW_HAVE_TRAINER

#include <inttypes.h>
#include <string.h>

#include "names.h"
#include "options.h"
#include "train_settings.h"

static const char help_summary[] =
    "Train a model with data-parallel workers whose gradients are summed by libthinwire. Workers "
    "are threads of this process; under mpirun every process is one. Gradients go to the exchange "
    "as their layers finish, in buckets, in the background. All replicas end bitwise equal, which "
    "is checked.";

static const char help_notes[] =
    "Data: the embedded fashion-mnist; a directory with IDX files, the binary batches of CIFAR-10 "
    "or train.txt and test.txt; or one text file. Models: cnn takes 28x28 images, vgg16 and "
    "resnet20 CIFAR-10, lstm and bert text. --log writes JSON lines that `thinwire report` turns "
    "into a page; --trace a timeline for Chrome's tracing page or Perfetto.";

static const char help_examples[] =
    "  thinwire train --scheme oktopk --density 0.01 --log run.jsonl\n"
    "  thinwire train --model vgg16 --data cifar-10-batches-bin --ranks 8 --epochs 3\n"
    "  thinwire train --checkpoint saved --every 100        then, after a crash, with --resume\n"
    "  mpirun -n 4 thinwire train --scheme gtopk\n";

static const char *optimizer_at(int position) {
    return optimizer_name(position);
}

static const char *schedule_at(int position) {
    return schedule_name(position);
}

/* Rows of one line each. */
#define COUNT(field, words, least) TAKES_INTEGER("N", &s->field, least, 1e9), .help = (words)
#define NUMBER(field, words, most) TAKES_REAL("X", &s->field, 0, most), .help = (words)
#define TEXT(field, what, words) TAKES_TEXT(what, &s->field), .help = (words)
#define CHOICE(field, at, words) TAKES_CHOICE("NAME", &s->field, at), .help = (words)
#define FLAG(field, words) TAKES_NOTHING(&s->field), .help = (words)

static int parse(train_settings *s, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "model", CHOICE(model, train_model_at, "(default cnn).")},
        {.name = "size", TEXT(size, "SIZE", "of bert: tiny (default) or base")},
        {.name = "data", TEXT(data, "PATH", "data set (default fashion-mnist, embedded)")},
        {.name = "scheme", CHOICE(scheme, scheme_at, "(default oktopk).")},
        {.name = "select", CHOICE(select, method_at, "in place of the scheme's selection.")},
        {.name = "exchange", CHOICE(exchange, exchange_at, "in place of the scheme's exchange.")},
        {.name = "wire",
         CHOICE(wire, wire_at, "how entries are written (default raw; auto chooses).")},
        {.name = "density", TAKES_REAL("D", &s->density, 1e-10, 1), .help = "k/n (default 0.01)"},
        {.name = "density-warmup",
         COUNT(density_warmup, "steps in which density falls from 0.25 to it (default 0)", 0)},
        {.name = "ranks", COUNT(ranks, "workers as threads (default 4)", 1)},
        {.name = "batch", COUNT(batch, "samples per worker and step (default 32; text 16)", 1)},
        {.name = "epochs", COUNT(epochs, "over the training data (default 1)", 1)},
        {.name = "steps", COUNT(steps, "instead of --epochs", 1)},
        {.name = "limit", COUNT(limit, "training images or tokens (default all)", 1)},
        {.name = "test-limit", COUNT(test_limit, "test images or tokens (default all)", 1)},
        {.name = "length", COUNT(length, "tokens in a sequence (default 32)", 2)},
        {.name = "vocabulary", COUNT(vocabulary, "words at most (default all)", 8)},
        {.name = "width", COUNT(width, "of embeddings and hidden states (default the model's)", 1)},
        {.name = "layers", COUNT(layers, "of lstm or bert (default the model's)", 1)},
        {.name = "optimizer", CHOICE(optimizer, optimizer_at, "(default sgd; text adamw).")},
        {.name = "lr", NUMBER(rate, "learning rate (default 0.05; lstm 0.002, bert 0.001)", 1e3)},
        {.name = "momentum", NUMBER(momentum, "of sgd (default 0.9)", 0.9999)},
        {.name = "momentum-correction",
         FLAG(correct_momentum,
              "momentum before selection, as in Deep Gradient Compression (not with dense)")},
        {.name = "weight-decay", NUMBER(weight_decay, "(default 0.0005)", 10)},
        {.name = "schedule",
         CHOICE(schedule, schedule_at, "of the learning rate (default constant).")},
        {.name = "warmup", COUNT(warmup, "steps in which the learning rate rises (default 0)", 0)},
        {.name = "drop-every",
         COUNT(drop_every, "steps, with --schedule step (default a third of all)", 1)},
        {.name = "drop-factor", NUMBER(drop_factor, "with --schedule step (default 0.1)", 1)},
        {.name = "augment", FLAG(augment, "random crops and flips of training images")},
        {.name = "evaluate", COUNT(evaluate_every, "test every N steps (default an epoch)", 1)},
        {.name = "snapshots", COUNT(snapshot_every, "histogram of acc every N steps", 1)},
        {.name = "seed", COUNT(seed, "of parameters and batches (default 1)", 0)},
        {.name = "timeout",
         TAKES_REAL("SECONDS", &s->timeout, 0.001, 1e6),
         .help = "to wait for other workers (default 300)"},
        {.name = "checkpoint",
         TEXT(checkpoints, "DIR",
              "save there, the two newest are kept; no other run's may lie there")},
        {.name = "every", COUNT(checkpoint_every, "steps between checkpoints (default 100)", 1)},
        {.name = "resume",
         FLAG(resume, "go on from the newest whole checkpoint, and with the same log")},
        {.name = "log", TEXT(log_path, "FILE", "run log as JSON lines; - for stdout")},
        {.name = "trace", TEXT(trace_path, "FILE", "timeline of all stages")},
        {.name = "name", TEXT(name, "NAME", "of the run, in the log (default the scheme)")},
    };
    const option_set set = {
        .command = "train",
        .summary = help_summary,
        .notes = help_notes,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

static int check(const train_settings *s) {
    if (s->epochs > 0 && s->steps > 0)
        return usage_error("train: give --epochs or --steps, not both");
    if (s->correct_momentum && strcmp(scheme_at(s->scheme), "dense") == 0) {
        return usage_error("train: --momentum-correction needs a sparse scheme; dense has nothing "
                           "to correct");
    }
    if (s->resume && s->checkpoints == NULL)
        return usage_error("train: --resume needs --checkpoint DIR, to know from where");
    return STATUS_OK;
}

static void print_outcome(const train_settings *s, const train_outcome *o, FILE *stream) {
    const trainer_times *t = &o->times;
    fprintf(stream,
            "%s: %" PRId64 " parameters, %" PRId64 " steps in %.1f s, test accuracy %.2f %%, loss "
            "%.4f\n",
            scheme_at(s->scheme), o->parameters, o->end.steps, o->end.seconds,
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

int cmd_train(int argc, char **argv) {
    train_settings settings = TRAIN_SETTINGS_INIT;
    train_outcome outcome;
    rank_job job;
    settings.scheme = scheme_named("oktopk");
    settings.checkpoint_every = 100;
    ranks_hush();
    int status = parse(&settings, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return ranks_status_alone(status);
    status = check(&settings);
    if (status == STATUS_OK)
        status = ranks_begin(&job, settings.ranks, 4);
    if (status != STATUS_OK)
        return ranks_status_alone(status);
    status = train_execute(&settings, &job, &outcome);
    if (status == STATUS_OK && ranks_speaks(&job)) {
        bool log_on_stdout = settings.log_path != NULL && settings.log_path[0] == '-';
        print_outcome(&settings, &outcome, log_on_stdout ? stderr : stdout);
    }
    ranks_end(&job);
    return status;
}

#else

int cmd_train(int argc, char **argv) {
    (void)argc, (void)argv;
    return failure("this build has no trainer: it lacks a CBLAS or zlib; 'make deps' installs "
                   "both, then build again");
}

#endif
