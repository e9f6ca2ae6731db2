#include "checkpoint/save_request.h"

#include <bit>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"
#include "trireme/comm/first_failure.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::json;

void check_text(const char* what, const std::string& name, const std::string& text) {
  try {
    (void)Json(text).dump();
  } catch (const Json::exception& error) {
    // The message must be text itself.
    const std::string readable = Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
    throw ConfigError(
        concat("a checkpoint's ", what, " ", readable, " must be in UTF-8: ", error.what()));
  }
}

void check_request(std::int64_t step, const StateView& state, const Notes& notes) {
  TRIREME_CHECK(step >= 0, "a checkpoint's step cannot be negative, found ", step);
  for (const StateTensor& tensor : state.tensors) {
    check_text("tensor", tensor.title(), tensor.title());
  }
  for (const auto& [name, text] : notes) {
    check_text("note", name, name);
    check_text("note", name, text);
  }
}

// Of the list of tensors, which is the same on every rank.
std::int64_t fingerprint(const std::vector<StateTensor>& tensors) {
  std::string text;
  const auto add = [&](const auto& number) { text += std::to_string(number) + ","; };
  for (const StateTensor& tensor : tensors) {
    for (const std::string* name : {&tensor.kind, &tensor.name}) {
      add(name->size());
      text += *name;
    }
    add(static_cast<int>(tensor.dtype));
    for (const std::vector<std::int64_t>* numbers : {&tensor.shape, &tensor.strides}) {
      add(numbers->size());
      for (const std::int64_t number : *numbers) {
        add(number);
      }
    }
  }
  return std::bit_cast<std::int64_t>(checksum_of(text.data(), text.size()));
}

}  // namespace

void agree_on_request(Communicator& ranks,
                      std::int64_t step,
                      const StateView& state,
                      const Notes& notes) {
  const std::vector<std::int64_t> mine = {step, fingerprint(state.tensors)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks.size()) * mine.size());
  ranks.all_gather(mine, all).wait();
  // The same loop everywhere: either all ranks throw, or none.
  for (std::size_t rank = 1; rank < static_cast<std::size_t>(ranks.size()); ++rank) {
    TRIREME_CHECK(all[2 * rank] == all[0],
                  "expected all ranks to save the same step, found that rank 0 saves step ",
                  all[0],
                  " and rank ",
                  rank,
                  " step ",
                  all[2 * rank],
                  ": call save() in the same step everywhere");
    TRIREME_CHECK(
        all[2 * rank + 1] == all[1],
        "checkpoint of step ",
        step,
        ": expected the same list of tensors, in the same order, on all ranks, found that rank ",
        rank,
        " has a different one from rank 0: wrap the same model, with the same options, everywhere");
  }
  std::string problem;
  try {
    check_request(step, state, notes);
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  if (const auto failure = first_failure(ranks, problem)) {
    throw ConfigError(concat("rank ", failure->rank, ": ", failure->reason));
  }
}

}  // namespace trireme::detail
