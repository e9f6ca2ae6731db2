#include <algorithm>
#include <array>

#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/nearest_word.h"
#include "trireme/core/printable.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

using detail::concat;
using detail::printable;

constexpr double kDefaultStop = 2;
constexpr double kLongestStop = 86400;
constexpr double kDefaultDelay = 0.05;
constexpr double kDefaultFlips = 1e-6;

struct DrillName {
  const char* name;
  DrillKind kind;
};
constexpr std::array kDrillNames = {DrillName{"kill", DrillKind::kKill},
                                    DrillName{"stop", DrillKind::kStop},
                                    DrillName{"disk-full", DrillKind::kDiskFull},
                                    DrillName{"leave", DrillKind::kLeave},
                                    DrillName{"join", DrillKind::kJoin},
                                    DrillName{"delay", DrillKind::kDelay},
                                    DrillName{"drop", DrillKind::kDrop},
                                    DrillName{"corrupt", DrillKind::kCorrupt},
                                    DrillName{"kill-launcher", DrillKind::kKillLauncher},
                                    DrillName{"stop-launcher", DrillKind::kStopLauncher}};

// Draws of one step that have nothing to do with each other.
enum Draw : std::uint64_t { kWhether, kWhom, kWhen, kSaves, kFlips, kPoints };

std::vector<std::string> split_at(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
  }
  return parts;
}

// "2s", "50ms"
std::optional<double> parse_duration(const std::string& text) {
  const double unit = text.ends_with("ms") ? 1e-3 : 1;
  const std::size_t letters = text.ends_with("ms") ? 2 : 1;
  if (!text.ends_with('s')) {
    return std::nullopt;
  }
  const auto number = parse_positive(text.substr(0, text.size() - letters));
  return number ? std::optional(*number * unit) : std::nullopt;
}

DrillKind kind_named(const std::string& name, const std::string& where) {
  if (const auto kind = drill_kind(name)) {
    return *kind;
  }
  std::vector<std::string> names;
  names.reserve(kDrillNames.size());
  for (const DrillName& each : kDrillNames) {
    names.emplace_back(each.name);
  }
  const std::string nearest = nearest_word(name, names);
  throw ConfigError(concat(
      "--drill: expected kill, stop, disk-full, leave, join, delay, drop, corrupt, kill-launcher "
      "or "
      "stop-launcher, found \"{}\" {}{}",
      {printable(name), where, nearest.empty() ? "" : concat("; did you mean ", nearest, "?")}));
}

// "p=0.01" or "1%"; of corrupt, a number alone. Not set: it is not one.
std::optional<double> parse_probability(const DrillFault& fault, const std::string& word) {
  const bool is_named = word.starts_with("p=");
  const std::string number = is_named ? word.substr(2) : word;
  if (number.ends_with('%')) {
    return parse_positive(number.substr(0, number.size() - 1)).value_or(0) / 100;
  }
  return is_named || fault.kind == DrillKind::kCorrupt
             ? std::optional(parse_positive(number).value_or(0))
             : std::nullopt;
}

void apply_word(DrillFault& fault, const std::string& word, const std::string& where) {
  if (const auto p = parse_probability(fault, word)) {
    TRIREME_CHECK(*p > 0 && *p <= 1,
                  "--drill: expected p=P, a probability above 0 and at most 1, found \"{}\" {}",
                  {printable(word), where});
    fault.probability = *p;
    return;
  }
  TRIREME_CHECK(fault.kind == DrillKind::kStop || fault.kind == DrillKind::kDelay ||
                    fault.kind == DrillKind::kStopLauncher,
                "--drill: expected p=P, the one thing that {} takes, found \"{}\" {}",
                {drill_name(fault.kind), printable(word), where});
  const auto seconds = parse_duration(word);
  TRIREME_CHECK(seconds && *seconds <= kLongestStop,
                "--drill: expected p=P or a time such as 2s or 500ms, found \"{}\" {}",
                {printable(word), where});
  fault.seconds = *seconds;
}

DrillFault default_of(DrillKind kind) {
  DrillFault fault;
  fault.kind = kind;
  const bool stops = kind == DrillKind::kStop || kind == DrillKind::kStopLauncher;
  fault.seconds = stops ? kDefaultStop : kind == DrillKind::kDelay ? kDefaultDelay : 0;
  fault.probability = kind == DrillKind::kCorrupt ? kDefaultFlips : fault.probability;
  return fault;
}

}  // namespace

std::string drill_name(DrillKind kind) {
  for (const DrillName& each : kDrillNames) {
    if (kind == each.kind) {
      return each.name;
    }
  }
  return "unknown";
}

std::optional<DrillKind> drill_kind(const std::string& name) {
  for (const DrillName& each : kDrillNames) {
    if (name == each.name) {
      return each.kind;
    }
  }
  return std::nullopt;
}

bool is_of_launchers(DrillKind kind) {
  return kind == DrillKind::kKillLauncher || kind == DrillKind::kStopLauncher;
}

bool is_of_links(DrillKind kind) {
  return kind == DrillKind::kDelay || kind == DrillKind::kDrop || kind == DrillKind::kCorrupt;
}

DrillPlan DrillPlan::parse(const std::string& text, std::uint64_t seed) {
  DrillPlan plan;
  plan.seed = seed;
  const std::vector<std::string> parts = split_at(text, ';');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string where = concat("in part ", i + 1, " of \"", printable(text), "\"");
    const std::size_t colon = parts[i].find(':');
    DrillFault fault = default_of(kind_named(parts[i].substr(0, colon), where));
    TRIREME_CHECK(!plan.has(fault.kind),
                  "--drill: expected each kind of fault once, found {} again {}",
                  {drill_name(fault.kind), where});
    if (colon != std::string::npos) {
      for (const std::string& word : split_at(parts[i].substr(colon + 1), ',')) {
        apply_word(fault, word, where);
      }
    }
    plan.faults.push_back(fault);
  }
  return plan;
}

bool DrillPlan::has(DrillKind kind) const {
  return std::any_of(
      faults.begin(), faults.end(), [&](const DrillFault& fault) { return fault.kind == kind; });
}

// The first kind that its draw chooses: two faults in one step would depend on who is faster.
std::optional<DrillPlan::Hit> DrillPlan::in_step(std::int64_t step, int ranks) const {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const auto kind = static_cast<std::uint64_t>(faults[i].kind);
    if (faults[i].kind == DrillKind::kDiskFull || faults[i].kind == DrillKind::kCorrupt ||
        RandomStream(mix(seed, step, kind, kWhether)).uniform() >= faults[i].probability) {
      continue;
    }
    constexpr PulsePhase kParts[] = {PulsePhase::kBackward,
                                     PulsePhase::kUpdate,
                                     PulsePhase::kVault,
                                     PulsePhase::kKept,
                                     PulsePhase::kAgreed};
    const bool of_launcher = is_of_launchers(faults[i].kind);
    const bool any_rank =
        faults[i].kind != DrillKind::kLeave && faults[i].kind != DrillKind::kJoin && !of_launcher;
    const int many = of_launcher ? std::max(1, machines - first_machine) : ranks;
    const auto whom = static_cast<int>(
        RandomStream(mix(seed, step, kind, kWhom)).below(static_cast<std::uint64_t>(many)));
    return Hit{i,
               any_rank ? whom : 0,
               kParts[RandomStream(mix(seed, step, kind, kWhen)).below(std::size(kParts))],
               of_launcher ? first_machine + whom : -1};
  }
  return std::nullopt;
}

std::optional<int> DrillPlan::in_save(std::int64_t step, int ranks) const {
  for (const DrillFault& fault : faults) {
    RandomStream random(mix(seed, step, kSaves));
    if (fault.kind == DrillKind::kDiskFull && random.uniform() < fault.probability) {
      return static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    }
  }
  return std::nullopt;
}

std::optional<int> DrillPlan::killed_at(DrillPoint point, std::int64_t step, int ranks) const {
  for (const DrillFault& fault : faults) {
    RandomStream random(mix(seed, step, kPoints, static_cast<std::uint64_t>(point)));
    if (fault.kind == DrillKind::kKill && random.uniform() < fault.probability) {
      return static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> DrillPlan::flips(const Sent& message, std::uint64_t bits) const {
  for (const DrillFault& fault : faults) {
    if (fault.kind != DrillKind::kCorrupt || bits == 0) {
      continue;
    }
    RandomStream random(mix(seed,
                            kFlips,
                            message.epoch,
                            message.line,
                            message.from,
                            message.to,
                            message.tag,
                            message.number));
    if (random.uniform() < fault.probability) {
      return random.below(bits);
    }
  }
  return std::nullopt;
}

}  // namespace trireme
