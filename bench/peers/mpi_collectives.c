/* Times MPI's collectives: mpirun -n RANKS mpi_collectives OUTPUT.
 *
 * Writes {system, lines}, each line {op, bytes, ms: [one per call]} measured on rank 0, like
 * bench/collectives_rank.cc: float32, calls back to back after a warm-up. In place where MPI can,
 * which is its fastest form and what Trireme's owned buffers are compared with. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int kSizes[] = {
    4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
enum { kSizeCount = sizeof(kSizes) / sizeof(kSizes[0]), kOpCount = 4, kMostIterations = 200 };
static const char* const kOps[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};

static int iterations_for(int bytes) {
  const int wanted = (64 << 20) / bytes;
  return wanted < 8 ? 8 : wanted > kMostIterations ? kMostIterations : wanted;
}

static void call(
    int op, float* whole, float* part, int numel, const int* counts, const int* starts, int root) {
  switch (op) {
    case 0:
      MPI_Allreduce(MPI_IN_PLACE, whole, numel, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      break;
    case 1:
      MPI_Reduce_scatter(whole, part, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
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
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  FILE* file = rank == 0 && argc > 1 ? fopen(argv[1], "w") : NULL;
  if (rank == 0 && file == NULL) {
    fprintf(stderr, "mpi_collectives: expected a file to write, found none that can be\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  float* whole = malloc(64 << 20);
  float* part = malloc(64 << 20);
  int* counts = malloc(sizeof(int) * (size_t)ranks);
  int* starts = malloc(sizeof(int) * (size_t)ranks);
  if (file != NULL) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n\"\\")] = '\0'; /* the name and number come first */
    fprintf(file, "{\"system\": \"%s\", \"lines\": ", version);
  }
  const char* separator = "[";
  for (int s = 0; s < kSizeCount; ++s) {
    const int numel = kSizes[s] / 4;
    for (int r = 0, start = 0; r < ranks; ++r) {
      counts[r] = numel / ranks + (r < numel % ranks);
      starts[r] = start;
      start += counts[r];
    }
    for (int op = 0; op < kOpCount; ++op) {
      double times[kMostIterations];
      for (int i = 0; i < numel; ++i) {
        whole[i] = part[i] = 1;
      }
      for (int i = -3; i < iterations_for(kSizes[s]); ++i) {
        const double start = MPI_Wtime();
        call(op, whole, part, numel, counts, starts, (i + 3) % ranks);
        if (i >= 0) {
          times[i] = (MPI_Wtime() - start) * 1e3;
        }
      }
      if (file != NULL) {
        fprintf(
            file, "%s{\"op\": \"%s\", \"bytes\": %d, \"ms\": [", separator, kOps[op], kSizes[s]);
        for (int i = 0; i < iterations_for(kSizes[s]); ++i) {
          fprintf(file, "%s%.6f", i > 0 ? ", " : "", times[i]);
        }
        fprintf(file, "]}");
        separator = ",\n";
      }
    }
  }
  if (file != NULL) {
    fprintf(file, "]}\n");
    fclose(file);
  }
  free(whole);
  free(part);
  free(counts);
  free(starts);
  MPI_Finalize();
  return 0;
}
