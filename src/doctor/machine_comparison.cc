#include <algorithm>

#include "doctor/report.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

struct Comparison {
  const char* check;
  const char* number;  // compares this number, else the words
  Verdict verdict;
  const char* advice;
};

constexpr Comparison kComparisons[] = {
    {"trireme", nullptr, Verdict::kProblem, "install the same version everywhere"},
    {"libtorch",
     nullptr,
     Verdict::kWarning,
     "install the same version: another may compute different bits"},
    {"ucx",
     nullptr,
     Verdict::kWarning,
     "install the same version: different ones may not understand each other"},
    {"open mpi",
     nullptr,
     Verdict::kNote,
     "with --backend mpi, install the same version everywhere"},
    {"mpich", nullptr, Verdict::kNote, "with --backend mpi, install the same version everywhere"},
    {"compiler",
     nullptr,
     Verdict::kNote,
     "use the same build everywhere: another may compute different bits"},
    {"kernel", nullptr, Verdict::kNote, "nothing, unless the machines differ in speed"},
    {"processors",
     "usable",
     Verdict::kNote,
     "ranks wait for the slowest: give machines ranks (-n) in proportion to their processors"},
};

// What a machine says to one check.
std::string answer_of(const MachineReport& machine, const Comparison& comparison) {
  for (const Finding& finding : machine.findings) {
    if (finding.check != comparison.check) {
      continue;
    }
    if (comparison.number == nullptr) {
      return finding.value;
    }
    const auto number = finding.numbers.find(comparison.number);
    return number == finding.numbers.end() ? "" : concat(number->second);
  }
  return {};
}

}  // namespace

std::vector<Finding> compare_machines(const std::vector<MachineReport>& machines) {
  std::vector<Finding> findings;
  for (const Comparison& comparison : kComparisons) {
    std::vector<std::string> answers;
    answers.reserve(machines.size());
    for (const MachineReport& machine : machines) {
      answers.push_back(answer_of(machine, comparison));
    }
    // The first that differs from machine 0 is enough to act on; the JSON has them all.
    const auto other = std::ranges::find_if(
        answers, [&](const std::string& answer) { return answer != answers.front(); });
    if (other == answers.end()) {
      continue;
    }
    const auto machine = static_cast<std::size_t>(other - answers.begin());
    findings.push_back(
        {comparison.check,
         concat("differs: machine 0 ({}) has {}, machine {} ({}) has {}",
                {machines[0].name, answers.front(), machine, machines[machine].name, *other}),
         {{"machine", static_cast<double>(machine)}},
         comparison.verdict,
         comparison.advice});
  }
  return findings;
}

}  // namespace trireme::detail
