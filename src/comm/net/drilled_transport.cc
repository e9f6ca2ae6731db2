#include "comm/net/drilled_transport.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "comm/algo/channel.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// While something is held, which nobody would wake up for.
constexpr Milliseconds kLongestRest{5};

bool is_control(std::uint32_t tag) {
  return static_cast<Channel::Stream>(tag % Channel::kStreams) == Channel::Stream::kControl;
}

class DrilledTransport final : public Transport {
 public:
  // `line`: 0, and a number for each duplicate.
  DrilledTransport(std::shared_ptr<Transport> inner,
                   std::vector<int> machines,
                   std::int64_t epoch,
                   int line,
                   LinkDrill drill)
      : inner_(std::move(inner)),
        machines_(std::move(machines)),
        epoch_(epoch),
        line_(line),
        drill_(std::move(drill)),
        held_until_(machines_.size()) {}

  ~DrilledTransport() override {
    if (!is_abandoned_) {
      release(Clock::time_point::max());  // it is the last chance to send what is held
    } else if (!inner_->releases_memory()) {
      for (Parcel& parcel : parcels_) {
        static_cast<void>(parcel.copy.release());  // it may still be read
      }
    }
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string description() const override { return inner_->description(); }
  void wake() override { inner_->wake(); }
  bool releases_memory() const override { return inner_->releases_memory(); }
  bool sends_without_moving() const override { return inner_->sends_without_moving(); }
  std::optional<std::string> lost(int rank) override { return inner_->lost(rank); }
  void cut(int rank) override { inner_->cut(rank); }
  Request receive(
      int from, std::uint32_t tag, std::byte* data, std::size_t bytes, Length length) override {
    return inner_->receive(from, tag, data, bytes, length);
  }

  Request send(
      int to, std::uint32_t tag, const std::byte* data, std::size_t bytes, Length length) override {
    const bool is_exempt = is_abandoned_ || is_control(tag) ||
                           machines_[index(to)] == machines_[index(inner_->rank())];
    if (is_exempt) {
      return inner_->send(to, tag, data, bytes, length);
    }
    const auto now = Clock::now();
    release(now);  // what was due goes before what comes now
    if (const auto fault = line_ == 0 ? drill_.fault(to) : std::nullopt) {
      if (fault->kind == DrillKind::kDrop) {
        inner_->cut(to);
      } else {
        held_until_[index(to)] = now + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(fault->seconds));
      }
    }
    const DrillPlan::Sent sent{epoch_, line_, inner_->rank(), to, tag, sent_[{to, tag}]++};
    const auto bit = drill_.flip(sent, 8 * static_cast<std::uint64_t>(bytes));
    const bool is_held = held_until_[index(to)] > now;
    if (!bit && !is_held) {
      return inner_->send(to, tag, data, bytes, length);
    }
    Parcel parcel{to, tag, data, bytes, length};
    if (bit) {
      parcel.copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
      std::memcpy(parcel.copy.get(), data, bytes);
      parcel.copy[*bit / 8] ^= std::byte{1} << (*bit % 8);
      parcel.data = parcel.copy.get();
    }
    parcel.is_held = is_held;
    if (!is_held) {
      parcel.inner = inner_->send(to, tag, parcel.data, bytes, length);
    }
    parcels_.push_back(std::move(parcel));
    return Request(&parcels_.back());
  }

  bool finished(Request& request) override {
    const auto found = std::find_if(parcels_.begin(), parcels_.end(), [&](const Parcel& parcel) {
      return &parcel == request.handle();
    });
    if (found == parcels_.end()) {
      return inner_->finished(request);
    }
    if (found->is_held || !inner_->finished(found->inner)) {
      return false;
    }
    parcels_.erase(found);
    request.clear();
    return true;
  }

  void drop(Request& request) override { inner_->drop(request); }

  bool progress() override {
    const bool released = release(Clock::now());
    return inner_->progress() || released;
  }

  void rest(Milliseconds most) override {
    for (const Parcel& parcel : parcels_) {
      if (parcel.is_held && most > kLongestRest) {
        most = kLongestRest;
      }
    }
    inner_->rest(most);
  }

  void abandon() override {
    is_abandoned_ = true;
    inner_->abandon();
  }

  std::unique_ptr<Transport> duplicate(const ExchangeBytes& exchange) override {
    return std::make_unique<DrilledTransport>(
        inner_->duplicate(exchange), machines_, epoch_, ++duplicates_, drill_);
  }

 private:
  // A message that does not go as it is, or not yet.
  struct Parcel {
    int to = 0;
    std::uint32_t tag = 0;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    Length length = Length::kExact;
    bool is_held = false;
    std::unique_ptr<std::byte[]> copy{};
    Request inner{};
  };

  // In the order in which they were sent; true if there were any.
  bool release(Clock::time_point now) {
    bool any = false;
    for (Parcel& parcel : parcels_) {
      if (is_abandoned_ || !parcel.is_held || held_until_[index(parcel.to)] > now) {
        continue;
      }
      parcel.is_held = false;
      parcel.inner = inner_->send(parcel.to, parcel.tag, parcel.data, parcel.bytes, parcel.length);
      any = true;
    }
    return any;
  }

  std::list<Parcel> parcels_;  // outlive the transport, which may still send some as it ends
  const std::shared_ptr<Transport> inner_;
  const std::vector<int> machines_;
  const std::int64_t epoch_;
  const int line_;
  const LinkDrill drill_;
  std::vector<Clock::time_point> held_until_;  // by rank
  std::map<std::pair<int, std::uint32_t>, std::uint64_t> sent_;
  int duplicates_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace

std::shared_ptr<Transport> drill_transport(std::shared_ptr<Transport> transport,
                                           std::vector<int> machines,
                                           std::int64_t epoch,
                                           LinkDrill drill) {
  return std::make_shared<DrilledTransport>(
      std::move(transport), std::move(machines), epoch, 0, std::move(drill));
}

LinkDrill planned_drill(int ranks) {
  return {.fault = take_link_fault,
          .flip = [ranks](const DrillPlan::Sent& sent, std::uint64_t bits) {
            return take_flip(sent, bits, ranks);
          }};
}

}  // namespace trireme::detail
