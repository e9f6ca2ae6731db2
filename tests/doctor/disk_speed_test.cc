#include "doctor/disk_speed.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "doctor/quantity.h"
#include "support/processes.h"

namespace trireme {
namespace {

using detail::DiskSpeed;
using detail::judge_disk;
using detail::measure_disk;
using detail::Verdict;
using testing::TemporaryFolder;

TEST(DiskSpeed, LeavesNothingBehind) {
  const TemporaryFolder folder;
  const DiskSpeed disk = measure_disk(folder.path(), 9 << 20);
  EXPECT_EQ(disk.trouble, "");
  EXPECT_GT(disk.bytes_per_second, 0);
  EXPECT_GT(disk.free_bytes, 0U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(DiskSpeed, AFolderThatIsNoneIsAProblem) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "not a folder";
  for (const std::string& place : {file, folder.path() + "/missing", std::string("/proc")}) {
    const DiskSpeed disk = measure_disk(place, 1 << 20);
    EXPECT_NE(disk.trouble, "") << place;
    const auto finding = judge_disk(disk);
    EXPECT_EQ(finding.verdict, Verdict::kProblem);
    EXPECT_NE(finding.value.find(place), std::string::npos) << finding.value;
    EXPECT_FALSE(finding.advice.empty());
  }
}

TEST(DiskSpeed, SlowAndFullDisksAreNamed) {
  DiskSpeed disk{"runs", "", 500e6, true, std::uint64_t{100} << 30};
  EXPECT_EQ(judge_disk(disk).verdict, Verdict::kOk);
  EXPECT_EQ(judge_disk(disk).numbers.at("bytes_per_second"), 500e6);
  disk.bytes_per_second = 20e6;
  EXPECT_EQ(judge_disk(disk).verdict, Verdict::kWarning);
  disk.bytes_per_second = 500e6;
  disk.free_bytes = 1000;
  EXPECT_EQ(judge_disk(disk).verdict, Verdict::kWarning);
}

TEST(Quantity, HasThreeDigits) {
  EXPECT_EQ(detail::number_text(0), "0");
  EXPECT_EQ(detail::number_text(0.01234), "0.0123");
  EXPECT_EQ(detail::number_text(1.0), "1.00");
  EXPECT_EQ(detail::number_text(-12.34), "-12.3");
  EXPECT_EQ(detail::number_text(123.4), "123");
  EXPECT_EQ(detail::number_text(12345), "12345");
  EXPECT_EQ(detail::bytes_text(1023), "1023 B");
  EXPECT_EQ(detail::bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(detail::bytes_text(std::uint64_t{24} << 30), "24.0 GiB");
}

}  // namespace
}  // namespace trireme
