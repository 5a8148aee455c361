/* fuzz_run_log.c - bytes become the log of a training run, and a report is made of it
 *
 * A log must be refused with a message, or every page and picture can be made of it. Plots are made
 * up to the script for gnuplot, which does not run.
 */
#include "cli.h"
#include "fuzz.h"
#include "report/page.h"
#include "report/series.h"

/* ---- instead of gnuplot.c */

bool gnuplot_available(void) {
    return true;
}

char *gnuplot_run(const char *script, char *reason, size_t size) {
    REQUIRE(script != NULL);
    snprintf(reason, size, "it does not run here");
    return NULL;
}

int plot_write_file(const char *path, const char *text, size_t size) {
    (void)path, (void)text, (void)size;
    return STATUS_OK;
}

/* ---- */

static void make(int (*write)(report_page *), report_page page) {
    char *text = NULL;
    size_t size = 0;
    page.out = open_memstream(&text, &size);
    REQUIRE(page.out != NULL);
    (void)write(&page);
    REQUIRE(fclose(page.out) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const input in = fuzz_begin(data, size);
    char label[] = "run";
    char *labels[] = {label};
    plot_style style = {.line = COLOR_INK, .width = 2.0};
    run_log run;
    error_silence(true);
    if (run_log_read(&run, fuzz_file(0, in.data, in.left)) == STATUS_OK) {
        const report_page page = {.runs = &run,
                                  .nruns = 1,
                                  .labels = labels,
                                  .styles = &style,
                                  .title = "fuzz",
                                  .has_gnuplot = true,
                                  .window = series_window(&run, 1),
                                  .bin = series_bin(&run, 1),
                                  .axis = (series_axis)(size % 3)};
        REQUIRE(run.name != NULL && run.nsteps >= 0);
        make(page_write, page);
        make(convergence_write_loss, page);
        make(convergence_write_accuracy, page);
        make(contraction_write, page);
        make(histograms_write, page);
    }
    run_log_free(&run);
    return 0;
}

/* Logs with every kind of line, as `thinwire train` writes them; the last one stops before a step. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    static const char run[] =
        "{\"kind\":\"run\",\"version\":1,\"name\":\"a\",\"model\":\"cnn\",\"data\":\"d\","
        "\"scheme\":\"oktopk\",\"select\":\"reuse\",\"exchange\":\"oktopk\",\"transport\":"
        "\"threads\","
        "\"optimizer\":\"sgd\",\"parameters\":1000,\"density\":0.01,\"nranks\":4,\"batch\":8,"
        "\"steps\":4,\"epochs\":2,\"seed\":1,\"lr\":0.1,\"momentum\":0.9,\"weight_decay\":0}\n";
    static const char step[] =
        "{\"kind\":\"step\",\"step\":%d,\"epoch\":1,\"loss\":%g,\"accuracy\":0.5,\"lr\":0.1,\"k\":"
        "10,"
        "\"selected\":11,\"applied\":9,\"payload_sent\":80,\"payload_recv\":80,\"control\":16,"
        "\"time_s\":0.01,\"data_s\":0.001,\"forward_s\":0.002,\"backward_s\":0.003,"
        "\"optimiser_s\":0.001,\"exposed_s\":0.001,\"select_s\":0.001,\"wait_s\":0.0001,"
        "\"exchange_s\":0.001,\"apply_s\":0.0001,\"elapsed_s\":%g,\"skipped\":0}\n";
    static const char snapshot[] =
        "{\"kind\":\"snapshot\",\"step\":%d,\"n\":1000,\"k\":10,\"low\":-1,\"high\":1,"
        "\"contraction\":0.9,\"bound_topk\":0.99,\"bound_random\":0.99,\"counts\":[1,5,9,4,0]}\n";
    static const char evaluation[] = "{\"kind\":\"evaluation\",\"step\":%d,\"epoch\":1,"
                                     "\"loss\":2.0,\"accuracy\":0.6,\"elapsed_s\":0.05}\n";
    static const char members[] =
        "{\"kind\":\"members\",\"step\":%d,\"nranks\":4,\"nranks_before\":5,\"lost\":[2],"
        "\"left\":[0,1],\"joined\":[3,4],\"seconds\":0.5,\"elapsed_s\":0.05}\n";
    static const char last[] =
        "{\"kind\":\"end\",\"seconds\":0.1,\"accuracy\":0.6,\"skipped\":0}\n";
    char *text = (char *)data;
    size_t size = 0;
    if (number > 8)
        return 0;
    size += (size_t)snprintf(text, room, "%s", run);
    for (int i = 1; i <= 2 + number % 4 && number < 8; i++) {
        size += (size_t)snprintf(text + size, room - size, step, number == 7 ? 1 : i, 2.0 / i,
                                 0.01 * i);
        if (number & 1)
            size += (size_t)snprintf(text + size, room - size, snapshot, i);
        if (number & 2)
            size += (size_t)snprintf(text + size, room - size, evaluation, i);
        if (number == 3 || number == 6)
            size += (size_t)snprintf(text + size, room - size, members, i);
    }
    if (number & 4)
        size += (size_t)snprintf(text + size, room - size, "%s", last);
    REQUIRE(size < room);
    return size;
}
