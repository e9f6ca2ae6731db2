// The main function of the tests. gtest's own calls it a success where nothing was tested: where a
// filter fits no test, where a test skips itself, where the program leaves before its end. Here
//   0   every test that was selected ran and passed
//   77  none failed, but some were skipped: a line "not run: TEST: REASON" for each. ctest knows
//       this code (tests/CMakeLists.txt), and scripts/run_ctest.py which skips are in order
//   1   anything else
// A program of several files (tests/CMakeLists.txt) also goes by the name of each of them, and then
// has the tests of that file alone.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fnmatch.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/ranks.h"

namespace trireme::testing {
namespace {

constexpr int kFailed = 1;
constexpr int kSkipped = 77;

std::string full_name(const ::testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

std::string chosen_file;  // none: all of them

bool is_chosen(const ::testing::TestInfo& test) {
  return chosen_file.empty() || std::filesystem::path(test.file()).stem() == chosen_file;
}

// What of this suite is not to run, in the words of a filter.
std::string others_in(const ::testing::TestSuite& suite) {
  std::string others;
  int chosen = 0;
  for (int i = 0; i < suite.total_test_count(); ++i) {
    const ::testing::TestInfo& test = *suite.GetTestInfo(i);
    chosen += is_chosen(test) ? 1 : 0;
    others += is_chosen(test) ? "" : ":" + full_name(test);
  }
  return chosen == 0 ? ":" + std::string(suite.name()) + ".*" : others;
}

// A filter could not tell one from the other.
void refuse_equal_names() {
  std::set<std::string> names;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k) {
      const std::string name = full_name(*suite.GetTestInfo(k));
      if (!names.insert(name).second) {
        std::printf("FAILED: two tests are called %s\n", name.c_str());
        std::exit(kFailed);
      }
    }
  }
}

void choose_file(const std::string& started_as) {
  const std::string name = std::filesystem::path(started_as).filename();
  if (name == std::filesystem::read_symlink("/proc/self/exe").filename()) {
    return;
  }
  refuse_equal_names();
  chosen_file = name;
  std::string others;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    others += others_in(*all.GetTestSuite(i));
  }
  std::string& filter = ::testing::GTEST_FLAG(filter);
  if (!others.empty()) {
    filter += filter.find('-') == std::string::npos ? "-" + others.substr(1) : others;
  }
}

std::string reason_of(const ::testing::TestResult& result) {
  std::string reason;
  for (int i = 0; i < result.total_part_count(); ++i) {
    if (result.GetTestPartResult(i).skipped()) {
      reason = result.GetTestPartResult(i).summary();
    }
  }
  for (char& letter : reason) {
    letter = letter == '\n' ? ' ' : letter;
  }
  while (reason.ends_with(' ')) {  // of some versions of gtest
    reason.pop_back();
  }
  return reason;
}

class Outcome final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    if (!result.Skipped()) {
      ++ran_;
    } else if (in_external_layout() && reason_of(result).starts_with(kOtherSize)) {
      ++of_other_sizes_;
    } else {
      skipped_.push_back(full_name(test) + ": " + reason_of(result));
    }
  }

  // What the program exits with, where gtest would with `code`.
  int judge(int code) {
    const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
    const std::string for_all = reason_of(all.ad_hoc_test_result());
    if (!for_all.empty()) {  // an environment's
      skipped_.push_back("all of them: " + for_all);
    }
    for (const std::string& each : skipped_) {
      std::printf("not run: %s\n", each.c_str());
    }
    if (of_other_sizes_ > 0) {
      std::printf("%d tests are for worlds of other sizes\n", of_other_sizes_);
    }
    // The word in capitals is what ctest looks for where it does not see this program's code.
    if (all.reportable_disabled_test_count() > 0) {
      std::printf("FAILED: a disabled test is worse than none: mend it or remove it\n");
      code = kFailed;
    }
    if (ran_ == 0 && skipped_.empty()) {
      std::printf("FAILED: no test ran; the filter was %s\n",
                  ::testing::GTEST_FLAG(filter).c_str());
      code = kFailed;
    }
    std::fflush(stdout);
    return code != 0 ? kFailed : skipped_.empty() ? 0 : kSkipped;
  }

 private:
  int ran_ = 0;
  int of_other_sizes_ = 0;
  std::vector<std::string> skipped_;
};

// Of the patterns that a filter asks for, one that no test has: a test was renamed or removed.
std::string pattern_without_tests() {
  const std::string filter = ::testing::GTEST_FLAG(filter);
  std::istringstream wanted(filter.substr(0, filter.find('-')));
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (std::string pattern; std::getline(wanted, pattern, ':');) {
    bool found = false;
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      const ::testing::TestSuite& suite = *all.GetTestSuite(i);
      for (int k = 0; k < suite.total_test_count(); ++k) {
        const ::testing::TestInfo& test = *suite.GetTestInfo(k);
        found |= is_chosen(test) && fnmatch(pattern.c_str(), full_name(test).c_str(), 0) == 0;
      }
    }
    if (!found) {
      return pattern;
    }
  }
  return {};
}

pid_t running = 0;  // this process, until all tests have had their turn

void refuse_early_end() {
  if (running == getpid()) {  // not a rank that a test has forked
    std::printf("FAILED: the program was left before its tests had ended\n");
    std::fflush(nullptr);
    _exit(kFailed);
  }
}

int run_tests() {
  if (::testing::GTEST_FLAG(list_tests)) {
    return RUN_ALL_TESTS();
  }
  auto* const outcome = new Outcome;  // gtest's, from the next line on
  ::testing::UnitTest::GetInstance()->listeners().Append(outcome);
  std::atexit(refuse_early_end);
  running = getpid();
  int code = RUN_ALL_TESTS();
  running = 0;
  const std::string pattern = pattern_without_tests();
  if (!pattern.empty()) {
    std::printf("FAILED: no test is called %s\n", pattern.c_str());
    code = kFailed;
  }
  return outcome->judge(code);
}

}  // namespace
}  // namespace trireme::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  trireme::testing::choose_file(argv[0]);
  return trireme::testing::run_tests();
}
