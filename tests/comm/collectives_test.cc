// Every collective x dtype x reduction x awkward length x kind of memory, for one world size per
// test, against what tests/support/reference.h computes; all comparisons are bit for bit.

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/reference.h"
#include "trireme/core/error.h"
#include "trireme/shard/range.h"

namespace trireme {
namespace {

using detail::concat;
using testing::Bytes;
using testing::Terms;

enum class Memory { kAny, kOwned, kMixed };  // kMixed: owned on odd ranks only

// Hands out spans of one kind of memory, filled with given bytes.
class Memories {
 public:
  Memories(World& world, Memory kind, std::size_t most_bytes)
      : owned_(kind == Memory::kOwned || (kind == Memory::kMixed && world.rank() % 2 == 1)) {
    // Collective: everyone allocates, also those who do not use it.
    for (auto& buffer : shared_) {
      buffer = world.allocate(most_bytes + 64);
    }
  }

  Span span(int which, Dtype dtype, std::int64_t numel, const Bytes& fill) {
    const std::size_t bytes = static_cast<std::size_t>(numel) * dtype_bytes(dtype);
    Span result;
    if (owned_) {
      result = shared_[which].span(dtype, numel, 8);
    } else {
      private_[which].assign(bytes + 8, 0);
      result = Span(private_[which].data(), numel, dtype);
    }
    std::memset(result.bytes(), 0xA5, bytes);
    if (!fill.empty()) {
      std::memcpy(result.bytes(), fill.data(), fill.size());
    }
    return result;
  }

 private:
  bool owned_;
  SharedBuffer shared_[2];
  Bytes private_[2];
};

Bytes slice(const Bytes& bytes, Dtype dtype, std::int64_t begin, std::int64_t count) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  return {bytes.begin() + begin * element, bytes.begin() + (begin + count) * element};
}

void append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

Terms terms_of(Dtype dtype, std::int64_t numel, int size) {
  return dtype == Dtype::kBool  // sums of which are refused
             ? Terms(dtype, numel, size, {ReduceOp::kMin, ReduceOp::kMax})
             : Terms(dtype,
                     numel,
                     size,
                     {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax});
}

class Checker {
 public:
  Checker(World& world, Memory memory, const Terms& terms)
      : world_(world),
        memories_(world,
                  memory,
                  static_cast<std::size_t>(terms.numel + world.size()) * dtype_bytes(terms.dtype)),
        dtype_(terms.dtype),
        numel_(terms.numel),
        counts_(even_counts(numel_, world.size())),
        inputs_(terms.inputs),
        reduced_(terms.reduced) {
    where_ = concat(dtype_name(dtype_),
                    " x ",
                    numel_,
                    ", memory ",
                    static_cast<int>(memory),
                    ", rank ",
                    world.rank(),
                    " of ",
                    world.size());
  }

  void check_all() {
    for (const auto& [op, reduced] : reduced_) {
      all_reduce(op, reduced);
      reduce_scatter(op, reduced);
      reduce(op, reduced);
    }
    all_gather();
    broadcast();
    gather();
    scatter();
    all_to_all();
    uneven();
    messages();
    world_.barrier().wait();
  }

 private:
  const Bytes& mine() const { return inputs_[static_cast<std::size_t>(world_.rank())]; }
  std::int64_t begin_of(int rank) const { return even_range(numel_, world_.size(), rank).begin; }
  std::int64_t count_of(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }

  void expect(const Span& found, const Bytes& expected, const std::string& what) {
    ASSERT_EQ(found.size_bytes(), expected.size()) << what << " " << where_;
    if (expected.empty() || std::memcmp(found.bytes(), expected.data(), expected.size()) == 0) {
      return;
    }
    std::size_t at = 0;
    while (std::to_integer<std::uint8_t>(found.bytes()[at]) == expected[at]) {
      ++at;
    }
    FAIL() << what << " " << where_ << ": differs first in element " << at / dtype_bytes(dtype_);
  }

  void all_reduce(ReduceOp op, const Bytes& reduced) {
    const Span data = memories_.span(0, dtype_, numel_, mine());
    world_.all_reduce(data, op).wait();
    expect(data, reduced, concat("all_reduce ", reduce_name(op)));
  }

  void reduce_scatter(ReduceOp op, const Bytes& reduced) {
    const Bytes expected = slice(reduced, dtype_, begin_of(world_.rank()), count_of(world_.rank()));
    const Span input = memories_.span(0, dtype_, numel_, mine());
    const Span output = memories_.span(1, dtype_, count_of(world_.rank()), {});
    world_.reduce_scatter(input, output, op).wait();
    expect(output, expected, concat("reduce_scatter ", reduce_name(op)));
    expect(input, mine(), "input of reduce_scatter");
    // Into the own part of the input.
    const Span own(
        input.bytes() + begin_of(world_.rank()) * static_cast<std::int64_t>(dtype_bytes(dtype_)),
        count_of(world_.rank()),
        dtype_,
        input.owner());
    world_.reduce_scatter(input, own, op).wait();
    expect(own, expected, concat("reduce_scatter in place ", reduce_name(op)));
  }

  void reduce(ReduceOp op, const Bytes& reduced) {
    const int root = world_.size() - 1;
    const Span data = memories_.span(0, dtype_, numel_, mine());
    world_.reduce(data, root, op).wait();
    expect(data, world_.rank() == root ? reduced : mine(), concat("reduce ", reduce_name(op)));
  }

  Bytes gathered() const {
    Bytes all;
    for (int rank = 0; rank < world_.size(); ++rank) {
      append(all, slice(inputs_[static_cast<std::size_t>(rank)], dtype_, 0, count_of(rank)));
    }
    return all;
  }

  void all_gather() {
    const Bytes part = slice(mine(), dtype_, 0, count_of(world_.rank()));
    const Span input = memories_.span(0, dtype_, count_of(world_.rank()), part);
    const Span output = memories_.span(1, dtype_, numel_, {});
    world_.all_gather(input, output).wait();
    expect(output, gathered(), "all_gather");
    // From the own part of the output.
    const Span whole = memories_.span(0, dtype_, numel_, {});
    const Span own(
        whole.bytes() + begin_of(world_.rank()) * static_cast<std::int64_t>(dtype_bytes(dtype_)),
        count_of(world_.rank()),
        dtype_,
        whole.owner());
    std::copy(part.begin(), part.end(), reinterpret_cast<std::uint8_t*>(own.bytes()));
    world_.all_gather(own, whole).wait();
    expect(whole, gathered(), "all_gather in place");
  }

  void broadcast() {
    const int root = world_.size() / 2;
    const Span data = memories_.span(0, dtype_, numel_, mine());
    world_.broadcast(data, root).wait();
    expect(data, inputs_[static_cast<std::size_t>(root)], "broadcast");
  }

  void gather() {
    const int root = world_.size() - 1;
    const Span input = memories_.span(
        0, dtype_, count_of(world_.rank()), slice(mine(), dtype_, 0, count_of(world_.rank())));
    const Span output = memories_.span(1, dtype_, world_.rank() == root ? numel_ : 0, {});
    world_.gather(input, output, root).wait();
    expect(output, world_.rank() == root ? gathered() : Bytes{}, "gather");
  }

  void scatter() {
    const int root = world_.size() - 1;
    const Span input = memories_.span(
        0, dtype_, world_.rank() == root ? numel_ : 0, world_.rank() == root ? mine() : Bytes{});
    const Span output = memories_.span(1, dtype_, count_of(world_.rank()), {});
    world_.scatter(input, output, root).wait();
    expect(output,
           slice(inputs_[static_cast<std::size_t>(root)],
                 dtype_,
                 begin_of(world_.rank()),
                 count_of(world_.rank())),
           "scatter");
  }

  void all_to_all() {
    Bytes expected;
    for (int rank = 0; rank < world_.size(); ++rank) {
      append(expected,
             slice(inputs_[static_cast<std::size_t>(rank)],
                   dtype_,
                   begin_of(world_.rank()),
                   count_of(world_.rank())));
    }
    const Span input = memories_.span(0, dtype_, numel_, mine());
    const Span output = memories_.span(1, dtype_, count_of(world_.rank()) * world_.size(), {});
    world_.all_to_all(input, output).wait();
    expect(output, expected, "all_to_all");
  }

  // Explicit counts: everything to the last rank but one element to the first.
  void uneven() {
    Counts counts(static_cast<std::size_t>(world_.size()), 0);
    counts.back() = numel_;
    if (numel_ > 0 && world_.size() > 1) {
      counts.front() = 1;
      counts.back() = numel_ - 1;
    }
    const std::int64_t my_count = counts[static_cast<std::size_t>(world_.rank())];
    const std::int64_t my_begin =
        std::accumulate(counts.begin(), counts.begin() + world_.rank(), std::int64_t{0});
    const ReduceOp op = dtype_ == Dtype::kBool ? ReduceOp::kMax : ReduceOp::kSum;
    const Bytes& reduced = reduced_.at(op);
    const Span input = memories_.span(0, dtype_, numel_, mine());
    const Span part = memories_.span(1, dtype_, my_count, {});
    world_.reduce_scatter(input, part, op, counts).wait();
    expect(part, slice(reduced, dtype_, my_begin, my_count), "reduce_scatter with counts");
    const Span whole = memories_.span(0, dtype_, numel_, {});
    world_.all_gather(part, whole, counts).wait();
    expect(whole, reduced, "all_gather with counts");
  }

  // A ring: everyone sends to the right and receives from the left.
  void messages() {
    const int right = (world_.rank() + 1) % world_.size();
    const int left = (world_.rank() + world_.size() - 1) % world_.size();
    const Span outgoing = memories_.span(0, dtype_, numel_, mine());
    const Span incoming = memories_.span(1, dtype_, numel_, {});
    auto receiving = world_.recv(incoming, left, 5);
    world_.send(outgoing, right, 5).wait();
    receiving.wait();
    expect(incoming, inputs_[static_cast<std::size_t>(left)], "send and recv");
  }

  World& world_;
  Memories memories_;
  Dtype dtype_;
  std::int64_t numel_;
  Counts counts_;
  const std::vector<Bytes>& inputs_;
  const std::map<ReduceOp, Bytes>& reduced_;
  std::string where_;
};

// Over a network each call takes a while: lengths that travel with the announcements, in one piece
// and in several, and memory of different kinds on the ranks of a machine.
std::vector<std::int64_t> lengths(int size) {
  if (testing::in_shared_memory()) {
    return {0, 1, size - 1, size, size + 1, 67, 1021, 8209, 30011};
  }
  return {0, 1, size + 1, 1021, 30011};
}

std::vector<Memory> memory_kinds() {
  if (testing::in_shared_memory()) {
    return {Memory::kAny, Memory::kOwned, Memory::kMixed};
  }
  return {Memory::kAny, Memory::kMixed};
}

class CollectivesTest : public ::testing::TestWithParam<int> {};

TEST_P(CollectivesTest, GiveTheReferenceBits) {
  const int size = GetParam();
  std::vector<Terms> terms;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    for (const std::int64_t numel : lengths(size)) {
      terms.push_back(terms_of(static_cast<Dtype>(dtype), numel, size));
    }
  }
  testing::fork_world(
      size,
      [&](World& world) {
        for (const Terms& each : terms) {
          for (const Memory memory : memory_kinds()) {
            Checker(world, memory, each).check_all();
          }
        }
      },
      // Small windows, so that middling lengths need many of them.
      [](InitOptions& options) { options.stage_bytes = 16 << 10; });
}

INSTANTIATE_TEST_SUITE_P(World, CollectivesTest, ::testing::Values(1, 2, 3, 4, 8));

// Asked for by name; those that keep the order of summation (the ring: named_algorithms_test.cc).
class NamedCollectivesTest : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(NamedCollectivesTest, GiveTheReferenceBits) {
  const auto [name, size] = GetParam();
  std::vector<Terms> terms;
  for (int dtype = 0; dtype < kDtypeCount; ++dtype) {
    // With an announcement, and too long for that in the narrowest type.
    for (const std::int64_t numel : {0, 1, size - 1, size + 1, 1021, 70'001}) {
      terms.push_back(terms_of(static_cast<Dtype>(dtype), numel, size));
    }
  }
  testing::fork_world(
      size,
      [&](World& world) {
        for (const Terms& each : terms) {
          Checker(world, Memory::kMixed, each).check_all();
        }
      },
      [name = name](InitOptions& options) { options.algorithm = name; });
}

INSTANTIATE_TEST_SUITE_P(
    World,
    NamedCollectivesTest,
    ::testing::Combine(::testing::Values("direct", "tree", "doubling", "aggregator"),
                       ::testing::Values(1, 2, 3, 4, 5)),
    [](const auto& test) { return concat(std::get<0>(test.param), "_", std::get<1>(test.param)); });

TEST(Collectives, SumsOfBoolAreRefused) {
  testing::fork_world(2, [](World& world) {
    std::array<bool, 4> flags = {true, false, true, false};
    const Span data(flags.data(), 4, Dtype::kBool);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      for (const std::function<void()>& call :
           {std::function<void()>([&] { world.all_reduce(data, op).wait(); }),
            std::function<void()>([&] { world.reduce(data, 0, op).wait(); }),
            std::function<void()>([&] {
              world.reduce_scatter(data, Span(flags.data(), 2, Dtype::kBool), op).wait();
            })}) {
        const std::string message = testing::message_of<ConfigError>(call);
        EXPECT_NE(message.find("of bool would not be bool"), std::string::npos) << message;
      }
    }
    flags[1] = world.rank() == 1;
    world.all_reduce(data, ReduceOp::kMax).wait();
    EXPECT_EQ(flags, (std::array<bool, 4>{true, true, true, false}));
  });
}

// The same code with ranks as threads: under the thread sanitizer this is the proof that the
// synchronisation is right.
TEST(Collectives, AreFreeOfRaces) {
  std::vector<Terms> terms;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    for (const std::int64_t numel : {1, 67, 8209, 30011}) {
      terms.push_back(terms_of(dtype, numel, 3));
    }
  }
  testing::spawn_world(
      3,
      [&](World& world) {
        for (const Terms& each : terms) {
          for (const Memory memory : {Memory::kAny, Memory::kOwned, Memory::kMixed}) {
            Checker(world, memory, each).check_all();
          }
        }
      },
      [](InitOptions& options) { options.stage_bytes = 16 << 10; });
}

TEST(Collectives, LargeBuffersGiveTheReferenceBits) {
  const std::int64_t numel = testing::in_shared_memory() ? 2'000'003 : 1'300'021;
  const Terms terms = terms_of(Dtype::kFloat32, numel, 3);
  testing::fork_world(3, [&](World& world) {
    for (const Memory memory : {Memory::kAny, Memory::kOwned}) {
      Checker(world, memory, terms).check_all();
    }
  });
}

// How data travels changes with its length: with the announcement, in pieces that need nobody to be
// ready, in pieces that do. Both sides must change together, also where the ranks' parts lie on
// different sides of a limit, where some are empty, and with several calls on their way at once.
class Limits {
 public:
  explicit Limits(World& world) : world_(world), size_(world.size()) {}

  // `limit`: bytes of a part.
  void check(std::int64_t limit) {
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t numel = limit / element;
    const std::array<std::int64_t, 5> lengths = {numel - 1, numel, numel + 1, 0, numel + 101};
    // Long ones with each length once; the short ones also with every neighbour.
    for (int turn = 0; turn < (limit > (512 << 10) ? 2 : 5); ++turn) {
      Counts counts;
      for (int rank = 0; rank < world_.size(); ++rank) {
        counts.push_back(lengths[static_cast<std::size_t>(rank + turn) % lengths.size()]);
      }
      parts(counts);
      sums_into_wider(counts);
    }
    for (const std::int64_t more : {-1, 0, 1}) {
      wholes(numel + more);
    }
    wholes(numel * world_.size() + 1);
  }

 private:
  // Integers so small that every sum of them is exact, whatever its order.
  static float value(int rank, std::int64_t i) {
    return static_cast<float>((static_cast<std::uint64_t>(i) * 2654435761U >> 20) % 97 +
                              static_cast<std::uint64_t>(rank) * 7);
  }
  static std::uint8_t byte(int rank, std::int64_t i) {
    return static_cast<std::uint8_t>((static_cast<std::uint64_t>(i) * 2654435761U >> 18) +
                                     31U * static_cast<unsigned>(rank));
  }
  static float old_value(std::int64_t i) { return static_cast<float>(1000 + i % 13); }

  std::vector<float> input(std::int64_t numel) const {
    std::vector<float> data(static_cast<std::size_t>(numel));
    const int rank = world_.rank();
    for (std::int64_t i = 0; i < numel; ++i) {
      data[static_cast<std::size_t>(i)] = value(rank, i);
    }
    return data;
  }
  float sum(std::int64_t i) const {
    float total = 0;
    for (int rank = 0; rank < size_; ++rank) {
      total += value(rank, i);
    }
    return total;
  }

  template <class T, class Expected>
  void expect(const std::vector<T>& found, const std::string& what, const Expected& expected) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      const T wanted = expected(static_cast<std::int64_t>(i));
      if (found[i] != wanted) {  // the macro takes longer than everything else for millions of them
        ASSERT_EQ(found[i], wanted) << what << ", element " << i << " of " << found.size()
                                    << ", rank " << world_.rank() << " of " << size_;
      }
    }
  }

  // Calls of all kinds at once, on parts of these lengths.
  void parts(const Counts& counts) {
    const int rank = world_.rank();
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
    const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
    const std::vector<float> data = input(total);
    std::vector<float> part(mine);
    // Bytes: the limits of all_gather, at a quarter of the elements' length.
    std::vector<std::uint8_t> some(mine);
    for (std::size_t i = 0; i < mine; ++i) {
      some[i] = byte(rank, static_cast<std::int64_t>(i));
    }
    std::vector<std::uint8_t> all(static_cast<std::size_t>(total));
    const std::vector<float> floats(data.begin(), data.begin() + static_cast<std::int64_t>(mine));
    std::vector<float> gathered(static_cast<std::size_t>(total));
    Work scattering = world_.reduce_scatter(data, part, ReduceOp::kSum, counts);
    Work gathering = world_.all_gather(some, all, counts);
    Work more = world_.all_gather(floats, gathered, counts);
    scattering.wait();
    gathering.wait();
    more.wait();
    const std::string where = concat(" of parts from ", counts.front());
    expect(part, "reduce_scatter" + where, [&](std::int64_t i) { return sum(begin + i); });
    std::int64_t first = 0;
    int from = 0;
    const auto find = [&](std::int64_t i) {
      while (i >= first + counts[static_cast<std::size_t>(from)]) {
        first += counts[static_cast<std::size_t>(from++)];
      }
    };
    expect(all, "all_gather of bytes" + where, [&](std::int64_t i) {
      find(i);
      return byte(from, i - first);
    });
    first = from = 0;
    expect(gathered, "all_gather" + where, [&](std::int64_t i) {
      find(i);
      return value(from, i - first);
    });
  }

  // 16 bits into 32, with ranks that leave something out, on top of what is there.
  void sums_into_wider(const Counts& counts) {
    const int rank = world_.rank();
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    const std::int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
    const auto absent = [&](int of) {
      return std::vector<Range>{{total / 5 + of, total / 2 + 3 * of}, {total - 5 + of, total}};
    };
    const std::vector<Range> fresh = {{total / 3, total / 2 + 1}};
    const auto contains = [](const std::vector<Range>& ranges, std::int64_t i) {
      return std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
        return i >= range.begin && i < range.end;
      });
    };
    std::vector<std::vector<Range>> left_out;
    for (int of = 0; of < world_.size(); ++of) {
      left_out.push_back(absent(of));
    }
    std::vector<std::uint16_t> data(static_cast<std::size_t>(total));
    for (std::int64_t i = 0; i < total; ++i) {
      data[static_cast<std::size_t>(i)] = testing::nearest_bfloat16(value(rank, i));
    }
    std::vector<float> part(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
    for (std::size_t i = 0; i < part.size(); ++i) {
      part[i] = old_value(begin + static_cast<std::int64_t>(i));
    }
    world_
        .reduce_scatter(ConstSpan(data.data(), total, Dtype::kBFloat16),
                        part,
                        ReduceOp::kSum,
                        counts,
                        {.absent = absent(rank), .accumulate = true, .fresh = fresh})
        .wait();
    expect(
        part, concat("wider reduce_scatter of parts from ", counts.front()), [&](std::int64_t at) {
          const std::int64_t i = begin + at;
          float terms = 0;
          bool any = false;
          for (int of = 0; of < size_; ++of) {
            if (!contains(left_out[static_cast<std::size_t>(of)], i)) {
              terms += value(of, i);
              any = true;
            }
          }
          return any ? terms + (contains(fresh, i) ? 0 : old_value(i)) : old_value(i);
        });
  }

  void wholes(std::int64_t numel) {
    const int rank = world_.rank();
    const int root = static_cast<int>(numel % size_);
    std::vector<float> sums = input(numel);
    std::vector<float> at_root = sums;
    std::vector<float> from_root = sums;
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(numel), byte(rank, 5));
    Work reducing = world_.all_reduce(sums);
    Work to_one = world_.reduce(at_root, root);
    Work to_all = world_.broadcast(from_root, root);
    Work short_to_all = world_.broadcast(bytes, root);
    reducing.wait();
    to_one.wait();
    to_all.wait();
    short_to_all.wait();
    expect(sums, "all_reduce", [&](std::int64_t i) { return sum(i); });
    expect(
        at_root, "reduce", [&](std::int64_t i) { return rank == root ? sum(i) : value(rank, i); });
    expect(from_root, "broadcast", [&](std::int64_t i) { return value(root, i); });
    expect(bytes, "broadcast of bytes", [&](std::int64_t) { return byte(root, 5); });
  }

  World& world_;
  int size_;
};

class LimitsTest : public ::testing::TestWithParam<int> {};

TEST_P(LimitsTest, AreTheSameOnBothSides) {
  testing::fork_world(GetParam(), [](World& world) {
    for (const int kibibytes : {4, 32, 64, 128, 256, 512, 2048}) {
      Limits(world).check(static_cast<std::int64_t>(kibibytes) << 10);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(World, LimitsTest, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace trireme
