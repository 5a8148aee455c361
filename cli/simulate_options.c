/* simulate_options.c - the options of `thinwire simulate`, and how they go together */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "names.h"
#include "patterns.h"
#include "simulate.h"

#define DEFAULT_N 25000000
#define DEFAULT_DENSITY 0.001
#define DEFAULT_STEPS 3

/* As typed, before it is settled what goes into simulate_settings. */
typedef struct typed {
    int network; /* position, -1: not given */
    const char *latency, *bandwidth, *overhead;
    const char *local_latency, *local_bandwidth;
    const char *straggler;
    int64_t host_ranks;
    double jitter, computing;
} typed;

static const char help_summary[] =
    "Say what a step of allreduce would take on a network that is not here: the real exchange code "
    "runs with a thread for each rank, over messages whose times are computed. All ranks begin a "
    "step together. What ranks compute takes no time, but for --overhead and --computing.";

static const char help_notes[] =
    "Networks: 1gbe 0.436 ms and 0.889 Gbit/s, as the gTop-k authors fitted theirs; 10gbe 50 us, "
    "9.4 Gbit/s; 25gbe 25 us, 23.5 Gbit/s; 100g 2 us, 94 Gbit/s; wan 20 ms, 94 Mbit/s; aries 1.5 "
    "us, 80 Gbit/s, our estimate of that of the Ok-Topk authors. time is a mean over the steps but "
    "the first; "
    "formula is the papers' cost table, which counts a latency for every message of a rank, while "
    "here messages are under way together. payload and control are the bytes of the busiest rank. "
    "Where the vectors of all ranks have more than 40 M elements, or k times ranks squared is "
    "more, "
    "it is simulated at 1/s of the size: 1/s of the vector, at the same density, each byte of "
    "payload taking the time of s; column size, JSON key scale. Payload and latencies then take "
    "the time that they would, "
    "but dense, which travels in pieces of 1 MB, has fewer of them. Exchanges that need k >= 8P "
    "keep that k, at a higher density. 1,024 ranks take 10 to 90 seconds for each scheme on two "
    "cores, and 3 GB. JSON: one object per row; payload_sent_max is that of the whole n, formula_s "
    "the upper bound where the papers give two, exchange_s the part of time_s between agreement "
    "and the application of the result.";

static const char help_examples[] =
    "  thinwire simulate\n"
    "  thinwire simulate --network 10gbe --n 133547324 --density 0.01 --ranks 32,256\n"
    "  thinwire simulate --latency 50us --bandwidth 1Gbit --scheme oktopk,gtopk --plot times.svg\n"
    "  thinwire simulate --network 25gbe --ranks 64 --wire bf16 --computing 1\n"
    "  thinwire simulate --network 25gbe --host-ranks 8 --local-latency 1us --local-bandwidth "
    "400Gbit\n"
    "  thinwire simulate --ranks 64 --n 100K --density 0.01 --straggler 3:4 --jitter 0.2 --json -\n"
    "  thinwire simulate --paper gtopk\n";

static int parse(simulate_settings *settings, typed *given, int argc, char **argv) {
    const cli_option options[] = {
        {.name = "network",
         TAKES_CHOICE("NAME", &given->network, network_at),
         .help = "links to simulate, see below (default 1gbe)."},
        {.name = "latency",
         TAKES_TEXT("TIME", &given->latency),
         .help = "that a message is under way, as 50us; with --bandwidth, instead of --network"},
        {.name = "bandwidth",
         TAKES_TEXT("RATE", &given->bandwidth),
         .help = "of a host's link, each way, in bits per second, as 1Gbit"},
        {.name = "overhead",
         TAKES_TEXT("TIME", &given->overhead),
         .help = "that a rank is busy with each message, sending and receiving (default 0)"},
        {.name = "computing",
         TAKES_REAL("X", &given->computing, 0, 1e6),
         .help =
             "what ranks compute takes X times the CPU time that it takes here: 1 for hosts with "
             "cores like these; times then differ from run to run (default 0)"},
        {.name = "ranks",
         TAKES_REALS("LIST", &settings->ranks, 1, SIMULATE_RANKS_MAX),
         .help = "numbers of ranks (default 4,8,16,32,64)"},
        {.name = "host-ranks",
         TAKES_INTEGER("N", &given->host_ranks, 1, SIMULATE_RANKS_MAX),
         .help = "ranks on a host, which share its link (default 1)"},
        {.name = "local-latency",
         TAKES_TEXT("TIME", &given->local_latency),
         .help = "within a host (default as between hosts)"},
        {.name = "local-bandwidth",
         TAKES_TEXT("RATE", &given->local_bandwidth),
         .help = "within a host, of each rank (default as between hosts)"},
        {.name = "jitter",
         TAKES_REAL("X", &given->jitter, 0, 1),
         .help = "latencies vary by this fraction, by chance (default 0)"},
        {.name = "straggler",
         TAKES_TEXT("RANK:FACTOR", &given->straggler),
         .help = "a rank whose links are so many times slower"},
        {.name = "n",
         TAKES_INTEGER("N", &settings->n, 1, INT32_MAX),
         .help = "elements (default 25M)"},
        {.name = "density",
         TAKES_REAL("D", &settings->density, 1e-10, 1),
         .help = "k/n (default 0.001)"},
        {.name = "k",
         TAKES_INTEGER("K", &settings->k, 1, INT32_MAX),
         .help = "entries per rank and step, instead of --density"},
        {.name = "scheme",
         TAKES_CHOICES("LIST", &settings->schemes, scheme_at),
         .help = "schemes separated by commas, or all (default all); dense always comes along."},
        {.name = "wire",
         TAKES_CHOICE("NAME", &settings->wire, wire_at),
         .help = "how entries are written (default raw; auto chooses)."},
        {.name = "pattern",
         TAKES_CHOICE("KIND", &settings->pattern, pattern_name),
         .help = "where the ranks' large values are (default random)."},
        {.name = "steps",
         TAKES_INTEGER("N", &settings->steps, 2, 1000),
         .help = "of which the first is not counted (default 3)"},
        OPTION_ROW_SEED(&settings->seed, "of gradients and jitter (default 1)"),
        {.name = "paper",
         TAKES_CHOICE("NAME", &settings->paper, paper_at),
         .help = "a published experiment, its figures beside simulated ones."},
        {.name = "grid",
         TAKES_NOTHING(&settings->grid),
         .help =
             "auto against the fastest fixed scheme, over sizes, densities, ranks and networks, "
             "or over those that are given"},
        OPTION_ROW_JSON(&settings->json_path),
        {.name = "plot",
         TAKES_TEXT("FILE", &settings->plot_path),
         .help = "draw time over ranks as SVG, with gnuplot"},
    };
    const option_set set = {
        .command = "simulate",
        .summary = help_summary,
        .notes = help_notes,
        .examples = help_examples,
        .options = options,
        .noptions = sizeof options / sizeof options[0],
    };
    return options_parse(&set, argc, argv);
}

/* ---- The network ---------------------------------------------------------------------------- */

static int read_time(const char *option, const char *text, double *seconds) {
    if (text == NULL || network_read_seconds(text, seconds))
        return STATUS_OK;
    return usage_error("simulate: --%s '%s' is not accepted; give " NETWORK_SECONDS, option, text);
}

static int read_rate(const char *option, const char *text, double *rate) {
    if (text == NULL || network_read_bandwidth(text, rate))
        return STATUS_OK;
    return usage_error("simulate: --%s '%s' is not accepted; give " NETWORK_BANDWIDTH, option,
                       text);
}

static int read_straggler(const char *text, tw_network *network) {
    int rank = 0, length = 0;
    double factor = 0.0;
    if (text == NULL)
        return STATUS_OK;
    if (sscanf(text, "%4d:%lf%n", &rank, &factor, &length) != 2 || text[length] != '\0' ||
        rank < 0 || !(factor >= 1.0 && factor <= 1e6)) {
        return usage_error("simulate: --straggler '%s' is not accepted; give RANK:FACTOR, a factor "
                           "from 1 to 1000000, as 3:4",
                           text);
    }
    network->straggler = rank;
    network->slowdown = factor;
    return STATUS_OK;
}

static int read_links(simulate_settings *settings, const typed *given) {
    tw_network *network = &settings->network;
    if (given->network >= 0 && (given->latency != NULL || given->bandwidth != NULL))
        return usage_error("simulate: give --network, or --latency and --bandwidth, not both");
    if ((given->latency != NULL) != (given->bandwidth != NULL))
        return usage_error("simulate: --latency and --bandwidth go together; give both");
    if (given->host_ranks == 1 &&
        (given->local_latency != NULL || given->local_bandwidth != NULL)) {
        return usage_error("simulate: --local-latency and --local-bandwidth are for --host-ranks 2 "
                           "and more");
    }
    const named_network *named = network_row(given->network >= 0 ? given->network : 0);
    settings->network_name = given->latency != NULL ? "custom" : named->name;
    *network = (tw_network){.latency = named->latency,
                            .bandwidth = named->bandwidth,
                            .host_ranks = (int)given->host_ranks,
                            .jitter = given->jitter,
                            .computing = given->computing};
    return STATUS_OK;
}

static int settle_network(simulate_settings *settings, const typed *given) {
    tw_network *network = &settings->network;
    int status = read_links(settings, given);
    if (status == STATUS_OK)
        status = read_time("latency", given->latency, &network->latency);
    if (status == STATUS_OK)
        status = read_rate("bandwidth", given->bandwidth, &network->bandwidth);
    if (status == STATUS_OK)
        status = read_time("overhead", given->overhead, &network->overhead);
    if (status == STATUS_OK)
        status = read_time("local-latency", given->local_latency, &network->local_latency);
    if (status == STATUS_OK)
        status = read_rate("local-bandwidth", given->local_bandwidth, &network->local_bandwidth);
    return status == STATUS_OK ? read_straggler(given->straggler, network) : status;
}

/* ---- The rest ------------------------------------------------------------------------------- */

static int settle_ranks(simulate_settings *settings) {
    if (settings->ranks.count == 0 && !settings->grid)
        settings->ranks = (real_list){5, {4, 8, 16, 32, 64}};
    for (int i = 0; i < settings->ranks.count; i++) {
        double nranks = settings->ranks.at[i];
        if (nranks != floor(nranks)) {
            return usage_error("simulate: --ranks %g is not accepted; give whole numbers from 1 to "
                               "%d separated by commas",
                               nranks, SIMULATE_RANKS_MAX);
        }
        if (settings->network.slowdown > 0.0 && settings->network.straggler >= nranks) {
            return usage_error("simulate: --straggler %d is not accepted with %g ranks; give a "
                               "rank from 0 to %g",
                               settings->network.straggler, nranks, nranks - 1);
        }
    }
    return STATUS_OK;
}

int64_t simulate_k(int64_t n, double density) {
    double k = density * (double)n;
    return k >= 1.0 ? llround(k) : 1;
}

static int settle_k(simulate_settings *settings) {
    if (settings->k > 0 && settings->density > 0.0)
        return usage_error("simulate: give --k or --density, not both");
    if (settings->grid)
        return STATUS_OK; /* each cell has its own */
    settings->n = settings->n > 0 ? settings->n : DEFAULT_N;
    if (settings->k > settings->n) {
        return usage_error("simulate: --k %" PRId64 " is more than --n %" PRId64 "; give at most n",
                           settings->k, settings->n);
    }
    if (settings->k == 0) {
        double density = settings->density > 0.0 ? settings->density : DEFAULT_DENSITY;
        settings->k = simulate_k(settings->n, density);
    }
    return STATUS_OK;
}

/* Dense first, whether asked for or not; none twice. */
static void settle_schemes(simulate_settings *settings) {
    choice_list asked = settings->schemes;
    if (asked.count == 0)
        options_take_all(scheme_at, &asked);
    choice_list *all = &settings->schemes;
    *all = (choice_list){1, {scheme_named("dense")}};
    for (int i = 0; i < asked.count && all->count < OPTION_LIST_MAX; i++) {
        bool known = false;
        for (int j = 0; j < all->count; j++)
            known = known || all->at[j] == asked.at[i];
        if (!known)
            all->at[all->count++] = asked.at[i];
    }
}

static bool goes_with_paper(const char *argument) {
    static const char *const names[] = {"--paper", "--json", "--steps", "--seed"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(argument, names[i], strlen(names[i])) == 0)
            return true;
    return strncmp(argument, "--", 2) != 0; /* a value */
}

/* A published experiment brings its own of everything else. */
static int check_paper(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!goes_with_paper(argv[i])) {
            return usage_error("simulate: '%s' does not go with --paper, which brings its own "
                               "network, sizes and schemes; only --steps, --seed and --json do",
                               argv[i]);
        }
    }
    return STATUS_OK;
}

/* The grid has its own schemes, and densities rather than k. */
static int check_grid(const simulate_settings *s) {
    if (s->grid && (s->schemes.count > 0 || s->wire >= 0 || s->k > 0 || s->plot_path != NULL)) {
        return usage_error(
            "simulate: --scheme, --wire, --k and --plot do not go with --grid, which "
            "compares auto with all of them");
    }
    return STATUS_OK;
}

int simulate_options(simulate_settings *settings, int argc, char **argv) {
    *settings = (simulate_settings){.paper = -1, .wire = -1, .steps = DEFAULT_STEPS, .seed = 1};
    typed given = {.network = -1, .host_ranks = 1};
    int status = parse(settings, &given, argc, argv);
    if (status != OPTIONS_CONTINUE)
        return status;
    status = settings->paper >= 0 ? check_paper(argc, argv) : STATUS_OK;
    if (status == STATUS_OK)
        status = check_grid(settings);
    if (status == STATUS_OK)
        status = settle_network(settings, &given);
    if (settings->grid && given.network < 0 && given.latency == NULL)
        settings->network_name = NULL; /* all of them */
    if (status == STATUS_OK)
        status = settle_ranks(settings);
    if (status == STATUS_OK)
        status = settle_k(settings);
    settle_schemes(settings);
    return status == STATUS_OK ? OPTIONS_CONTINUE : status;
}
