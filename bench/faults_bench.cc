#include "faults_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
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
#include "json_file.h"
#include "left_behind.h"
#include "number_text.h"
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

// Steps between two faults, where nothing is said; marked points are come by more often.
constexpr int kStepsPerFault = 13;
constexpr int kStepsPerPoint = 10;
// Of the training, beside those: while it starts, and after the last fault.
constexpr std::int64_t kStepsBeside = 60;
// A training that has done so many steps after a fault has not suffered it: the rank was about to
// leave.
constexpr std::int64_t kStepsUnharmed = 40;

int pause_of(const FaultsBenchOptions& options) {
  const int usual = options.points ? kStepsPerPoint : kStepsPerFault;
  return options.every > 0 ? options.every : usual;
}

// A drill throws dice, so it gets a reserve.
std::int64_t steps_of(const FaultsBenchOptions& options) {
  const std::int64_t steps = static_cast<std::int64_t>(options.faults) * pause_of(options);
  return kStepsBeside + (options.points ? steps * 14 / 10 : steps);
}

std::vector<std::string> training(const FaultsBenchOptions& options, const std::string& run) {
  std::vector<std::string> words = {own_program(), "train", "--model", "gpt", "--data", "licenses"};
  const std::vector<std::string> more = {"--steps",
                                         std::to_string(steps_of(options)),
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
  for (std::size_t i = 0; i < more.size(); i += 2) {  // what is given takes precedence
    if (std::ranges::find(options.settings, more[i]) == options.settings.end()) {
      words.insert(words.end(), {more[i], more[i + 1]});
    }
  }
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

struct Inflicted {
  Recovery recovery;
  std::int64_t step = 0;
};

// The fault of this number, from 0: each has a stretch of the training of its own, at a random step
// of which it comes, or as soon as the one before is over. So there is room for all of them.
std::optional<Inflicted> next_fault(FaultTraining& job,
                                    const FaultsBenchOptions& options,
                                    int number,
                                    RandomStream& random) {
  const auto length = static_cast<std::uint64_t>(pause_of(options));
  const auto target = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) * length +
                                                random.below(length)) +
                      1;
  if (job.step() < target) {
    if (!job.wait_until([&] { return job.step() >= target; })) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(20'000)));
  }
  for (;;) {
    const int before = job.resumed().first;
    Inflicted fault;
    fault.step = job.step();
    const auto begin = Clock::now();
    fault.recovery.kind = inflict(job, options, random);
    const std::int64_t unharmed = job.step() + kStepsUnharmed;
    std::pair<int, std::int64_t> after;
    bool is_over = false;
    const bool goes_on = job.wait_until([&] {
      after = job.resumed();
      is_over = after.first > before && job.step() > after.second;
      return is_over || (after.first == before && job.step() > unharmed);
    });
    if (!goes_on) {
      return std::nullopt;
    }
    if (is_over) {
      fault.recovery.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      fault.recovery.again = std::max<std::int64_t>(0, fault.step - after.second);
      return fault;
    }
  }
}

// What was asked for, and what happened.
std::string asked_and_done(const FaultsBenchOptions& options,
                           const std::vector<Recovery>& faults,
                           std::int64_t last_step,
                           const std::string& run) {
  const std::string asked =
      detail::concat("asked for: {}, one every {} steps on average; ",
                     {detail::counted(options.faults, "fault"), pause_of(options)});
  if (options.points) {
    return asked +
           detail::concat("the drill of {} steps had: {}", {steps_of(options), outcomes_text(run)});
  }
  const auto count = static_cast<std::int64_t>(faults.size());
  return asked + detail::concat(
                     "inflicted and recovered from: {}, one every {} steps, the last in "
                     "step {} of {}",
                     {count,
                      number_text(static_cast<double>(last_step) /
                                  static_cast<double>(std::max<std::int64_t>(1, count))),
                      last_step,
                      steps_of(options)});
}

}  // namespace

int run_faults_bench(const FaultsBenchOptions& options) {
  if (options.peers) {
    return run_faults_peers(options);
  }
  JsonFile file(options.json_path);
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
    const std::vector<std::string> drill = drill_of_points(options.seed, pause_of(options));
    words.insert(words.end(), drill.begin(), drill.end());
  }
  std::vector<Recovery> faults;
  const LeftBehind left;
  HeldOverTime held;
  std::int64_t last_step = 0;
  int code = 0;
  {
    FaultTraining job(words, folder.file("faults"), left.mark());
    RandomStream random(options.seed);
    job.wait_until([&] { return job.step() > 0; });
    while (!options.points && static_cast<int>(faults.size()) < options.faults) {
      const auto fault = next_fault(job, options, static_cast<int>(faults.size()), random);
      if (!fault) {
        break;
      }
      faults.push_back(fault->recovery);
      last_step = fault->step;
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
      "\nTrireme %s, faults in an elastic training of at most %s, ZeRO-%d, medians\n%s%s%s\n"
      "the training ended with %d; its weights %s those of the training without "
      "faults\nleft behind: %s\n%s",
      TRIREME_VERSION,
      detail::counted(options.ranks, "rank").c_str(),
      options.zero,
      host_text(options.command_line).c_str(),
      recoveries_text(faults).c_str(),
      asked_and_done(options, faults, last_step, folder.file("faults")).c_str(),
      code,
      same ? "equal" : "DIFFER from",
      left_text.c_str(),
      (options.points ? noticed_text(folder.file("faults")) : held.text()).c_str());
  if (file.is_wanted()) {
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
    file.write(all.dump(2));
  }
  return same && nothing_left && static_cast<int>(faults.size()) >= options.faults ? 0 : 1;
}

}  // namespace trireme::bench
