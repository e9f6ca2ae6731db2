#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/net/wire.h"
#include "trireme/core/error.h"

namespace trireme::detail {

// What ranks tell each other beside their operations: that they leave, that they have failed and
// why, and what they did last.
class NewsBoard {
 public:
  explicit NewsBoard(Wire& wire);
  NewsBoard(const NewsBoard&) = delete;
  NewsBoard& operator=(const NewsBoard&) = delete;
  ~NewsBoard();

  // Takes what has come; true if anything did. `last` says what this rank did last, for those who
  // ask.
  bool look(const std::function<std::string()>& last);

  bool has_left(int rank) const { return news_[static_cast<std::size_t>(rank)].left; }
  // The first failure that somebody has told of.
  const std::optional<CommError>& failure() const { return failure_; }
  const std::optional<std::string>& last_of(int rank) const {
    return news_[static_cast<std::size_t>(rank)].last;
  }

  void say_left();
  // Without waiting for it to arrive, and without moving anything else.
  void say_left_in_passing();
  void say_failed(const CommError& error, const std::string& last);

 private:
  enum class Kind : std::uint32_t { kNone = 0, kLeft = 1, kFailed = 2, kLast = 3 };
  struct Letter {
    Kind kind;
    std::int32_t reason;
    std::int32_t blamed;
    std::uint32_t asks;  // for an answer with what the other did last
    char text[1200];
    char last[240];
  };
  struct News {
    Letter letter{};
    Ticket ticket;
    bool left = false;
    std::optional<std::string> last;
  };

  void expect(int rank);
  void send_to_all(const Letter& letter, Milliseconds patience);

  Wire& wire_;
  std::vector<News> news_;  // by rank
  std::optional<CommError> failure_;
};

}  // namespace trireme::detail
