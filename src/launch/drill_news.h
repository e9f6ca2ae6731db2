#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/core/drill.h"

namespace trireme::detail {

// What the launcher of a machine has to tell of a drill, for the one that keeps the book.
struct DrillNews {
  enum class Kind {
    kFault,   // a rank has suffered it
    kKept,    // a step was kept
    kEnded,   // a rank has ended, `text` says how
    kBlames,  // a rank has lost another, `peer`
    kWoke,    // the launcher of `struck` goes on after it was stopped
    kGone     // that of `struck` is lost, `text` says how; for the book's launcher to know
  };
  Kind kind = Kind::kFault;
  int machine = 0;
  std::int64_t nanoseconds = 0;  // of the steady clock here; it travels as the time since then
  std::uint32_t number = 0;      // kFault: of its record
  DrillKind fault{};
  PulsePhase phase{};
  std::int64_t step = 0;  // kKept: how many; kEnded: that it had reached
  std::int64_t epoch = 0;
  int rank = -1;
  int ranks = 0;
  int pid = 0;
  int peer = -1;
  int struck = -1;  // of a launcher's fault: its machine
  std::string text;
};

std::int64_t drill_clock();  // nanoseconds

std::string pack_news(const DrillNews& news);
// False when the bytes are none. From which machine is for the receiver to say.
bool unpack_news(const std::string& bytes, DrillNews* news);

// What has happened and is not to happen again, on any machine; to the machine that `heard` is not
// 0 for, that what it told with this number has been done; and what its launcher is to do to
// itself.
struct DrillOrder {
  std::int64_t step = -1;
  std::int64_t save = -1;
  std::int64_t epoch = -1;
  std::uint32_t heard = 0;
  std::int64_t age = 0;             // nanoseconds since the drill began
  std::optional<DrillKind> strike;  // of launchers
};
std::string pack_drill_order(const DrillOrder& order);
bool unpack_drill_order(const std::string& bytes, DrillOrder* order);

}  // namespace trireme::detail
