#include "compress/block_coder.h"

#include <algorithm>

namespace trireme::detail {
namespace {

using CoderClock = std::chrono::steady_clock;

}  // namespace

void Carry::wait(std::int64_t numel) const {
  if (before != nullptr) {
    std::copy_n(before, numel, after);
  }
}

BlockCoder::BlockCoder(const Compressor& compressor)
    : compressor_(compressor),
      whole_(static_cast<std::size_t>(compressor.format().block)),
      decoded_(whole_.size()) {}

void BlockCoder::encode(std::span<const float> values,
                        std::byte* to,
                        BlockKey key,
                        const Carried& carried) {
  const auto start = CoderClock::now();
  const Compressor::Format& format = compressor_.format();
  const std::size_t block = whole_.size();
  for (std::size_t at = 0; at < values.size(); at += block, to += format.bytes, ++key.block) {
    const auto part = values.subspan(at, std::min(block, values.size() - at));
    const std::span<std::byte> bytes(to, format.bytes);
    if (carried.rest.before == nullptr) {
      compressor_.encode(part, bytes, key);
    } else {
      const auto element = static_cast<std::int64_t>(at);
      encode_with(part, bytes, key, {carried.rest.from(element), carried.velocity.from(element)});
    }
  }
  seconds_ += CoderClock::now() - start;
}

// Deep Gradient Compression (Lin and others, 2018), equations 4 and 5: u = m u + g, v = v + u; what
// is sent leaves v. Without momentum u is g: error feedback. (Its factor masking, which also takes
// it out of u, would make plain SGD of sending everything.)
void BlockCoder::encode_with(std::span<const float> values,
                             std::span<std::byte> to,
                             const BlockKey& key,
                             const Carried& carried) {
  const auto momentum = static_cast<float>(compressor_.format().momentum);
  const auto& [rest, velocity] = carried;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float moved = values[i];
    if (velocity.before != nullptr) {
      moved = velocity.before[i] * momentum + values[i];
      velocity.after[i] = moved;
    }
    whole_[i] = rest.before[i] + moved;
  }
  const std::span<const float> whole(whole_.data(), values.size());
  const std::span<float> decoded(decoded_.data(), values.size());
  compressor_.encode(whole, to, key);
  compressor_.decode(to, decoded, key);
  for (std::size_t i = 0; i < values.size(); ++i) {
    rest.after[i] = whole[i] - decoded[i];
  }
}

void BlockCoder::decode(const std::byte* from, std::span<float> values, BlockKey key) {
  const auto start = CoderClock::now();
  const std::size_t bytes = compressor_.format().bytes;
  const std::size_t block = whole_.size();
  for (std::size_t at = 0; at < values.size(); at += block, from += bytes, ++key.block) {
    compressor_.decode({from, bytes}, values.subspan(at, std::min(block, values.size() - at)), key);
  }
  seconds_ += CoderClock::now() - start;
}

}  // namespace trireme::detail
