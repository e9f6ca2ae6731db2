#include <algorithm>
#include <chrono>
#include <fstream>

#include <nlohmann/json.hpp>

#include "collectives_samples.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/environment.h"
#include "trireme/core/version.h"
#include "trireme/shard/range.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

// Calls per case and round. The peers' scripts use the same rule.
int iterations_for(long long bytes) {
  return static_cast<int>(std::clamp<long long>((64 << 20) / bytes, 8, 200));
}

// `root`: a broadcast comes from each rank in turn, so that none of them runs ahead of the others.
void issue_and_wait(World& world, const std::string& op, const Span& whole, int root) {
  const Range mine = even_range(whole.numel(), world.size(), world.rank());
  const Span part(
      whole.bytes() + mine.begin * static_cast<std::int64_t>(dtype_bytes(whole.dtype())),
      mine.size(),
      whole.dtype(),
      whole.owner());
  if (op == "all_reduce") {
    world.all_reduce(whole).wait();
  } else if (op == "reduce_scatter") {
    world.reduce_scatter(whole, part).wait();
  } else if (op == "all_gather") {
    world.all_gather(part, whole).wait();
  } else {
    world.broadcast(whole, root).wait();
  }
}

void measure(World& world, const CollectivesOptions& options, bool owned, Json& lines) {
  for (const long long bytes : collective_sizes(options)) {
    const std::int64_t numel = bytes / 4;
    std::vector<float> memory;
    Span data;
    if (owned) {
      data = world.allocate(static_cast<std::size_t>(bytes)).span(Dtype::kFloat32, numel);
    } else {
      memory.resize(static_cast<std::size_t>(numel));
      data = memory;
    }
    std::fill_n(reinterpret_cast<float*>(data.bytes()), numel, 1.0F);
    for (const std::string& op : collective_ops(options)) {
      const int iterations = iterations_for(bytes);
      std::vector<double> times;
      for (int i = -3; i < iterations; ++i) {  // the first three warm up
        const auto start = Clock::now();
        issue_and_wait(world, op, data, (i + 3) % world.size());
        if (i >= 0) {
          times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
        }
      }
      lines.push_back({{"op", op}, {"bytes", bytes}, {"owned", owned}, {"ms", times}});
      // Sums grow from call to call; start the next operation from numbers again.
      std::fill_n(reinterpret_cast<float*>(data.bytes()), numel, 1.0F);
    }
  }
}

// For the settings of the run, where one was asked for.
std::string algorithm_text() {
  const std::string name = env_string(kEnvAlgorithm).value_or("auto");
  return name == "auto" ? "" : "; algorithm " + name;
}

}  // namespace

int run_collectives_rank(const CollectivesOptions& options) {
  const auto world = init();
  Json lines = Json::array();
  for (int round = 0; round < options.rounds; ++round) {
    for (const bool owned : {true, false}) {
      measure(*world, options, owned, lines);
    }
  }
  if (world->rank() == 0) {
    std::ofstream(options.worker_output) << Json{
        {"system", "Trireme " TRIREME_VERSION " (" + world->description() + ")"},
        {"settings",
         "every operation in place; owned: memory of World::allocate, any: ordinary memory" +
             algorithm_text()},
        {"lines", lines}};
  }
  return 0;
}

}  // namespace trireme::bench
