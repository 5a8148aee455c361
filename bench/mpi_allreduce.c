/* mpi_allreduce.c - MPI's dense allreduce, for comparison: one JSON line
 *
 *   mpirun ... build/bench/mpi_allreduce NAME N STEPS
 *
 * Sums N floats over all ranks STEPS times, after one sum that is not timed; time_us is the median
 * over steps of the slowest rank's time. NAME is put into the line. MPI chooses the algorithm. On slow
 * links the fair comparison is Open MPI's ring:
 *   --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The slowest rank's seconds. */
static double one_step(const float *in, float *out, int n) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), slowest = 0.0;
    MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double took = MPI_Wtime() - begin;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

int main(int argc, char **argv) {
    int rank = 0, nranks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    int n = argc == 4 ? atoi(argv[2]) : 0, steps = argc == 4 ? atoi(argv[3]) : 0;
    float *in = calloc((size_t)n + 1, sizeof *in), *out = calloc((size_t)n + 1, sizeof *out);
    double *times = calloc((size_t)steps + 1, sizeof *times);
    if (n < 1 || steps < 1 || in == NULL || out == NULL || times == NULL) {
        if (rank == 0)
            fprintf(stderr, "usage: mpi_allreduce NAME N STEPS, both 1 or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
        exit(2);
    }
    for (int i = 0; i < n; i++)
        in[i] = (float)(rank + i % 7);
    (void)one_step(in, out, n);
    for (int i = 0; i < steps; i++)
        times[i] = one_step(in, out, n);
    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += 2.0f * out[i] != (float)(nranks * (nranks - 1) + 2 * nranks * (i % 7));
    qsort(times, (size_t)steps, sizeof *times, ascending);
    if (rank == 0) {
        printf("{\"what\":\"peer\",\"scheme\":\"%s\",\"nranks\":%d,\"n\":%d,\"time_us\":%.1f,"
               "\"wrong\":%d}\n",
               argv[1], nranks, n, times[steps / 2] * 1e6, wrong);
        fflush(stdout);
    }
    free(in);
    free(out);
    free(times);
    MPI_Finalize();
    return 0;
}
