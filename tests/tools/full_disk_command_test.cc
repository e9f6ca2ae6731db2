// Commands whose output does not fit: the file and the reason are named, and nothing is left half.

#include <cstdint>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/processes.h"

namespace trireme::full_disk_command_test {
namespace {

namespace fs = std::filesystem;
using testing::Finished;

class FullDiskCommand : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write_file(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }

  // Where files may not grow beyond so many KiB, which is what a full disk looks like; what it says
  // goes through a pipe, as the file that keeps it is one, too.
  Finished within(int kilobytes, const std::string& words) const {
    return testing::run_program({"bash",
                                 "-c",
                                 "set -o pipefail; cd " + folder_.path() + "; (ulimit -f " +
                                     std::to_string(kilobytes) + "; exec 2>&1 >/dev/null; exec " +
                                     testing::trireme_binary() + " " + words + ") | cat >&2"});
  }
  void expect_lost(const Finished& done, int code, const std::string& file) const {
    EXPECT_EQ(done.code, code) << done.out << done.err;
    EXPECT_NE(done.err.find(file), std::string::npos) << done.err;
    EXPECT_NE(done.err.find("could not be written: File too large"), std::string::npos) << done.err;
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(FullDiskCommand, TheTableOfABenchmark) {
  expect_lost(within(0, "bench optim --numel 100 --rounds 1 --json rows.json"), 1, "rows.json");
  EXPECT_EQ(files(), 0U);
}

TEST_F(FullDiskCommand, AChart) {
  write_file("run/metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n");
  expect_lost(within(0, "plot run -o chart.svg"), 1, "chart.svg");
  EXPECT_EQ(files(), 1U);
}

TEST_F(FullDiskCommand, TheSettingsOfARun) {
  expect_lost(within(0, "train --data licenses --steps 1 --run new/run"), 3, "config.json");
  EXPECT_EQ(files(), 0U) << "what is left of a run that could not begin";
  const Finished shown = within(0, "train --data licenses --print-config > /dev/full");
  EXPECT_EQ(shown.code, 3);
  EXPECT_NE(shown.err.find("standard output could not be written"), std::string::npos) << shown.err;
}

// An exit code that says what was found does not say that nobody could read it.
TEST_F(FullDiskCommand, WhatACommandHasFound) {
  const auto weights = [](char value) {
    const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return file + header + std::string(4, value);
  };
  write_file("a.safetensors", weights('\1'));
  write_file("b.safetensors", weights('\2'));
  const Finished done = within(1, "ckpt diff a.safetensors b.safetensors > /dev/full");
  EXPECT_EQ(done.code, 1) << "they differ";
  EXPECT_EQ(done.err, "trireme: standard output could not be written\n");
}

TEST_F(FullDiskCommand, ImportedWeights) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2097152],"data_offsets":[0,8388608]}})";
  std::string file(8, '\0');
  for (std::size_t i = 0; i < file.size(); ++i) {
    file[i] = static_cast<char>(std::uint64_t{header.size()} >> (8 * i) & 0xff);
  }
  write_file("weights.safetensors", file + header + std::string(std::size_t{8} << 20, '\1'));
  // The memory that ranks share is a file, too, and smaller.
  const Finished done = within(5 << 10, "ckpt import weights.safetensors new/weights");
  EXPECT_EQ(done.code, 1) << done.out << done.err;
  EXPECT_NE(done.err.find("File too large"), std::string::npos) << done.err;
  EXPECT_EQ(files(), 1U) << "folders that were made for it";
}

}  // namespace
}  // namespace trireme::full_disk_command_test
