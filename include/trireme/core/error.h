#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "trireme/core/concat.h"

// The kinds of failure, told apart by who has to act (docs/errors.md).
// Every message says what was expected, what was found, where, and what to do next.

namespace trireme {

// Base of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller broke a precondition: the programmer or the command line has to change.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A peer, or the way to it, failed. After it is thrown the communicator is finished: every later
// call throws the same reason; build a new world.
class CommError : public Error {
 public:
  // Why a communicator ended. kRendezvousTimeout and kRefused come from `init()`.
  enum class Reason {
    kPeerDied,
    kPeerLeft,
    kTimeout,
    kMismatch,
    kRendezvousTimeout,
    kRefused,
    kAborted,
    kStopped
  };

  // `peer` is the rank to blame, -1 if it is not a single rank.
  CommError(Reason reason, int peer, const std::string& message)
      : Error(message), reason_(reason), peer_(peer) {}

  Reason reason() const { return reason_; }
  int peer() const { return peer_; }

 private:
  Reason reason_;
  int peer_;
};

// The requested memory is not available: free some, or ask for less. Nothing has changed.
class MemoryError : public Error {
 public:
  using Error::Error;
};

// A GPU, or its driver, failed: what it was doing and what it held is lost to this process, which
// should end and start again from a checkpoint.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// A gradient is not finite; thrown by every rank, before anything has changed.
class GradientError : public Error {
 public:
  // `rank` is the first one that had it.
  GradientError(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// A rank gave up a step (EngineBase::give_up); thrown by every rank. Nothing has changed, and the
// step can be tried again.
class StepGivenUp : public Error {
 public:
  StepGivenUp(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

// A file of data is not what it should be.
class DataError : public Error {
 public:
  // `offset` is where the problem is, in bytes from the start; -1 if it is the file as a whole.
  DataError(std::string file, std::int64_t offset, const std::string& message)
      : Error(message), file_(std::move(file)), offset_(offset) {}
  const std::string& file() const { return file_; }
  std::int64_t offset() const { return offset_; }

 private:
  std::string file_;
  std::int64_t offset_;
};

// A checkpoint is not what was saved, or could not be saved: the operator has to act. Nothing that
// was complete before is damaged.
class CheckpointError : public DataError {
 public:
  using DataError::DataError;
};

// A bug in Trireme.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {

[[noreturn]] void throw_internal(const char* condition,
                                 const char* file,
                                 int line,
                                 const std::string& message);

// The text of an errno value ("No space left on device").
std::string errno_text(int error_number);

// What an exception says, without the stack trace that LibTorch's end with, which helps nobody.
std::string reason_of(const std::exception& error);

}  // namespace detail
}  // namespace trireme

// For what a caller can get wrong; the parts are streamed into the message.
#define TRIREME_CHECK(condition, ...)                                       \
  do {                                                                      \
    if (!(condition)) {                                                     \
      throw ::trireme::ConfigError(::trireme::detail::concat(__VA_ARGS__)); \
    }                                                                       \
  } while (false)

// For what only a bug of ours can break.
#define TRIREME_ASSERT(condition, ...)                                             \
  do {                                                                             \
    if (!(condition)) {                                                            \
      ::trireme::detail::throw_internal(                                           \
          #condition, __FILE__, __LINE__, ::trireme::detail::concat(__VA_ARGS__)); \
    }                                                                              \
  } while (false)
