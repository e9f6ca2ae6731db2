#include "comm/queue/flight_recorder.h"

#include <nlohmann/json.hpp>

#include "trireme/core/error.h"

namespace trireme::detail {

std::uint64_t FlightRecorder::issued(std::uint32_t sequence,
                                     const Operation& operation,
                                     Clock::time_point when) {
  ring_[count_ % kEntries] = {sequence,
                              operation.kind,
                              operation.reduce,
                              operation.dtype,
                              operation.root,
                              operation.peer,
                              operation.total,
                              when,
                              std::nullopt};
  return count_++;
}

void FlightRecorder::finished(std::uint64_t number, Clock::time_point when) {
  if (count_ - number <= kEntries) {  // else the ring has gone past it
    ring_[number % kEntries].finished = when;
  }
}

std::vector<FlightRecorder::Entry> FlightRecorder::entries() const {
  std::vector<Entry> result;
  for (std::uint64_t number = count_ > kEntries ? count_ - kEntries : 0; number < count_;
       ++number) {
    result.push_back(ring_[number % kEntries]);
  }
  return result;
}

std::string FlightRecorder::record(int rank, int size, const std::string& reason) const {
  const auto now = Clock::now();
  const auto age_ms = [&](Clock::time_point when) {
    return std::chrono::duration<double, std::milli>(now - when).count();
  };
  nlohmann::json operations = nlohmann::json::array();
  for (const Entry& entry : entries()) {
    nlohmann::json item = {{"sequence", entry.sequence},
                           {"op", op_name(entry.kind)},
                           {"dtype", dtype_name(entry.dtype)},
                           {"numel", entry.total},
                           {"issued_ms_ago", age_ms(entry.issued)},
                           {"state", entry.finished ? "finished" : "running"}};
    if (reduces(entry.kind)) {
      item["reduce"] = reduce_name(entry.reduce);
    }
    if (entry.root >= 0) {
      item["root"] = entry.root;
    }
    if (entry.peer >= 0) {
      item["peer"] = entry.peer;
    }
    if (entry.finished) {
      item["finished_ms_ago"] = age_ms(*entry.finished);
    }
    operations.push_back(std::move(item));
  }
  const nlohmann::json whole = {
      {"rank", rank}, {"size", size}, {"reason", reason}, {"operations", std::move(operations)}};
  // A message may hold bytes that are not UTF-8 (a path): replace them rather than throw.
  return whole.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string FlightRecorder::write(const FlightFolder& folder,
                                  int rank,
                                  int size,
                                  const std::string& reason,
                                  const std::string& group) const {
  try {
    const std::string name =
        concat("flight-rank-", rank, group.empty() ? "" : "-group-" + group, ".json");
    return concat("flight record: ", folder.write(name, record(rank, size, reason)));
  } catch (const std::exception& error) {
    return concat("no flight record: ", error.what());
  }
}

}  // namespace trireme::detail
