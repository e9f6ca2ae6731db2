#include "comm/sum_chain.h"

#include <algorithm>
#include <vector>

#include "comm/reduce_kernels.h"

namespace trireme::detail {
namespace {

// Elements that are added up at a time when there are groups: their sums stay in the cache.
constexpr std::int64_t kBlock = 2048;

// Elements [at, end), in which the same terms are present: `present` has their addresses, `ranks`
// whose they are.
class Stretch {
 public:
  Stretch(const SumChain& chain, std::int64_t at, std::int64_t end)
      : chain_(chain),
        element_(dtype_bytes(chain.dtype)),
        output_element_(dtype_bytes(chain.output_dtype)),
        offset_(static_cast<std::size_t>(at - chain.range.begin)),
        numel_(static_cast<std::size_t>(end - at)) {
    if (chain.accumulator != nullptr && chain.accumulator->has(at)) {
      old_ = chain.accumulator->data + offset_ * output_element_;
    }
    for (std::size_t rank = 0; rank < chain.terms.size(); ++rank) {
      if (chain.terms[rank].has(at)) {
        present_.push_back(chain.terms[rank].data + offset_ * element_);
        groups_.push_back(rank / static_cast<std::size_t>(chain.group));
      }
    }
  }

  void reduce() const {
    if (present_.empty()) {
      return;
    }
    const bool sums = chain_.op == ReduceOp::kSum || chain_.op == ReduceOp::kAverage;
    // A single group without anything before it is the plain chain.
    const bool grouped = chain_.group > 1 && sums && is_float(chain_.dtype) &&
                         (old_ != nullptr || groups_.front() != groups_.back());
    if (grouped) {
      reduce_groups();
    } else {
      reduce_plain();
    }
  }

 private:
  std::vector<std::byte*> targets() const {
    std::vector<std::byte*> result;
    result.reserve(chain_.outputs.size());
    for (std::byte* output : chain_.outputs) {
      result.push_back(output + offset_ * output_element_);
    }
    return result;
  }

  void reduce_plain() const {
    const bool widen = chain_.output_dtype != chain_.dtype;
    std::vector<const std::byte*> inputs = present_;
    if (old_ != nullptr && !widen) {
      inputs.insert(inputs.begin(), old_);
    }
    const auto outputs = targets();
    detail::reduce({.dtype = chain_.dtype,
                    .op = chain_.op,
                    .divisor = chain_.divisor,
                    .inputs = inputs,
                    .outputs = outputs,
                    .numel = numel_,
                    .widen = widen,
                    .accumulator = widen ? old_ : nullptr});
  }

  // Each group's sum goes into a block of its own, in the type in which sums are made; the blocks
  // are then the terms of the chain.
  void reduce_groups() const {
    const bool half = is_half(chain_.dtype);
    const Dtype wide = half ? Dtype::kFloat32 : chain_.dtype;
    const std::size_t wide_element = dtype_bytes(wide);
    const bool narrow = half && chain_.output_dtype == chain_.dtype;
    const std::size_t most = groups_.back() - groups_.front() + 3;
    std::vector<std::byte> memory(most * kBlock * wide_element);
    const auto outputs = targets();
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
        sums.push_back(narrow ? widened(old_ + begin * element_, count, next_block())
                              : old_ + begin * output_element_);
      }
      for (std::size_t i = 0; i < present_.size();) {
        std::vector<const std::byte*> members;
        for (const std::size_t group = groups_[i]; i < present_.size() && groups_[i] == group;
             ++i) {
          members.push_back(present_[i] + begin * element_);
        }
        if (members.size() == 1 && !half) {
          sums.push_back(members.front());
          continue;
        }
        std::byte* sum = next_block();
        detail::reduce({.dtype = chain_.dtype,
                        .op = ReduceOp::kSum,
                        .divisor = 1,
                        .inputs = members,
                        .outputs = std::span(&sum, 1),
                        .numel = count,
                        .widen = half});
        sums.push_back(sum);
      }
      std::vector<std::byte*> here = outputs;
      for (std::byte*& output : here) {
        output += begin * output_element_;
      }
      std::byte* rounded = narrow ? next_block() : nullptr;
      detail::reduce({.dtype = wide,
                      .op = chain_.op,
                      .divisor = chain_.divisor,
                      .inputs = sums,
                      .outputs = narrow ? std::span<std::byte* const>(&rounded, 1)
                                        : std::span<std::byte* const>(here),
                      .numel = count});
      for (std::size_t k = 0; narrow && k < here.size(); ++k) {
        round_floats(chain_.dtype, reinterpret_cast<const float*>(rounded), here[k], count);
      }
    }
  }

  const std::byte* widened(const std::byte* from, std::size_t count, std::byte* to) const {
    detail::reduce({.dtype = chain_.dtype,
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
  std::size_t offset_;
  std::size_t numel_;
  const std::byte* old_ = nullptr;
  std::vector<const std::byte*> present_;
  std::vector<std::size_t> groups_;  // of those present
};

}  // namespace

bool Term::has(std::int64_t element) const {
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (element < absent[i].end) {
      return element < absent[i].begin;
    }
  }
  return true;
}

std::int64_t Term::next_change(std::int64_t element, std::int64_t end) const {
  for (std::size_t i = 0; i < absent_count; ++i) {
    if (element < absent[i].begin) {
      return std::min(end, absent[i].begin);
    }
    if (element < absent[i].end) {
      return std::min(end, absent[i].end);
    }
  }
  return end;
}

void reduce_in_order(const SumChain& chain) {
  for (std::int64_t at = chain.range.begin; at < chain.range.end;) {
    std::int64_t end = chain.range.end;
    for (const Term& term : chain.terms) {
      end = term.next_change(at, end);
    }
    if (chain.accumulator != nullptr) {
      end = chain.accumulator->next_change(at, end);
    }
    Stretch(chain, at, end).reduce();
    at = end;
  }
}

std::vector<Range> common_ranges(std::span<const std::span<const Range>> lists) {
  std::vector<Range> common;
  if (lists.empty()) {
    return common;
  }
  common.assign(lists.front().begin(), lists.front().end());
  for (const auto& list : lists.subspan(1)) {
    std::vector<Range> both;
    auto a = common.begin();
    auto b = list.begin();
    while (a != common.end() && b != list.end()) {
      const Range shared = intersection(*a, *b);
      if (!shared.empty()) {
        both.push_back(shared);
      }
      if (a->end < b->end) {
        ++a;
      } else {
        ++b;
      }
    }
    common = std::move(both);
  }
  return common;
}

}  // namespace trireme::detail
