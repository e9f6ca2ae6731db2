#pragma once

#include <map>
#include <string>
#include <utility>

namespace trireme::detail {

// How bad it is; later is worse.
enum class Verdict {
  kOk,
  kNote,     // worth knowing; nothing is wrong
  kWarning,  // works, but slower than it could, or not for long
  kProblem,  // does not work
};

constexpr const char* verdict_name(Verdict verdict) {
  constexpr const char* kNames[] = {"ok", "note", "warning", "problem"};
  return kNames[static_cast<int>(verdict)];
}

// What one check has found.
struct Finding {
  std::string check;                        // "open files"
  std::string value;                        // in words
  std::map<std::string, double> numbers{};  // the value for programs
  Verdict verdict = Verdict::kOk;
  std::string advice{};  // what to change; empty where there is nothing to

  void judge(Verdict how_bad, std::string what_to_change) {
    verdict = how_bad;
    advice = std::move(what_to_change);
  }
};

inline Finding problem(std::string check, std::string value, std::string advice) {
  return {std::move(check), std::move(value), {}, Verdict::kProblem, std::move(advice)};
}

}  // namespace trireme::detail
