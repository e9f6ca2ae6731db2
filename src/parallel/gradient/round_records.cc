#include "parallel/gradient/round_records.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trireme::detail {
namespace {

// A record: how many micro-batches of this rank are in it, its learning rate, whether it has joined
// or given up, then one byte for each parameter.
constexpr std::size_t kMicroBatches = 0;
constexpr std::size_t kRate = sizeof(std::int64_t);
constexpr std::size_t kJoined = kRate + sizeof(Rate);
constexpr std::size_t kGivenUp = kJoined + 1;
constexpr std::size_t kFirstParameter = kGivenUp + 1;

std::int64_t micro_batches_in(const std::uint8_t* record) {
  std::int64_t count = 0;
  std::memcpy(&count, record + kMicroBatches, sizeof(count));
  return count;
}

Rate rate_in(const std::uint8_t* record) {
  Rate rate;
  std::memcpy(&rate, record + kRate, sizeof(rate));
  return rate;
}

// A rate that is not a number is refused as such, not as one that differs from itself.
bool differ(double a, double b) {
  return a != b && !(std::isnan(a) && std::isnan(b));
}

}  // namespace

RoundRecords::RoundRecords(std::size_t parameters, Communicator& ranks)
    : ranks_(ranks),
      own_(std::make_shared<std::vector<std::uint8_t>>(kFirstParameter + parameters)),
      all_(std::make_shared<std::vector<std::uint8_t>>(own_->size() *
                                                       static_cast<std::size_t>(ranks.size()))),
      in_sums_(parameters, 0) {
  reset();
}

void RoundRecords::note(const std::vector<GradientState>& gradients) {
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    std::uint8_t& known = (*own_)[kFirstParameter + p];
    known = std::max(known, static_cast<std::uint8_t>(gradients[p]));
  }
}

void RoundRecords::count_micro_batch() {
  const std::int64_t count = micro_batches_in(own_->data()) + 1;
  std::memcpy(own_->data() + kMicroBatches, &count, sizeof(count));
}

void RoundRecords::forget_own() {
  std::fill(own_->begin(), own_->end(), std::uint8_t{0});
}

void RoundRecords::tell(bool joined, bool given_up, const Rate& rate) {
  std::memcpy(own_->data() + kRate, &rate, sizeof(rate));
  (*own_)[kJoined] = joined ? 1 : 0;
  (*own_)[kGivenUp] = given_up ? 1 : 0;
  const auto bytes = [](const auto& values) { return static_cast<std::int64_t>(values->size()); };
  telling_ = ranks_.all_gather(ConstSpan(own_->data(), bytes(own_), Dtype::kUint8, own_),
                               Span(all_->data(), bytes(all_), Dtype::kUint8, all_));
  pending_ = true;
}

void RoundRecords::hear() {
  if (!pending_) {
    return;
  }
  telling_.wait();
  pending_ = false;
  const auto record_of = [&](int rank) {
    return all_->data() + static_cast<std::size_t>(rank) * own_->size();
  };
  int lead = 0;
  while (lead + 1 < ranks_.size() && record_of(lead)[kJoined] != 0) {
    ++lead;
  }
  const Rate lead_rate = rate_in(record_of(lead));
  agreement_.lead = lead;
  agreement_.lead_rate = lead_rate.value();
  bool all_joined = true;
  bool any_joined = false;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const std::uint8_t* record = record_of(rank);
    agreement_.micro_batches += micro_batches_in(record);
    const bool joined = record[kJoined] != 0;
    Rate rate = rate_in(record);
    rate.base = joined ? lead_rate.base : rate.base;
    if (agreement_.other_rate_rank < 0 && differ(rate.value(), lead_rate.value())) {
      agreement_.other_rate_rank = rank;
      agreement_.other_rate = rate.value();
    }
    if (record[kGivenUp] != 0 && agreement_.given_up_rank < 0) {
      agreement_.given_up_rank = rank;
    }
    all_joined &= joined;
    any_joined |= joined;
    for (std::size_t p = 0; p < in_sums_.size(); ++p) {
      const auto state = static_cast<GradientState>(record[kFirstParameter + p]);
      if (state != GradientState::kAbsent) {
        in_sums_[p] = 1;
        agreement_.used[p] = true;
      }
      if (state == GradientState::kNotFinite && agreement_.bad_rank < 0) {
        agreement_.bad_rank = rank;
        agreement_.bad_parameter = p;
      }
    }
  }
  agreement_.any_joined = any_joined;
  agreement_.all_joined = all_joined && agreement_.micro_batches == 0;
}

const std::vector<char>& RoundRecords::in_sums() {
  hear();
  return in_sums_;
}

void RoundRecords::begin_sums() {
  std::fill(in_sums_.begin(), in_sums_.end(), 0);
}

const Agreement& RoundRecords::agreement() {
  hear();
  return agreement_;
}

void RoundRecords::reset() {
  forget_own();
  begin_sums();
  agreement_ = {.used = std::vector<bool>(in_sums_.size(), false)};
}

}  // namespace trireme::detail
