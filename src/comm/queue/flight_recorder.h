#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/order/operation.h"
#include "comm/queue/flight_folder.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {

// The last operations of one rank with their times, for the moment when something goes wrong.
// Not thread-safe: its owner holds a lock.
class FlightRecorder {
 public:
  struct Entry {
    std::uint32_t sequence = 0;
    OpKind kind = OpKind::kBarrier;
    ReduceOp reduce = ReduceOp::kSum;
    Dtype dtype = Dtype::kFloat32;
    int root = -1;
    int peer = -1;
    std::int64_t total = 0;
    Clock::time_point issued;
    std::optional<Clock::time_point> finished;
  };

  static constexpr std::size_t kEntries = 128;

  // Returns a number for `finished`.
  std::uint64_t issued(std::uint32_t sequence, const Operation& operation, Clock::time_point when);
  void finished(std::uint64_t number, Clock::time_point when);

  // Everything that is still known, oldest first.
  std::vector<Entry> entries() const;

  // Writes FOLDER/flight-rank-R.json, or flight-rank-R-group-G.json of a group. Returns what the
  // error's message ends with: where the record is ("flight record: PATH"), or why there is none.
  std::string write(const FlightFolder& folder,
                    int rank,
                    int size,
                    const std::string& reason,
                    const std::string& group = "") const;

 private:
  std::string record(int rank, int size, const std::string& reason) const;

  std::vector<Entry> ring_ = std::vector<Entry>(kEntries);
  std::uint64_t count_ = 0;
};

}  // namespace trireme::detail
