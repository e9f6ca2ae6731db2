#include "trireme/train/automatic_compression.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "trireme/comm/tell.h"
#include "trireme/compress/compressor.h"
#include "trireme/core/concat.h"

namespace trireme {
namespace {

using detail::concat;

// Those that keep nothing, and go with every setting. (What feedback and random choices cost in
// quality is for somebody to decide who knows the model.)
constexpr const char* kCandidates[] = {"bf16", "int8"};
constexpr double kWorthIt = 0.9;
constexpr int kAttempts = 3;                       // the fastest counts: others were disturbed
constexpr std::int64_t kExchangedBytes = 1 << 20;  // by a rank, at a time
constexpr std::int64_t kEncodedElements = 1 << 18;
constexpr double kMillion = 1e6;

double fastest_seconds(const std::function<void()>& before, const std::function<void()>& action) {
  double fastest = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    action();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    fastest = attempt == 0 ? taken.count() : std::min(fastest, taken.count());
  }
  return fastest;
}

// For each byte of all gradients, of which a rank sends all but its own part.
double measured_byte_seconds(World& world) {
  const auto size = static_cast<std::int64_t>(world.size());
  const std::int64_t part = std::max<std::int64_t>(1, kExchangedBytes / size);
  std::vector<std::uint8_t> sent(static_cast<std::size_t>(part * size));
  std::vector<std::uint8_t> received(sent.size());
  const double seconds = fastest_seconds([&] { world.barrier().wait(); },
                                         [&] { world.all_to_all(sent, received, {}).wait(); });
  return seconds / static_cast<double>(sent.size());
}

CompressionCost measured_cost(const char* name) {
  const auto compressor = make_compressor(name);
  const Compressor::Format& format = compressor->format();
  std::vector<float> values(static_cast<std::size_t>(kEncodedElements));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 37 % 1001) - 500) * 0x1p-20F;
  }
  std::vector<std::byte> coded(compressor->encoded_bytes(kEncodedElements));
  const auto block = static_cast<std::size_t>(format.block);
  const double seconds = fastest_seconds(
      [] {},
      [&] {
        for (std::size_t at = 0, b = 0; at < values.size(); at += block, ++b) {
          const std::span<float> part =
              std::span(values).subspan(at, std::min(block, values.size() - at));
          const std::span<std::byte> to = std::span(coded).subspan(b * format.bytes, format.bytes);
          const BlockKey key{.block = static_cast<std::int64_t>(b)};
          compressor->encode(part, to, key);
          compressor->decode(to, part, key);
        }
      });
  return {name,
          static_cast<double>(format.bytes) / static_cast<double>(format.block),
          seconds / static_cast<double>(kEncodedElements)};
}

std::string milliseconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g ms", 1e3 * seconds);
  return text;
}

}  // namespace

CompressionChoice cheapest_compression(double byte_seconds,
                                       double exact_bytes,
                                       const std::vector<CompressionCost>& others) {
  const double exact = exact_bytes * byte_seconds;
  CompressionChoice choice{"none", ""};
  double least = kWorthIt * exact;
  std::string costs;
  for (const CompressionCost& other : others) {
    const double link = other.bytes * byte_seconds;
    costs += concat(", {} {} and {} of encoding",
                    {other.name,
                     milliseconds_text(kMillion * link),
                     milliseconds_text(kMillion * other.coding_seconds)});
    if (link + other.coding_seconds < least) {
      least = link + other.coding_seconds;
      choice.name = other.name;
    }
  }
  choice.why = concat("between the ranks a million gradients take {} as they are{}",
                      {milliseconds_text(kMillion * exact), costs});
  return choice;
}

CompressionChoice automatic_compression(const TrainSettings& settings, World& world) {
  if (world.one_machine()) {
    return {"none",
            "all ranks are on one machine and read each other's gradients in memory: there is "
            "nothing to send"};
  }
  if (world.sum_group() > 1) {
    return {"none",
            concat("sums add up groups of {} ranks first, which compressed gradients do not",
                   {world.sum_group()})};
  }
  std::vector<double> figures = {measured_byte_seconds(world)};
  std::vector<CompressionCost> costs;
  for (const char* name : kCandidates) {
    costs.push_back(measured_cost(name));
    figures.push_back(costs.back().coding_seconds);
  }
  world.all_reduce(figures, ReduceOp::kMax).wait();  // a step is as slow as its slowest rank
  for (std::size_t i = 0; i < costs.size(); ++i) {
    costs[i].coding_seconds = figures[i + 1];
  }
  const bool half = settings.precision == TrainPrecision::kBFloat16 ||
                    settings.precision == TrainPrecision::kFloat16;
  CompressionChoice choice = cheapest_compression(figures[0], half ? 2 : 4, costs);
  choice.name = all_texts(world, world.rank() == 0 ? choice.name : "")[0];
  return choice;
}

}  // namespace trireme
