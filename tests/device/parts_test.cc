// How shared memory is divided into blocks: against looking at every byte.

#include "device/parts.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace trireme::device {
namespace {

std::vector<int> owners_of_bytes(const std::vector<std::int64_t>& bytes) {
  std::vector<int> owners;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    owners.insert(owners.end(), static_cast<std::size_t>(bytes[rank]), static_cast<int>(rank));
  }
  return owners;
}

void expect_right(const std::vector<std::int64_t>& bytes, std::size_t page) {
  const Parts parts = adjoining_parts(1, bytes, page);
  EXPECT_EQ(parts.rank, 1);
  ASSERT_EQ(parts.size(), static_cast<int>(bytes.size()));
  const std::vector<int> owners = owners_of_bytes(bytes);
  ASSERT_EQ(parts.begins.back(), owners.size());
  std::vector<Block> by_page;
  for (const Block& block : parts.blocks) {
    ASSERT_GT(block.bytes, 0U);
    ASSERT_EQ(block.bytes % page, 0U);
    by_page.insert(by_page.end(), block.bytes / page, block);
  }
  ASSERT_EQ(parts.bytes(), by_page.size() * page);
  ASSERT_GE(by_page.size() * page, owners.size());
  ASSERT_LT((by_page.size() - 1) * page, std::max<std::size_t>(owners.size(), 1))
      << "less than a page in vain";
  for (std::size_t p = 0; p < by_page.size() && !owners.empty(); ++p) {
    std::map<int, std::size_t> here;
    for (std::size_t at = p * page; at < std::min((p + 1) * page, owners.size()); ++at) {
      ++here[owners[at]];
    }
    EXPECT_EQ(by_page[p].first_writer, here.begin()->first) << p;
    EXPECT_EQ(by_page[p].last_writer, here.rbegin()->first) << p;
    for (const auto& [rank, count] : here) {
      EXPECT_LE(count, here[by_page[p].maker]) << "who has most of it makes it";
    }
  }
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    for (std::size_t at = parts.begins[rank]; at < parts.begins[rank + 1]; ++at) {
      ASSERT_EQ(owners[at], static_cast<int>(rank));
    }
  }
  std::size_t made = 0;
  for (int rank = 0; rank < parts.size(); ++rank) {
    made += parts.made_by(rank);
  }
  EXPECT_EQ(made, parts.blocks.size());
  EXPECT_LE(parts.blocks.size(), 2 * bytes.size());
}

TEST(AdjoiningParts, AreOneRunOfWhichRanksWritePages) {
  for (const std::size_t page : {1, 4, 16, 1000}) {
    for (const std::vector<std::int64_t>& bytes :
         std::vector<std::vector<std::int64_t>>{{0},
                                                {0, 0, 0},
                                                {1},
                                                {16, 16},
                                                {16, 0, 16},
                                                {0, 40, 0, 0, 3},
                                                {3, 3, 3, 3, 3, 3, 3},
                                                {17, 15, 33, 31, 0},
                                                {100, 1, 1, 1, 100},
                                                {64, 0, 0}}) {
      expect_right(bytes, page);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int64_t> bytes(1 + random() % 9);
    for (std::int64_t& part : bytes) {
      part = random() % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 90);
    }
    expect_right(bytes, 1 + random() % 40);
  }
}

TEST(AdjoiningParts, OfWholePagesAreEachRanksOwn) {
  EXPECT_EQ(adjoining_parts(0, std::vector<std::int64_t>{32, 48}, 16).blocks,
            (std::vector<Block>{{32, 0, 0, 0}, {48, 1, 1, 1}}));
  EXPECT_EQ(adjoining_parts(0, std::vector<std::int64_t>{40, 50}, 16).blocks,
            (std::vector<Block>{{32, 0, 0, 0}, {16, 0, 0, 1}, {48, 1, 1, 1}}));
}

TEST(SeparateParts, AreInPagesOfTheirOwn) {
  const Parts parts = separate_parts(2, 3, 17, 16);
  EXPECT_EQ(parts.blocks, (std::vector<Block>{{32, 0, 0, 0}, {32, 1, 1, 1}, {32, 2, 2, 2}}));
  EXPECT_EQ(parts.begins, (std::vector<std::size_t>{0, 32, 64, 96}));
  EXPECT_EQ(separate_parts(0, 1, 0, 16).bytes(), 16U) << "never nothing";
}

// Of a model that no machine has room for, too, which is refused afterwards.
TEST(Parts, OfAnyNumberOfPages) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  const Parts parts = adjoining_parts(0, std::vector<std::int64_t>{kHuge, 5, kHuge + 1}, 4096);
  ASSERT_EQ(parts.blocks.size(), 3U);
  EXPECT_EQ(parts.blocks[0].bytes, static_cast<std::size_t>(kHuge));
  EXPECT_EQ(parts.blocks[1].bytes, 4096U);
  EXPECT_EQ(parts.blocks[1].first_writer, 1);
  EXPECT_EQ(parts.blocks[1].maker, 2);
  EXPECT_EQ(parts.blocks[2].bytes, static_cast<std::size_t>(kHuge));
}

}  // namespace
}  // namespace trireme::device
