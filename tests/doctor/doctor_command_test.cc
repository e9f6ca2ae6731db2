#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"

namespace trireme::doctor_command_test {
namespace {

using Json = nlohmann::json;
using testing::Finished;
using testing::read_file;
using testing::TemporaryFolder;

Finished doctor(std::vector<std::string> arguments,
                const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), {testing::trireme_binary(), "doctor"});
  return testing::run_program(arguments, environment);
}

// The finding of a check, of the first machine or of all together.
Json finding_of(const Json& report, const std::string& check) {
  for (const Json& findings : {report.at("machines").at(0).at("findings"), report.at("findings")}) {
    for (const Json& finding : findings) {
      if (finding.at("check") == check) {
        return finding;
      }
    }
  }
  ADD_FAILURE() << "no finding about " << check;
  return {};
}

class DoctorRanks : public ::testing::TestWithParam<int> {};

TEST_P(DoctorRanks, WritesEverythingAsJson) {
  const int ranks = GetParam();
  const TemporaryFolder folder;
  const Finished finished =
      doctor({"-n", std::to_string(ranks), "--json", "-", "--folder", folder.path()});
  ASSERT_TRUE(finished.code == 0 || finished.code == 1) << finished.code << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(finished.code == 1, report.at("verdict") == "problem");
  EXPECT_EQ(report.at("ranks"), ranks);
  EXPECT_EQ(report.at("machines").size(), 1U);
  EXPECT_EQ(report.at("machine_of_rank"), Json(std::vector<int>(static_cast<std::size_t>(ranks))));
  for (const char* matrix : {"latency_us", "bandwidth_bytes_per_second"}) {
    ASSERT_EQ(report.at(matrix).size(), static_cast<std::size_t>(ranks));
    for (std::size_t from = 0; from < report.at(matrix).size(); ++from) {
      const Json& row = report.at(matrix).at(from);
      ASSERT_EQ(row.size(), static_cast<std::size_t>(ranks));
      for (std::size_t to = 0; to < row.size(); ++to) {
        EXPECT_EQ(row.at(to).is_null(), from == to);
        EXPECT_TRUE(from == to || row.at(to) > 0);
      }
    }
  }
  for (const char* check :
       {"trireme",    "libtorch", "compiler",   "kernel",     "ucx",           "open mpi",
        "mpich",      "threads",  "processors", "load",       "frequency",     "clock source",
        "memory",     "swap",     "/dev/shm",   "huge pages", "locked memory", "open files",
        "interfaces", "pidfd",    "disk",       "transport",  "kernel copy"}) {
    const Json finding = finding_of(report, check);
    EXPECT_NE(finding.value("value", ""), "") << check;
    EXPECT_EQ(finding.value("advice", "").empty(), finding.value("verdict", "") == "ok") << check;
  }
  const Json half = finding_of(report, "16-bit speed");  // LibTorch was asked
  EXPECT_GT(half.at("numbers").at("bfloat16_slowdown"), 0) << half;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DoctorRanks, ::testing::Values(1, 2, 3));

TEST(DoctorCommand, PrintsATableAndWritesAFile) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/report.json";
  const Finished finished = doctor({"-n", "3", "--json", file, "--folder", folder.path()});
  ASSERT_TRUE(finished.code == 0 || finished.code == 1) << finished.err;
  for (const char* part : {"3 ranks on 1 machine", "pidfd", "microseconds", "MB/s", " problem"}) {
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << "\n" << finished.out;
  }
  EXPECT_EQ(Json::parse(read_file(file)).at("ranks"), 3);
}

// Ranks that do not read each other's memory say why, and what would change it.
TEST(DoctorCommand, SaysWhyOrdinaryMemoryTakesTwoCopies) {
  const TemporaryFolder folder;
  const Finished finished =
      doctor({"-n", "2", "--json", "-", "--folder", folder.path()}, {"TRIREME_KERNEL_COPY=off"});
  ASSERT_TRUE(finished.code == 0 || finished.code == 1) << finished.err;
  const Json finding = finding_of(Json::parse(finished.out), "kernel copy");
  EXPECT_EQ(finding.at("verdict"), "note");
  EXPECT_EQ(finding.at("numbers").at("copies"), 2);
  EXPECT_EQ(finding.at("value"),
            "ordinary memory takes two copies between ranks: switched off on rank 0");
  EXPECT_NE(finding.value("advice", "").find("unset TRIREME_KERNEL_COPY"), std::string::npos);
}

TEST(DoctorCommand, AFolderThatCannotBeWrittenIsAProblem) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "not a folder";
  const Finished finished = doctor({"-n", "2", "--folder", file});
  EXPECT_EQ(finished.code, 1) << finished.err;
  const auto problem = finished.out.find("problem  disk");
  ASSERT_NE(problem, std::string::npos) << finished.out;
  EXPECT_LT(problem, finished.out.find("ok "));
  EXPECT_EQ(read_file(file), "not a folder");
  const std::filesystem::directory_iterator entries(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(DoctorCommand, WrongUsageIsTwo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"-n", "0"},
        {"--nnodes", "2"},
        {"--nnodes", "2", "--rendezvous", "here"},
        {"--rendezvous", "here"},
        {"--nnodes", "2", "--node-rank", "2", "--rendezvous", "localhost:29500"},
        {"--backend", "pigeons"},
        {"--json", "/nowhere/report.json"}}) {
    const Finished finished = doctor(arguments);
    EXPECT_EQ(finished.code, 2) << arguments[0] << finished.out;
    EXPECT_NE(finished.err, "");
  }
}

TEST(DoctorCommand, AMachineThatIsNotThereIsAProblem) {
  const TemporaryFolder folder;
  for (const char* place : {"127.0.0.1:1", "name.invalid:29500"}) {
    const Finished finished = doctor({"-n",
                                      "1",
                                      "--nnodes",
                                      "2",
                                      "--node-rank",
                                      "1",
                                      "--rendezvous",
                                      place,
                                      "--timeout",
                                      "0.3",
                                      "--json",
                                      "-",
                                      "--folder",
                                      folder.path()});
    EXPECT_EQ(finished.code, 1) << finished.err;
    const Json finding = finding_of(Json::parse(finished.out), "rendezvous");
    EXPECT_EQ(finding.value("verdict", ""), "problem");
    EXPECT_NE(finding.value("value", "").find(place), std::string::npos) << finding;
  }
}

}  // namespace
}  // namespace trireme::doctor_command_test
