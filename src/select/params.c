/* params.c - checks what the caller asked for and fills in the defaults
 *
 * Every refusal names the field, the value and what is accepted. */
#include "base/pool.h"
#include "select/methods.h"
#include "select/selector.h"

#include <assert.h>
#include <float.h>
#include <math.h>

static int64_t k_of_density(double density, int64_t n) {
    int64_t k = (int64_t)floor(density * (double)n + 0.5);
    return k < 1 ? 1 : k > n ? n : k;
}

/* From `first` at progress 0 to `last` at 1. */
static double density_during_warmup(int shape, double first, double last, double progress) {
    const double pi = 3.14159265358979323846;
    if (shape == TW_WARMUP_LINEAR)
        return first + (last - first) * progress;
    if (shape == TW_WARMUP_COSINE)
        return last + (first - last) * (0.5 + 0.5 * cos(pi * progress));
    return first * pow(last / first, progress);
}

int64_t tw__k_at(const tw_select_params *p, int64_t n, int64_t step) {
    int by_caller = p->warmup == TW_WARMUP_CALLER;
    if (by_caller ? step > 0 : step >= p->warmup_steps)
        return p->k > 0 ? p->k : k_of_density(p->density, n);
    double density = p->k > 0 ? (double)p->k / (double)n : p->density, first = p->warmup_density;
    if (first <= density)
        return k_of_density(density, n);
    if (by_caller)
        return k_of_density(first, n);
    double progress = (double)step / (double)p->warmup_steps;
    return k_of_density(density_during_warmup(p->warmup, first, density, progress), n);
}

int64_t tw__k_max(const tw_select_params *p, int64_t n) {
    return tw__k_at(p, n, 0); /* k never rises, and what the caller sets is not above this */
}

int tw__k_from_caller(const tw_select_params *p, int64_t n, double density, double factor,
                      int64_t *k) {
    int64_t least = tw__k_at(p, n, INT64_MAX), most = tw__k_max(p, n);
    if (p->warmup != TW_WARMUP_CALLER)
        return tw__fail(TW_ERR_PARAM, "density: only with warmup TW_WARMUP_CALLER can it be set");
    *k = density > 0.0 && density <= 1.0 ? k_of_density(fmin(factor * density, 1.0), n) : 0;
    if (*k >= least && *k <= most)
        return TW_OK;
    return tw__fail(TW_ERR_DENSITY,
                    "density: %g; accepted is %g .. %g, from density to warmup_density of "
                    "tw_select_params",
                    density, (double)least / (double)n / factor,
                    fmin((double)most / (double)n / factor, 1.0));
}

int tw__check_rate(const tw_select_params *p, double rate) {
    if (p->before != TW_BEFORE_ADAMW)
        return tw__fail(TW_ERR_PARAM, "rate: only with TW_BEFORE_ADAMW can it be set");
    if (!(rate >= 0.0 && rate <= FLT_MAX))
        return tw__fail(TW_ERR_PARAM, "rate: %g; accepted is 0 <= rate < infinity", rate);
    return TW_OK;
}

static int check_density(const char *field, double density) {
    if (density > 0.0 && density <= 1.0)
        return TW_OK;
    return tw__fail(TW_ERR_DENSITY, "%s: %g; accepted is 0 < density <= 1", field, density);
}

static int check_amount(const tw_select_params *p, int64_t n) {
    if (p->k != 0 && p->density != 0.0)
        return tw__fail(TW_ERR_K, "k: %lld and density: %g; give one of them, not both",
                        (long long)p->k, p->density);
    if (p->k == 0 && p->density == 0.0)
        return tw__fail(TW_ERR_K, "k: 0; give k in 1 .. n or a density in (0, 1]");
    if (p->k == 0)
        return check_density("density", p->density);
    if (p->k < 1 || p->k > n)
        return tw__fail(TW_ERR_K, "k: %lld; accepted is 1 .. %lld", (long long)p->k, (long long)n);
    return TW_OK;
}

/* Zero means default; NaN and what lies outside [low, high] is refused. */
static int check_range(const char *field, double value, double low, double high) {
    if (value == 0.0 || (value >= low && value <= high))
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "%s: %g; accepted is 0 (default) or %g .. %g", field, value, low,
                    high);
}

int tw__check_choice(const char *field, int value, int last) {
    if (value >= 0 && value <= last)
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "%s: %d; accepted is 0 .. %d", field, value, last);
}

static int check_beta(const char *field, double beta) {
    if (beta >= 0.0 && beta < 1.0)
        return TW_OK;
    return tw__fail(TW_ERR_PARAM, "%s: %g; accepted is 0 <= %s < 1", field, beta, field);
}

/* What happens before selection. */
static int check_before(const tw_select_params *p) {
    TW_TRY(tw__check_choice("before", p->before, TW_BEFORE_ADAMW));
    TW_TRY(check_beta("momentum", p->momentum));
    TW_TRY(check_beta("beta1", p->beta1));
    TW_TRY(check_beta("beta2", p->beta2));
    TW_TRY(check_range("eps", p->eps, FLT_MIN, FLT_MAX));
    TW_TRY(check_range("rate", p->rate, FLT_MIN, FLT_MAX));
    TW_TRY(check_range("clip_norm", p->clip_norm, FLT_MIN, FLT_MAX));
    TW_TRY(check_range("decay", p->decay, FLT_MIN, 1.0));
    int adamw = p->before == TW_BEFORE_ADAMW, decays = p->decay != 0.0f && p->decay != 1.0f;
    if (!adamw && (p->beta1 != 0.0 || p->beta2 != 0.0 || p->eps != 0.0 || p->rate != 0.0))
        return tw__fail(TW_ERR_PARAM, "beta1, beta2, eps, rate: only with TW_BEFORE_ADAMW; leave "
                                      "them 0");
    if (adamw && p->momentum != 0.0f)
        return tw__fail(TW_ERR_PARAM, "momentum: %g; AdamW has beta1 instead", p->momentum);
    if (p->feedback == TW_FEEDBACK_OFF && (adamw || p->momentum != 0.0f || decays))
        return tw__fail(TW_ERR_PARAM, "%s: needs feedback, which is off",
                        adamw                 ? "before"
                        : p->momentum != 0.0f ? "momentum"
                                              : "decay");
    return TW_OK;
}

static int check_warmup(const tw_select_params *p) {
    TW_TRY(tw__check_choice("warmup", p->warmup, TW_WARMUP_CALLER));
    TW_TRY(check_range("warmup_steps", p->warmup_steps, 1, INT32_MAX));
    if (p->warmup == TW_WARMUP_CALLER && p->warmup_steps != 0)
        return tw__fail(TW_ERR_PARAM, "warmup_steps: %d; with TW_WARMUP_CALLER leave it 0",
                        p->warmup_steps);
    return p->warmup_density != 0.0 ? check_density("warmup_density", p->warmup_density) : TW_OK;
}

static int check_options(const tw_select_params *p) {
    TW_TRY(tw__check_choice("type", p->type, TW_BF16));
    TW_TRY(tw__check_choice("feedback", p->feedback, TW_FEEDBACK_OFF));
    if (p->device == TW_CPU && (p->ordinal != 0 || p->stream != NULL))
        return tw__fail(TW_ERR_PARAM, "ordinal, stream: mean nothing with TW_CPU; leave them 0");
    TW_TRY(check_before(p));
    TW_TRY(check_warmup(p));
    TW_TRY(check_range("reuse_period", p->reuse_period, 1, INT32_MAX));
    TW_TRY(check_range("reuse_low", p->reuse_low, 1e-6, 1.0));
    TW_TRY(check_range("reuse_high", p->reuse_high, 1.0, TW__MOST));
    TW_TRY(check_range("reuse_nudge", p->reuse_nudge, 1e-6, 0.5));
    TW_TRY(check_range("gaussian_rounds", p->gaussian_rounds, 1, 64));
    TW_TRY(check_range("dgc_sample", p->dgc_sample, 1e-6, 1.0));
    for (size_t i = 0; i < sizeof p->reserved / sizeof p->reserved[0]; i++)
        if (p->reserved[i] != 0)
            return tw__fail(TW_ERR_PARAM, "reserved: not zero; start from TW_SELECT_PARAMS_INIT");
    return TW_OK;
}

#define FILL(field, value) ((field) = (field) != 0 ? (field) : (value))

static void fill_defaults(tw_select_params *p) {
    FILL(p->method, "exact");
    FILL(p->warmup_density, 0.25);
    p->decay = p->decay == 1.0f ? 0.0f : p->decay; /* none has one name */
    if (p->before == TW_BEFORE_ADAMW) {
        int given = p->beta1 != 0.0 || p->beta2 != 0.0;
        p->beta1 = given ? p->beta1 : 0.9;
        p->beta2 = given ? p->beta2 : 0.999;
        FILL(p->eps, 1e-8);
        FILL(p->rate, 1e-3);
    }
    FILL(p->reuse_period, 32);
    FILL(p->reuse_low, 2.0f / 3.0f);
    FILL(p->reuse_high, 1.25f);
    FILL(p->reuse_nudge, 0.01f);
    FILL(p->gaussian_rounds, 4);
    FILL(p->dgc_sample, 0.01);
}

/* Errors: TW_ERR_NAME for a method that this backend lacks. */
static int find_backend(const tw_select_params *p, const tw__method *method,
                        const tw__backend **backend) {
    TW_TRY(tw__backend_find(p->device, backend));
    if (tw__has_backend(method->backends, p->device))
        return TW_OK;
    return tw__fail(TW_ERR_NAME, "method: '%s' is not there on %s; choose another, or TW_CPU",
                    method->name, (*backend)->name);
}

int tw__params_check(const tw_select_params *p) {
    const tw__backend *backend = NULL;
    int threads;
    if (p->k != 0 || p->density != 0.0)
        TW_TRY(check_amount(p, INT32_MAX));
    TW_TRY(check_options(p));
    TW_TRY(tw__backend_find(p->device, &backend));
    return tw__threads(p->threads, &threads);
}

int tw__params_resolve(tw_select_params *p, int64_t n, const tw__method **method,
                       const tw__backend **backend) {
    if (n < 1 || n > INT32_MAX)
        return tw__fail(TW_ERR_SIZE, "n: %lld; accepted is 1 .. %d", (long long)n, INT32_MAX);
    TW_TRY(check_amount(p, n));
    TW_TRY(check_options(p));
    fill_defaults(p);
    TW_TRY(tw__method_find(p->method, method));
    p->method = (*method)->name; /* the caller's string need not outlive the call */
    TW_TRY(find_backend(p, *method, backend));
    return tw__threads(p->threads, &p->threads);
}
