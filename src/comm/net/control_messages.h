#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/algo/channel.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// What ranks tell each other beside their operations: that they leave, all or one communicator,
// that they have failed and why, and what they did last.
class ControlMessages {
 public:
  explicit ControlMessages(Channel& channel);
  ControlMessages(const ControlMessages&) = delete;
  ControlMessages& operator=(const ControlMessages&) = delete;
  ~ControlMessages();

  // What this rank does, for those who ask.
  struct Doing {
    std::string last;    // operation
    int waits_for = -1;  // rank
  };

  // Takes what has come; true if anything did.
  bool look(const std::function<Doing()>& doing);
  // By each of `ranks`: whom it waits for; -1 where it does not wait, or does not answer.
  std::vector<int> ask_whom_they_wait_for(const std::vector<int>& ranks,
                                          const std::function<Doing()>& doing);
  // For the communicators of this rank, where nobody else is told.
  void note_failure(const CommError& failure) {
    if (!failure_) {
      failure_ = failure;
    }
  }

  bool has_left(int rank) const { return news_[static_cast<std::size_t>(rank)].left; }
  // One communicator, by its number (group_number), and goes on in another.
  bool has_closed(int rank, std::uint64_t group) const {
    const auto found = closed_.find(group);
    return found != closed_.end() && found->second.contains(rank);
  }
  // The first failure that somebody has told of, this rank included.
  const std::optional<CommError>& failure() const { return failure_; }
  const std::optional<std::string>& last_of(int rank) const {
    return news_[static_cast<std::size_t>(rank)].last;
  }

  void say_left();
  // To `ranks`, which have it, this one among them.
  void say_closed(std::uint64_t group, const std::vector<int>& ranks);
  // Without waiting for it to arrive, and without moving anything else.
  void say_left_in_passing();
  void say_failed(const CommError& error, const std::string& last);

 private:
  enum class Kind : std::uint32_t {
    kNothing = 0,
    kLeft = 1,
    kFailed = 2,
    kLast = 3,
    kClosed = 4,
    kAsks = 5
  };
  struct Notice {
    Kind kind;
    std::int32_t reason;
    std::int32_t blamed;  // of kLast: whom it waits for
    std::uint32_t asks;   // for an answer with what the other did last
    std::uint64_t group;  // that was closed, of this many ranks
    std::uint64_t group_size;
    char text[1200];
    char last[240];
  };
  struct News {
    Notice notice{};
    Request request;
    bool left = false;
    std::optional<std::string> last;
    std::optional<int> waits_for;  // since it was asked
  };

  void expect(int rank);
  void note_closed(int rank, std::uint64_t group, std::size_t group_size);
  bool can_be_told(int rank);
  void send_to_all(const Notice& notice, Milliseconds patience);
  void send_to(const std::vector<int>& ranks, const Notice& notice, Milliseconds patience);

  Channel& channel_;
  std::vector<News> news_;  // by rank
  // By communicator: who has closed it, until all have.
  std::map<std::uint64_t, std::set<int>> closed_;
  std::optional<CommError> failure_;
};

}  // namespace trireme::detail
