#include <cstdio>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "collectives_samples.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "same_terms.h"
#include "samples.h"
#include "scratch_folder.h"
#include "test_bed.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

using Json = nlohmann::json;

constexpr const char* kRate = "1gbit";
constexpr const char* kOne = "eth0";
constexpr const char* kBoth = "eth0,eth1";

}  // namespace

int run_rails_bench(const CollectivesOptions& asked) {
  TRIREME_CHECK(!asked.peers && asked.launch.nodes == 1 && asked.launch.interfaces.empty() &&
                    (asked.machines == 0 || asked.machines == 2),
                "--rails: expected none of --peers, --nnodes, --interfaces, and no number of "
                "--machines but 2; it compares one interface with two on a test bed of 2 machines");
  CollectivesOptions options = asked;
  if (options.ops.empty()) {
    options.ops = {"all_reduce", "all_gather"};
  }
  if (options.sizes.empty()) {
    options.sizes = {64 << 20};
  }
  JsonFile file(options.json_path);
  set_same_terms();
  const ScratchFolder scratch;
  const TestBed bed(2);
  bed.rate(kRate);
  CollectivesSamples one;
  CollectivesSamples both;
  const std::vector<std::pair<const char*, CollectivesSamples*>> ways = {{kOne, &one},
                                                                         {kBoth, &both}};
  for (int round = 0; round < options.rounds; ++round) {
    std::fprintf(stderr, "round %d of %d:", round + 1, options.rounds);
    for (const auto& [interfaces, samples] : turn_order(ways, round, options.rounds)) {
      std::fprintf(stderr, " %s", interfaces);
      LaunchOptions job = options.launch;
      job.ranks = options.launch.ranks > 0 ? options.launch.ranks : 1;
      job.interfaces = interfaces;
      job.command = collectives_rank_command(options, 1, scratch.file("rails.json"));
      if (const int code = launch_on(bed, job); code != 0) {
        return code;
      }
      samples->collect(scratch.file("rails.json"));
    }
    std::fprintf(stderr, "\n");
  }

  std::printf("%s\n%s\n", one.system.c_str(), both.system.c_str());
  std::printf(
      "2 machines (network namespaces of one host), each interface limited to %s by tc; float32, "
      "median ms of %s\n%s",
      kRate,
      detail::counted(options.rounds, "round").c_str(),
      host_text(options.command_line).c_str());
  Table table({"operation", "bytes", "buffer", kOne, kBoth, "ratio"});
  Json json = Json::array();
  for (const auto& [key, times] : one.ms) {
    const auto& [op, bytes, owned] = key;
    const double alone = median(times);
    const double together = median(both.ms.at(key));
    table.add({op,
               bytes_text(bytes),
               owned ? "owned" : "any",
               number_text(alone),
               number_text(together),
               number_text(alone / together) + "x"});
    json.push_back({{"op", op},
                    {"bytes", bytes},
                    {"owned", owned},
                    {"one_ms", alone},
                    {"both_ms", together},
                    {"ratio", alone / together}});
  }
  std::fputs(table.text().c_str(), stdout);
  file.write(json.dump(1));
  return 0;
}

}  // namespace trireme::bench
