#pragma once

#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/clock_table.h"

namespace trireme::detail {

// What an owner of weights has done, in a file of its own ("rank-2.txt"): lines that say what it
// was a part of, then "apply 1 17" (the gradients of rank 1's step 17, counted from 0), "answer 1
// 17", and "all 20" where all ranks went on from the same weights, after step 20. A run that goes
// on from a checkpoint cuts off what came after it.
class ArrivalRecord {
 public:
  // Nothing is there before something has been done: a run that goes on keeps the beginning, and
  // one that is refused leaves nothing.
  ArrivalRecord(const std::string& folder, int rank, const std::vector<std::string>& run);

  void add(const ClockTable::Act& act);
  // This one has no more data.
  void leaves(int worker);
  // All ranks have taken so many steps. What was written up to here outlives this process.
  void all_at(std::int64_t clock);
  // Goes on from where all ranks had taken so many steps: what came after is dropped.
  void go_on_from(std::int64_t clock);
  // Throws Error where something could not be written.
  void flush();

 private:
  void begin();

  const std::string path_;
  const std::vector<std::string> run_;
  std::ofstream out_;
};

// What an owner's record has, from some step on.
struct Arrivals {
  // An owner that has none of its own stands in nobody's way.
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  std::vector<ClockTable::Act> acts;
  std::vector<std::int64_t> beginnings;  // "all N", in order
  std::optional<std::int64_t> first;     // the record's own beginning
  bool begins = false;                   // there
  // That it has of every worker, with the answer. A run that was killed has recorded more of some.
  std::int64_t steps = kEndless;

  // What the record in a folder has after step `from`. A last line without an end was being written
  // when the run was killed. Throws ConfigError where it is not of such a run, or cannot be read.
  static Arrivals read(const std::string& folder,
                       int rank,
                       const std::vector<std::string>& run,
                       std::int64_t from,
                       int workers);
  // Leaves out what comes after step `last`. False where some of it came before something that
  // stays: what that found, nobody finds again.
  bool end_with(std::int64_t last);
};

}  // namespace trireme::detail
