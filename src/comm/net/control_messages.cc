#include "comm/net/control_messages.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/net/sealed_transport.h"
#include "comm/rendezvous/fixed_text.h"
#include "trireme/core/deadline.h"

namespace trireme::detail {
namespace {

constexpr Milliseconds kTimeToSay{300};

}  // namespace

ControlMessages::ControlMessages(Channel& channel)
    : channel_(channel), news_(static_cast<std::size_t>(channel.size())) {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (rank != channel.rank()) {
      expect(rank);
    }
  }
}

ControlMessages::~ControlMessages() {
  for (News& news : news_) {
    channel_.transport().drop(news.request);
  }
}

void ControlMessages::expect(int rank) {
  News& news = news_[static_cast<std::size_t>(rank)];
  news.request = channel_.receive(rank,
                                  Channel::Stream::kControl,
                                  reinterpret_cast<std::byte*>(&news.notice),
                                  sizeof(news.notice),
                                  Transport::Length::kUpTo);
}

bool ControlMessages::look(const std::function<Doing()>& doing) {
  bool any = false;
  for (int rank = 0; rank < channel_.size(); ++rank) {
    News& news = news_[static_cast<std::size_t>(rank)];
    if (rank == channel_.rank() || news.left || !channel_.transport().finished(news.request)) {
      continue;
    }
    any = true;
    const Notice notice = news.notice;
    if (notice.kind == Kind::kClosed) {
      note_closed(rank, notice.group, notice.group_size);
      expect(rank);
      continue;
    }
    news.last = text_of(notice.last);
    if (notice.kind == Kind::kLeft) {
      news.left = true;  // and says nothing more
      continue;
    }
    if (notice.kind == Kind::kFailed && !failure_) {
      failure_.emplace(static_cast<CommError::Reason>(notice.reason),
                       notice.blamed,
                       concat(text_of(notice.text), " (found by rank ", rank, ")"));
    }
    if (notice.kind == Kind::kLast) {
      news.waits_for = notice.blamed;
    }
    expect(rank);
    if (notice.asks != 0) {
      const Doing now = doing();
      auto answer = std::make_unique<Notice>();
      answer->kind = Kind::kLast;
      answer->blamed = now.waits_for;
      copy_text(answer->last, now.last);
      Request request = channel_.send(rank,
                                      Channel::Stream::kControl,
                                      reinterpret_cast<const std::byte*>(answer.get()),
                                      sizeof(*answer),
                                      Transport::Length::kUpTo);
      const Deadline patience(kTimeToSay);
      while (!channel_.transport().finished(request) && !patience.passed()) {
        channel_.transport().progress();
      }
      if (request.pending()) {
        static_cast<void>(answer.release());  // it may still be read
      }
    }
  }
  return any;
}

std::vector<int> ControlMessages::ask_whom_they_wait_for(const std::vector<int>& ranks,
                                                         const std::function<Doing()>& doing) {
  const auto news_of = [&](int rank) -> News& { return news_[static_cast<std::size_t>(rank)]; };
  for (const int rank : ranks) {
    news_of(rank).waits_for.reset();
  }
  Notice question{};
  question.kind = Kind::kAsks;
  question.asks = 1;
  copy_text(question.last, doing().last);
  send_to(ranks, question, kTimeToSay);
  const Deadline patience(kTimeToSay);
  const auto complete = [&] {
    return std::ranges::all_of(ranks, [&](int rank) {
      return rank == channel_.rank() || news_of(rank).waits_for || news_of(rank).left ||
             !can_be_told(rank);
    });
  };
  while (!complete() && !failure_ && !patience.passed()) {
    if (!channel_.transport().progress()) {
      channel_.transport().rest(Milliseconds(5));
    }
    look(doing);
  }
  std::vector<int> answers;
  answers.reserve(ranks.size());
  for (const int rank : ranks) {
    answers.push_back(rank == channel_.rank() ? doing().waits_for
                                              : news_of(rank).waits_for.value_or(-1));
  }
  return answers;
}

void ControlMessages::note_closed(int rank, std::uint64_t group, std::size_t group_size) {
  std::set<int>& ranks = closed_[group];
  ranks.insert(rank);
  if (ranks.size() == group_size) {
    closed_.erase(group);
  }
}

// One in whose name somebody has meddled is well itself, and should know why the others end.
bool ControlMessages::can_be_told(int rank) {
  const auto why = channel_.transport().lost(channel_.world_rank(rank));
  return !why || *why == kTampered;
}

void ControlMessages::send_to_all(const Notice& notice, Milliseconds most) {
  std::vector<int> ranks(news_.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  send_to(ranks, notice, most);
}

void ControlMessages::send_to(const std::vector<int>& ranks,
                              const Notice& notice,
                              Milliseconds most) {
  auto kept = std::make_unique<Notice>(notice);
  // Not RequestSet: a notice that cannot arrive must not keep the answers of the others away.
  std::vector<std::pair<int, Request>> notices;
  for (const int rank : ranks) {
    if (rank != channel_.rank() && !news_[static_cast<std::size_t>(rank)].left &&
        can_be_told(rank)) {
      notices.emplace_back(rank,
                           channel_.send(rank,
                                         Channel::Stream::kControl,
                                         reinterpret_cast<const std::byte*>(kept.get()),
                                         sizeof(*kept),
                                         Transport::Length::kUpTo));
    }
  }
  const Deadline patience(most);
  const auto on_their_way = [&] {
    bool any = false;
    for (auto& [rank, request] : notices) {
      any |= !channel_.transport().finished(request) && can_be_told(rank);
    }
    return any;
  };
  while (!patience.passed() && on_their_way()) {
    channel_.transport().progress();
  }
  for (auto& [rank, request] : notices) {
    if (request.pending()) {
      static_cast<void>(kept.release());  // it may still be read
      return;                             // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks)
    }
  }
}

void ControlMessages::say_left() {
  Notice notice{};
  notice.kind = Kind::kLeft;
  send_to_all(notice, kTimeToSay);
}

void ControlMessages::say_closed(std::uint64_t group, const std::vector<int>& ranks) {
  Notice notice{};
  notice.kind = Kind::kClosed;
  notice.group = group;
  notice.group_size = ranks.size();
  note_closed(channel_.rank(), group, ranks.size());
  send_to(ranks, notice, kTimeToSay);
}

void ControlMessages::say_left_in_passing() {
  Notice notice{};
  notice.kind = Kind::kLeft;
  send_to_all(notice, Milliseconds(0));
}

void ControlMessages::say_failed(const CommError& error, const std::string& last) {
  Notice notice{};
  notice.kind = Kind::kFailed;
  notice.reason = static_cast<std::int32_t>(error.reason());
  notice.blamed = error.peer();
  notice.asks = 1;
  copy_text(notice.text, shortened(error.what(), sizeof(notice.text) - 1));
  copy_text(notice.last, last);
  send_to_all(notice, kTimeToSay);
  // Those who are in a call answer at once; others are busy, or cannot be reached.
  const Deadline patience(kTimeToSay);
  const auto complete = [&] {
    for (int rank = 0; rank < channel_.size(); ++rank) {
      const News& news = news_[static_cast<std::size_t>(rank)];
      if (rank != channel_.rank() && !news.left && !news.last && can_be_told(rank)) {
        return false;
      }
    }
    return true;
  };
  while (!complete() && !patience.passed()) {
    if (!channel_.transport().progress()) {
      channel_.transport().rest(Milliseconds(5));
    }
    look([&] { return Doing{last, error.peer()}; });
  }
  note_failure({error.reason(),
                error.peer(),
                concat(error.what(), " (found by rank ", channel_.rank(), ")")});
}

}  // namespace trireme::detail
