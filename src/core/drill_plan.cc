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

struct DrillName {
  const char* name;
  DrillKind kind;
};
constexpr std::array kDrillNames = {DrillName{"kill", DrillKind::kKill},
                                    DrillName{"stop", DrillKind::kStop},
                                    DrillName{"disk-full", DrillKind::kDiskFull},
                                    DrillName{"leave", DrillKind::kLeave},
                                    DrillName{"join", DrillKind::kJoin}};

// Draws of one step that have nothing to do with each other.
enum Draw : std::uint64_t { kWhether, kWhom, kWhen, kSaves };

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
  std::vector<std::string> names;
  for (const DrillName& each : kDrillNames) {
    if (name == each.name) {
      return each.kind;
    }
    names.emplace_back(each.name);
  }
  for (const char* link : {"delay", "drop", "corrupt"}) {
    TRIREME_CHECK(name != link,
                  "--drill: {} is a fault of connections between machines, and the ranks of an "
                  "elastic job are on one: leave it out, found {}",
                  {link, where});
  }
  const std::string nearest = nearest_word(name, names);
  throw ConfigError(concat(
      "--drill: expected kill, stop, disk-full, leave or join, found \"{}\" {}{}",
      {printable(name), where, nearest.empty() ? "" : concat("; did you mean ", nearest, "?")}));
}

void apply_word(DrillFault& fault, const std::string& word, const std::string& where) {
  if (word.starts_with("p=")) {
    const auto p = parse_positive(word.substr(2));
    TRIREME_CHECK(p && *p <= 1,
                  "--drill: expected p=P, a probability above 0 and at most 1, found \"{}\" {}",
                  {printable(word), where});
    fault.probability = *p;
    return;
  }
  TRIREME_CHECK(fault.kind == DrillKind::kStop,
                "--drill: expected p=P, the one thing that {} takes, found \"{}\" {}",
                {drill_name(fault.kind), printable(word), where});
  const auto seconds = parse_duration(word);
  TRIREME_CHECK(seconds && *seconds <= kLongestStop,
                "--drill: expected p=P or a time such as 2s or 500ms, found \"{}\" {}",
                {printable(word), where});
  fault.seconds = *seconds;
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

DrillPlan DrillPlan::parse(const std::string& text, std::uint64_t seed) {
  DrillPlan plan;
  plan.seed = seed;
  const std::vector<std::string> parts = split_at(text, ';');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string where = concat("in part ", i + 1, " of \"", printable(text), "\"");
    const std::size_t colon = parts[i].find(':');
    DrillFault fault;
    fault.kind = kind_named(parts[i].substr(0, colon), where);
    fault.seconds = fault.kind == DrillKind::kStop ? kDefaultStop : 0;
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
    if (faults[i].kind == DrillKind::kDiskFull ||
        RandomStream(mix(seed, step, kind, kWhether)).uniform() >= faults[i].probability) {
      continue;
    }
    constexpr PulsePhase kParts[] = {
        PulsePhase::kBackward, PulsePhase::kUpdate, PulsePhase::kVault};
    const bool any_rank = faults[i].kind == DrillKind::kKill || faults[i].kind == DrillKind::kStop;
    const auto whom =
        RandomStream(mix(seed, step, kind, kWhom)).below(static_cast<std::uint64_t>(ranks));
    return Hit{i,
               any_rank ? static_cast<int>(whom) : 0,
               kParts[RandomStream(mix(seed, step, kind, kWhen)).below(std::size(kParts))]};
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

}  // namespace trireme
