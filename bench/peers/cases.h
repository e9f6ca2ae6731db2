/* What the peers in C measure, and how they write it down: operations and sizes from two arguments,
 * "all_reduce,broadcast" and "4096,65536", and a file {system, settings, lines} with one line
 * {op, bytes, ms: [one per call]} for each, like that of bench/collectives_rank.cc. */

#ifndef TRIREME_PEERS_CASES_H
#define TRIREME_PEERS_CASES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOpCount = 4, kMostSizes = 64, kMostIterations = 200, kWarmUp = 3 };
static const char* const kOps[kOpCount] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast"};

struct Cases {
  int measures[kOpCount]; /* whether an operation is asked for */
  size_t sizes[kMostSizes];
  int size_count;
  size_t largest;
};

/* 1 where the arguments could be read. */
static int read_cases(const char* ops, const char* sizes, struct Cases* cases) {
  memset(cases, 0, sizeof(*cases));
  for (int op = 0; op < kOpCount; ++op) {
    cases->measures[op] = strstr(ops, kOps[op]) != NULL; /* no name is part of another */
  }
  for (const char* next = sizes; *next != '\0';) {
    char* end = NULL;
    const size_t size = strtoull(next, &end, 10);
    if (end == next || size < 4 || cases->size_count == kMostSizes) {
      return 0;
    }
    cases->sizes[cases->size_count++] = size;
    cases->largest = size > cases->largest ? size : cases->largest;
    next = *end == ',' ? end + 1 : end;
  }
  return cases->size_count > 0;
}

static int iterations_for(size_t bytes) {
  const size_t wanted = (size_t)(64 << 20) / bytes;
  return wanted < 8 ? 8 : wanted > kMostIterations ? kMostIterations : (int)wanted;
}

/* `file` is NULL on all ranks but the first. */
static void write_head(FILE* file, const char* system, const char* settings) {
  if (file != NULL) {
    fprintf(file, "{\"system\": \"%s\", \"settings\": \"%s\", \"lines\": [", system, settings);
  }
}

static void write_line(FILE* file, int op, size_t bytes, const double* times, int* is_first) {
  if (file == NULL) {
    return;
  }
  fprintf(file,
          "%s{\"op\": \"%s\", \"bytes\": %zu, \"ms\": [",
          *is_first ? "" : ",\n",
          kOps[op],
          bytes);
  for (int i = 0; i < iterations_for(bytes); ++i) {
    fprintf(file, "%s%.6f", i > 0 ? ", " : "", times[i]);
  }
  fprintf(file, "]}");
  *is_first = 0;
}

/* 1 where all of it was written. */
static int write_end(FILE* file) {
  return file == NULL || (fprintf(file, "]}\n") > 0 && fclose(file) == 0);
}

#endif
