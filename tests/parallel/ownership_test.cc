// Who owns what, by stage, group, shares and split: from the definition of the stages.

#include "parallel/model/ownership.h"

#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"

namespace trireme::detail::ownership_test {
namespace {

using testing::message_of;

struct Model {
  std::vector<Parameter> parameters;
  std::vector<Unit> units;
};

// Two units: four parameters of these sizes, and one more.
Model make_model() {
  Model model;
  const auto add_unit = [&](const std::vector<std::vector<std::int64_t>>& shapes, Dtype dtype) {
    Unit unit;
    unit.dtype = dtype;
    std::vector<std::int64_t> numels;
    for (const auto& sizes : shapes) {
      Parameter parameter;
      parameter.name = concat("p", model.parameters.size());
      parameter.sizes = sizes;
      parameter.numel = 1;
      for (const std::int64_t size : sizes) {
        parameter.numel *= size;
      }
      numels.push_back(parameter.numel);
      unit.parameters.push_back(model.parameters.size());
      model.parameters.push_back(parameter);
    }
    unit.layout = FlatLayout(numels, dtype);
    model.units.push_back(unit);
  };
  add_unit({{40, 16}, {40}, {9, 32}, {1}}, Dtype::kFloat32);  // rows of whole cache lines
  add_unit({{130}}, Dtype::kBFloat16);
  return model;
}

Ownership make(const EngineOptions& options, RankGroup ranks, RankGroup owners) {
  const Model model = make_model();
  return {options, ranks, owners, model.units, model.parameters};
}

TEST(Ownership, DividesEveryUnitAmongTheOwnersWithoutGapOrOverlap) {
  const Model model = make_model();
  for (int size = 1; size <= 8; ++size) {
    for (const Split split : {Split::kElement, Split::kLayer, Split::kDimension}) {
      for (int rank = 0; rank < size; ++rank) {
        const Ownership own = make({.zero = 2, .split = split}, {rank, size}, {rank, size});
        for (std::size_t u = 0; u < model.units.size(); ++u) {
          ASSERT_EQ(own.ranges(u).size(), static_cast<std::size_t>(size));
          std::int64_t end = 0;
          for (const Range& range : own.ranges(u)) {
            EXPECT_EQ(range.begin, end);
            end = range.end;
          }
          EXPECT_EQ(end, model.units[u].layout.total_numel());
          EXPECT_EQ(own.mine(u), own.ranges(u)[static_cast<std::size_t>(rank)]);
        }
      }
    }
  }
}

TEST(Ownership, KeepsWholeParametersAndWholeRowsTogether) {
  const Model model = make_model();
  const FlatLayout& layout = model.units[0].layout;
  for (int size = 2; size <= 5; ++size) {
    const Ownership layers = make({.zero = 1, .split = Split::kLayer}, {0, size}, {0, size});
    const Ownership rows = make({.zero = 1, .split = Split::kDimension}, {0, size}, {0, size});
    for (const Range& range : layers.ranges(0)) {
      for (const Piece& piece : layout.pieces(range)) {
        EXPECT_EQ(piece.numel, layout.numel(piece.parameter));
      }
    }
    for (const Range& range : rows.ranges(0)) {
      for (const Piece& piece : layout.pieces(range)) {
        const Parameter& parameter = model.parameters[piece.parameter];
        EXPECT_EQ(piece.begin % (parameter.numel / parameter.sizes[0]), 0);
      }
    }
  }
}

// Rajbhandari et al.: 1 divides states, 2 sums too, 3 parameters too.
TEST(Ownership, DividesOneThingMoreWithEachStage) {
  const Model model = make_model();
  const Range whole{0, model.units[0].layout.total_numel()};
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int size : {1, 2, 3}) {
      const RankGroup last{size - 1, size};
      const Ownership own = make({.zero = stage}, last, last);
      EXPECT_EQ(own.updated(0), stage >= 1 ? own.mine(0) : whole);
      EXPECT_EQ(own.summed(0), stage >= 2 && size > 1 ? own.mine(0) : whole);
      EXPECT_EQ(own.home() != ParameterHome::kReplicated, stage == 3);
      EXPECT_EQ(own.saved(0), own.mine(0));  // each element once, at every stage
      EXPECT_FALSE(own.by_machine());
    }
  }
}

TEST(Ownership, SumsReachWhoeverUpdatesWithThem) {
  const RankGroup one{0, 1};
  const RankGroup here{1, 3, true};
  const RankGroup apart{1, 3, false};
  EXPECT_EQ(make({.zero = 0}, one, one).reach(), SumsReach::kEverywhere);
  EXPECT_EQ(make({.zero = 0}, here, here).reach(), SumsReach::kPeers);
  EXPECT_EQ(make({.zero = 0}, apart, apart).reach(), SumsReach::kEverywhere);
  for (int stage = 1; stage <= 3; ++stage) {
    EXPECT_EQ(make({.zero = stage}, here, here).reach(), SumsReach::kOwners);
    EXPECT_EQ(make({.zero = stage}, apart, apart).reach(), SumsReach::kOwners);
  }
}

TEST(Ownership, StageThreeLivesWhereItsOwnersCanSeeIt) {
  const RankGroup here{0, 2, true};
  const RankGroup apart{0, 2, false};
  const auto home = [](Placement placement, RankGroup owners) {
    return make({.zero = 3, .placement = placement}, owners, owners).home();
  };
  EXPECT_EQ(home(Placement::kAutomatic, here), ParameterHome::kMapped);
  EXPECT_EQ(home(Placement::kMapped, here), ParameterHome::kMapped);
  EXPECT_EQ(home(Placement::kCopied, here), ParameterHome::kCopied);
  // Ranks with GPUs of their own see each other's memory through a link.
  const RankGroup linked{0, 2, true, false};
  EXPECT_EQ(home(Placement::kAutomatic, linked), ParameterHome::kCopied);
  EXPECT_EQ(home(Placement::kMapped, linked), ParameterHome::kMapped);
  EXPECT_EQ(home(Placement::kCopied, linked), ParameterHome::kCopied);
  EXPECT_EQ(home(Placement::kAutomatic, apart), ParameterHome::kScattered);
  EXPECT_EQ(home(Placement::kCopied, apart), ParameterHome::kScattered);
  EXPECT_NE(message_of<ConfigError>([&] { home(Placement::kMapped, apart); }).find("placement"),
            std::string::npos);
}

// Four ranks on two machines, each of which has everything.
TEST(Ownership, InsideOfMachinesTheFirstOneSaves) {
  for (int rank = 0; rank < 4; ++rank) {
    const RankGroup ranks{rank, 4, false};
    const RankGroup owners{rank % 2, 2, true};
    const Ownership own = make({.zero = 3}, ranks, owners);
    EXPECT_TRUE(own.by_machine());
    EXPECT_EQ(own.home(), ParameterHome::kMapped);
    EXPECT_EQ(own.ranges(0).size(), 2U);
    EXPECT_EQ(own.mine(0), own.ranges(0)[static_cast<std::size_t>(rank % 2)]);
    EXPECT_EQ(own.saved(0), rank < 2 ? own.mine(0) : Range{});
  }
}

TEST(Ownership, CountsAndOwnersAgreeWithTheRanges) {
  const Model model = make_model();
  const Ownership own = make({.zero = 2}, {1, 3}, {1, 3});
  const std::int64_t total = model.units[0].layout.total_numel();
  for (const Range within : {Range{0, total}, Range{5, 5}, Range{3, total - 17}}) {
    Counts expected(3, 0);
    for (std::int64_t element = within.begin; element < within.end; ++element) {
      const int owner = own.owner_of(0, element);
      const Range& range = own.ranges(0)[static_cast<std::size_t>(owner)];
      EXPECT_TRUE(element >= range.begin && element < range.end);
      ++expected[static_cast<std::size_t>(owner)];
    }
    EXPECT_EQ(own.counts(0, within), expected);
  }
  EXPECT_EQ(own.counts(0), own.counts(0, {0, total}));
}

TEST(Ownership, SharesAreOneForEachOwnerAndByElement) {
  const Ownership own = make({.zero = 1, .shares = {3, 1}}, {0, 2}, {0, 2});
  // Three quarters, to within 64 bytes.
  const auto total = static_cast<double>(own.ranges(0)[1].end);
  EXPECT_NEAR(static_cast<double>(own.mine(0).size()), total * 3 / 4, 16);
  const auto refused = [](const EngineOptions& options) {
    return message_of<ConfigError>([&] { make(options, {0, 2}, {0, 2}); });
  };
  EXPECT_NE(refused({.zero = 1, .shares = {1}}).find("1 entries for 2 ranks"), std::string::npos);
  EXPECT_NE(refused({.zero = 1, .split = Split::kLayer, .shares = {1, 1}}).find("kElement"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::detail::ownership_test
