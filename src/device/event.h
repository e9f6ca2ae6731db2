#pragma once

#include <memory>
#include <utility>

#include "trireme/core/deadline.h"

namespace trireme::device {

// A moment in the work of a stream: it has passed when everything is done that was issued before it
// was recorded. What it waits for is decided when it is recorded, so events cannot form a circle.
class Event {
 public:
  // What a device knows of it.
  class Moment {
   public:
    virtual ~Moment() = default;
    virtual bool passed() = 0;  // never blocks; throws what went wrong on the device
  };

  Event() = default;  // has passed: the host's work is done when it has been issued
  explicit Event(std::shared_ptr<Moment> moment) : moment_(std::move(moment)) {}

  bool passed() const { return moment_ == nullptr || moment_->passed(); }
  // Blocks this thread until it has passed; false where the deadline comes first. Whoever also has
  // to watch its peers asks `passed` among its other questions.
  [[nodiscard]] bool wait(const Deadline& deadline) const;
  const std::shared_ptr<Moment>& moment() const { return moment_; }

 private:
  std::shared_ptr<Moment> moment_;
};

}  // namespace trireme::device
