#include "checkpoint/save_failure.h"

#include "trireme/core/error.h"

namespace trireme::detail {

void SaveFailure::keep(const std::exception& error) {
  const std::lock_guard lock(mutex_);
  if (failed_) {
    return;
  }
  text_ = error.what();
  if (const auto* data = dynamic_cast<const DataError*>(&error)) {
    file_ = data->file();
    offset_ = data->offset();
  }
  failed_ = true;
}

std::string SaveFailure::text() const {
  if (!failed_) {  // asked in every step
    return {};
  }
  told_ = true;
  const std::lock_guard lock(mutex_);
  return text_;
}

void SaveFailure::check() const {
  if (failed_) {
    throw CheckpointError(file_, offset_, text());
  }
}

}  // namespace trireme::detail
