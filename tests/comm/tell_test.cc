// What only some ranks know, on all of them.

#include "trireme/comm/tell.h"

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using testing::fork_world;
using testing::message_of;
using Texts = std::vector<std::string>;

TEST(Tell, EveryRanksTextInRankOrder) {
  fork_world(3, [](World& world) {
    const Texts mine = {"", std::string("a\0b", 3), std::string(100'000, 'x')};
    const auto rank = static_cast<std::size_t>(world.rank());
    EXPECT_EQ(all_texts(world, mine[rank]), mine);
    EXPECT_EQ(all_texts(world, rank == 0 ? "of rank 0" : "")[0], "of rank 0");
    EXPECT_EQ(all_texts(world, ""), Texts(3));
  });
}

// The kind of what the last rank throws is that of what all throw; its own text stays as it is.
template <class E>
void expect_kind(World& world, const E& error) {
  const int last = world.size() - 1;
  const std::string message = message_of<E>([&] {
    on_all_ranks(world, [&] {
      if (world.rank() == last) {
        throw error;
      }
    });
  });
  EXPECT_EQ(message,
            (world.rank() == last ? "" : detail::concat("rank ", last, ": ")) + error.what());
}

TEST(Tell, AFailureIsTheSameKindOfErrorOnEveryRank) {
  fork_world(3, [](World& world) {
    expect_kind(world, ConfigError("a setting"));
    expect_kind(world, MemoryError("no room"));
    expect_kind(world, DataError("a.csv", 7, "a line"));
    expect_kind(world, Error(""));
    try {
      on_all_ranks(world, [&] {
        if (world.rank() == 1) {
          throw CheckpointError("a folder/with a file", 1LL << 40, "a block");
        }
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.file(), "a folder/with a file");
      EXPECT_EQ(error.offset(), 1LL << 40);
    }
    on_all_ranks(world, [] {});  // nothing is left of it
  });
}

TEST(Tell, OfSeveralFailuresTheFirstRanksKindApplies) {
  fork_world(4, [](World& world) {
    const std::string message = message_of<MemoryError>([&] {
      on_all_ranks(world, [&] {
        if (world.rank() == 2) {
          throw ConfigError("of another kind");
        }
        if (world.rank() > 0) {
          throw MemoryError(detail::concat("own ", world.rank()));
        }
      });
    });
    EXPECT_EQ(message,
              world.rank() % 2 == 1 ? detail::concat("own ", world.rank()) : "rank 1: own 1");
  });
}

TEST(Tell, WhatDiffersIsNamedOnEveryRank) {
  fork_world(3, [](World& world) {
    const auto refusal = [&](const Texts& of_rank_2) {
      const Texts lines = world.rank() == 2 ? of_rank_2 : Texts{"a", "b"};
      return message_of<ConfigError>(
          [&] { check_same_on_all_ranks(world, "it", lines, "do better"); });
    };
    const std::string begin = "it differs between ranks: rank 0 has ";
    EXPECT_EQ(refusal({"a", "c"}), begin + "b where rank 2 has c: do better");
    EXPECT_EQ(refusal({"a"}), begin + "b where rank 2 has nothing more: do better");
    EXPECT_EQ(refusal({"a", "b", ""}), begin + "nothing more where rank 2 has : do better");
    EXPECT_EQ(refusal({"ab"}), begin + "a where rank 2 has ab: do better");
    check_same_on_all_ranks(world, "it", {"a", "b"}, "do better");
  });
}

}  // namespace
}  // namespace trireme
