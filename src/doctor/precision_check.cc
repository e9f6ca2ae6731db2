#include "doctor/precision_check.h"

#include "trireme/core/error.h"
#include "trireme/core/printed.h"

namespace trireme::detail {
namespace {

constexpr double kWorthwhile = 0.9;  // of the time that float32 takes

}  // namespace

Finding check_precisions(const Versions& versions) {
  Finding finding{"16-bit speed", "not known"};
  if (!(versions.bfloat16_slowdown > 0 && versions.float16_slowdown > 0)) {
    return finding;
  }
  const auto in_words = [](const char* type, double slowdown) {
    return slowdown < 1 ? concat(type, " about ", rough_ratio(1 / slowdown), " times as fast")
                        : concat(type, " takes about ", rough_ratio(slowdown), " times as long");
  };
  finding.value = concat("{}, {} (matrix product, against float32)",
                         {in_words("bfloat16", versions.bfloat16_slowdown),
                          in_words("float16", versions.float16_slowdown)});
  finding.numbers = {{"bfloat16_slowdown", versions.bfloat16_slowdown},
                     {"float16_slowdown", versions.float16_slowdown}};
  if (versions.bfloat16_slowdown < kWorthwhile) {
    finding.value += ": --precision bfloat16 and autocast save time";
  } else {
    finding.judge(
        Verdict::kNote,
        concat("train in float32: bfloat16 and autocast save memory on this processor, but no time",
               versions.float16_slowdown < kWorthwhile ? "; float16 does save time" : ""));
  }
  return finding;
}

}  // namespace trireme::detail
