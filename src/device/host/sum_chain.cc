#include <algorithm>
#include <vector>

#include "device/chain_stretch.h"
#include "device/host/host_stream.h"
#include "device/host/reduce_kernels.h"

namespace trireme::device {
namespace {

// Elements that are added up at a time where sums need blocks: those stay in the nearest cache.
constexpr std::int64_t kBlock = 2048;
constexpr std::size_t kFew = 8;  // terms that need no memory of their own

bool adds(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

// Elements [at, end), in which the same terms are present.
class Stretch {
 public:
  Stretch(const SumChain& chain, std::int64_t at, std::int64_t end)
      : chain_(chain),
        element_(dtype_bytes(chain.dtype)),
        output_element_(dtype_bytes(chain.output_dtype)),
        group_(adds(chain.op) && is_float(chain.dtype) ? static_cast<std::size_t>(chain.group) : 1),
        offset_(static_cast<std::size_t>(at - chain.range.begin)),
        numel_(static_cast<std::size_t>(end - at)) {
    if (chain.accumulator != nullptr && chain.accumulator->has(at)) {
      old_ = chain.accumulator->data + offset_ * output_element_;
    }
    if (chain.terms.size() > kFew) {
      many_.resize(chain.terms.size() + 1);
    }
    const std::byte** inputs = many_.empty() ? few_ : many_.data();
    inputs[0] = old_;
    std::size_t count = 0;
    for (const Term& term : chain.terms) {
      if (term.has(at)) {
        inputs[++count] = term.data + offset_ * element_;
        last_ = static_cast<std::size_t>(&term - chain.terms.data());
        first_ = count == 1 ? last_ : first_;
      }
    }
    with_old_ = {inputs, count + 1};
  }
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

  void reduce() const {
    if (present().empty()) {
      return;
    }
    // A single group without anything before it is the plain chain.
    const bool grouped = group_ > 1 && (old_ != nullptr || group_of(first_) != group_of(last_));
    const bool rounds = is_half(chain_.output_dtype) && !is_half(chain_.dtype);
    if (grouped || rounds) {
      reduce_blocks();
    } else {
      reduce_plain();
    }
  }

 private:
  std::span<const std::byte* const> present() const { return with_old_.subspan(1); }
  std::size_t group_of(std::size_t rank) const { return rank / group_; }

  // Where element `begin` of the stretch goes.
  std::vector<std::byte*> targets(std::size_t begin) const {
    std::vector<std::byte*> result(chain_.outputs.begin(), chain_.outputs.end());
    for (std::byte*& output : result) {
      output += (offset_ + begin) * output_element_;
    }
    return result;
  }

  void reduce_plain() const {
    const bool widen = chain_.output_dtype != chain_.dtype;
    const auto moved = offset_ == 0 ? std::vector<std::byte*>() : targets(0);
    device::reduce({.dtype = chain_.dtype,
                    .op = chain_.op,
                    .divisor = chain_.divisor,
                    .inputs = old_ != nullptr && !widen ? with_old_ : present(),
                    .outputs = offset_ == 0 ? chain_.outputs : std::span(moved),
                    .numel = numel_,
                    .widen = widen,
                    .accumulator = widen ? old_ : nullptr});
  }

  // Each group's sum goes into a block of its own, in the type in which sums are made; the blocks
  // are then the terms of the chain, which is rounded where the outputs are 16-bit floats.
  void reduce_blocks() const {
    const bool half = is_half(chain_.dtype);
    const Dtype wide = half ? Dtype::kFloat32 : chain_.dtype;
    const std::size_t wide_element = dtype_bytes(wide);
    const bool narrow = is_half(chain_.output_dtype);
    const std::size_t most = group_of(last_) - group_of(first_) + 3;
    std::vector<std::byte> memory(most * kBlock * wide_element);
    for (std::size_t begin = 0; begin < numel_; begin += kBlock) {
      const std::size_t count = std::min<std::size_t>(kBlock, numel_ - begin);
      std::vector<const std::byte*> sums;
      std::byte* block = memory.data();
      const auto next_block = [&] {
        std::byte* mine = block;
        block += kBlock * wide_element;
        return mine;
      };
      if (old_ != nullptr) {
        sums.push_back(narrow ? widened(old_ + begin * output_element_, count, next_block())
                              : old_ + begin * output_element_);
      }
      for (std::size_t rank = first_; rank <= last_;) {
        std::vector<const std::byte*> members;
        for (const std::size_t group = group_of(rank); rank <= last_ && group_of(rank) == group;
             ++rank) {
          if (chain_.terms[rank].has(chain_.range.begin + static_cast<std::int64_t>(offset_))) {
            members.push_back(chain_.terms[rank].data + (offset_ + begin) * element_);
          }
        }
        if (members.empty()) {
          continue;
        }
        if (members.size() == 1 && !half) {
          sums.push_back(members.front());
          continue;
        }
        std::byte* sum = next_block();
        device::reduce({.dtype = chain_.dtype,
                        .op = ReduceOp::kSum,
                        .divisor = 1,
                        .inputs = members,
                        .outputs = std::span(&sum, 1),
                        .numel = count,
                        .widen = half});
        sums.push_back(sum);
      }
      const std::vector<std::byte*> here = targets(begin);
      std::byte* rounded = narrow ? next_block() : nullptr;
      device::reduce({.dtype = wide,
                      .op = chain_.op,
                      .divisor = chain_.divisor,
                      .inputs = sums,
                      .outputs = narrow ? std::span<std::byte* const>(&rounded, 1)
                                        : std::span<std::byte* const>(here),
                      .numel = count});
      for (std::size_t k = 0; narrow && k < here.size(); ++k) {
        round_floats(chain_.output_dtype, reinterpret_cast<const float*>(rounded), here[k], count);
      }
    }
  }

  const std::byte* widened(const std::byte* from, std::size_t count, std::byte* to) const {
    device::reduce({.dtype = chain_.output_dtype,
                    .op = ReduceOp::kSum,
                    .divisor = 1,
                    .inputs = std::span(&from, 1),
                    .outputs = std::span(&to, 1),
                    .numel = count,
                    .widen = true});
    return to;
  }

  const SumChain& chain_;
  std::size_t element_;
  std::size_t output_element_;
  std::size_t group_;
  std::size_t offset_;
  std::size_t numel_;
  const std::byte* old_ = nullptr;
  std::span<const std::byte* const> with_old_;  // the old value, if any, then the terms present
  std::size_t first_ = 0;                       // whose term is the first one present
  std::size_t last_ = 0;
  const std::byte* few_[kFew + 1];
  std::vector<const std::byte*> many_;
};

}  // namespace

void HostStream::reduce(const SumChain& chain) {
  for (std::int64_t at = chain.range.begin; at < chain.range.end;) {
    const std::int64_t end = next_change(chain, at);
    Stretch(chain, at, end).reduce();
    at = end;
  }
}

}  // namespace trireme::device
