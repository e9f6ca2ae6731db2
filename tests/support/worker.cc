// A program for tests to start as ranks: worker MODE. Exits with 5 after a CommError, 6 after any
// other exception, with the message on standard error.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"

namespace {

using trireme::Dtype;

// Collectives of all kinds until something ends it.
void loop_forever(trireme::World& world) {
  std::vector<float> any(100'000, 1.0F);
  std::vector<float> small(100, 1.0F);
  const auto shared = world.allocate(400'000);
  bool first = true;
  for (;;) {
    world.all_reduce(any).wait();
    world.all_reduce(shared.span(Dtype::kFloat32, 100'000)).wait();
    world.all_reduce(small).wait();
    world.broadcast(any, 0).wait();
    if (first) {
      std::printf("looping\n");
      std::fflush(stdout);
      first = false;
    }
  }
}

int run(const std::string& mode) {
  if (mode == "silent") {  // never joins
    std::this_thread::sleep_for(std::chrono::seconds(100));
    return 0;
  }
  const auto world = trireme::init();
  if (mode == "hello") {
    std::vector<int> ranks = {world->rank()};
    world->all_reduce(ranks).wait();
    const char* threads = std::getenv("OMP_NUM_THREADS");
    std::printf("rank %d of %d by %s, sum %d, threads %s, processors %zu\n",
                world->rank(),
                world->size(),
                world->launcher().c_str(),
                ranks[0],
                threads != nullptr ? threads : "-",
                trireme::allowed_cpus().size());
  } else if (mode == "loop") {
    loop_forever(*world);
  } else if (mode == "leave") {  // rank 1 goes in good order while the others wait for it
    if (world->rank() != 1) {
      world->barrier().wait();
    }
  } else if (mode == "mismatch") {
    std::vector<float> data(10);
    if (world->rank() == 0) {
      world->all_reduce(data).wait();
    } else {
      world->broadcast(data, 0).wait();
    }
  } else if (mode == "throw") {
    if (world->rank() == 1) {
      throw std::runtime_error("rank 1 has had enough");
    }
    world->barrier().wait();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "hello");
  } catch (const trireme::CommError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 6;
  }
}
