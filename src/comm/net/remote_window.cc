#include "comm/net/remote_window.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

// Streams, as those of a channel: a question steers, an answer is data (Note [sealed messages]).
constexpr auto kAsk = static_cast<std::uint32_t>(Channel::Stream::kControl);
constexpr auto kAnswer = static_cast<std::uint32_t>(Channel::Stream::kData);
constexpr Milliseconds kRest{100};

struct Question {
  std::uint64_t offset;
  std::uint64_t bytes;
};

// Byte strings of every rank, through collectives.
std::vector<std::string> exchange_through(Communicator& ranks, const std::string& mine) {
  std::vector<std::int64_t> own = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(own, sizes).wait();
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    total += size;
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  ranks.all_gather({mine.data(), own[0], Dtype::kUint8}, {all.data(), total, Dtype::kUint8}, sizes)
      .wait();
  std::vector<std::string> parts;
  parts.reserve(sizes.size());
  std::size_t at = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(all.substr(at, static_cast<std::size_t>(size)));
    at += static_cast<std::size_t>(size);
  }
  return parts;
}

class RemoteWindow final : public Window {
 public:
  RemoteWindow(std::unique_ptr<Transport> transport,
               std::vector<Member> members,
               WindowOptions options)
      : transport_(std::move(transport)),
        members_(std::move(members)),
        options_(std::move(options)),
        posts_(members_.size()) {
    for (int rank = 0; rank < transport_->size(); ++rank) {
      if (rank != transport_->rank()) {
        expect(rank);
      }
    }
    thread_ = std::thread([this] { serve(); });
  }
  RemoteWindow(const RemoteWindow&) = delete;
  RemoteWindow& operator=(const RemoteWindow&) = delete;
  ~RemoteWindow() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    transport_->wake();
    thread_.join();
    for (Post& post : posts_) {
      transport_->drop(post.request);
    }
  }

  void read(int rank, std::size_t offset, std::size_t bytes, std::byte* to) override {
    if (bytes == 0) {
      return;
    }
    if (rank == transport_->rank()) {
      std::memcpy(to, options_.memory.data() + offset, bytes);
      return;
    }
    auto reading = std::make_shared<Reading>();
    reading->rank = rank;
    reading->question = {offset, bytes};
    reading->to = to;
    std::unique_lock lock(mutex_);
    if (broken_) {
      reading->failure = broken_;
    } else {
      new_.push_back(reading);
      transport_->wake();
    }
    const PulseWait waits;
    const auto ended = [&] { return reading->done || reading->failure; };
    // Not the timeout itself: one without an end would not fit the clock.
    const bool over = changed_.wait_for(lock, Deadline(options_.timeout).left(), ended);
    if (!over) {
      // The answer must not come later, into memory that is the caller's again.
      gives_up_on_ = rank;
      transport_->wake();
      changed_.wait(lock, ended);
    }
    if (reading->done) {
      return;
    }
    lock.unlock();
    const std::string what =
        concat("rank {} could not read {} bytes of {}: ",
               {transport_->rank(), bytes, name_of(members_[static_cast<std::size_t>(rank)])});
    if (!over) {
      throw CommError(CommError::Reason::kTimeout,
                      rank,
                      concat(what, "no answer in ", options_.timeout.count() / 1000, " s"));
    }
    // A rank that has ended because another is lost is not the one to name.
    if (const auto first = options_.find_failure()) {
      throw CommError(first->reason(), first->peer(), what + first->what());
    }
    const Break& why = *reading->failure;  // which may have been another read's
    throw CommError(why.reason, why.rank, what + why.text);
  }

 private:
  struct Post {  // a question that may come from a rank
    Question question{};
    Request request;
  };
  // Why nothing can be read any more.
  struct Break {
    CommError::Reason reason;
    int rank;  // to blame
    std::string text;
  };
  struct Reading {
    int rank = 0;
    Question question{};
    std::byte* to = nullptr;
    Request asked;
    Request answered;
    bool done = false;
    std::optional<Break> failure;
  };

  void expect(int rank) {
    Post& post = posts_[static_cast<std::size_t>(rank)];
    post.request = transport_->receive(rank,
                                       kAsk,
                                       reinterpret_cast<std::byte*>(&post.question),
                                       sizeof(post.question),
                                       Transport::Length::kUpTo);
  }

  // Nothing is moved any more: not to those who read here, nor to those who read elsewhere.
  void end_in_failure(std::deque<std::shared_ptr<Reading>>& readings, const Break& why) {
    transport_->abandon();
    const std::lock_guard lock(mutex_);
    broken_ = why;
    readings.insert(readings.end(), new_.begin(), new_.end());
    new_.clear();
    for (const auto& reading : readings) {
      reading->failure = why;
    }
    changed_.notify_all();
  }

  void serve() {
    std::deque<Request> answers;
    std::deque<std::shared_ptr<Reading>> readings;
    for (;;) {
      std::optional<int> gives_up_on;
      {
        const std::lock_guard lock(mutex_);
        if (ending_) {
          return;
        }
        gives_up_on = gives_up_on_;
        for (auto& reading : new_) {
          start(*reading);
          readings.push_back(std::move(reading));
        }
        new_.clear();
      }
      if (gives_up_on) {
        end_in_failure(readings,
                       {CommError::Reason::kTimeout,
                        *gives_up_on,
                        concat("a read of rank ", *gives_up_on, " had no answer by its deadline")});
        return;
      }
      bool moved = transport_->progress();
      for (int rank = 0; rank < transport_->size(); ++rank) {
        Post& post = posts_[static_cast<std::size_t>(rank)];
        // A question that was there before it was asked for has an empty request at once.
        if (rank != transport_->rank() && transport_->finished(post.request)) {
          moved = true;
          answers.push_back(answer(rank, post.question));
          expect(rank);
        }
      }
      while (!answers.empty() && transport_->finished(answers.front())) {
        answers.pop_front();
      }
      moved |= finish(readings);
      for (const auto& reading : readings) {
        if (const auto why = transport_->lost(reading->rank)) {
          const int gone = reading->rank;
          end_in_failure(
              readings,
              {CommError::Reason::kPeerDied, gone, concat("rank ", gone, " is gone (", *why, ")")});
          return;
        }
      }
      if (!moved) {
        transport_->rest(kRest);
      }
    }
  }

  void start(Reading& reading) {
    reading.answered = transport_->receive(
        reading.rank, kAnswer, reading.to, reading.question.bytes, Transport::Length::kExact);
    reading.asked = transport_->send(reading.rank,
                                     kAsk,
                                     reinterpret_cast<const std::byte*>(&reading.question),
                                     sizeof(reading.question),
                                     Transport::Length::kUpTo);
  }

  Request answer(int rank, const Question& question) {
    // A question of ours is always inside; one that is not would be a bug on the other side.
    const std::size_t offset = std::min<std::size_t>(question.offset, options_.memory.size());
    const std::size_t bytes =
        std::min<std::size_t>(question.bytes, options_.memory.size() - offset);
    if (bytes != question.bytes) {
      log(LogLevel::kError,
          concat("rank {} asks for memory that rank {} has not exposed",
                 {rank, transport_->rank()}));
    }
    if (members_[static_cast<std::size_t>(rank)].node !=
        members_[static_cast<std::size_t>(transport_->rank())].node) {
      options_.network_bytes->fetch_add(static_cast<std::int64_t>(bytes),
                                        std::memory_order_relaxed);
    }
    return transport_->send(
        rank, kAnswer, options_.memory.data() + offset, bytes, Transport::Length::kExact);
  }

  bool finish(std::deque<std::shared_ptr<Reading>>& readings) {
    bool any = false;
    for (auto& reading : readings) {
      const bool asked = transport_->finished(reading->asked);
      if (!transport_->finished(reading->answered) || !asked) {
        continue;
      }
      const std::lock_guard lock(mutex_);
      reading->done = true;
      changed_.notify_all();
      any = true;
    }
    std::erase_if(readings, [](const auto& reading) { return reading->done; });
    return any;
  }

  std::unique_ptr<Transport> transport_;
  const std::vector<Member> members_;  // by rank
  const WindowOptions options_;
  std::vector<Post> posts_;  // by rank; the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::vector<std::shared_ptr<Reading>> new_;
  bool ending_ = false;
  std::optional<int> gives_up_on_;  // a rank that a reader has waited for too long
  std::optional<Break> broken_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Window> make_remote_window(Communicator& ranks,
                                           const Network& network,
                                           WindowOptions options) {
  TRIREME_CHECK(index(ranks.size()) == network.members().size(),
                "expose: expected a communicator of all {} ranks of the world, found a group of "
                "{}: expose the memory in the world, before it is split",
                {network.members().size(), ranks.size()});
  auto own = network.transport()->duplicate(
      [&](const std::string& mine) { return exchange_through(ranks, mine); });
  return std::make_unique<RemoteWindow>(std::move(own), network.members(), std::move(options));
}

}  // namespace trireme::detail
