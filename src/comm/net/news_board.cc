#include "comm/net/news_board.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "comm/fixed_text.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kTimeToSay{300};

}  // namespace

NewsBoard::NewsBoard(Wire& wire) : wire_(wire), news_(static_cast<std::size_t>(wire.size())) {
  for (int rank = 0; rank < wire.size(); ++rank) {
    if (rank != wire.rank()) {
      expect(rank);
    }
  }
}

NewsBoard::~NewsBoard() {
  for (News& news : news_) {
    wire_.transport().drop(news.ticket);
  }
}

void NewsBoard::expect(int rank) {
  News& news = news_[static_cast<std::size_t>(rank)];
  news.ticket = wire_.receive(rank,
                              Wire::Stream::kControl,
                              reinterpret_cast<std::byte*>(&news.letter),
                              sizeof(news.letter),
                              Transport::Length::kUpTo);
}

bool NewsBoard::look(const std::function<std::string()>& last) {
  bool any = false;
  for (int rank = 0; rank < wire_.size(); ++rank) {
    News& news = news_[static_cast<std::size_t>(rank)];
    if (rank == wire_.rank() || news.left || !wire_.transport().finished(news.ticket)) {
      continue;
    }
    any = true;
    const Letter letter = news.letter;
    news.last = text_of(letter.last);
    if (letter.kind == Kind::kLeft) {
      news.left = true;  // and says nothing more
      continue;
    }
    if (letter.kind == Kind::kFailed && !failure_) {
      failure_.emplace(static_cast<CommError::Reason>(letter.reason),
                       letter.blamed,
                       concat(text_of(letter.text), " (found by rank ", rank, ")"));
    }
    expect(rank);
    if (letter.asks != 0) {
      auto answer = std::make_unique<Letter>();
      answer->kind = Kind::kLast;
      copy_text(answer->last, last());
      Ticket ticket = wire_.send(rank,
                                 Wire::Stream::kControl,
                                 reinterpret_cast<const std::byte*>(answer.get()),
                                 sizeof(*answer),
                                 Transport::Length::kUpTo);
      const Deadline patience(kTimeToSay);
      while (!wire_.transport().finished(ticket) && !patience.passed()) {
        wire_.transport().progress();
      }
      if (ticket.pending()) {
        static_cast<void>(answer.release());  // it may still be read
      }
    }
  }
  return any;
}

void NewsBoard::send_to_all(const Letter& letter, Milliseconds most) {
  auto kept = std::make_unique<Letter>(letter);
  // Not Flights: a letter that cannot arrive must not keep the answers of the others away.
  std::vector<std::pair<int, Ticket>> letters;
  for (int rank = 0; rank < wire_.size(); ++rank) {
    if (rank != wire_.rank() && !news_[static_cast<std::size_t>(rank)].left &&
        !wire_.transport().lost(wire_.world_rank(rank))) {
      letters.emplace_back(rank,
                           wire_.send(rank,
                                      Wire::Stream::kControl,
                                      reinterpret_cast<const std::byte*>(kept.get()),
                                      sizeof(*kept),
                                      Transport::Length::kUpTo));
    }
  }
  const Deadline patience(most);
  const auto on_their_way = [&] {
    bool any = false;
    for (auto& [rank, ticket] : letters) {
      any |= !wire_.transport().finished(ticket) && !wire_.transport().lost(wire_.world_rank(rank));
    }
    return any;
  };
  while (!patience.passed() && on_their_way()) {
    wire_.transport().progress();
  }
  for (auto& [rank, ticket] : letters) {
    if (ticket.pending()) {
      static_cast<void>(kept.release());  // it may still be read
      return;                             // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
    }
  }
}

void NewsBoard::say_left() {
  Letter letter{};
  letter.kind = Kind::kLeft;
  send_to_all(letter, kTimeToSay);
}

void NewsBoard::say_left_in_passing() {
  Letter letter{};
  letter.kind = Kind::kLeft;
  send_to_all(letter, Milliseconds(0));
}

void NewsBoard::say_failed(const CommError& error, const std::string& last) {
  Letter letter{};
  letter.kind = Kind::kFailed;
  letter.reason = static_cast<std::int32_t>(error.reason());
  letter.blamed = error.peer();
  letter.asks = 1;
  copy_text(letter.text, shortened(error.what(), sizeof(letter.text) - 1));
  copy_text(letter.last, last);
  send_to_all(letter, kTimeToSay);
  // Those who are in a call answer at once; others are busy, or cannot be reached.
  const Deadline patience(kTimeToSay);
  const auto complete = [&] {
    for (int rank = 0; rank < wire_.size(); ++rank) {
      const News& news = news_[static_cast<std::size_t>(rank)];
      if (rank != wire_.rank() && !news.left && !news.last &&
          !wire_.transport().lost(wire_.world_rank(rank))) {
        return false;
      }
    }
    return true;
  };
  while (!complete() && !patience.passed()) {
    if (!wire_.transport().progress()) {
      wire_.transport().rest(Milliseconds(5));
    }
    look([&] { return last; });
  }
}

}  // namespace trireme::detail
