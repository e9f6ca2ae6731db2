#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/deadline.h"

namespace trireme::detail {

// A message on its way. Empty: nothing is.
class Request {
 public:
  Request() = default;
  explicit Request(void* handle) : handle_(handle) {}
  Request(Request&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Request& operator=(Request&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  bool pending() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }
  void clear() { handle_ = nullptr; }

 private:
  void* handle_ = nullptr;
};

// Gathers every rank's bytes, by rank. Collective.
using ExchangeBytes = std::function<std::vector<std::string>(const std::string& mine)>;

// Moves bytes between the ranks of a world: the seam between our algorithms and the engines that
// clusters run on. Everything above it is written once.
//
// Messages from one rank to another with one tag arrive in the order in which they were sent, and
// meet the receives of that rank and tag in the order in which those were posted. Nothing blocks;
// memory belongs to the message until it is finished. One thread at a time.
class Transport {
 public:
  // Tags are below this: what MPI guarantees to have.
  static constexpr std::uint32_t kTags = 32767;

  // Whether both sides know the exact length, so that a long message may travel in parts over
  // several interfaces. With kUpTo the receiver only knows the most that can come.
  enum class Length { kExact, kUpTo };

  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // For people: "UCX 1.13.1 over eth0, eth1".
  virtual std::string description() const = 0;

  virtual Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) = 0;
  virtual Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) = 0;

  // True when the message has gone (its memory may be reused) or has come; the request is empty
  // then. One that failed is never finished: `lost` says why.
  virtual bool finished(Request& request) = 0;

  // Gives a receive up that nothing will come for.
  virtual void drop(Request& request) = 0;

  // Moves what can be moved; true if anything did.
  virtual bool progress() = 0;
  // Waits until something may have moved, for at most `most`.
  virtual void rest(Milliseconds most) = 0;
  // Ends the rest of another thread. The one call that may come from any thread.
  virtual void wake() = 0;

  // Why nothing more will come from a rank; nothing where it is well, as far as is known.
  virtual std::optional<std::string> lost(int rank) = 0;

  // Breaks the connection to a rank off, as a network does: both ends find the other lost. For
  // drills; over an engine that cannot, none is.
  virtual void cut(int /*rank*/) {}

  // The world has failed, or ends in the middle of something: nothing is moved any more, so that
  // memory that messages were to go to can be used for something else.
  virtual void abandon() = 0;
  // Whether the end of this transport, also of one that was abandoned, is the end of all that the
  // engine does with memory; else that is the engine's until the process ends.
  virtual bool releases_memory() const { return false; }

  // A short message that is sent goes at once, also after `abandon`, and nothing else moves.
  virtual bool sends_without_moving() const { return false; }

  // Another one beside it, with messages of its own, that another thread may use. Collective.
  virtual std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) = 0;
};

}  // namespace trireme::detail
