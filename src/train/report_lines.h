#pragma once

#include <cstdio>
#include <string>

#include "trireme/observe/progress_line.h"
#include "trireme/train/evaluation.h"
#include "trireme/train/trainer.h"

// What reports on trainings share.

namespace trireme::detail {

inline std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, value);
  return text;
}

inline std::string metric_text(const std::string& name, double value) {
  return is_share(name) ? format("%.2f %%", 100 * value) : measure_text(value);
}

inline void add_line(std::string& table, const std::string& name, const std::string& value) {
  constexpr std::size_t kNameWidth = 24;
  table += "  " + name + std::string(name.size() < kNameWidth ? kNameWidth - name.size() : 1, ' ') +
           value + "\n";
}

inline bool was_interrupted(const TrainResult& result) {
  return result.status == TrainResult::Status::kInterrupted;
}

// The rank that holds most.
inline const MemoryUse* largest(const MemoryReport& memory) {
  const MemoryUse* most = nullptr;
  for (const MemoryUse& use : memory.ranks) {
    most = most == nullptr || use.total() > most->total() ? &use : most;
  }
  return most;
}

}  // namespace trireme::detail
