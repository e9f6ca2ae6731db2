/* Times MPI's collectives: mpirun -n RANKS mpi_collectives OUTPUT OPS SIZES RANKS (see
 * cases.h).
 *
 * Measured on rank 0: float32, calls back to back after a warm-up, all in place, which is MPI's
 * fastest form and what Trireme's owned buffers are compared with. */

#include <mpi.h>

#include "cases.h"

static void call(int op, float* whole, int numel, const int* counts, const int* starts, int root) {
  switch (op) {
    case 0:
      MPI_Allreduce(MPI_IN_PLACE, whole, numel, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case 1:
      MPI_Reduce_scatter(MPI_IN_PLACE, whole, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case 2:
      MPI_Allgatherv(
          MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, counts, starts, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    default:
      MPI_Bcast(whole, numel, MPI_FLOAT, root, MPI_COMM_WORLD);
  }
}

int main(int argc, char** argv) {
  int rank = 0;
  int ranks = 1;
  struct Cases cases;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 5 || !read_cases(argv[2], argv[3], &cases)) {
    fprintf(stderr, "mpi_collectives: expected OUTPUT OPS SIZES RANKS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (ranks != atoi(argv[4])) { /* each alone would be very fast */
    fprintf(stderr,
            "mpi_collectives: expected %s ranks, found %d; is mpirun that of another MPI?\n",
            argv[4],
            ranks);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  FILE* file = rank == 0 ? fopen(argv[1], "w") : NULL;
  if (rank == 0 && file == NULL) {
    fprintf(stderr, "mpi_collectives: \"%s\" cannot be written\n", argv[1]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  float* whole = malloc(cases.largest);
  int* counts = malloc(sizeof(int) * (size_t)ranks);
  int* starts = malloc(sizeof(int) * (size_t)ranks);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  version[strcspn(version, ",\n\"\\")] = '\0'; /* the name and number come first */
  write_head(
      file, version, "every operation in place (MPI_IN_PLACE), its own choice of algorithms");
  int is_first = 1;
  for (int s = 0; s < cases.size_count; ++s) {
    const size_t bytes = cases.sizes[s];
    const int numel = (int)(bytes / 4);
    for (int r = 0, start = 0; r < ranks; ++r) {
      counts[r] = numel / ranks + (r < numel % ranks);
      starts[r] = start;
      start += counts[r];
    }
    for (int op = 0; op < kOpCount; ++op) {
      double times[kMostIterations];
      if (!cases.measures[op]) {
        continue;
      }
      for (int i = 0; i < numel; ++i) {
        whole[i] = 1;
      }
      for (int i = -kWarmUp; i < iterations_for(bytes); ++i) {
        const double start = MPI_Wtime();
        call(op, whole, numel, counts, starts, (i + kWarmUp) % ranks);
        if (i >= 0) {
          times[i] = (MPI_Wtime() - start) * 1e3;
        }
      }
      write_line(file, op, bytes, times, &is_first);
    }
  }
  const int is_written = write_end(file);
  free(whole);
  free(counts);
  free(starts);
  MPI_Finalize();
  return is_written ? 0 : 1;
}
