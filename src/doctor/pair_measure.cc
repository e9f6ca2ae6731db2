#include "doctor/pair_measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "trireme/core/deadline.h"
#include "trireme/core/seconds_since.h"

namespace trireme::detail {
namespace {

constexpr double kAllPairsSeconds = 6;
constexpr double kPairSeconds = 0.1;  // at most
constexpr int kWarmUp = 10;
constexpr std::size_t kSmallBytes = 256 << 10;
constexpr std::size_t kLargeBytes = 4 << 20;
constexpr double kLongTransfer = 0.25;  // seconds; larger messages than that are not tried

double upper_median(std::vector<double> values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

// As often as fits into the time.
std::int64_t repeats(double budget, double seconds, std::int64_t least, std::int64_t most) {
  return std::clamp(static_cast<std::int64_t>(budget / std::max(seconds, 1e-9)), least, most);
}

// One side of a pair. Both sides run the same program: the lower rank `leads`, that is, it sends
// first, holds the clock and says how often.
class Pair {
 public:
  Pair(Communicator& world, int peer)
      : world_(world), peer_(peer), leads_(world.rank() < peer), large_(kLargeBytes) {}

  // The results are of use on the leader.
  void measure(double budget) {
    const double first = round_trips(kWarmUp);
    latency_ = round_trips(agree(repeats(budget / 3, first, kWarmUp, 500))) / 2;
    transfer(kSmallBytes, true);  // brings memory and connections into being
    transfer(kSmallBytes, false);
    const double small = transfer(kSmallBytes, true);
    const double large =
        small * (static_cast<double>(kLargeBytes) / static_cast<double>(kSmallBytes));
    const auto bytes = static_cast<std::size_t>(
        agree(large < kLongTransfer ? std::int64_t{kLargeBytes} : std::int64_t{kSmallBytes}));
    const double once = transfer(bytes, true);
    const std::int64_t count = agree(repeats(budget / 3, once, 1, 30));
    forth_ = speed(bytes, count, true);
    back_ = speed(bytes, count, false);
  }

  double latency_us() const { return latency_ * 1e6; }
  double forth() const { return forth_; }  // bytes per second, from the leader
  double back() const { return back_; }

 private:
  void send(const ConstSpan& data) { world_.send(data, peer_).wait(); }
  void receive(const Span& data) { world_.recv(data, peer_).wait(); }

  // The leader's number.
  std::int64_t agree(std::int64_t number) {
    std::vector<std::int64_t> value{number};
    if (leads_) {
      send(value);
    } else {
      receive(value);
    }
    return value[0];
  }

  // The median of the times of `count` round trips of eight bytes.
  double round_trips(std::int64_t count) {
    std::vector<std::int64_t> word(1);
    std::vector<double> times;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto start = Clock::now();
      if (leads_) {
        send(word);
        receive(word);
      } else {
        receive(word);
        send(word);
      }
      times.push_back(seconds_since(start));
    }
    return upper_median(std::move(times));
  }

  // The time of one message, on the leader's clock: a word goes the other way, whose time is known.
  // Of the messages back, the word asks for it.
  double transfer(std::size_t bytes, bool forth) {
    const Span data(large_.data(), static_cast<std::int64_t>(bytes), Dtype::kUint8);
    std::vector<std::int64_t> word(1);
    const auto start = Clock::now();
    if (leads_ && forth) {
      send(data);
      receive(word);
    } else if (leads_) {
      send(word);
      receive(data);
    } else if (forth) {
      receive(data);
      send(word);
    } else {
      receive(word);
      send(data);
    }
    return std::max(seconds_since(start) - latency_, 1e-9);
  }

  double speed(std::size_t bytes, std::int64_t count, bool forth) {
    std::vector<double> times;
    times.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      times.push_back(transfer(bytes, forth));
    }
    return static_cast<double>(bytes) / upper_median(std::move(times));
  }

  Communicator& world_;
  int peer_;
  bool leads_;
  std::vector<std::uint8_t> large_;
  double latency_ = 0;
  double forth_ = 0;
  double back_ = 0;
};

// One pair after another.
PairMatrix sweep(Communicator& world, const std::vector<std::pair<int, int>>& list) {
  PairMatrix pairs(world.size());
  const auto count = static_cast<double>(std::max<std::size_t>(1, list.size()));
  for (const auto& [a, b] : list) {
    if (world.rank() == a || world.rank() == b) {
      Pair pair(world, world.rank() == a ? b : a);
      pair.measure(std::min(kPairSeconds, kAllPairsSeconds / count));
      if (world.rank() == a) {
        pairs.latency_us[pairs.at(a, b)] = pair.latency_us();
        pairs.latency_us[pairs.at(b, a)] = pair.latency_us();
        pairs.bytes_per_second[pairs.at(a, b)] = pair.forth();
        pairs.bytes_per_second[pairs.at(b, a)] = pair.back();
      }
    }
    world.barrier().wait();
  }
  // Each number is known to one rank, and 0 elsewhere.
  world.all_reduce(pairs.latency_us).wait();
  world.all_reduce(pairs.bytes_per_second).wait();
  return pairs;
}

}  // namespace

PairMatrix measure_pairs(Communicator& world, const std::vector<int>& machine_of) {
  PairMatrix pairs = sweep(world, pairs_to_measure(machine_of));
  // Something else may have had the processor just then: a pair is slow only where it is so twice.
  const PairMatrix again = sweep(world, slow_pairs(pairs, machine_of));
  for (std::size_t i = 0; i < pairs.latency_us.size(); ++i) {
    if (again.latency_us[i] > 0) {
      pairs.latency_us[i] = std::min(pairs.latency_us[i], again.latency_us[i]);
      pairs.bytes_per_second[i] = std::max(pairs.bytes_per_second[i], again.bytes_per_second[i]);
    }
  }
  return pairs;
}

}  // namespace trireme::detail
