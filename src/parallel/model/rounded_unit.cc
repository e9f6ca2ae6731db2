#include "parallel/model/rounded_unit.h"

#include <algorithm>
#include <cstring>

namespace trireme::detail {
namespace {

constexpr std::size_t kExactBytes = sizeof(float);

}  // namespace

std::shared_ptr<const RoundedUnit> RoundedUnit::of(const FlatLayout& layout,
                                                   const std::vector<std::size_t>& parameters,
                                                   const std::vector<Parameter>& table,
                                                   std::shared_ptr<const Compressor> format) {
  const std::shared_ptr<RoundedUnit> unit(new RoundedUnit);
  unit->layout_ = layout;
  unit->parameters_ = parameters;
  unit->begins_ = {0};
  for (const std::size_t p : parameters) {
    unit->offsets_.push_back(layout.offset(unit->offsets_.size()));
    const std::size_t exact = static_cast<std::size_t>(table[p].numel) * kExactBytes;
    const std::size_t encoded = format->encoded_bytes(table[p].numel);
    const bool rounded = table[p].sizes.size() >= 2 && encoded < exact;
    unit->rounded_.push_back(rounded ? 1 : 0);
    unit->begins_.push_back(unit->begins_.back() + (rounded ? encoded : exact));
  }
  unit->format_ = std::move(format);
  return std::ranges::count(unit->rounded_, 1) > 0 ? unit : nullptr;
}

std::vector<std::int64_t> RoundedUnit::blocks() const {
  std::vector<std::int64_t> blocks;
  for (const char rounded : rounded_) {
    blocks.push_back(rounded != 0 ? format_->format().block : 1);
  }
  return blocks;
}

std::size_t RoundedUnit::begin(std::int64_t element) const {
  const auto next = std::ranges::upper_bound(offsets_, element);
  const auto p = static_cast<std::size_t>(next - offsets_.begin()) - 1;
  const std::int64_t before = std::min(element - layout_.offset(p), layout_.numel(p));
  return begins_[p] + (rounded_[p] != 0 ? format_->encoded_bytes(before)
                                        : static_cast<std::size_t>(before) * kExactBytes);
}

std::vector<std::int64_t> RoundedUnit::counts(const std::vector<Range>& ranges) const {
  std::vector<std::int64_t> counts;
  for (const Range& range : ranges) {
    counts.push_back(static_cast<std::int64_t>(bytes(range)));
  }
  return counts;
}

// Of no step: a state that is loaded has the same values.
BlockKey RoundedUnit::key_of(const Piece& piece, std::int64_t done) const {
  return {.parameter = parameters_[piece.parameter],
          .block = (piece.begin + done) / format_->format().block};
}

void RoundedUnit::encode(Range range, const float* values, std::byte* to) const {
  const auto& [name, block, bytes, feedback, momentum, rank] = format_->format();
  for (const Piece& piece : layout_.pieces(range)) {
    const float* from = values + (piece.offset - range.begin);
    if (rounded_[piece.parameter] == 0) {
      const std::size_t exact = static_cast<std::size_t>(piece.numel) * kExactBytes;
      std::memcpy(to, from, exact);
      to += exact;
      continue;
    }
    for (std::int64_t done = 0; done < piece.numel; done += block, to += bytes) {
      const auto count = static_cast<std::size_t>(std::min(block, piece.numel - done));
      format_->encode({from + done, count}, {to, bytes}, key_of(piece, done));
    }
  }
}

void RoundedUnit::decode(Range range, const std::byte* from, float* values) const {
  const auto& [name, block, bytes, feedback, momentum, rank] = format_->format();
  for (const Piece& piece : layout_.pieces(range)) {
    float* to = values + (piece.offset - range.begin);
    if (rounded_[piece.parameter] == 0) {
      const std::size_t exact = static_cast<std::size_t>(piece.numel) * kExactBytes;
      std::memcpy(to, from, exact);
      from += exact;
      continue;
    }
    for (std::int64_t done = 0; done < piece.numel; done += block, from += bytes) {
      const auto count = static_cast<std::size_t>(std::min(block, piece.numel - done));
      format_->decode({from, bytes}, {to + done, count}, key_of(piece, done));
    }
  }
}

void RoundedUnit::round(Range range, const float* values, float* to) const {
  std::vector<std::byte> coded(bytes(range));
  encode(range, values, coded.data());
  decode(range, coded.data(), to);
}

}  // namespace trireme::detail
