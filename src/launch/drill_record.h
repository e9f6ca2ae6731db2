#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/drill_news.h"

namespace trireme::detail {

// A fault of a drill, and what became of it.
struct DrillEntry {
  struct Notice {
    std::string who;
    double seconds = 0;  // after the fault
    std::string how;
  };
  DrillNews what;
  std::int64_t step = 0;     // from 1; of a save, the steps that it holds
  std::string when;          // before which part of it, in words
  std::int64_t reached = 0;  // steps that were begun
  std::int64_t epoch = 0;    // of the last step that was kept before
  // Of a launcher's fault: the ranks that were on its machine, the epoch in which it was found to
  // be gone, or when it went on.
  int first_rank = 0;
  int ranks = 0;
  std::optional<std::int64_t> gone{};
  std::optional<std::int64_t> woke{};
  std::vector<Notice> noticed{};
  std::optional<double> recovered{};  // seconds
  std::int64_t again = 0;             // steps
  std::string outcome{};
  bool is_open = true;
};

// What is recorded of a drill, as the file has it (docs/elastic.md).
struct DrillRecord {
  std::string plan;
  std::uint64_t seed = 0;
  std::string job;            // empty: nobody else goes on with it
  std::int64_t age = 0;       // nanoseconds that the drill has lasted
  std::optional<int> code{};  // that the job has ended with
  std::vector<DrillEntry> entries{};
};

bool changes_membership(DrillKind kind);

// `began`: the drill, by the clock of the entries.
std::string drill_record_text(const DrillRecord& record, std::int64_t began);
// Where the text is none, nothing.
std::optional<DrillRecord> read_drill_record(const std::string& text, std::int64_t began);

}  // namespace trireme::detail
