#include "doctor/clock_difference.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "doctor/quantity.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr int kExchanges = 50;
constexpr double kFarApart = 1;  // seconds; logs of different machines no longer line up

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

ClockDifference estimate_difference(const std::vector<ClockSample>& samples) {
  const auto shortest = std::min_element(
      samples.begin(), samples.end(), [](const ClockSample& a, const ClockSample& b) {
        return a.after - a.before < b.after - b.before;
      });
  if (shortest == samples.end()) {
    return {};
  }
  const double half = (shortest->after - shortest->before) / 2;
  return {shortest->other - (shortest->before + half), half};
}

std::vector<ClockDifference> measure_clocks(Communicator& world,
                                            const std::vector<int>& machine_of) {
  const int machines = machine_of.back() + 1;
  std::vector<double> numbers(2 * static_cast<std::size_t>(machines));
  for (int machine = 1; machine < machines; ++machine) {
    const auto first = std::find(machine_of.begin(), machine_of.end(), machine);
    const int peer = static_cast<int>(first - machine_of.begin());
    std::vector<ClockSample> samples;
    for (int i = 0; i < kExchanges; ++i) {
      std::vector<double> word(1);
      if (world.rank() == 0) {
        ClockSample sample;
        sample.before = clock_seconds();
        world.send(word, peer).wait();
        world.recv(word, peer).wait();
        sample.after = clock_seconds();
        sample.other = word[0];
        samples.push_back(sample);
      } else if (world.rank() == peer) {
        world.recv(word, 0).wait();
        word[0] = clock_seconds();
        world.send(word, 0).wait();
      }
    }
    if (world.rank() == 0) {
      const ClockDifference difference = estimate_difference(samples);
      numbers[2 * static_cast<std::size_t>(machine)] = difference.seconds;
      numbers[2 * static_cast<std::size_t>(machine) + 1] = difference.uncertainty;
    }
  }
  world.broadcast(numbers, 0).wait();
  std::vector<ClockDifference> clocks;
  for (std::size_t at = 0; at < numbers.size(); at += 2) {
    clocks.push_back({numbers[at], numbers[at + 1]});
  }
  return clocks;
}

std::vector<Finding> judge_clocks(const std::vector<ClockDifference>& clocks) {
  std::vector<Finding> findings;
  for (std::size_t machine = 1; machine < clocks.size(); ++machine) {
    const ClockDifference& clock = clocks[machine];
    Finding finding{"clock",
                    concat("machine {} is {}{} machine 0 (+- {} ms)",
                           {machine,
                            number_text(std::abs(clock.seconds) * 1e3),
                            clock.seconds < 0 ? " ms behind" : " ms ahead of",
                            number_text(clock.uncertainty * 1e3)}),
                    {{"machine", static_cast<double>(machine)},
                     {"seconds", clock.seconds},
                     {"uncertainty_seconds", clock.uncertainty}}};
    if (std::abs(clock.seconds) - clock.uncertainty > kFarApart) {
      finding.judge(
          Verdict::kWarning,
          "synchronise both with a time server (chrony, systemd-timesyncd): times of logs and "
          "files cannot be compared");
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace trireme::detail
