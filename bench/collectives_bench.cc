#include "collectives_bench.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "peers.h"
#include "samples.h"
#include "scratch_folder.h"
#include "table.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"
#include "trireme/core/machine.h"
#include "trireme/core/version.h"
#include "trireme/launch/launcher.h"
#include "trireme/shard/range.h"

// Who is measured when: the systems take turns, round after round, so that a slow minute of the
// machine hits all of them. Each times every call on rank 0, back to back, after a warm-up; the
// table shows the median over all rounds. All use float32, one thread per rank.
//
// `bytes` is the whole: the buffer of all_reduce and broadcast, the input of reduce_scatter, the
// output of all_gather.

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

constexpr long long kSizes[] = {
    4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr const char* kOps[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};

// Calls per case and round. The peers' scripts use the same rule.
int iterations_for(long long bytes) {
  return static_cast<int>(std::clamp<long long>((64 << 20) / bytes, 8, 200));
}

// One system's times, by (op, bytes, owned).
using Samples = std::map<std::tuple<std::string, long long, bool>, std::vector<double>>;

// --- the ranks

void issue_and_wait(World& world, const std::string& op, const Span& whole) {
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
    world.broadcast(whole, 0).wait();
  }
}

int run_worker(const std::string& output) {
  const auto world = init();
  Json lines = Json::array();
  for (const bool owned : {true, false}) {
    for (const long long bytes : kSizes) {
      const std::int64_t numel = bytes / 4;
      std::vector<float> memory;
      Span data;
      if (owned) {
        data = world->allocate(static_cast<std::size_t>(bytes)).span(Dtype::kFloat32, numel);
      } else {
        memory.resize(static_cast<std::size_t>(numel));
        data = memory;
      }
      std::fill_n(reinterpret_cast<float*>(data.bytes()), numel, 1.0F);
      for (const char* op : kOps) {
        const int iterations = iterations_for(bytes);
        std::vector<double> times;
        for (int i = -3; i < iterations; ++i) {  // the first three warm up
          const auto start = Clock::now();
          issue_and_wait(*world, op, data);
          if (i >= 0) {
            times.push_back(
                std::chrono::duration<double, std::milli>(Clock::now() - start).count());
          }
        }
        lines.push_back({{"op", op}, {"bytes", bytes}, {"owned", owned}, {"ms", times}});
        // Sums grow from call to call; start the next operation from numbers again.
        std::fill_n(reinterpret_cast<float*>(data.bytes()), numel, 1.0F);
      }
    }
  }
  if (world->rank() == 0) {
    std::ofstream(output) << lines;
  }
  return 0;
}

// --- the conductor

void collect(const std::string& path, Samples& samples) {
  std::ifstream file(path);
  const Json lines = Json::parse(file);
  for (const Json& line : lines) {
    auto& times = samples[{line.at("op"), line.at("bytes"), line.value("owned", false)}];
    const auto more = line.at("ms").get<std::vector<double>>();
    times.insert(times.end(), more.begin(), more.end());
  }
}

std::string ratio_text(double ours, double theirs) {
  return number_text(theirs / ours) + "x";
}

}  // namespace

int run_collectives_bench(const CollectivesOptions& options) {
  if (!options.worker_output.empty()) {
    return run_worker(options.worker_output);
  }
  std::ofstream json_file;
  if (!options.json_path.empty()) {
    json_file.open(options.json_path);
    TRIREME_CHECK(json_file, "the file \"", options.json_path, "\" cannot be written");
  }
  const ScratchFolder scratch;
  Samples ours;
  std::map<std::string, Samples> theirs;
  auto peers = options.peers ? collective_peers(options.ranks, scratch.file("peer.json"))
                             : std::vector<Peer>{};
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "round %d of %d: trireme", round + 1, options.rounds);
    LaunchOptions job;
    job.ranks = options.ranks;
    job.threads = 1;
    job.command = {"/proc/self/exe", "bench", "collectives", "--worker", scratch.file("ours.json")};
    if (const int code = launch(job); code != 0) {
      return code;
    }
    collect(scratch.file("ours.json"), ours);
    for (Peer& peer : peers) {
      if (!peer.missing.empty()) {
        continue;
      }
      std::fprintf(stderr, " %s", peer.name.c_str());
      if (const int code = run_command(peer.command); code != 0) {
        peer.missing = "its program failed with exit code " + std::to_string(code);
      } else {
        collect(scratch.file("peer.json"), theirs[peer.name]);
      }
    }
    std::fprintf(stderr, "\n");
  }

  std::printf(
      "Trireme %s, %d ranks x 1 thread on %zu processors, float32, median ms (best) of %d rounds\n",
      TRIREME_VERSION,
      options.ranks,
      allowed_cpus().size(),
      options.rounds);
  std::vector<std::string> header = {"operation", "bytes", "buffer", "trireme", "(best)"};
  for (const Peer& peer : peers) {
    header.insert(header.end(), {peer.name, "(best)", "ratio"});
  }
  Table table(header);
  Json json = Json::array();
  for (const char* op : kOps) {
    for (const long long bytes : kSizes) {
      for (const bool owned : {true, false}) {
        const auto& times = ours.at({op, bytes, owned});
        std::vector<std::string> row = {op,
                                        bytes_text(bytes),
                                        owned ? "owned" : "any",
                                        number_text(median(times)),
                                        "(" + number_text(best(times)) + ")"};
        Json entry = {{"op", op},
                      {"bytes", bytes},
                      {"ranks", options.ranks},
                      {"owned", owned},
                      {"ms", median(times)},
                      {"best_ms", best(times)},
                      {"gloo_ms", nullptr},
                      {"mpi_ms", nullptr}};
        for (const Peer& peer : peers) {
          const auto found = theirs[peer.name].find({op, bytes, false});
          if (found == theirs[peer.name].end()) {
            row.insert(row.end(), {"-", "", ""});
            continue;
          }
          const double peer_median = median(found->second);
          row.insert(row.end(),
                     {number_text(peer_median),
                      "(" + number_text(best(found->second)) + ")",
                      ratio_text(median(times), peer_median)});
          entry[peer.name + "_ms"] = peer_median;
          entry[peer.name + "_best_ms"] = best(found->second);
        }
        table.add(row);
        json.push_back(entry);
      }
    }
  }
  std::fputs(table.text().c_str(), stdout);
  for (const Peer& peer : peers) {
    if (!peer.missing.empty()) {
      std::printf("%s was not measured: %s\n", peer.name.c_str(), peer.missing.c_str());
    }
  }
  if (json_file.is_open()) {
    json_file << json.dump(1) << "\n";
  }
  return 0;
}

}  // namespace trireme::bench
