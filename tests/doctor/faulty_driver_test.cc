// Drivers of GPUs that cannot be used, as commands show them.

#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"

namespace trireme::faulty_driver_test {
namespace {

using Json = nlohmann::json;
using testing::Finished;

struct FaultyDriver {
  const char* stub;    // a folder beside the tests (support/stub_cuda.cc)
  const char* faults;  // that it is told to have
  std::vector<const char*> words;
};

std::vector<std::string> environment_of(const FaultyDriver& driver) {
  return {"LD_LIBRARY_PATH=" + testing::test_binary(driver.stub),
          std::string("TRIREME_STUB_CUDA=") + driver.faults};
}

// What the doctor says about GPUs.
Json finding_with(const FaultyDriver& driver) {
  const testing::TemporaryFolder folder;
  const Finished finished = testing::run_program(
      {testing::trireme_binary(), "doctor", "-n", "1", "--json", "-", "--folder", folder.path()},
      environment_of(driver));
  const Json report = Json::parse(finished.out);
  for (const Json& finding : report.at("machines").at(0).at("findings")) {
    if (finding.at("check") == "GPUs") {
      return finding;
    }
  }
  ADD_FAILURE() << "nothing about GPUs: " << finished.out << finished.err;
  return {};
}

const FaultyDriver kDrivers[] = {
    {"stub_cuda_old", "", {"has no cuMemAllocAsync", "older than CUDA 11.2"}},
    {"stub_cuda", "cuInit=805", {"CUDA_ERROR_MPS_CONNECTION_FAILED", "nvidia-cuda-mps-control"}},
    {"stub_cuda", "cuInit=803", {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"}},
    {"stub_cuda", "cuInit=100", {"CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"}},
    {"stub_cuda", "cuDeviceGetName=46", {"CUDA_ERROR_DEVICE_UNAVAILABLE", "for itself"}},
};

TEST(FaultyDrivers, AreNamedByTheDoctor) {
  for (const FaultyDriver& driver : kDrivers) {
    SCOPED_TRACE(driver.faults);
    const Json finding = finding_with(driver);
    EXPECT_EQ(finding.value("verdict", ""), "warning");
    for (const char* words : driver.words) {
      EXPECT_NE(finding.value("advice", "").find(words), std::string::npos) << finding;
    }
  }
  EXPECT_NE(finding_with({"stub_cuda", "", {}}).value("value", "").find("a GPU of tests"),
            std::string::npos);
}

TEST(FaultyDrivers, AreNamedWhereAGpuIsAskedFor) {
  for (const FaultyDriver& driver : kDrivers) {
    SCOPED_TRACE(driver.faults);
    const testing::TemporaryFolder folder;
    const std::string run = folder.path() + "/run";
    const Finished finished = testing::run_program({testing::trireme_binary(),
                                                    "train",
                                                    "--model",
                                                    "mlp",
                                                    "--steps",
                                                    "1",
                                                    "--device",
                                                    "cuda",
                                                    "--run",
                                                    run},
                                                   environment_of(driver));
    EXPECT_EQ(finished.code, 2);
    for (const char* words : driver.words) {
      EXPECT_NE(finished.err.find(words), std::string::npos) << finished.err;
    }
    EXPECT_FALSE(std::filesystem::exists(run)) << "nothing is left";
  }
}

}  // namespace
}  // namespace trireme::faulty_driver_test
