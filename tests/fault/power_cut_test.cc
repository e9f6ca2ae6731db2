// The power fails in the middle of a job that saves: whatever part of what was not yet put on disk
// survives, every checkpoint that is listed is whole, and none is lost that was complete.

#include "support/power_cut.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <set>

#include <fnmatch.h>
#include <gtest/gtest.h>

#include "support/processes.h"
#include "support/saving_worker.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using testing::Disk;
using testing::FileOp;
using testing::TemporaryFolder;
using Tree = std::map<std::string, std::string>;

// Which saves of logged_saves may be the newest.
struct Promise {
  int complete = 0;  // 0: none need be there
  int other = 0;     // being saved, or being made the newest again
};

// What a job of logged_saves did, and what it had promised at each moment.
struct Record {
  std::vector<FileOp> ops;
  std::vector<Promise> promises;  // behind so many operations
  Tree end;                       // what was really there
};

Record record_of(const TemporaryFolder& folder) {
  const std::string root = folder.path() + "/disk";
  const std::string marks = root + "/marks";
  const std::string log = folder.path() + "/log";
  fs::create_directory(root);
  const testing::Finished done =
      testing::run_program({testing::test_binary("logged_saves"), root + "/run/checkpoints", marks},
                           {"LD_PRELOAD=" + env_string("TRIREME_FILE_LOG_LIBRARY").value(),
                            "TRIREME_FILE_LOG=" + log,
                            "TRIREME_FILE_LOG_ROOT=" + root});
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  Record record;
  Promise promise;
  int marks_folder = -1;
  record.promises.push_back(promise);
  for (FileOp& op : testing::read_file_log(log, root)) {
    const bool made = op.kind == FileOp::Kind::kCreate;
    if (made && op.name == "marks") {
      marks_folder = op.file;
    } else if (made && op.folder == marks_folder) {
      const int number = std::stoi(op.name.substr(op.name.find('-') + 1));
      const bool ends = op.name.starts_with("saved-") || op.name.starts_with("chose-");
      promise = ends ? Promise{number, number} : Promise{promise.complete, number};
      record.promises.back() = promise;
    } else {
      record.ops.push_back(std::move(op));
      record.promises.push_back(promise);
    }
  }
  record.end = Disk::read(root);
  std::erase_if(record.end, [](const auto& each) { return each.first.starts_with("marks/"); });
  return record;
}

// What is wrong with a checkpoint that is listed; `number` becomes which save it is.
std::string problem_of(const std::string& checkpoint, std::int64_t step, int& number) {
  for (const std::string& each : verify_checkpoint(checkpoint)) {
    return each;
  }
  const CheckpointReader reader(checkpoint);
  number = static_cast<int>(reader.manifest().sequence);
  std::vector<std::uint64_t> values(static_cast<std::size_t>(testing::kLoggedNumel));
  reader.read(reader.manifest().tensors.at(0), reinterpret_cast<std::byte*>(values.data()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != testing::value_after(number, static_cast<std::int64_t>(i))) {
      return concat("value ", i, " is not that of save ", number);
    }
  }
  return reader.manifest().step == step ? "" : concat("it is of step ", reader.manifest().step);
}

std::string problem_in(const std::string& folder, const Promise& promise) {
  const CheckpointFolder checkpoints(folder);
  bool any = false;
  for (const std::int64_t step : checkpoints.steps()) {
    int number = 0;
    const std::string problem = problem_of(checkpoints.path_of(step), step, number);
    if (!problem.empty()) {
      return concat("step ", step, " is listed: ", problem);
    }
    any = true;
  }
  if (promise.complete == 0 && !any) {
    return {};
  }
  const auto step = checkpoints.newest();
  int newest = 0;
  if (step) {
    problem_of(checkpoints.path_of(*step), *step, newest);
  }
  // One that is newer may have made it superfluous, but only when it is there itself.
  if (newest == promise.other || (newest == promise.complete && newest > 0)) {
    return {};
  }
  return concat("the newest is save ", newest, ", where save ", promise.complete, " was complete");
}

struct Verdict {
  std::string problem;  // empty: there is none
  std::size_t states = 0;
};

// Looks at what every power cut may leave, until something is wrong.
Verdict judge(const std::vector<FileOp>& ops, const std::vector<Promise>& promises) {
  const TemporaryFolder folder;
  Verdict verdict;
  std::set<std::pair<std::size_t, std::pair<int, int>>> seen;
  testing::each_power_cut(ops, [&](std::size_t done, const Tree& tree) {
    std::string all;
    for (const auto& [path, bytes] : tree) {
      all += concat(path, '\n', bytes.size(), '\n', bytes);
    }
    const Promise& promise = promises[done];
    if (!seen.insert({std::hash<std::string>()(all), {promise.complete, promise.other}}).second) {
      return true;
    }
    const std::string place = concat(folder.path(), "/", ++verdict.states);
    Disk::write(tree, place);
    const std::string problem = problem_in(place + "/run/checkpoints", promise);
    if (!problem.empty()) {
      verdict.problem = concat("behind ", done, " operations: ", problem);
    }
    fs::remove_all(place);
    return problem.empty();
  });
  return verdict;
}

// The same job, had it not called fsync for files of this name.
Verdict judge_without_sync(const Record& record, const std::string& name, int& left_out) {
  std::vector<FileOp> ops;
  std::vector<Promise> promises = {record.promises[0]};
  left_out = 0;
  for (std::size_t i = 0; i < record.ops.size(); ++i) {
    if (record.ops[i].kind == FileOp::Kind::kSync &&
        fnmatch(name.c_str(), record.ops[i].name.c_str(), 0) == 0) {
      ++left_out;
      promises.back() = record.promises[i + 1];
      continue;
    }
    ops.push_back(record.ops[i]);
    promises.push_back(record.promises[i + 1]);
  }
  return judge(ops, promises);
}

class PowerCut : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(record_.ops.empty());
    EXPECT_EQ(record_.promises.back().complete, 5) << "all saves were made";
  }

  TemporaryFolder folder_;
  Record record_ = record_of(folder_);
};

// Otherwise the log would have missed something, and the rest of this file would say nothing.
TEST_F(PowerCut, TheLogLeadsToWhatIsInTheFolder) {
  Disk disk(record_.ops);
  for (const FileOp& op : record_.ops) {
    disk.apply(op);
  }
  const Tree found = disk.tree();
  EXPECT_GT(found.size(), 8U);
  ASSERT_EQ(found.size(), record_.end.size());
  for (const auto& [path, bytes] : record_.end) {
    ASSERT_EQ(found.count(path), 1U) << path;
    EXPECT_TRUE(found.at(path) == bytes) << path;
  }
}

TEST_F(PowerCut, LosesNothingThatWasCompleteAndListsNothingThatIsNot) {
  const Verdict verdict = judge(record_.ops, record_.promises);
  EXPECT_EQ(verdict.problem, "");
  EXPECT_GT(verdict.states, 200U);
  std::printf("%zu operations, %zu different states\n", record_.ops.size(), verdict.states);
}

// Each fsync is there for a reason, which this test can see.
TEST_F(PowerCut, WouldDoHarmWithoutAnyOfTheSyncs) {
  for (const char* name :
       {"rank-*.safetensors", ".manifest.json-*", ".step-*", "checkpoints", "run", ".latest-*"}) {
    int left_out = 0;
    const Verdict verdict = judge_without_sync(record_, name, left_out);
    EXPECT_GT(left_out, 0) << name;
    EXPECT_NE(verdict.problem, "") << "without fsync of " << name;
    std::printf("without fsync of %s: %s\n", name, verdict.problem.c_str());
  }
}

}  // namespace
}  // namespace trireme
