// A GPU's stream: every call leaves the bytes that the host's leaves.

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "support/gpu.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using device::Term;
using testing::Bytes;
using testing::bytes_of;
using testing::gpu_stream;
using testing::kGpu;
using testing::OnGpu;

class CudaStream : public testing::GpuTest {};

constexpr Dtype kFloats[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16};

struct Chain {
  Dtype dtype;
  Dtype output;
  ReduceOp op = ReduceOp::kSum;
  int group = 1;
  std::vector<std::vector<Range>> absent{};   // by rank, of the whole
  std::optional<std::vector<Range>> fresh{};  // with an accumulator
  bool in_place = false;                      // the output is the first rank's term
  std::size_t shift = 0;                      // elements
};

// The chain over memory that is anywhere.
void reduce_on(device::Stream& stream,
               const Chain& chain,
               const std::vector<std::byte*>& inputs,
               std::vector<std::byte*> outputs,
               std::int64_t numel) {
  constexpr std::int64_t kFirst = 100;
  std::vector<Term> terms;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::vector<Range>* absent = rank < chain.absent.size() ? &chain.absent[rank] : nullptr;
    terms.push_back({inputs[rank],
                     absent != nullptr ? absent->data() : nullptr,
                     absent != nullptr ? absent->size() : 0});
  }
  if (chain.in_place) {
    outputs = {inputs[0]};
  }
  Term old{outputs[0]};
  if (chain.fresh) {
    outputs.resize(1);
    old.absent = chain.fresh->data();
    old.absent_count = chain.fresh->size();
  }
  stream.reduce({.dtype = chain.dtype,
                 .output_dtype = chain.output,
                 .op = chain.op,
                 .divisor = static_cast<std::int64_t>(inputs.size()),
                 .group = chain.group,
                 .range = {kFirst, kFirst + numel},
                 .terms = terms,
                 .accumulator = chain.fresh ? &old : nullptr,
                 .outputs = outputs});
}

void expect_host_chain(const Chain& chain, int ranks, std::int64_t numel) {
  std::vector<Bytes> inputs;
  std::vector<std::unique_ptr<OnGpu>> theirs;
  std::vector<std::byte*> here;
  std::vector<std::byte*> there;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(testing::make_input(chain.dtype, numel, rank));
    theirs.push_back(
        std::make_unique<OnGpu>(inputs.back(), chain.shift * dtype_bytes(chain.dtype)));
    there.push_back(theirs.back()->data());
  }
  here.reserve(inputs.size());
  for (Bytes& input : inputs) {
    here.push_back(reinterpret_cast<std::byte*>(input.data()));
  }
  Bytes first = testing::make_input(chain.output, numel, 77);
  Bytes second = first;
  const OnGpu gpu_first(first, chain.shift * dtype_bytes(chain.output));
  const OnGpu gpu_second(second, chain.shift * dtype_bytes(chain.output));
  reduce_on(
      device::host(),
      chain,
      here,
      {reinterpret_cast<std::byte*>(first.data()), reinterpret_cast<std::byte*>(second.data())},
      numel);
  reduce_on(gpu_stream(), chain, there, {gpu_first.data(), gpu_second.data()}, numel);
  const std::string where = detail::concat(
      "{} to {}, {} ranks, {} elements, group {}",
      {dtype_name(chain.dtype), dtype_name(chain.output), ranks, numel, chain.group});
  ASSERT_EQ(gpu_first.read(), first) << where;
  ASSERT_EQ(gpu_second.read(), second) << where;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    ASSERT_EQ(theirs[rank]->read(), inputs[rank]) << where << ", input of rank " << rank;
  }
}

TEST_F(CudaStream, ReducesEveryTypeAndOpAsTheHostDoes) {
  for (const Dtype dtype : {Dtype::kFloat32,
                            Dtype::kFloat64,
                            Dtype::kFloat16,
                            Dtype::kBFloat16,
                            Dtype::kInt32,
                            Dtype::kInt64,
                            Dtype::kUint8,
                            Dtype::kInt8,
                            Dtype::kInt16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
      for (const int ranks : {1, 2, 3, 5, 9}) {
        for (const std::int64_t numel : {0, 1, 33, 5000}) {
          expect_host_chain({.dtype = dtype, .output = dtype, .op = op}, ranks, numel);
        }
      }
      expect_host_chain({.dtype = dtype, .output = dtype, .op = op, .in_place = true}, 3, 1003);
      expect_host_chain({.dtype = dtype, .output = dtype, .op = op, .shift = 1}, 3, 1003);
    }
  }
}

TEST_F(CudaStream, ReducesInOneRoundingWithGroupsAbsentTermsAndAnAccumulator) {
  const std::vector<std::vector<Range>> absent = {
      {}, {{100, 120}}, {{110, 400}, {700, 1100}}, {{100, 2000}}, {{130, 140}}};
  struct Types {
    Dtype terms, sums;
  };
  for (const Types types : {Types{Dtype::kFloat32, Dtype::kFloat32},
                            Types{Dtype::kFloat64, Dtype::kFloat64},
                            Types{Dtype::kFloat16, Dtype::kFloat16},
                            Types{Dtype::kBFloat16, Dtype::kBFloat16},
                            Types{Dtype::kFloat16, Dtype::kFloat32},
                            Types{Dtype::kBFloat16, Dtype::kFloat32},
                            Types{Dtype::kFloat32, Dtype::kFloat16},
                            Types{Dtype::kFloat32, Dtype::kBFloat16}}) {
    for (const int group : {1, 2, 3, 8}) {
      for (const std::int64_t numel : {7, 1003}) {
        for (const std::size_t shift : {0, 1}) {
          Chain chain{.dtype = types.terms, .output = types.sums, .group = group, .shift = shift};
          expect_host_chain(chain, 5, numel);
          chain.fresh.emplace();
          expect_host_chain(chain, 5, numel);
          chain.absent = absent;
          expect_host_chain(chain, 5, numel);
          chain.fresh = {{100, 105}, {300, 800}};
          expect_host_chain(chain, 5, numel);
        }
      }
    }
  }
}

TEST_F(CudaStream, RefusesMoreTermsThanAKernelTakes) {
  const OnGpu memory(Bytes(64));
  const std::vector<std::byte*> inputs(65, memory.data());
  const std::string message = testing::message_of<ConfigError>([&] {
    reduce_on(gpu_stream(),
              {.dtype = Dtype::kFloat32, .output = Dtype::kFloat32},
              inputs,
              {memory.data()},
              4);
  });
  EXPECT_NE(message.find("at most 64 terms, found 65"), std::string::npos) << message;
}

TEST_F(CudaStream, CopiesAndConvertsAsTheHostDoes) {
  struct Types {
    Dtype from, to;
  };
  const auto visible = device::Buffer::visible_to(kGpu, 64);
  auto* flag = reinterpret_cast<device::NotFinite*>(visible.data());
  for (const Types types : {Types{Dtype::kFloat32, Dtype::kFloat32},
                            Types{Dtype::kFloat64, Dtype::kFloat64},
                            Types{Dtype::kFloat16, Dtype::kFloat16},
                            Types{Dtype::kFloat16, Dtype::kFloat32},
                            Types{Dtype::kBFloat16, Dtype::kFloat32},
                            Types{Dtype::kFloat32, Dtype::kFloat16},
                            Types{Dtype::kFloat32, Dtype::kBFloat16},
                            Types{Dtype::kInt64, Dtype::kInt64},
                            Types{Dtype::kUint8, Dtype::kUint8}}) {
    for (const std::int64_t numel : {1, 5, 1000, 4099}) {
      for (const std::size_t shift : {0, 1, 3}) {
        Bytes from = testing::make_input(types.from, numel, 3);
        Bytes expected(static_cast<std::size_t>(numel) * dtype_bytes(types.to));
        const Span host_to(expected.data(), numel, types.to);
        device::NotFinite host_flag = 0;
        device::host().copy(host_to, {from.data(), numel, types.from}, &host_flag);
        const OnGpu source(from, shift * dtype_bytes(types.from));
        const OnGpu target(Bytes(expected.size()), dtype_bytes(types.to));
        for (device::NotFinite* looks : {flag, static_cast<device::NotFinite*>(nullptr)}) {
          *flag = 0;
          gpu_stream().clear(target.span(types.to, numel));
          gpu_stream().copy(target.span(types.to, numel), source.span(types.from, numel), looks);
          ASSERT_EQ(target.read(), expected) << dtype_name(types.from) << " " << numel;
          ASSERT_EQ(*flag, looks != nullptr ? host_flag : 0);
          Bytes back(expected.size());
          gpu_stream().copy({back.data(), numel, types.to}, source.span(types.from, numel), looks);
          testing::finish(gpu_stream());
          ASSERT_EQ(back, expected) << "to the host";
          gpu_stream().clear(target.span(types.to, numel));
          gpu_stream().copy(target.span(types.to, numel), {from.data(), numel, types.from}, looks);
          ASSERT_EQ(target.read(), expected) << "from the host";
        }
      }
    }
  }
}

// Every 16-bit float as float32, and floats around every one of them as 16 bits.
TEST_F(CudaStream, ConvertsEveryHalfAsTheHostDoes) {
  constexpr std::int64_t kAll = 1 << 16;
  std::vector<std::uint16_t> halves(kAll);
  std::vector<std::uint32_t> floats;
  for (std::uint32_t bits = 0; bits < kAll; ++bits) {
    halves[bits] = static_cast<std::uint16_t>(bits);
    for (const std::uint32_t low : {0x0000U, 0x0FFFU, 0x1000U, 0x1001U, 0x8000U, 0x8001U}) {
      floats.push_back(bits << 16 | low);
    }
  }
  const auto count = static_cast<std::int64_t>(floats.size());
  for (const Dtype half : {Dtype::kFloat16, Dtype::kBFloat16}) {
    std::vector<float> wide(kAll);
    device::host().copy(wide, {halves.data(), kAll, half});
    const OnGpu from(bytes_of(halves));
    const OnGpu to(bytes_of(wide));
    gpu_stream().clear(to.span(Dtype::kFloat32, kAll));
    gpu_stream().copy(to.span(Dtype::kFloat32, kAll), from.span(half, kAll));
    EXPECT_EQ(to.read(), bytes_of(wide)) << dtype_name(half);

    std::vector<std::uint16_t> narrow(floats.size());
    device::host().copy({narrow.data(), count, half}, {floats.data(), count, Dtype::kFloat32});
    const OnGpu from_wide(bytes_of(floats));
    const OnGpu to_narrow(Bytes(narrow.size() * 2));
    gpu_stream().copy(to_narrow.span(half, count), from_wide.span(Dtype::kFloat32, count));
    EXPECT_EQ(to_narrow.read(), bytes_of(narrow)) << dtype_name(half);
  }
}

TEST_F(CudaStream, FindsAnyElementThatIsNotFinite) {
  const auto visible = device::Buffer::visible_to(kGpu, 64);
  auto* flag = reinterpret_cast<device::NotFinite*>(visible.data());
  for (const Dtype dtype : kFloats) {
    constexpr std::int64_t kNumel = 999;
    for (const std::int64_t bad : {0, 1, 500, 998}) {
      for (const float value :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<double> doubles(kNumel, 1.0);
        std::vector<float> floats(kNumel, 1.0F);
        doubles[static_cast<std::size_t>(bad)] = value;
        floats[static_cast<std::size_t>(bad)] = value;
        Bytes bytes(kNumel * dtype_bytes(dtype));
        const Span all(bytes.data(), kNumel, dtype);
        dtype == Dtype::kFloat64 ? device::host().copy(all, doubles)
                                 : device::host().copy(all, floats);
        const OnGpu data(bytes, dtype_bytes(dtype));
        *flag = 0;
        gpu_stream().check_finite(data.span(dtype, bad), flag);
        testing::finish(gpu_stream());
        EXPECT_EQ(*flag, 0U);
        gpu_stream().check_finite(data.span(dtype, kNumel), flag);
        testing::finish(gpu_stream());
        EXPECT_EQ(*flag, 1U) << dtype_name(dtype) << " at " << bad;
      }
    }
  }
}

TEST_F(CudaStream, HasTheHostsNormsToTheBit) {
  const auto visible = device::Buffer::visible_to(kGpu, 64);
  struct Results {
    double largest;
    SquareSum sum;
  };
  auto* there = reinterpret_cast<Results*>(visible.data());
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const std::int64_t numel : {0, 1, 31, 1000, 300'000}) {
      for (const Scaling scaling : {Scaling{}, Scaling{.divisor = 3, .unscale = 0.25}}) {
        const Bytes bytes = testing::make_input(dtype, numel, 5);
        const ConstSpan here(bytes.data(), numel, dtype);
        const OnGpu data(bytes);
        Results expected{.largest = 0, .sum = {.coarse = 0, .fine = 0}};
        *there = expected;
        for (int times = 0; times < 2; ++times) {  // the second is added to the first
          device::host().largest(here, scaling, &expected.largest);
          gpu_stream().largest(data.span(dtype, numel), scaling, &there->largest);
          const SquareQuanta quanta = SquareQuanta::of(expected.largest, 2 * numel);
          device::host().squares(here, quanta, scaling, &expected.sum);
          gpu_stream().squares(data.span(dtype, numel), quanta, scaling, &there->sum);
        }
        testing::finish(gpu_stream());
        const auto bits = [](const Results& results) {
          return bytes_of(
              std::vector<double>{results.largest, results.sum.coarse, results.sum.fine});
        };
        EXPECT_EQ(bits(*there), bits(expected)) << dtype_name(dtype) << " " << numel;
      }
    }
  }
}

TEST_F(CudaStream, AddsRowsInTheOrderOfTheList) {
  constexpr std::int64_t kWidth = 13;
  const std::vector<std::int64_t> rows = {4, 1, 4, 4, 9, 0, 1, 4};
  struct Types {
    Dtype values, sums;
  };
  for (const Types types : {Types{Dtype::kFloat32, Dtype::kFloat32},
                            Types{Dtype::kFloat64, Dtype::kFloat64},
                            Types{Dtype::kFloat16, Dtype::kFloat16},
                            Types{Dtype::kBFloat16, Dtype::kBFloat16},
                            Types{Dtype::kFloat16, Dtype::kFloat32},
                            Types{Dtype::kBFloat16, Dtype::kFloat32}}) {
    for (const Range range : {Range{0, 130}, Range{10, 60}, Range{200, 210}}) {
      const auto count = static_cast<std::int64_t>(rows.size()) * kWidth;
      Bytes values = testing::make_input(types.values, count, 1);
      Bytes sums = testing::make_input(types.sums, range.size(), 2);
      const OnGpu gpu_values(values);
      const OnGpu gpu_sums(sums);
      device::RowSums work{.sums = {sums.data(), range.size(), types.sums},
                           .range = range,
                           .width = kWidth,
                           .rows = rows,
                           .values = {values.data(), count, types.values}};
      device::host().add_rows(work);
      work.sums = gpu_sums.span(types.sums, range.size());
      work.values = gpu_values.span(types.values, count);
      gpu_stream().add_rows(work);
      EXPECT_EQ(gpu_sums.read(), sums) << dtype_name(types.values);
    }
  }
}

TEST_F(CudaStream, MultipliesMatricesAsTheHostDoes) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
    for (const auto& [rows, columns, depth] :
         std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {17, 5, 33}, {40, 70, 16}}) {
      for (const bool a_transposed : {false, true}) {
        for (const bool b_transposed : {false, true}) {
          for (const double beta : {0.0, 0.3}) {
            Bytes a = testing::make_input(dtype, rows * depth, 1);
            Bytes b = testing::make_input(dtype, depth * columns, 2);
            Bytes c = testing::make_input(dtype, rows * columns, 3);
            const OnGpu gpu_a(a);
            const OnGpu gpu_b(b);
            const OnGpu gpu_c(c);
            device::Product product{.dtype = dtype,
                                    .rows = rows,
                                    .columns = columns,
                                    .depth = depth,
                                    .a = a.data(),
                                    .b = b.data(),
                                    .c = c.data(),
                                    .a_transposed = a_transposed,
                                    .b_transposed = b_transposed,
                                    .alpha = 1.7,
                                    .beta = beta};
            device::host().multiply(product);
            product.a = gpu_a.data();
            product.b = gpu_b.data();
            product.c = gpu_c.data();
            gpu_stream().multiply(product);
            EXPECT_EQ(gpu_c.read(), c) << dtype_name(dtype) << " " << rows << "x" << columns;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace trireme
