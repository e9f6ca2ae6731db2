// Chains of terms and rows of sparse gradients, against the plain way to compute them.

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "device/stream.h"
#include "support/reference.h"

namespace trireme {
namespace {

using device::SumChain;
using device::Term;
using testing::Bytes;

constexpr Dtype kFloats[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax};

const std::byte* start_of(const Bytes& bytes) {
  return reinterpret_cast<const std::byte*>(bytes.data());
}
std::byte* start_of(Bytes& bytes) {
  return reinterpret_cast<std::byte*>(bytes.data());
}

bool is_absent(const std::vector<Range>& absent, std::int64_t element) {
  return std::any_of(absent.begin(), absent.end(), [&](const Range& range) {
    return element >= range.begin && element < range.end;
  });
}

// --- the plain way: an element at a time

double load(Dtype dtype, const Bytes& bytes, std::size_t i) {
  std::uint16_t bits = 0;
  float single = 0;
  double wide = 0;
  switch (dtype) {
    case Dtype::kFloat32:
      std::memcpy(&single, bytes.data() + 4 * i, 4);
      return static_cast<double>(single);
    case Dtype::kFloat64:
      std::memcpy(&wide, bytes.data() + 8 * i, 8);
      return wide;
    default:
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      return dtype == Dtype::kFloat16 ? testing::half_value(bits)
                                      : static_cast<double>(testing::bfloat16_value(bits));
  }
}

void store(Dtype dtype, Bytes& bytes, std::size_t i, double value) {
  const auto single = static_cast<float>(value);
  const std::uint16_t bits =
      dtype == Dtype::kFloat16 ? testing::nearest_half(single) : testing::nearest_bfloat16(single);
  switch (dtype) {
    case Dtype::kFloat32:
      std::memcpy(bytes.data() + 4 * i, &single, 4);
      return;
    case Dtype::kFloat64:
      std::memcpy(bytes.data() + 8 * i, &value, 8);
      return;
    default:
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
}

// In the precision in which sums are made.
double rounded(Dtype dtype, double value) {
  return dtype == Dtype::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
}

double combined(Dtype dtype, ReduceOp op, double so_far, double next) {
  switch (op) {
    case ReduceOp::kMin:
      return next < so_far ? next : so_far;
    case ReduceOp::kMax:
      return so_far < next ? next : so_far;
    default:
      return rounded(dtype, so_far + next);
  }
}

struct Case {
  Dtype dtype;
  Dtype output;
  ReduceOp op = ReduceOp::kSum;
  int group = 1;
  Range range;  // of the whole
  std::vector<Bytes> inputs{};
  std::vector<std::vector<Range>> absent{};   // by rank, of the whole
  std::optional<std::vector<Range>> fresh{};  // with an accumulator
};

Bytes expected_of(const Case& c, const Bytes& old) {
  Bytes result = old;
  const auto group =
      static_cast<std::size_t>(c.op == ReduceOp::kMin || c.op == ReduceOp::kMax ? 1 : c.group);
  for (std::int64_t at = c.range.begin; at < c.range.end; ++at) {
    const auto i = static_cast<std::size_t>(at - c.range.begin);
    std::optional<double> sum;
    if (c.fresh && !is_absent(*c.fresh, at)) {
      sum = load(c.output, old, i);
    }
    bool any = false;
    for (std::size_t first = 0; first < c.inputs.size(); first += group) {
      std::optional<double> here;
      for (std::size_t rank = first; rank < std::min(first + group, c.inputs.size()); ++rank) {
        if (!is_absent(c.absent[rank], at)) {
          const double term = load(c.dtype, c.inputs[rank], i);
          here = here ? combined(c.dtype, c.op, *here, term) : term;
        }
      }
      if (here) {
        any = true;
        sum = sum ? combined(c.dtype, c.op, *sum, *here) : *here;
      }
    }
    if (!any) {
      continue;  // keeps what it had
    }
    if (c.op == ReduceOp::kAverage) {
      sum = rounded(c.dtype, *sum / static_cast<double>(c.inputs.size()));
    }
    store(c.output, result, i, *sum);
  }
  return result;
}

// `in_place`: the output is the memory of the first rank's term.
Bytes reduced(Case c, const Bytes& old, bool in_place = false) {
  Bytes first = old;
  Bytes second = old;
  std::vector<Term> terms;
  for (std::size_t rank = 0; rank < c.inputs.size(); ++rank) {
    terms.push_back({start_of(c.inputs[rank]), c.absent[rank].data(), c.absent[rank].size()});
  }
  std::vector<std::byte*> outputs = {start_of(first), start_of(second)};
  if (in_place) {
    outputs = {start_of(c.inputs[0])};
  }
  Term accumulator{outputs[0]};
  if (c.fresh) {
    outputs.resize(1);
    accumulator.absent = c.fresh->data();
    accumulator.absent_count = c.fresh->size();
  }
  device::host().reduce({.dtype = c.dtype,
                         .output_dtype = c.output,
                         .op = c.op,
                         .divisor = static_cast<std::int64_t>(c.inputs.size()),
                         .group = c.group,
                         .range = c.range,
                         .terms = terms,
                         .accumulator = c.fresh ? &accumulator : nullptr,
                         .outputs = outputs});
  if (in_place) {
    return c.inputs[0];
  }
  EXPECT_TRUE(c.fresh || first == second) << "all outputs get the same";
  return first;
}

Case made_case(Dtype dtype, Dtype output, int ranks, std::int64_t numel) {
  Case c{.dtype = dtype, .output = output, .range = {100, 100 + numel}};
  for (int rank = 0; rank < ranks; ++rank) {
    c.inputs.push_back(testing::make_input(dtype, numel, rank));
    c.absent.emplace_back();
  }
  return c;
}

Bytes old_values(const Case& c) {
  return testing::make_input(c.output, c.range.size(), 77);
}

TEST(Reduce, IsTheChainOfTermsForEveryTypeAndOp) {
  for (const Dtype dtype : {Dtype::kFloat32,
                            Dtype::kFloat64,
                            Dtype::kFloat16,
                            Dtype::kBFloat16,
                            Dtype::kInt32,
                            Dtype::kInt64,
                            Dtype::kUint8,
                            Dtype::kInt8,
                            Dtype::kInt16}) {
    for (const ReduceOp op : kOps) {
      for (const int ranks : {1, 2, 3, 4, 5, 9}) {  // unrolled, not, and too many for the stack
        for (const std::int64_t numel : {0, 1, 7, 16, 33, 130}) {
          Case c = made_case(dtype, dtype, ranks, numel);
          c.op = op;
          const Bytes old = old_values(c);
          const Bytes expected = numel == 0 ? old : testing::reduce_in_order(dtype, op, c.inputs);
          ASSERT_EQ(reduced(c, old), expected) << dtype_name(dtype) << " " << ranks << " " << numel;
          ASSERT_EQ(reduced(c, old, /*in_place=*/true), expected) << dtype_name(dtype);
        }
      }
    }
  }
}

TEST(Reduce, SkipsWhatIsAbsentAndKeepsWhatNobodyHas) {
  for (const Dtype dtype : kFloats) {
    for (const ReduceOp op : kOps) {
      Case c = made_case(dtype, dtype, 3, 60);
      c.op = op;
      // Elements 110 to 115 are nobody's.
      c.absent = {{{100, 115}}, {{105, 120}, {131, 132}}, {{110, 118}, {150, 160}}};
      const Bytes old = old_values(c);
      ASSERT_EQ(reduced(c, old), expected_of(c, old)) << dtype_name(dtype);
    }
  }
}

TEST(Reduce, BeginsWithTheAccumulatorExceptWhereItIsFresh) {
  for (const Dtype dtype : kFloats) {
    for (const Dtype output : {dtype, Dtype::kFloat32}) {
      if (output != dtype && !is_half(dtype)) {
        continue;
      }
      Case c = made_case(dtype, output, 3, 61);
      c.absent[1] = {{120, 130}};
      c.fresh = std::vector<Range>{{104, 109}, {125, 140}};
      const Bytes old = old_values(c);
      ASSERT_EQ(reduced(c, old), expected_of(c, old))
          << dtype_name(dtype) << " " << dtype_name(output);
    }
  }
}

TEST(Reduce, DoesNotRoundSumsOf16BitFloatsWhereItNeedNot) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const std::int64_t numel : {1, 16, 77}) {
      const Case c = made_case(dtype, Dtype::kFloat32, 4, numel);
      const Bytes old = old_values(c);
      ASSERT_EQ(reduced(c, old), expected_of(c, old)) << dtype_name(dtype);
    }
  }
}

TEST(Reduce, RoundsSumsOfFloat32OnceTo16Bits) {
  for (const Dtype output : {Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const ReduceOp op : kOps) {
      for (const std::int64_t numel : {1, 77, 5000}) {  // more than a block
        for (const int group : {1, 2}) {
          Case c = made_case(Dtype::kFloat32, output, 3, numel);
          c.op = op;
          c.group = group;
          const Bytes old = old_values(c);
          ASSERT_EQ(reduced(c, old), expected_of(c, old)) << dtype_name(output) << " " << numel;
        }
      }
    }
  }
}

TEST(Reduce, AddsGroupsUpFirst) {
  for (const Dtype dtype : kFloats) {
    for (const Dtype output : {dtype, Dtype::kFloat32}) {
      if (output != dtype && !is_half(dtype)) {
        continue;
      }
      for (const int group : {2, 3, 4, 8}) {
        for (const bool accumulates : {false, true}) {
          for (const ReduceOp op : kOps) {
            if (accumulates && op != ReduceOp::kSum) {
              continue;
            }
            Case c = made_case(dtype, output, 7, 2100);  // more than a block
            if (output != dtype && op != ReduceOp::kSum) {
              continue;
            }
            c.op = op;
            c.group = group;
            c.absent[2] = {{100, 150}};
            c.absent[3] = {{120, 160}};
            c.absent[6] = {{140, 2200}};
            if (accumulates) {
              c.fresh = std::vector<Range>{{100, 130}, {2100, 2150}};
            }
            const Bytes old = old_values(c);
            ASSERT_EQ(reduced(c, old), expected_of(c, old))
                << dtype_name(dtype) << " " << dtype_name(output) << " " << group << " "
                << accumulates;
          }
        }
      }
    }
  }
}

TEST(Reduce, HasTheSameBitsWhereverARangeIsCut) {
  for (const Dtype dtype : kFloats) {
    Case c = made_case(dtype, dtype, 3, 40);
    const Bytes old = old_values(c);
    const Bytes whole = reduced(c, old);
    const std::size_t element = dtype_bytes(dtype);
    for (std::size_t cut = 0; cut <= 40; ++cut) {
      Bytes joined = old;
      std::vector<Term> left;
      std::vector<Term> right;
      for (const Bytes& input : c.inputs) {
        left.push_back({start_of(input)});
        right.push_back({start_of(input) + cut * element});
      }
      std::byte* outputs[] = {start_of(joined), start_of(joined) + cut * element};
      const auto middle = static_cast<std::int64_t>(cut);
      device::host().reduce({.dtype = dtype,
                             .output_dtype = dtype,
                             .range = {0, middle},
                             .terms = left,
                             .outputs = std::span(outputs, 1)});
      device::host().reduce({.dtype = dtype,
                             .output_dtype = dtype,
                             .range = {middle, 40},
                             .terms = right,
                             .outputs = std::span(outputs + 1, 1)});
      ASSERT_EQ(joined, whole) << dtype_name(dtype) << " " << cut;
    }
  }
}

TEST(Add, IsALinkOfTheChain) {
  for (const Dtype dtype : kFloats) {
    const Dtype sum_dtype = is_half(dtype) ? Dtype::kFloat32 : dtype;
    const Case c = made_case(dtype, sum_dtype, 3, 45);
    Bytes sums(45 * dtype_bytes(sum_dtype));
    const auto term = [&](std::size_t rank) { return ConstSpan(c.inputs[rank].data(), 45, dtype); };
    const Span to(sums.data(), 45, sum_dtype);
    device::host().copy(to, term(0));
    device::host().add(to, term(1));
    device::host().add(to, term(2));
    EXPECT_EQ(sums, expected_of(c, old_values(c))) << dtype_name(dtype);
  }
}

TEST(AddRows, AddsEachInTurnToTheElementsThatAreHere) {
  constexpr std::int64_t kWidth = 5;
  constexpr std::int64_t kAllRows = 9;
  const std::vector<std::int64_t> rows = {3, 0, 3, 8, 3, 4};
  for (const Dtype dtype : kFloats) {
    const Dtype sum_dtype = is_half(dtype) ? Dtype::kFloat32 : dtype;
    const auto numel = static_cast<std::int64_t>(rows.size()) * kWidth;
    const Bytes values = testing::make_input(dtype, numel, 4);
    for (const Range range : {Range{0, kAllRows * kWidth}, Range{17, 42}, Range{20, 20}}) {
      Bytes sums = testing::make_input(sum_dtype, range.size(), 5);
      Bytes expected = sums;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::int64_t j = 0; j < kWidth; ++j) {
          const std::int64_t at = rows[i] * kWidth + j;
          if (at >= range.begin && at < range.end) {
            const auto here = static_cast<std::size_t>(at - range.begin);
            const double term = load(
                dtype, values, i * static_cast<std::size_t>(kWidth) + static_cast<std::size_t>(j));
            store(sum_dtype,
                  expected,
                  here,
                  rounded(sum_dtype, load(sum_dtype, expected, here) + term));
          }
        }
      }
      device::host().add_rows({.sums = {sums.data(), range.size(), sum_dtype},
                               .range = range,
                               .width = kWidth,
                               .rows = rows,
                               .values = {values.data(), numel, dtype}});
      EXPECT_EQ(sums, expected) << dtype_name(dtype);
    }
  }
}

}  // namespace
}  // namespace trireme
