#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "server/clock_table.h"

namespace trireme::detail {

// What an owner of weights has done, in a file of its own ("rank-2.txt"): lines that say what it
// was a part of, then "apply 1 17" (the gradients of rank 1's step 17, counted from 0), "answer 1
// 17", and "all 20" where all ranks went on from the same weights, after step 20.
class ArrivalRecord {
 public:
  // Writes anew. Throws ConfigError where the folder cannot be made.
  ArrivalRecord(const std::string& folder, int rank, const std::vector<std::string>& run);

  void add(const ClockTable::Act& act);
  // All ranks have taken so many steps. What was written up to here is on its way to the disk.
  void all_at(std::int64_t clock);
  // Goes on from where all ranks had taken so many steps: what came after is dropped.
  void go_on_from(std::int64_t clock);
  // Throws Error where something could not be written.
  void flush();

  // What the record in a folder has from there on. Throws ConfigError where it is not of such a
  // run, or cannot be read.
  static std::vector<ClockTable::Act> read(const std::string& folder,
                                           int rank,
                                           const std::vector<std::string>& run,
                                           std::int64_t from);

 private:
  void begin();

  const std::string path_;
  const std::vector<std::string> run_;
  std::ofstream out_;
};

}  // namespace trireme::detail
