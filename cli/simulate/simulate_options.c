/* simulate_options.c - the options of `thinwire simulate`, and how they go together
 *
 * Networks: 1gbe is the line that the gTop-k authors fitted to their measurements, software
 * included. The others are rates of which headers have taken 6 %, and latencies as seen between two
 * MPI processes: of TCP over Ethernet, of RDMA, and of a provider's network between two cities.
 */
#include "simulate/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/patterns.h"
#include "cli.h"

#define DEFAULT_N 25000000
#define DEFAULT_DENSITY 0.001
#define DEFAULT_STEPS 3
#define DEFAULT_ROUND_DENSITY (1.0 / 64)

static const struct {
    const char *name;
    double latency;   /* seconds */
    double bandwidth; /* bytes per second */
} networks[] = {
    {"1gbe", 436e-6, 1.0 / 9e-9},
    {"10gbe", 50e-6, 1.175e9},
    {"25gbe", 25e-6, 2.9375e9},
    {"100g", 2e-6, 11.75e9},
    {"wan", 20e-3, 11.75e6},
    {"aries", 1.5e-6, 10e9}, /* our estimate of the Cray Aries of the Ok-Topk authors */
};

static const char *network_name(int position) {
    return position >= 0 && position < COUNT_OF(networks) ? networks[position].name : NULL;
}

void simulate_take_network(simulate_settings *settings, const char *name) {
    int position = 0;
    while (strcmp(networks[position].name, name) != 0)
        position++;
    settings->network_name = networks[position].name;
    settings->network.latency = networks[position].latency;
    settings->network.bandwidth = networks[position].bandwidth;
}

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit times[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {0}};
static const unit rates[] = {
    {"bit", 1}, {"Kbit", 1e3}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}, {0}};

/* A number with a unit: the range that is accepted, in words too, and the factor to tw_network's. 0
 * needs no unit. */
typedef struct quantity {
    const unit *units;
    double low, high, factor;
    const char *accepted, *examples;
} quantity;

static const quantity seconds = {
    times, 0, 100, 1, "a time from 0 to 100 s, as 50us, 0.4ms or 2e-5s", "50us or 0.4ms"};
static const quantity bits = {
    rates,
    1e3,
    1e15,
    0.125,
    "a rate from 1Kbit to 1000Tbit per second, as 1Gbit, 100Mbit or 2.5e10bit",
    "100Mbit or 1Gbit"};

/* A plain number followed by one of the units, nothing else around. text NULL: the option is not
 * given. */
static int read_quantity(const quantity *of, const char *option, const char *text, double *value) {
    if (text == NULL)
        return STATUS_OK;
    char *end = NULL;
    double number = strtod(text, &end);
    bool plain = text[0] != '\0' && strchr("0123456789.", text[0]) != NULL; /* no sign, nan, inf */
    for (int i = 0; plain && of->units[i].name != NULL; i++) {
        double scaled = number * of->units[i].factor;
        bool named = strcmp(end, of->units[i].name) == 0 || (number == 0.0 && *end == '\0');
        if (named && scaled >= of->low && scaled <= of->high) {
            *value = scaled * of->factor;
            return STATUS_OK;
        }
    }
    if (plain && number > 0.0 && *end == '\0')
        return error_usage("simulate: --%s '%s': give a unit, as %s", option, text, of->examples);
    return error_usage("simulate: --%s '%s' is not accepted; give %s", option, text, of->accepted);
}

/* As typed, before it is settled what goes into simulate_settings. */
typedef struct typed {
    int network; /* position, -1: not given */
    const char *latency, *bandwidth, *overhead;
    const char *local_latency, *local_bandwidth;
    const char *straggler;
    int64_t host_ranks;
} typed;

static const char help_summary[] =
    "Say what a step of allreduce would take on a network that is not here: the real exchange code "
    "runs with a thread for each rank, over messages whose times are computed. All ranks begin a "
    "step together. What ranks compute takes no time, but for --overhead and --computing.";

static const char help_notes[] =
    "Networks: 1gbe 0.436 ms and 0.889 Gbit/s, as the gTop-k authors fitted theirs; 10gbe 50 us, "
    "9.4 Gbit/s; 25gbe 25 us, 23.5 Gbit/s; 100g 2 us, 94 Gbit/s; wan 20 ms, 94 Mbit/s; aries 1.5 "
    "us, 80 Gbit/s, our estimate of that of the Ok-Topk authors. time is a mean over the steps but "
    "the first; formula is the papers' cost table, which counts a latency for every message of a "
    "rank, while here messages are under way together. payload and control are the bytes of the "
    "busiest rank. If the vectors of all ranks together have more than 40 M elements, or k times "
    "ranks squared is more than 40 M, a vector of n/s elements is simulated, at the same density, "
    "and a byte of payload takes as long as s bytes (column size, JSON key scale). Times of "
    "payload and latencies stay as they are. Only dense vectors and long lists, which travel in "
    "pieces, travel in fewer. Exchanges that need k >= 8P keep that k, at a higher density. 1,024 "
    "ranks take 10 to 90 seconds for each scheme on two cores, and 3 GB. JSON: one object per row; "
    "payload_sent_max is that of the whole n, formula_s the upper bound where the papers give two, "
    "exchange_s the part of time_s between agreement and the application of the result.";

static const char help_examples[] =
    "  thinwire simulate\n"
    "  thinwire simulate --network 10gbe --n 133547324 --density 0.01 --ranks 32,256\n"
    "  thinwire simulate --latency 50us --bandwidth 1Gbit --scheme oktopk,gtopk --plot times.svg\n"
    "  thinwire simulate --network 25gbe --ranks 64 --wire bf16 --computing 1\n"
    "  thinwire simulate --network 25gbe --host-ranks 8 --local-latency 1us --local-bandwidth "
    "400Gbit\n"
    "  thinwire simulate --ranks 64 --n 100K --density 0.01 --straggler 3:4 --jitter 0.2 --json -\n"
    "  thinwire simulate --local-steps 30 --latency 20ms --bandwidth 100Mbit --n 1000M "
    "--tokens-per-second 5000\n"
    "  thinwire simulate --paper gtopk\n";

static int parse(simulate_settings *settings, typed *given, int argc, char **argv) {
    const cli_option options[] = {
        OPTION_CHOICE("network", "NAME", &given->network, network_name,
                      "links to simulate, see below (default 1gbe)."),
        OPTION_TEXT("latency", "TIME", &given->latency,
                    "that a message is under way, as 50us; with --bandwidth, instead of --network"),
        OPTION_TEXT("bandwidth", "RATE", &given->bandwidth,
                    "of a host's link, each way, in bits per second, as 1Gbit"),
        OPTION_TEXT("overhead", "TIME", &given->overhead,
                    "that a rank is busy with each message, sending and receiving (default 0)"),
        OPTION_REAL("computing", "X", &settings->network.computing, 0, 1e6,
                    "what ranks compute takes X times the CPU time that it takes here: 1 for hosts "
                    "with cores like these; times then differ from run to run (default 0)"),
        OPTION_REALS("ranks", "LIST", &settings->ranks, 1, SIMULATE_RANKS_MAX,
                     "numbers of ranks (default 4,8,16,32,64)"),
        OPTION_INTEGER("host-ranks", "N", &given->host_ranks, 1, SIMULATE_RANKS_MAX,
                       "ranks on a host, which share its link (default 1)"),
        OPTION_TEXT("local-latency", "TIME", &given->local_latency,
                    "within a host (default as between hosts)"),
        OPTION_TEXT("local-bandwidth", "RATE", &given->local_bandwidth,
                    "within a host, of each rank (default as between hosts)"),
        OPTION_REAL("jitter", "X", &settings->network.jitter, 0, 1,
                    "latencies vary by this fraction, by chance (default 0)"),
        OPTION_TEXT("straggler", "RANK:FACTOR", &given->straggler,
                    "a rank whose links are so many times slower"),
        OPTION_INTEGER("n", "N", &settings->n, 1, INT32_MAX, "elements (default 25M)"),
        OPTION_REAL("density", "D", &settings->density, 1e-10, 1, "k/n (default 0.001)"),
        OPTION_INTEGER("k", "K", &settings->k, 1, INT32_MAX,
                       "entries per rank and step, instead of --density"),
        OPTION_CHOICES(
            "scheme", "LIST", &settings->schemes, names_scheme,
            "schemes separated by commas, or all (default all); dense always comes along."),
        OPTION_CHOICE("wire", "NAME", &settings->wire, names_wire,
                      "how entries are written (default raw; auto chooses)."),
        OPTION_CHOICE("pattern", "KIND", &settings->pattern, pattern_name,
                      "where the ranks' large values are (default random)."),
        OPTION_INTEGER("steps", "N", &settings->steps, 2, 1000,
                       "of which the first is not counted (default 3)"),
        OPTION_SEED(&settings->seed, "of gradients and jitter (default 1)"),
        OPTION_INTEGER("local-steps", "H", &settings->local_steps, 1, 1000000,
                       "hours of training and the share of computing, with an exchange in each "
                       "step and in rounds of H, dense and sparse (default density then 1/64, "
                       "ranks 8)"),
        OPTION_REAL("tokens-per-second", "X", &settings->token_rate, 1e-3, 1e12,
                    "that a worker computes (default 10000)"),
        OPTION_INTEGER("batch-tokens", "N", &settings->batch_tokens, 1, 1e12,
                       "tokens of a worker's inner step (default 16384)"),
        OPTION_REAL("tokens", "N", &settings->tokens, 1, 1e18,
                    "of the whole run, by all workers (default 1e9)"),
        OPTION_CHOICE("paper", "NAME", &settings->paper, simulate_paper_name,
                      "a published experiment, its figures beside simulated ones."),
        OPTION_FLAG("grid", &settings->grid,
                    "auto against the fastest fixed scheme, over sizes, densities, ranks and "
                    "networks, or over those that are given"),
        OPTION_JSON(&settings->json_path),
        OPTION_TEXT("plot", "FILE", &settings->plot_path,
                    "draw time over ranks as SVG, with gnuplot"),
    };
    return OPTIONS_PARSE(options, argc, argv, .command = "simulate", .summary = help_summary,
                         .notes = help_notes, .examples = help_examples);
}

static int read_straggler(const char *text, tw_network *network) {
    int rank = 0, length = 0;
    double factor = 0.0;
    if (text == NULL)
        return STATUS_OK;
    if (sscanf(text, "%4d:%lf%n", &rank, &factor, &length) != 2 || text[length] != '\0' ||
        rank < 0 || !(factor >= 1.0 && factor <= 1e6)) {
        return error_usage("simulate: --straggler '%s' is not accepted; give RANK:FACTOR, a factor "
                           "from 1 to 1000000, as 3:4",
                           text);
    }
    network->straggler = rank;
    network->slowdown = factor;
    return STATUS_OK;
}

static int settle_network(simulate_settings *settings, const typed *given) {
    tw_network *network = &settings->network;
    if (given->network >= 0 && (given->latency != NULL || given->bandwidth != NULL))
        return error_usage("simulate: give --network, or --latency and --bandwidth, not both");
    if ((given->latency != NULL) != (given->bandwidth != NULL))
        return error_usage("simulate: --latency and --bandwidth go together; give both");
    if (given->host_ranks == 1 &&
        (given->local_latency != NULL || given->local_bandwidth != NULL)) {
        return error_usage("simulate: --local-latency and --local-bandwidth are for --host-ranks 2 "
                           "and more");
    }
    simulate_take_network(settings, network_name(given->network >= 0 ? given->network : 0));
    if (given->latency != NULL)
        settings->network_name = "custom";
    network->host_ranks = (int)given->host_ranks;
    TW_TRY(read_quantity(&seconds, "latency", given->latency, &network->latency));
    TW_TRY(read_quantity(&bits, "bandwidth", given->bandwidth, &network->bandwidth));
    TW_TRY(read_quantity(&seconds, "overhead", given->overhead, &network->overhead));
    TW_TRY(read_quantity(&seconds, "local-latency", given->local_latency, &network->local_latency));
    TW_TRY(
        read_quantity(&bits, "local-bandwidth", given->local_bandwidth, &network->local_bandwidth));
    return read_straggler(given->straggler, network);
}

static int settle_ranks(simulate_settings *settings) {
    if (settings->ranks.count == 0 && settings->local_steps > 0)
        settings->ranks = (real_list){1, {8}};
    if (settings->ranks.count == 0 && !settings->grid)
        settings->ranks = (real_list){5, {4, 8, 16, 32, 64}};
    for (int i = 0; i < settings->ranks.count; i++) {
        double nranks = settings->ranks.at[i];
        if (nranks != floor(nranks)) {
            return error_usage("simulate: --ranks %g is not accepted; give whole numbers from 1 to "
                               "%d separated by commas",
                               nranks, SIMULATE_RANKS_MAX);
        }
        if (settings->network.slowdown > 0.0 && settings->network.straggler >= nranks) {
            return error_usage("simulate: --straggler %d is not accepted with %g ranks; give a "
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
    bool has_density = settings->density > 0.0;
    if (!settings->grid) /* its cells have their own */
        settings->n = settings->n > 0 ? settings->n : DEFAULT_N;
    TW_TRY(options_check_k("simulate", settings->k, settings->grid ? INT32_MAX : settings->n,
                           has_density));
    if (settings->k == 0 && !settings->grid)
        settings->k = simulate_k(settings->n, has_density                 ? settings->density
                                              : settings->local_steps > 0 ? DEFAULT_ROUND_DENSITY
                                                                          : DEFAULT_DENSITY);
    return STATUS_OK;
}

/* Dense first, whether asked for or not; none twice. */
static void settle_schemes(simulate_settings *settings) {
    choice_list asked = settings->schemes;
    if (asked.count == 0)
        options_take_all(names_scheme, &asked);
    choice_list *all = &settings->schemes;
    *all = (choice_list){1, {names_find_scheme("dense")}};
    for (int i = 0; i < asked.count && all->count < OPTION_LIST_MAX; i++) {
        bool known = false;
        for (int j = 0; j < all->count; j++)
            known = known || all->at[j] == asked.at[i];
        if (!known)
            all->at[all->count++] = asked.at[i];
    }
}

/* A published experiment brings its own of everything else. */
static int check_paper(int argc, char **argv) {
    static const char *const names[] = {"--paper", "--json", "--steps", "--seed"};
    for (int i = 1; i < argc; i++) {
        bool fits = strncmp(argv[i], "--", 2) != 0; /* a value */
        for (int j = 0; j < COUNT_OF(names); j++)
            fits = fits || strncmp(argv[i], names[j], strlen(names[j])) == 0;
        if (!fits) {
            return error_usage("simulate: '%s' does not go with --paper, which brings its own "
                               "network, sizes and schemes; only --steps, --seed and --json do",
                               argv[i]);
        }
    }
    return STATUS_OK;
}

/* What describes training needs rounds; these bring their own schemes and wire formats. */
static int settle_rounds(simulate_settings *settings) {
    bool described =
        settings->token_rate > 0.0 || settings->batch_tokens > 0 || settings->tokens > 0.0;
    if (settings->local_steps == 0 && described)
        return error_usage("simulate: --tokens-per-second, --batch-tokens and --tokens need "
                           "--local-steps");
    if (settings->local_steps > 0 && (settings->grid || settings->schemes.count > 0 ||
                                      settings->wire >= 0 || settings->plot_path != NULL))
        return error_usage("simulate: --grid, --scheme, --wire and --plot do not go with "
                           "--local-steps, which compares dense, topka and oktopk");
    settings->token_rate = settings->token_rate > 0.0 ? settings->token_rate : 1e4;
    settings->batch_tokens = settings->batch_tokens > 0 ? settings->batch_tokens : 16384;
    settings->tokens = settings->tokens > 0.0 ? settings->tokens : 1e9;
    return STATUS_OK;
}

int simulate_options(simulate_settings *settings, int argc, char **argv) {
    *settings = (simulate_settings){.paper = -1, .wire = -1, .steps = DEFAULT_STEPS, .seed = 1};
    typed given = {.network = -1, .host_ranks = 1};
    TW_TRY(parse(settings, &given, argc, argv));
    if (settings->paper >= 0)
        TW_TRY(check_paper(argc, argv));
    if (settings->grid && (settings->schemes.count > 0 || settings->wire >= 0 || settings->k > 0 ||
                           settings->plot_path != NULL)) {
        return error_usage("simulate: --scheme, --wire, --k and --plot do not go with --grid, "
                           "which compares auto with all of them");
    }
    TW_TRY(settle_rounds(settings));
    TW_TRY(settle_network(settings, &given));
    if (settings->grid && given.network < 0 && given.latency == NULL)
        settings->network_name = NULL; /* all of them */
    TW_TRY(settle_ranks(settings));
    TW_TRY(settle_k(settings));
    settle_schemes(settings);
    return STATUS_OK;
}
