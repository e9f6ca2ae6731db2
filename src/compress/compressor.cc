#include "trireme/compress/compressor.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "compress/formats.h"
#include "compress/low_rank.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// Parameters begin at multiples of 64 bytes, and buckets are cut there: of 16-bit elements, 32.
constexpr std::int64_t kBlockUnit = 32;
constexpr std::int64_t kLargestBlock = 1 << 20;
constexpr int kUsualRank = 4;
constexpr int kMostRank = 1024;

// What is between colons.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == ':') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

double number_in(const std::string& name, const std::string& word) {
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  TRIREME_CHECK(error == std::errc() && stop == end,
                "compress: expected a number in {}, found {}",
                {name, word.empty() ? "nothing" : word});
  return number;
}

}  // namespace

Compressor::Compressor(Format format) : format_(std::move(format)) {
  TRIREME_CHECK(!format_.name.empty(), "a compressor needs a name (Compressor::Format::name)");
  TRIREME_CHECK(
      format_.block >= kBlockUnit && format_.block <= kLargestBlock &&
          format_.block % kBlockUnit == 0,
      "compressor {}: a block has a multiple of {} elements, up to {}, found {} (Format::block)",
      {format_.name, kBlockUnit, kLargestBlock, format_.block});
  TRIREME_CHECK(
      format_.bytes >= 1 && format_.bytes <= 8 * static_cast<std::size_t>(format_.block),
      "compressor {}: a block of {} elements becomes 1 to {} bytes, found {} (Format::bytes)",
      {format_.name, format_.block, 8 * format_.block, format_.bytes});
  TRIREME_CHECK(
      format_.momentum >= 0 && format_.momentum < 1 && (format_.momentum == 0 || format_.feedback),
      "compressor {}: momentum is at least 0 and below 1, and only with feedback, found {} "
      "(Format::momentum)",
      {format_.name, format_.momentum});
  TRIREME_CHECK(
      format_.rank == 0 || (format_.rank > 0 && format_.feedback && format_.momentum == 0),
      "compressor {}: factors have a rank of at least 1, feedback, and no momentum, found rank {} "
      "(Format::rank)",
      {format_.name, format_.rank});
}

std::int64_t Compressor::blocks(std::int64_t numel) const {
  return (numel + format_.block - 1) / format_.block;
}

std::size_t Compressor::encoded_bytes(std::int64_t numel) const {
  return static_cast<std::size_t>(blocks(numel)) * format_.bytes;
}

std::vector<std::string> compressor_names() {
  return {"bf16",
          "fp16",
          "int8",
          "sign",
          "topk:FRACTION",
          "topk:FRACTION:MOMENTUM",
          "randk:FRACTION",
          "powersgd:RANK"};
}

std::shared_ptr<const Compressor> make_compressor(const std::string& name) {
  const std::vector<std::string> words = words_of(name);
  const std::string& kind = words[0];
  const std::size_t numbers = words.size() - 1;
  const auto fraction = [&] {
    const double number = number_in(name, words[1]);
    TRIREME_CHECK(number > 0 && number <= 1,
                  "compress: {} keeps a fraction above 0 and at most 1, found {}",
                  {kind, words[1]});
    return number;
  };
  if (kind == "bf16" && numbers == 0) {
    return detail::make_bf16();
  }
  if (kind == "fp16" && numbers == 0) {
    return detail::make_fp16();
  }
  if (kind == "int8" && numbers == 0) {
    return detail::make_int8();
  }
  if (kind == "sign" && numbers == 0) {
    return detail::make_sign();
  }
  if (kind == "topk" && (numbers == 1 || numbers == 2)) {
    const double kept = fraction();
    const double momentum = numbers == 2 ? number_in(name, words[2]) : 0;
    TRIREME_CHECK(momentum >= 0 && momentum < 1,
                  "compress: topk has a momentum of at least 0 and below 1, found {}",
                  {words[2]});
    return detail::make_top_k(kept, momentum);
  }
  if (kind == "randk" && numbers == 1) {
    return detail::make_random_k(fraction());
  }
  if (kind == "powersgd" && numbers <= 1) {
    const double rank = numbers == 0 ? kUsualRank : number_in(name, words[1]);
    TRIREME_CHECK(rank == std::floor(rank) && rank >= 1 && rank <= kMostRank,
                  "compress: powersgd has a rank, a whole number from 1 to {}, found {}",
                  {kMostRank, words[1]});
    return detail::make_low_rank(static_cast<int>(rank));
  }
  throw ConfigError(detail::concat(
      "compress: expected one of {}, or none or auto for trireme train, found \"{}\"",
      {detail::listed(compressor_names()), name}));
}

std::uint64_t try_compressor(const Compressor& compressor) {
  const Compressor::Format& format = compressor.format();
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kUntouched{0xA5};
  std::uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const std::int64_t numel : {format.block, std::int64_t{1}}) {
    std::vector<float> values(static_cast<std::size_t>(numel));
    for (std::size_t i = 0; i < values.size(); ++i) {  // both signs, several magnitudes, zeros
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) *
                  std::ldexp(1.0F, static_cast<int>(i % 7) - 9);
    }
    std::vector<std::byte> first;
    for (const bool again : {false, true}) {
      std::vector<std::byte> memory(format.bytes + 2 * kGuard, kUntouched);
      compressor.encode(values, std::span(memory).subspan(kGuard, format.bytes), {});
      const bool kept = std::all_of(memory.begin(),
                                    memory.begin() + kGuard,
                                    [](std::byte b) { return b == kUntouched; }) &&
                        std::all_of(memory.end() - kGuard, memory.end(), [](std::byte b) {
                          return b == kUntouched;
                        });
      TRIREME_CHECK(kept,
                    "compressor {} writes past the {} bytes that it says a block becomes: correct "
                    "its encode(), or Format::bytes",
                    {format.name, format.bytes});
      TRIREME_CHECK(!again || memory == first,
                    "compressor {} makes something else of the same block the second time: what "
                    "it writes may depend on the values and the key alone",
                    {format.name});
      first = std::move(memory);
    }
    // A guard behind the values, too.
    constexpr float kUnwritten = -0x1.234568p120F;
    std::vector<float> decoded(values.size() + kGuard, kUnwritten);
    compressor.decode(std::span(first).subspan(kGuard, format.bytes),
                      std::span(decoded).first(values.size()),
                      {});
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      TRIREME_CHECK(
          (decoded[i] == kUnwritten) == (i >= values.size()),
          "compressor {}: decode() of a block of {} elements {}: write as many values as "
          "it is given, all of them",
          {format.name,
           values.size(),
           i >= values.size() ? "writes past its end" : detail::concat("leaves out element ", i)});
      TRIREME_CHECK(i >= values.size() || std::isfinite(decoded[i]),
                    "compressor {} makes {} of {}: what is finite must stay so",
                    {format.name, decoded[i], i < values.size() ? values[i] : 0});
    }
    for (std::size_t i = 0; i < format.bytes; ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(first[kGuard + i])) * 0x100000001B3;
    }
  }
  return hash;
}

}  // namespace trireme
