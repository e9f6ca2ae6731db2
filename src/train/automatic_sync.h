#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::detail {

// Decides by what is measured whether gradients are summed in every step, or replicas are averaged
// every few steps: for settings.sync = auto. Only what averaging saves counts: the time in which
// even the rank that computed longest waits for data. What others wait for that rank, an average
// does not save.
class AutomaticSync {
 public:
  static constexpr std::int64_t kExact = 0;

  // `most`: steps between averagings. `now`: what the run does, kExact or that number.
  explicit AutomaticSync(std::int64_t most, std::int64_t now = kExact) : most_(most), now_(now) {}

  // Of some steps in a row that were all of one kind.
  struct Measured {
    std::int64_t steps = 0;
    double seconds = 0;
    double exchange_seconds = 0;  // of it, waited by the rank that waited least
    std::int64_t sent_bytes = 0;  // by a machine, to others
    std::int64_t averagings = 0;
  };
  struct Decision {
    std::int64_t every = kExact;
    std::string why;  // "71 % waiting, link 11.6 MB/s"
  };
  // What the next steps do, where that is something else. A change has to be worth it twice in a
  // row, and what led to it is far from what leads back.
  std::optional<Decision> decide(const Measured& measured);
  // What the last measurement was like.
  const std::string& conditions() const { return conditions_; }

  std::int64_t now() const { return now_; }
  // Somebody else has decided.
  void set_now(std::int64_t every);

 private:
  std::int64_t wanted(double work, double exact, double average) const;

  const std::int64_t most_;
  std::int64_t now_;
  std::int64_t wanted_before_ = -1;  // and not followed yet
  // Seconds of an averaging for each second of an exact step's sums: nearly the same bytes. Known
  // better once both were seen.
  double exact_seconds_ = 0;
  double ratio_ = 1;
  std::string conditions_;
};

// "exact", "local 8".
std::string sync_words(std::int64_t every);

}  // namespace trireme::detail
