#include "faults_peers.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>
#include <signal.h>

#include "arguments.h"
#include "fault_training.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "peers.h"
#include "scratch_folder.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"

namespace trireme::bench {
namespace {

using PeerClock = std::chrono::steady_clock;

constexpr int kTheirSaves = 20;             // steps between two checkpoints
constexpr std::int64_t kStepsToSettle = 2;  // after the last fault
constexpr std::int64_t kStepsBefore = 6;    // the next one, at least, which are timed
constexpr std::uint64_t kMoreSteps = 12;

// As bench/peers/step_common.py has them.
struct PeerSetting {
  int sequence, width, layers, heads, batch;
};
constexpr PeerSetting kPeerSettings[] = {{64, 512, 8, 8, 1}, {128, 256, 4, 8, 4}};

// Where a training is: the step that it has done last, and a number that is another one after it
// was started or resumed again, from which step.
struct Standing {
  std::int64_t step = 0;
  std::int64_t first = 0;
  std::int64_t attempt = 0;
};

struct Loss {
  double step = 0;         // seconds of one before
  double next = 0;         // seconds until a step is done
  double back = 0;         // and until it is where it was
  std::int64_t again = 0;  // steps
};

struct Side {
  std::string name;
  std::vector<Loss> losses;
  int asked = 0;           // kills
  std::string last_words;  // of one that did not get through them all
};

Standing standing_of_ours(FaultTraining& job) {
  const auto [times, after] = job.resumed();
  return {job.step(), after, times};
}

// The last complete line of what torch_elastic.py writes.
Standing standing_of_theirs(const std::string& folder) {
  const std::string text = file_text(folder + "/steps");
  const std::size_t end = text.rfind('\n');
  Standing standing;
  if (end != std::string::npos) {
    const std::size_t begin = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
    std::istringstream line(text.substr(begin == std::string::npos ? 0 : begin + 1));
    line >> standing.step >> standing.first >> standing.attempt;
  }
  return standing;
}

std::vector<Loss> kill_ranks(FaultTraining& job,
                             int count,
                             std::uint64_t seed,
                             const std::function<Standing()>& standing) {
  RandomStream random(seed);
  std::vector<Loss> losses;
  while (static_cast<int>(losses.size()) < count) {
    const std::int64_t first = std::max(standing().step, standing().first) + kStepsToSettle;
    const auto target = first + kStepsBefore + static_cast<std::int64_t>(random.below(kMoreSteps));
    if (!job.wait_until([&] { return standing().step >= first; })) {
      break;
    }
    const std::int64_t from = standing().step;
    const auto settled = PeerClock::now();
    if (!job.wait_until([&] { return standing().step >= target; })) {
      break;
    }
    const std::vector<pid_t> ranks = job.ranks();
    if (ranks.empty()) {
      break;
    }
    const Standing before = standing();
    const auto begin = PeerClock::now();
    kill(ranks[random.below(ranks.size())], SIGKILL);
    Loss loss;
    loss.step = std::chrono::duration<double>(begin - settled).count() /
                static_cast<double>(before.step - from);
    Standing now;
    const auto seconds = [&] {
      return std::chrono::duration<double>(PeerClock::now() - begin).count();
    };
    const bool goes_on = job.wait_until([&] {
      now = standing();
      return now.attempt != before.attempt && now.step > now.first;
    });
    loss.next = seconds();
    loss.again = std::max<std::int64_t>(0, before.step - now.first);
    if (!goes_on || !job.wait_until([&] { return standing().step > before.step; })) {
      break;
    }
    loss.back = seconds();
    losses.push_back(loss);
  }
  return losses;
}

std::vector<std::string> our_words(const FaultsBenchOptions& options, const std::string& run) {
  const PeerSetting& setting = kPeerSettings[options.setting];
  const auto text = [](int number) { return std::to_string(number); };
  return {own_program(),   "train",
          "--model",       "gpt",
          "--data",        "licenses",
          "--steps",       "1000000",
          "--threads",     "1",
          "--device",      "cpu",
          "--log-every",   "1000000",
          "--eval-every",  "1000000",
          "--zero",        text(options.zero),
          "--run",         run,
          "--layers",      text(setting.layers),
          "--width",       text(setting.width),
          "--heads",       text(setting.heads),
          "--sequence",    text(setting.sequence),
          "--batch",       text(setting.batch * options.ranks),
          "--micro-batch", text(setting.batch),
          "--elastic",     detail::concat("1:", options.ranks)};
}

// Kills `count` ranks of `job`, one after the other, and ends it.
Side side_of(const std::string& name,
             FaultTraining& job,
             int count,
             std::uint64_t seed,
             const std::function<Standing()>& standing) {
  Side side{name, kill_ranks(job, count, seed, standing), count, ""};
  if (static_cast<int>(side.losses.size()) < count) {
    side.last_words = job.last_words();
  }
  job.stop();
  return side;
}

Side our_side(const FaultsBenchOptions& options, const std::string& run, bool starts_again) {
  std::vector<std::string> words = our_words(options, run);
  if (starts_again) {
    words.insert(words.end(), {"--restart", std::to_string(options.faults)});
  }
  FaultTraining job(words, run);
  const int count = starts_again ? options.faults : std::min(options.faults, options.ranks - 1);
  return side_of(starts_again ? "trireme, started again" : "trireme, the others continue",
                 job,
                 count,
                 options.seed,
                 [&] { return standing_of_ours(job); });
}

Side their_side(const FaultsBenchOptions& options, const Peer& peer, const std::string& folder) {
  setenv("OMP_NUM_THREADS", "1", 0);
  setenv("GLOO_SOCKET_IFNAME", "lo", 0);  // the address of the host's name may be refused
  // Else ranks that it starts again find the addresses of the dead ones in the store, and give up.
  setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 0);
  FaultTraining job(peer.command, folder, "", SIGTERM);  // torchrun ends its ranks then
  return side_of(
      peer.name, job, options.faults, options.seed, [&] { return standing_of_theirs(folder); });
}

double median_of(const std::vector<Loss>& losses, double Loss::*what) {
  std::vector<double> values;
  values.reserve(losses.size());
  for (const Loss& loss : losses) {
    values.push_back(loss.*what);
  }
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::int64_t most_again(const std::vector<Loss>& losses) {
  std::int64_t most = 0;
  for (const Loss& loss : losses) {
    most = std::max(most, loss.again);
  }
  return most;
}

std::string json_text(const std::vector<Side>& sides) {
  nlohmann::json all = nlohmann::json::array();
  for (const Side& side : sides) {
    nlohmann::json losses = nlohmann::json::array();
    for (const Loss& loss : side.losses) {
      losses.push_back({{"step_seconds", loss.step},
                        {"next_step_seconds", loss.next},
                        {"where_it_was_seconds", loss.back},
                        {"steps_again", loss.again}});
    }
    all.push_back({{"system", side.name}, {"kills", losses}});
  }
  return all.dump(2);
}

}  // namespace

int run_faults_peers(const FaultsBenchOptions& options) {
  TRIREME_CHECK(options.ranks >= 2, "--peers: expected 2 ranks or more, found {}", {options.ranks});
  JsonFile file(options.json_path);
  const ScratchFolder folder;
  const std::string theirs = folder.file("torch");
  const Peer peer =
      // One kill may take several restarts: of those that start, one may not reach another yet.
      elastic_peer(options.ranks, 10 + 3 * options.faults, options.setting, kTheirSaves, theirs);
  std::vector<Side> sides = {our_side(options, folder.file("survivors"), false),
                             our_side(options, folder.file("restarted"), true)};
  if (peer.missing.empty()) {
    std::filesystem::create_directory(theirs);
    sides.push_back(their_side(options, peer, theirs));
  }
  Table table({"system",
               "kills",
               "s of a step before",
               "s to the next step",
               "s to where it was",
               "steps computed again, at most"});
  bool complete = true;
  for (const Side& side : sides) {
    table.add({side.name,
               std::to_string(side.losses.size()),
               number_text(median_of(side.losses, &Loss::step)),
               number_text(median_of(side.losses, &Loss::next)),
               number_text(median_of(side.losses, &Loss::back)),
               std::to_string(most_again(side.losses))});
    complete &= static_cast<int>(side.losses.size()) == side.asked;
  }
  std::printf(
      "\nTrireme %s, from SIGKILL of one of %s to the next step, the step included, medians;\n"
      "torchrun starts PyTorch DDP again from its last checkpoint, one every %d steps\n%s%s",
      TRIREME_VERSION,
      detail::counted(options.ranks, "rank").c_str(),
      kTheirSaves,
      host_text(options.command_line).c_str(),
      table.text().c_str());
  for (const Side& side : sides) {
    if (static_cast<int>(side.losses.size()) < side.asked) {
      std::printf("%s: recovered from %zu of %d kills; it said last:\n%s\n",
                  side.name.c_str(),
                  side.losses.size(),
                  side.asked,
                  side.last_words.c_str());
    }
  }
  if (!peer.missing.empty()) {
    std::printf("torchrun: not measured: %s\n", peer.missing.c_str());
  }
  file.write(json_text(sides));
  return complete ? 0 : 1;
}

}  // namespace trireme::bench
