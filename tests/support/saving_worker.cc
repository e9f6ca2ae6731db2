// A training for tests to kill: saving_worker FOLDER STEPS EVERY NUMEL. Its state is NUMEL numbers,
// divided among the ranks; a step applies one formula to each (saving_worker.h). It goes on from
// the newest checkpoint of FOLDER and saves, in the background, every EVERY steps and at the end.
// Exits with 6 after an exception, with the message on standard error.

#include "support/saving_worker.h"

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/comm/world.h"

namespace {

using trireme::testing::stepped;
using trireme::testing::value_after;

void train(const std::string& folder, std::int64_t steps, std::int64_t every, std::int64_t numel) {
  const auto world = trireme::init();
  const trireme::Range range = trireme::even_range(numel, world->size(), world->rank());
  std::vector<std::uint64_t> values;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    values.push_back(value_after(0, i));
  }
  trireme::StateView state;
  state.tensors.push_back({trireme::kWeightKind, "values", trireme::Dtype::kInt64, {numel}, {}});
  state.slices.push_back({0, range, reinterpret_cast<std::byte*>(values.data())});

  trireme::CheckpointOptions options;
  options.retention.keep_last = 2;
  options.say = [](const std::string&) {};  // waiting for the disk is what this one does
  trireme::CheckpointWriter writer(folder, world, options);
  std::int64_t step = 0;
  // Every rank looks, and finds the same: nobody writes before all have begun.
  if (const auto newest = writer.folder().newest()) {
    const trireme::CheckpointReader reader(writer.folder().path_of(*newest));
    reader.load(state);
    step = reader.manifest().step;
  }
  world->barrier().wait();
  if (world->rank() == 0) {
    std::printf("goes on from %lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
  while (step < steps) {
    for (std::uint64_t& value : values) {
      value = stepped(value);
    }
    ++step;
    writer.check();
    if (step % every == 0 || step == steps) {
      writer.save(step, state, {{"step", std::to_string(step)}});
    }
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "saving_worker FOLDER STEPS EVERY NUMEL\n");
    return 2;
  }
  try {
    train(argv[1], std::stoll(argv[2]), std::stoll(argv[3]), std::stoll(argv[4]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 6;
  }
}
