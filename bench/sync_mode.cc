#include "sync_mode.h"

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::bench {

SyncMode SyncMode::parse(const std::string& text) {
  const std::size_t colon = text.find(':');
  SyncMode mode{text.substr(0, colon)};
  const bool alone = mode.name == "exact" || mode.name == "balance" || mode.name == "async";
  if (colon != std::string::npos && !alone) {
    const auto number = parse_integer(text.substr(colon + 1));
    mode.number = number ? static_cast<int>(*number) : -1;
  }
  TRIREME_CHECK(
      alone ? colon == std::string::npos
            : (mode.averages() && mode.number > 0) ||
                  (mode.name == "stale" && colon != std::string::npos && mode.number >= 0),
      "--mode: expected exact, balance, local:16, diloco:16, gossip:16, stale:3 or async, "
      "found \"",
      text,
      "\"");
  return mode;
}

bool SyncMode::averages() const {
  return name == "local" || name == "diloco" || name == "gossip";
}

bool SyncMode::is_stale() const {
  return name == "stale" || name == "async";
}

double bytes_by_formula(const SyncMode& mode, int ranks, double parameters) {
  const double bytes = 4 * parameters;
  // Of every part of its own, what the others have of it; and its part, to the others. An average,
  // a sum of gradients, and gradients to owners who answer with weights are alike in that.
  const double exchange = 2 * bytes * (ranks - 1) / ranks;
  if (mode.name == "gossip") {
    return (ranks == 1 ? 0 : ranks == 2 ? bytes : 2 * bytes) / mode.number;
  }
  return mode.averages() ? exchange / mode.number : exchange;
}

}  // namespace trireme::bench
