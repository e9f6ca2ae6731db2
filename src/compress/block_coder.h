#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "trireme/compress/compressor.h"

namespace trireme::detail {

// What a compressor with feedback has kept of some elements, and what it is to keep if the step is
// taken. Null where it keeps nothing.
struct Carry {
  const float* before = nullptr;
  float* after = nullptr;

  Carry from(std::int64_t element) const {
    return before == nullptr ? Carry{} : Carry{before + element, after + element};
  }
  // Nothing is encoded: it waits for the next step.
  void wait(std::int64_t numel) const;
};

// Encodes and decodes blocks that lie one after another, whole buffers at a time. The seam to
// devices: what comes here is the host's.
class BlockCoder {
 public:
  explicit BlockCoder(const Compressor& compressor);

  // `key` is the first block's; `to` has the bytes of as many blocks as the values are.
  struct Carried {
    Carry rest;      // what was not encoded
    Carry velocity;  // Format::momentum
  };
  void encode(std::span<const float> values, std::byte* to, BlockKey key, const Carried& carried);
  void decode(const std::byte* from, std::span<float> values, BlockKey key);

  const Compressor& compressor() const { return compressor_; }
  // That both have taken so far.
  double seconds() const { return seconds_.count(); }

 private:
  void encode_with(std::span<const float> values,
                   std::span<std::byte> to,
                   const BlockKey& key,
                   const Carried& carried);

  const Compressor& compressor_;
  std::vector<float> whole_;    // a block with what was kept
  std::vector<float> decoded_;  // what arrives of it
  std::chrono::duration<double> seconds_{};
};

}  // namespace trireme::detail
