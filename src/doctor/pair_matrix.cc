#include "doctor/pair_matrix.h"

#include <algorithm>
#include <map>
#include <set>

#include "doctor/quantity.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"

namespace trireme::detail {
namespace {

constexpr int kMostMeasuredRanks = 32;
constexpr int kMostPrintedRanks = 8;
constexpr double kMuchWorse = 2;
// Where all pairs are alike there is nothing to compare with; no idle machine, and no network that
// a training should be divided over, takes longer than this.
constexpr double kLongInside = 100;
constexpr double kLongBetween = 1000;  // us
constexpr double kSlowInside = 1e9;    // bytes per second: less than any memory's

// One of the two quantities. Latency is a time, where less is better; its reverse holds for speed.
struct Quantity {
  const char* name;
  const char* unit;
  double scale;  // from what is stored to the unit
  bool less_is_better;
  const std::vector<double> PairMatrix::*values;

  bool worse(double a, double b) const { return less_is_better ? a > b : a < b; }
  double badness(double value, double usual) const {
    return less_is_better ? value / usual : usual / value;
  }
  std::string text(double value) const { return number_text(value * scale) + " " + unit; }
};

constexpr Quantity kLatency{"latency", "us", 1, true, &PairMatrix::latency_us};
constexpr Quantity kBandwidth{"bandwidth", "MB/s", 1e-6, false, &PairMatrix::bytes_per_second};

struct Measured {
  int from;
  int to;
  double value;
};

// `values` is not empty.
double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double median_of(const std::vector<Measured>& measured) {
  std::vector<double> values;
  values.reserve(measured.size());
  for (const Measured& one : measured) {
    values.push_back(one.value);
  }
  return median_of(std::move(values));
}

int machine(const std::vector<int>& machine_of, int rank) {
  return machine_of[static_cast<std::size_t>(rank)];
}

// Every measured entry that `wanted(from, to)`. A latency is the same both ways and counts once.
template <class Wanted>
std::vector<Measured> collect(const PairMatrix& pairs, const Quantity& quantity, Wanted wanted) {
  std::vector<Measured> measured;
  for (int from = 0; from < pairs.ranks; ++from) {
    for (int to = quantity.less_is_better ? from + 1 : 0; to < pairs.ranks; ++to) {
      const double value = (pairs.*quantity.values)[pairs.at(from, to)];
      if (from != to && value > 0 && wanted(from, to)) {
        measured.push_back({from, to, value});
      }
    }
  }
  return measured;
}

std::vector<Measured> of_kind(const PairMatrix& pairs,
                              const Quantity& quantity,
                              const std::vector<int>& machine_of,
                              bool between) {
  return collect(pairs, quantity, [&](int from, int to) {
    return (machine(machine_of, from) != machine(machine_of, to)) == between;
  });
}

Finding judge(const PairMatrix& pairs,
              const Quantity& quantity,
              const std::vector<int>& machine_of,
              bool between) {
  const auto measured = of_kind(pairs, quantity, machine_of, between);
  if (measured.empty()) {
    return {};
  }
  const double usual = median_of(measured);
  const Measured worst = *std::ranges::max_element(
      measured, [&](const auto& a, const auto& b) { return quantity.worse(b.value, a.value); });
  Finding finding{quantity.name,
                  concat(quantity.text(usual), between ? " between machines" : " inside a machine"),
                  {{"median", usual}, {"worst", worst.value}}};
  const double badness = quantity.badness(worst.value, usual);
  if (quantity.less_is_better && usual > (between ? kLongBetween : kLongInside)) {
    finding.verdict = Verdict::kWarning;
    finding.value += concat(", where less than {} {} is usual",
                            {between ? kLongBetween : kLongInside, quantity.unit});
    finding.advice = concat("run the doctor again on ",
                            between ? "idle machines; if nothing changes, they are far apart or "
                                      "their network is slow, and every step waits for it"
                                    : "an idle machine, with no more ranks than processors");
    return finding;
  }
  if (!quantity.less_is_better && !between && usual < kSlowInside) {
    finding.verdict = Verdict::kWarning;
    finding.value += concat(", where more than {} is usual", {quantity.text(kSlowInside)});
    finding.advice = "run the doctor again on an idle machine, with no more ranks than processors";
    return finding;
  }
  if (badness <= kMuchWorse) {
    return finding;
  }
  const auto place = [&](int rank) {
    return between ? concat(rank, " (machine ", machine(machine_of, rank), ")") : concat(rank);
  };
  finding.verdict = Verdict::kWarning;
  finding.value += concat("; ranks {}{}{}: {}, {} times worse",
                          {place(worst.from),
                           quantity.less_is_better ? " and " : " to ",
                           place(worst.to),
                           quantity.text(worst.value),
                           number_text(badness)});
  finding.numbers["slow_from"] = worst.from;
  finding.numbers["slow_to"] = worst.to;
  finding.advice =
      between ? "look at the cable, the switch port and the interface (ethtool: speed, duplex, "
                "errors) of these two machines"
              : "the two may sit on different sockets or share a busy processor (see lscpu, top); "
                "run the doctor again on an idle machine";
  return finding;
}

std::string matrix_text(const PairMatrix& pairs, const Quantity& quantity) {
  Table table;
  std::vector<std::string> header{""};
  for (int to = 0; to < pairs.ranks; ++to) {
    header.push_back(std::to_string(to));
  }
  table.add(header);
  for (int from = 0; from < pairs.ranks; ++from) {
    std::vector<std::string> row{std::to_string(from)};
    for (int to = 0; to < pairs.ranks; ++to) {
      const double value = (pairs.*quantity.values)[pairs.at(from, to)];
      row.push_back(value > 0 ? number_text(value * quantity.scale) : "-");
    }
    table.add(row);
  }
  return table.text();
}

std::string machines_text(const PairMatrix& pairs,
                          const Quantity& quantity,
                          const std::vector<int>& machine_of) {
  std::map<std::pair<int, int>, std::vector<double>> groups;
  for (const Measured& one : collect(pairs, quantity, [](int, int) { return true; })) {
    groups[std::minmax(machine(machine_of, one.from), machine(machine_of, one.to))].push_back(
        one.value);
  }
  Table table;
  table.add({"machines", "best", "median", "worst"});
  for (auto& [key, values] : groups) {
    std::ranges::sort(values, [&](double a, double b) { return quantity.worse(b, a); });
    table.add({concat(key.first, "-", key.second),
               number_text(values.front() * quantity.scale),
               number_text(median_of(values) * quantity.scale),
               number_text(values.back() * quantity.scale)});
  }
  return table.text();
}

}  // namespace

std::vector<std::pair<int, int>> pairs_to_measure(const std::vector<int>& machine_of) {
  const int ranks = static_cast<int>(machine_of.size());
  std::vector<int> chosen;
  const int machines = machine_of.empty() ? 1 : machine_of.back() + 1;
  const int most = ranks <= kMostMeasuredRanks ? ranks : std::max(1, kMostMeasuredRanks / machines);
  std::map<int, int> taken;
  for (int rank = 0; rank < ranks; ++rank) {
    if (taken[machine(machine_of, rank)]++ < most) {
      chosen.push_back(rank);
    }
  }
  std::vector<std::pair<int, int>> pairs;
  for (std::size_t a = 0; a < chosen.size(); ++a) {
    for (std::size_t b = a + 1; b < chosen.size(); ++b) {
      pairs.emplace_back(chosen[a], chosen[b]);
    }
  }
  return pairs;
}

std::vector<std::pair<int, int>> slow_pairs(const PairMatrix& pairs,
                                            const std::vector<int>& machine_of) {
  std::set<std::pair<int, int>> slow;
  for (const bool between : {false, true}) {
    for (const Quantity& quantity : {kLatency, kBandwidth}) {
      const auto measured = of_kind(pairs, quantity, machine_of, between);
      const double usual = measured.empty() ? 0 : median_of(measured);
      for (const Measured& one : measured) {
        if (quantity.badness(one.value, usual) > kMuchWorse) {
          slow.insert(std::minmax(one.from, one.to));
        }
      }
    }
  }
  return {slow.begin(), slow.end()};
}

std::vector<Finding> judge_pairs(const PairMatrix& pairs, const std::vector<int>& machine_of) {
  std::vector<Finding> findings;
  for (const bool between : {false, true}) {
    for (const Quantity& quantity : {kLatency, kBandwidth}) {
      Finding finding = judge(pairs, quantity, machine_of, between);
      if (!finding.check.empty()) {
        findings.push_back(std::move(finding));
      }
    }
  }
  return findings;
}

std::string pairs_text(const PairMatrix& pairs, const std::vector<int>& machine_of) {
  if (pairs.ranks < 2) {
    return {};
  }
  const bool all = pairs.ranks <= kMostPrintedRanks;
  const auto table = [&](const Quantity& quantity) {
    return all ? matrix_text(pairs, quantity) : machines_text(pairs, quantity, machine_of);
  };
  return concat("Half a round trip of 8 bytes between ranks, microseconds\n",
                table(kLatency),
                "\nBandwidth of messages of up to 4 MiB, MB/s",
                all ? " (from the rank of the row to that of the column)\n" : "\n",
                table(kBandwidth));
}

}  // namespace trireme::detail
