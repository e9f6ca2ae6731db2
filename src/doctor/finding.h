#pragma once

#include <map>
#include <string>

namespace trireme::detail {

// How bad it is; later is worse.
enum class Verdict {
  kOk,
  kNote,     // worth knowing; nothing is wrong
  kWarning,  // works, but slower than it could, or not for long
  kProblem,  // does not work
};

const char* verdict_name(Verdict verdict);

// What one check has found.
struct Finding {
  std::string check;  // "open files"
  std::string value;  // in words
  Verdict verdict = Verdict::kOk;
  std::string advice{};                     // what to change; empty where there is nothing to
  std::map<std::string, double> numbers{};  // the value for programs
};

}  // namespace trireme::detail
