/* simulate_network.c - networks by name, and latencies and bandwidths with units
 *
 * 1gbe is the line that the gTop-k authors fitted to their measurements, software included. The
 * others are rates of which headers have taken 6 %, and latencies as seen between two MPI
 * processes: of TCP over Ethernet, of RDMA, and of a provider's network between two cities.
 */
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

static const named_network networks[] = {
    {"1gbe", "0.436 ms, 0.889 Gbit/s: fitted by the gTop-k authors", 436e-6, 1.0 / 9e-9},
    {"10gbe", "50 us, 9.4 Gbit/s: TCP", 50e-6, 1.175e9},
    {"25gbe", "25 us, 23.5 Gbit/s: TCP", 25e-6, 2.9375e9},
    {"100g", "2 us, 94 Gbit/s: RDMA", 2e-6, 11.75e9},
    {"wan", "20 ms, 94 Mbit/s: between cities", 20e-3, 11.75e6},
    {"aries", "1.5 us, 80 Gbit/s: our estimate of the Cray Aries of the Ok-Topk authors", 1.5e-6,
     10e9},
};

const named_network *network_row(int position) {
    bool exists = position >= 0 && position < (int)(sizeof networks / sizeof networks[0]);
    return exists ? &networks[position] : NULL;
}

const char *network_at(int position) {
    const named_network *row = network_row(position);
    return row != NULL ? row->name : NULL;
}

void simulate_take_network(simulate_settings *settings, const char *name) {
    int position = 0;
    while (strcmp(network_at(position), name) != 0)
        position++;
    const named_network *row = network_row(position);
    settings->network_name = row->name;
    settings->network.latency = row->latency;
    settings->network.bandwidth = row->bandwidth;
}

typedef struct unit {
    const char *name;
    double factor;
} unit;

/* A plain number with one of the units behind it; nothing else around. */
static bool read_with_unit(const char *text, const unit *units, int nunits, double *value) {
    char *end;
    if (strchr("0123456789.", text[0]) == NULL || text[0] == '\0') /* blanks, signs, nan, inf */
        return false;
    *value = strtod(text, &end);
    for (int i = 0; i < nunits; i++) {
        if (strcmp(end, units[i].name) == 0) {
            *value *= units[i].factor;
            return true;
        }
    }
    return false;
}

bool network_read_seconds(const char *text, double *seconds) {
    static const unit units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
    return read_with_unit(text, units, sizeof units / sizeof units[0], seconds) && *seconds <= 100;
}

bool network_read_bandwidth(const char *text, double *bytes_per_second) {
    static const unit units[] = {{"", 1},       {"bit", 1},    {"Kbit", 1e3}, {"kbit", 1e3},
                                 {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}};
    double bits = 0.0;
    bool good = read_with_unit(text, units, sizeof units / sizeof units[0], &bits) && bits >= 1e3 &&
                bits <= 1e15;
    *bytes_per_second = bits / 8.0;
    return good;
}
