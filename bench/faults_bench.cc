#include "faults_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>
#include <signal.h>

#include "arguments.h"
#include "fault_points.h"
#include "fault_training.h"
#include "faults_peers.h"
#include "host_text.h"
#include "left_behind.h"
#include "peers.h"
#include "recoveries.h"
#include "scratch_folder.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/core/version.h"

namespace trireme::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// Steps between two faults: at least the first, less than both together.
constexpr std::uint64_t kLeastPause = 4;
constexpr std::uint64_t kMorePause = 10;
// Of the training, for each fault: what they take on average, with a reserve.
constexpr std::uint64_t kStepsPerFault = 16;
constexpr std::uint64_t kStepsBeside = 60;
// At marked points a fault happens every ten steps or so (fault_points.cc), with a reserve.
constexpr std::uint64_t kStepsPerPoint = 14;

std::vector<std::string> training(const FaultsBenchOptions& options, const std::string& run) {
  std::vector<std::string> words = {own_program(), "train", "--model", "gpt", "--data", "licenses"};
  const std::uint64_t each = options.points ? kStepsPerPoint : kStepsPerFault;
  const std::uint64_t steps = kStepsBeside + static_cast<std::uint64_t>(options.faults) * each;
  const std::vector<std::string> more = {"--steps",
                                         std::to_string(steps),
                                         "--threads",
                                         "1",
                                         "--log-every",
                                         "1000000",
                                         "--eval-every",
                                         "1000000",
                                         "--zero",
                                         std::to_string(options.zero),
                                         "--run",
                                         run};
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), options.settings.begin(), options.settings.end());
  return words;
}

// Does something to the training; what.
std::string inflict(FaultTraining& job, const FaultsBenchOptions& options, RandomStream& random) {
  const std::vector<pid_t> ranks = job.ranks();
  if (ranks.empty()) {
    return "";
  }
  const pid_t rank = ranks[random.below(ranks.size())];
  const std::uint64_t choice = random.below(10);
  if (choice == 0) {
    kill(rank, SIGSTOP);
    return "stop";
  }
  if (choice == 1) {
    for (const pid_t each : ranks) {
      kill(each, SIGKILL);
    }
    return "kill all";
  }
  if (choice <= 3) {
    auto wanted = 1 + random.below(static_cast<std::uint64_t>(options.ranks));
    if (wanted == ranks.size()) {
      wanted = wanted == 1 ? 2 : wanted - 1;
    }
    const bool grows = wanted > ranks.size();
    const int refused = run_command(
        {"/bin/sh",
         "-c",
         detail::concat("{} scale {} {} >/dev/null 2>&1", {own_program(), job.pid(), wanted})});
    if (refused == 0) {
      return grows ? "grow" : "shrink";
    }
  }
  kill(rank, SIGKILL);
  return "kill";
}

std::optional<Recovery> next_fault(FaultTraining& job,
                                   const FaultsBenchOptions& options,
                                   RandomStream& random) {
  const auto target =
      job.step() + static_cast<std::int64_t>(kLeastPause + random.below(kMorePause));
  if (!job.wait_until([&] { return job.step() >= target; })) {
    return std::nullopt;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random.below(20'000)));
  const int before = job.resumed().first;
  const std::int64_t step = job.step();
  const auto begin = Clock::now();
  Recovery fault{.kind = inflict(job, options, random)};
  std::pair<int, std::int64_t> after;
  const bool resumed = job.wait_until([&] {
    after = job.resumed();
    return after.first > before && job.step() > after.second;
  });
  if (!resumed) {
    return std::nullopt;
  }
  fault.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  fault.again = std::max<std::int64_t>(0, step - after.second);
  return fault;
}

}  // namespace

int run_faults_bench(const FaultsBenchOptions& options) {
  if (options.peers) {
    return run_faults_peers(options);
  }
  std::ofstream file = json_file(options.json_path);
  const ScratchFolder folder;
  std::vector<std::string> calm = training(options, folder.file("calm"));
  calm.insert(calm.end(), {"-n", std::to_string(options.ranks)});
  std::vector<std::string> words = training(options, folder.file("faults"));
  words.insert(words.end(),
               {"--elastic",
                detail::concat("1:", options.ranks),
                "--restart",
                "1000000",
                "--heartbeat",
                "0.5"});
  if (options.points) {
    const std::vector<std::string> drill = drill_of_points(options.seed);
    words.insert(words.end(), drill.begin(), drill.end());
  }
  std::vector<Recovery> faults;
  const LeftBehind left;
  HeldOverTime held;
  int code = 0;
  {
    FaultTraining job(words, folder.file("faults"), left.mark());
    RandomStream random(options.seed);
    job.wait_until([&] { return job.step() > 0; });
    while (!options.points && static_cast<int>(faults.size()) < options.faults) {
      const auto fault = next_fault(job, options, random);
      if (!fault) {
        break;
      }
      faults.push_back(*fault);
      held.add(job.pid(), job.ranks());
    }
    code = job.wait();
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));  // the kernel takes processes away
  const bool nothing_left = left.nothing();
  const std::string left_text = left.text();
  if (options.points) {
    faults = points_in(folder.file("faults"));
  }
  // Alone: both would wait for the same processors.
  const int calm_code = FaultTraining(calm, folder.file("calm")).wait();
  TRIREME_CHECK(calm_code == 0, "the training without faults ended with ", calm_code);
  const std::string weights = file_text(folder.file("calm") + "/model.safetensors");
  const bool same = code == 0 && weights == file_text(folder.file("faults") + "/model.safetensors");

  std::printf(
      "\nTrireme %s, faults in an elastic training of at most %s, ZeRO-%d, medians\n%s%s%s of %d "
      "recovered from; the training ended with %d; its weights %s those of the training without "
      "faults\nleft behind: %s\n%s",
      TRIREME_VERSION,
      detail::counted(options.ranks, "rank").c_str(),
      options.zero,
      host_text(options.command_line).c_str(),
      recoveries_text(faults).c_str(),
      detail::counted(static_cast<std::int64_t>(faults.size()), "fault").c_str(),
      options.faults,
      code,
      same ? "equal" : "DIFFER from",
      left_text.c_str(),
      (options.points ? noticed_text(folder.file("faults")) : held.text()).c_str());
  if (file.is_open()) {
    std::map<std::string, Json> kinds;
    for (const Recovery& fault : faults) {
      for (const std::string& kind : {fault.kind, std::string("all")}) {
        Json& each =
            kinds.try_emplace(kind, Json{{"fault", kind}, {"steps_again", 0}}).first->second;
        each["seconds"].push_back(fault.seconds);
        each["steps_again"] = std::max(each["steps_again"].get<std::int64_t>(), fault.again);
      }
    }
    Json all = Json::array();
    for (const auto& [kind, each] : kinds) {
      all.push_back(each);
    }
    file << all.dump(2) << "\n";
  }
  return same && nothing_left && static_cast<int>(faults.size()) >= options.faults ? 0 : 1;
}

}  // namespace trireme::bench
