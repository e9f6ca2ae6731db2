/* What plain sockets take for the bytes of a collective of two ranks, and nothing else: no sums, no
 * checks, nobody to agree with. No system that goes over TCP can be faster than this for long
 * messages: tcp_collectives OUTPUT OPS SIZES RANK ADDRESS-OF-RANK-0 (see cases.h).
 *
 * An all_reduce is two exchanges of one half, one after the other; reduce_scatter and all_gather
 * are one; a broadcast comes from each in turn. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"

enum { kPort = 29470, kMostAtOnce = 256 << 10 };

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static int connected(int rank, const char* address) {
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(kPort)};
  if (inet_pton(AF_INET, address, &place.sin_addr) != 1) {
    fail(address);
  }
  const int one = 1;
  int channel = -1;
  if (rank == 0) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(listener, (struct sockaddr*)&place, sizeof(place)) != 0 || listen(listener, 1) != 0) {
      fail("tcp_collectives: listen");
    }
    channel = accept(listener, NULL, NULL);
    close(listener);
  } else {
    for (int tries = 0; tries < 3000; ++tries) {
      channel = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(channel, (struct sockaddr*)&place, sizeof(place)) == 0) {
        break;
      }
      close(channel);
      channel = -1;
      usleep(10000);
    }
  }
  if (channel < 0) {
    fail("tcp_collectives: connect");
  }
  setsockopt(channel, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  fcntl(channel, F_SETFL, O_NONBLOCK);
  return channel;
}

/* Sends and receives so many bytes, at the same time. */
static void exchange(int channel, const char* from, size_t out, char* to, size_t in) {
  size_t sent = 0;
  size_t received = 0;
  while (sent < out || received < in) {
    if (sent < out) {
      const size_t left = out - sent;
      const ssize_t count =
          send(channel, from + sent, left < kMostAtOnce ? left : kMostAtOnce, MSG_NOSIGNAL);
      sent += count > 0 ? (size_t)count : 0;
    }
    if (received < in) {
      const size_t left = in - received;
      const ssize_t count =
          recv(channel, to + received, left < kMostAtOnce ? left : kMostAtOnce, 0);
      if (count == 0) {
        exit(1); /* the other one is gone, and says why */
      }
      received += count > 0 ? (size_t)count : 0;
    }
  }
}

static void call(int channel, int op, char* whole, char* part, size_t bytes, int is_root) {
  switch (op) {
    case 0:
      exchange(channel, whole, bytes / 2, part, bytes / 2);
      exchange(channel, part, bytes / 2, whole, bytes / 2);
      break;
    case 3:
      exchange(channel, whole, is_root ? bytes : 0, whole, is_root ? 0 : bytes);
      break;
    default:
      exchange(channel, whole, bytes / 2, part, bytes / 2);
  }
}

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

int main(int argc, char** argv) {
  struct Cases cases;
  if (argc != 6 || !read_cases(argv[2], argv[3], &cases)) {
    fprintf(stderr, "tcp_collectives: expected OUTPUT OPS SIZES RANK ADDRESS\n");
    return 2;
  }
  const int rank = atoi(argv[4]);
  const int channel = connected(rank, argv[5]);
  FILE* file = rank == 0 ? fopen(argv[1], "w") : NULL;
  if (rank == 0 && file == NULL) {
    fail(argv[1]);
  }
  char* whole = malloc(cases.largest);
  char* part = malloc(cases.largest);
  memset(whole, 0, cases.largest);
  memset(part, 0, cases.largest);
  write_head(file, "plain sockets", "the same bytes and nothing else");
  int is_first = 1;
  for (int s = 0; s < cases.size_count; ++s) {
    const size_t bytes = cases.sizes[s];
    for (int op = 0; op < kOpCount; ++op) {
      double times[kMostIterations];
      if (!cases.measures[op]) {
        continue;
      }
      for (int i = -kWarmUp; i < iterations_for(bytes); ++i) {
        const double start = now_ms();
        call(channel, op, whole, part, bytes, (i + kWarmUp) % 2 == rank);
        if (i >= 0) {
          times[i] = now_ms() - start;
        }
      }
      write_line(file, op, bytes, times, &is_first);
    }
  }
  free(whole);
  free(part);
  return write_end(file) ? 0 : 1;
}
