// Whole trainings of a small GPT on text over a slow link, on the same samples: what averaging now
// and then saves in time, and what it costs in loss.

#include <algorithm>
#include <cstdio>
#include <map>

#include "fault_training.h"
#include "number_text.h"
#include "samples.h"
#include "scratch_folder.h"
#include "sync_bench.h"
#include "sync_mode.h"
#include "test_bed.h"
#include "traffic.h"
#include "trireme/core/concat.h"
#include "trireme/core/table.h"
#include "trireme/metrics/significance.h"
#include "turn_order.h"

namespace trireme::bench {
namespace {

// One for each rank.
constexpr int kMicroBatches = 2;
constexpr int kAloneSteps = 40;
constexpr const char* kAlone = "alone";

// What `trireme train` has said of one training.
struct LossRun {
  double seconds = 0;  // of a step
  double loss = 0;
  double averaged_bytes = 0;  // that a rank sent for one averaging; 0 where there was none
};

class LossExperiment {
 public:
  explicit LossExperiment(const SyncPlace& place)
      : place_(place), local_("local:" + std::to_string(place.options.every)) {}

  int measure() {
    for (int seed = 1; seed <= place_.options.seeds; ++seed) {
      std::fprintf(stderr, "loss, seed %d of %d:", seed, place_.options.seeds);
      const std::vector<std::string> systems = {kAlone, "exact", local_};
      for (const std::string& system : turn_order(systems, seed - 1, place_.options.seeds)) {
        std::fprintf(stderr, " %s", system.c_str());
        if (const int code = train(system, seed); code != 0) {
          return code;
        }
      }
      std::fprintf(stderr, "\n");
    }
    return 0;
  }

  void report(SyncFindings& findings) const {
    const double alone = seconds_of(kAlone);
    const double bytes = runs_.at(local_).front().averaged_bytes;
    Table table(
        {"sync", "MB in a step", "s per step", "link allows", "reached", "loss at the end", "+-"});
    std::map<std::string, double> allowed;
    for (const std::string& sync : {std::string("exact"), local_}) {
      // An average of weights and a sum of gradients take the same bytes.
      const double sent = bytes / (sync == "exact" ? 1 : place_.options.every);
      allowed[sync] = alone + link_ms(sent, place_.options.megabits) / 1e3;
      const std::vector<double> losses = losses_of(sync);
      const MeanEstimate loss = mean_of(losses);
      table.add(
          {sync,
           number_text(sent / 1e6),
           number_text(seconds_of(sync)),
           number_text(allowed[sync]),
           number_text(allowed[sync] / seconds_of(sync)),
           four_digits(loss.mean),
           losses.size() > 1 ? four_digits((loss.interval95.high - loss.interval95.low) / 2) : ""});
      findings.json.push_back({{"sync", sync},
                               {"sent_bytes", sent},
                               {"seconds_per_step", seconds_of(sync)},
                               {"alone_seconds_per_step", alone},
                               {"link_allows_seconds", allowed[sync]},
                               {"losses", losses}});
    }
    const double ratio = seconds_of("exact") / seconds_of(local_);
    findings.text = detail::concat("A small GPT on text, ",
                                   place_.options.loss_steps,
                                   " steps, 2 machines x 1 rank of 1 thread, ",
                                   place_.options.megabits,
                                   " Mbit/s; the same samples in both, ",
                                   place_.options.seeds,
                                   place_.options.seeds == 1 ? " seed\n" : " seeds\n",
                                   table.text());
    findings.text += detail::concat("exact / ",
                                    local_,
                                    " in time: ",
                                    number_text(ratio),
                                    "; what the link allows: ",
                                    number_text(allowed["exact"] / allowed[local_]),
                                    "\n",
                                    difference_text(),
                                    "link allows: ",
                                    number_text(alone),
                                    " s of one rank alone, and the time of the bytes on the link, "
                                    "one after the other. +-: 95 % of the mean over the seeds.\n");
  }

 private:
  std::vector<std::string> flags(const std::string& system,
                                 int seed,
                                 const std::string& run) const {
    const bool alone = system == kAlone;
    const int micro_batch = place_.options.smoke ? 2 : 8;
    const int steps =
        alone ? std::min(kAloneSteps, place_.options.loss_steps) : place_.options.loss_steps;
    std::vector<std::string> words = {"--model",
                                      "gpt",
                                      "--steps",
                                      std::to_string(steps),
                                      "--batch",
                                      std::to_string(micro_batch * (alone ? 1 : kMicroBatches)),
                                      "--micro-batch",
                                      std::to_string(micro_batch),
                                      "--seed",
                                      std::to_string(seed),
                                      "--eval-every",  // once, at the end
                                      "1000000",
                                      "--tensorboard",
                                      "off",
                                      "--save-weights",
                                      "off",
                                      "--run",
                                      run};
    if (place_.options.smoke) {
      for (const char* word :
           {"--layers", "1", "--width", "32", "--heads", "2", "--sequence", "16"}) {
        words.emplace_back(word);
      }
    }
    if (system == local_) {
      words.insert(words.end(),
                   {"--sync", "local", "--sync-every", std::to_string(place_.options.every)});
    }
    return words;
  }

  int train(const std::string& system, int seed) {
    const bool alone = system == kAlone;
    const std::string name = (alone || system == "exact" ? system : "local") + std::to_string(seed);
    const std::string run = place_.scratch.file(name);
    const int machines = alone ? 1 : place_.bed->size();
    const std::string printed = place_.scratch.file(name + ".out");
    const int code = train_on(*place_.bed, machines, flags(system, seed, run), printed);
    if (code != 0) {
      if (code < 128) {
        std::fprintf(stderr, "\n%s", file_text(printed + "-0").c_str());
      }
      return code;
    }
    const nlohmann::json summary = nlohmann::json::parse(file_text(run + "/summary.json"));
    LossRun result{summary.at("seconds").get<double>() / summary.at("steps").get<double>(),
                   summary.at("metrics").at("loss").get<double>()};
    if (summary.contains("averaging")) {
      const nlohmann::json& averaging = summary.at("averaging");
      result.averaged_bytes =
          averaging.at("sent_bytes").get<double>() / averaging.at("averagings").get<double>();
    }
    runs_[system].push_back(result);
    return 0;
  }

  double seconds_of(const std::string& system) const {
    std::vector<double> seconds;
    for (const LossRun& run : runs_.at(system)) {
      seconds.push_back(run.seconds);
    }
    return median(seconds);
  }

  std::vector<double> losses_of(const std::string& system) const {
    std::vector<double> losses(runs_.at(system).size());
    // In the order of the seeds, which pairs them.
    for (std::size_t i = 0; i < losses.size(); ++i) {
      losses[i] = runs_.at(system)[i].loss;
    }
    return losses;
  }

  static std::string four_digits(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.4f", value);
    return text;
  }

  std::string difference_text() const {
    const std::vector<double> exact = losses_of("exact");
    if (exact.size() < 2) {
      return "one seed says nothing about the difference in loss: --seeds\n";
    }
    const Difference difference = paired_t_test(exact, losses_of(local_));
    return detail::concat("loss of ",
                          local_,
                          " - exact: ",
                          four_digits(difference.mean),
                          ", 95 %: ",
                          four_digits(difference.interval95.low),
                          " to ",
                          four_digits(difference.interval95.high),
                          ", p = ",
                          number_text(difference.p_value),
                          " (",
                          difference.test,
                          ")\n");
  }

  const SyncPlace& place_;
  std::string local_;
  std::map<std::string, std::vector<LossRun>> runs_;  // by system
};

}  // namespace

int measure_loss(const SyncPlace& place, SyncFindings& findings) {
  LossExperiment experiment(place);
  const int code = experiment.measure();
  if (code == 0) {
    experiment.report(findings);
  }
  return code;
}

}  // namespace trireme::bench
