#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

// How gradients and weights travel (EngineOptions::compress, round_weights). A compressor of your
// own is a class with two functions (docs/compression.md):
//
//   struct Signs final : trireme::Compressor {  // examples/08_compressor
//     Signs() : Compressor({.name = "signs", .block = 1024, .bytes = 132, .feedback = true}) {}
//     void encode(std::span<const float> x, std::span<std::byte> to, const BlockKey&) const
//     override; void decode(std::span<const std::byte> from, std::span<float> x, const BlockKey&)
//     const override;
//   };
//   Engine engine(model, Sgd({.lr = 0.1}), {.zero = 2, .compress = std::make_shared<Signs>()},
//   world);

namespace trireme {

// Which block of which gradient it is. What a compressor makes of a block may depend on this and on
// its values, and on nothing else: then every rank sees the same, for any number of ranks.
struct BlockKey {
  std::int64_t step = 0;      // updates before this one
  std::size_t parameter = 0;  // in the order of the model's parameters
  std::int64_t block = 0;     // in the parameter
  bool sum = false;           // of the sum of all micro-batches, not of one
};

class Compressor {
 public:
  struct Format {
    std::string name{};        // for messages, and to compare what ranks have
    std::int64_t block = 256;  // elements that are encoded together: a multiple of 32
    std::size_t bytes = 260;   // that each block becomes, whatever is in it
    // What encoding leaves out of a gradient is added to the next step's: error feedback.
    bool feedback = false;
    // With feedback, momentum before encoding (Deep Gradient Compression); 0: none.
    // The optimizer then has none of its own.
    double momentum = 0;
    // Above 0: matrices travel as two factors of this rank, and everything else as it is
    // (PowerSGD); encode and decode are not called. With feedback, without momentum.
    int rank = 0;
  };

  // Throws ConfigError for a format that cannot be.
  explicit Compressor(Format format);
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
  virtual ~Compressor() = default;

  const Format& format() const { return format_; }
  // Of so many elements.
  std::int64_t blocks(std::int64_t numel) const;
  std::size_t encoded_bytes(std::int64_t numel) const;

  // `to` has Format::bytes. A parameter's last block may have fewer elements than the others. What
  // is not finite should not become finite, nor the other way round. Several threads may call both.
  virtual void encode(std::span<const float> values,
                      std::span<std::byte> to,
                      const BlockKey& key) const = 0;
  // Writes every value, also of bytes that nobody has encoded.
  virtual void decode(std::span<const std::byte> from,
                      std::span<float> values,
                      const BlockKey& key) const = 0;

 private:
  Format format_;
};

// bf16: 2 bytes per element. fp16: 2, with an exponent for every 128 elements, so that nothing
// overflows. int8: 1, with a scale for every 256. sign: 1 bit, with the mean magnitude of every
// 1024, and feedback. topk:0.01: the largest hundredth of every 1024, with feedback; topk:0.01:0.9
// with momentum, too. randk:0.01: a hundredth that is drawn in each step. powersgd:4: two factors
// of rank 4 for each matrix, with feedback.
std::vector<std::string> compressor_names();
// One of them; throws ConfigError for others.
std::shared_ptr<const Compressor> make_compressor(const std::string& name);

// Tries a compressor on made-up blocks, and throws ConfigError for one that writes past its bytes,
// leaves values out, or makes something else of the same block the second time. Returns a number
// that differs for compressors that encode differently.
std::uint64_t try_compressor(const Compressor& compressor);

}  // namespace trireme
