#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

namespace trireme::detail {

// Why a save has failed, the first reason of several: kept by whichever thread finds it, thrown
// where somebody can act on it.
class SaveFailure {
 public:
  void keep(const std::exception& error);
  bool is_there() const { return failed_; }
  std::string text() const;  // empty: there is none
  void check() const;        // throws CheckpointError if there is one
  // To whoever has asked for either.
  bool was_told() const { return told_; }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string text_;
  std::string file_;
  std::int64_t offset_ = -1;
  mutable bool told_ = false;
};

}  // namespace trireme::detail
