/* job_tcp.c - a job of processes that meet over TCP, each of them one rank
 *
 * Nobody started them together, so each prints its own error and ends alone. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

#define SECRET_MAX 4096 /* bytes */

/* The bytes of the file without a newline at the end, as an editor leaves one. */
static int read_secret(const char *path, char *secret, size_t *bytes) {
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    *bytes = 0;
    if (path == NULL)
        return STATUS_OK;
    if (file == NULL)
        return error_report("--secret-file %s cannot be read: %s", path, strerror(errno));
    *bytes = fread(secret, 1, SECRET_MAX + 1, file);
    int cause = ferror(file) != 0 ? errno : 0;
    (void)fclose(file);
    if (cause != 0)
        return error_report("--secret-file %s cannot be read: %s", path, strerror(cause));
    if (*bytes > 0 && secret[*bytes - 1] == '\n')
        --*bytes;
    if (*bytes == 0 || *bytes > SECRET_MAX)
        return error_report("--secret-file %s: accepted are 1 to %d bytes; for instance from "
                            "'openssl rand -hex 32'",
                            path, SECRET_MAX);
    return STATUS_OK;
}

/* As error_check. A rank that finds nobody may have the wrong address. */
static int check_meeting(const char *doing, int error) {
    if (error != TW_ERR_TIMEOUT)
        return error_check(doing, error);
    return error_report(
        "%s: %s (hint: see that all ranks run, and that --meet names a host that all "
        "can reach; or give a longer --timeout)",
        doing, tw_last_error());
}

/* Waits until the ranks of the job look for newcomers. */
static int join(job_rank *self, const tw_tcp_params *params) {
    int error = tw_transport_join(&self->transport, params);
    if (error == TW_OK)
        (void)tw_transport_info(self->transport, NULL, &self->rank, &self->nranks, NULL);
    return check_meeting("joining the job", error);
}

static int connect_rank(job_rank *self, const job_handle *job) {
    char secret[SECRET_MAX + 1];
    tw_tcp_params params = {.meet = job->tcp->meet};
    int status = read_secret(job->tcp->secret_file, secret, &params.secret_bytes);
    if (status != STATUS_OK)
        return status;
    params.secret = params.secret_bytes > 0 ? secret : NULL;
    params.timeout = job->tcp->timeout;
    params.job = "work";
    if (job->tcp->join)
        return join(self, &params);
    params.rank = self->rank;
    params.nranks = self->nranks;
    int error = tw_transport_tcp(&self->transport, &params);
    params.job = "gather";
    if (error == TW_OK && !job->tcp->elastic)
        error = tw_transport_tcp(&self->gather_transport, &params);
    return check_meeting("connecting the ranks", error);
}

int job_tcp_run(const job_handle *job, job_work work, void *context) {
    job_rank self = {.rank = job->first, .nranks = job->nranks, .local_ranks = 1};
    error_capture_in(&self.error);
    int status = connect_rank(&self, job);
    if (status == STATUS_OK)
        status = work(&self, context);
    error_capture_in(NULL);
    tw_transport_free(self.transport);
    tw_transport_free(self.gather_transport);
    if (self.error.text[0] != '\0' && self.rank < 0)
        return error_report("%s", self.error.text);
    if (self.error.text[0] != '\0')
        return error_report("rank %d: %s", self.rank, self.error.text);
    return status;
}
