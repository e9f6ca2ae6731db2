#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "doctor/clock_difference.h"
#include "doctor/memory_reading.h"
#include "doctor/pair_measure.h"
#include "doctor/rank_files.h"
#include "doctor/report_json.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/tell.h"
#include "trireme/comm/world.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/doctor/doctor.h"

namespace trireme {
namespace {

using Json = nlohmann::json;

// The machine of every rank. Ranks of a machine follow each other, the first has local rank 0.
std::vector<int> find_machines(World& world) {
  std::vector<int> local_ranks(static_cast<std::size_t>(world.size()));
  const std::vector<int> mine{world.local_rank()};
  world.all_gather(mine, local_ranks, Counts(local_ranks.size(), 1)).wait();
  std::vector<int> machine_of;
  int machine = -1;
  for (const int local_rank : local_ranks) {
    machine += local_rank == 0 ? 1 : 0;
    machine_of.push_back(machine);
  }
  return machine_of;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the doctor of this machine has found out, and what its ranks know besides.
std::string findings_of_machine(const World& world, const std::string& folder) {
  Json machine = Json::parse(text_of(detail::machine_file(folder)));
  const detail::Finding memory =
      detail::judge_ordinary_memory(world.ordinary_memory(), world.local_size());
  machine.at("findings").push_back(detail::to_json(std::vector<detail::Finding>{memory}).at(0));
  return machine.dump();
}

void measure(const std::string& folder) {
  const auto world = init();
  detail::Report report;
  report.machine_of = find_machines(*world);
  report.between.push_back({"transport", world->description()});
  const bool speaks = world->local_rank() == 0;
  for (const std::string& text :
       all_texts(*world, speaks ? findings_of_machine(*world, folder) : "")) {
    if (!text.empty()) {
      TRIREME_CHECK(!json_too_deep_at(text),
                    "expected what the doctor of another machine found, found JSON of more than ",
                    kMostJsonLevels,
                    " levels");
      const Json machine = Json::parse(text);
      report.machines.push_back(
          {machine.at("name"), detail::findings_from(machine.at("findings"))});
    }
  }
  report.pairs = detail::measure_pairs(*world, report.machine_of);
  report.clocks = detail::measure_clocks(*world, report.machine_of);
  world->barrier().wait();
  if (speaks) {
    std::ofstream(detail::report_file(folder)) << detail::to_json(report);
  }
}

int fail(const std::string& folder, const std::string& kind, const std::string& message) {
  const auto local_rank = env_integer(kEnvLocalRank, 0, 1 << 20).value_or(0);
  std::ofstream(detail::failure_file(folder, static_cast<int>(local_rank)))
      << Json{{"kind", kind}, {"message", message}};
  std::fprintf(stderr, "%s\n", message.c_str());
  return kExitRankFailed;
}

std::string kind_of(const CommError& error) {
  switch (error.reason()) {
    case CommError::Reason::kRendezvousTimeout:
      return "rendezvous";
    case CommError::Reason::kRefused:
      return "refused";
    case CommError::Reason::kPeerLeft:
    case CommError::Reason::kPeerDied:
      return "peer";
    default:
      return "other";
  }
}

}  // namespace

int run_doctor_rank(const std::string& folder) {
  try {
    measure(folder);
    return kExitOk;
  } catch (const CommError& error) {
    return fail(folder, kind_of(error), error.what());
  } catch (const std::exception& error) {
    return fail(folder, "other", error.what());
  }
}

}  // namespace trireme
