#include "checkpoint/save_request.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "trireme/comm/tell.h"
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

std::string described(const StateTensor& tensor) {
  std::string text = concat(tensor.title(), " (", dtype_name(tensor.dtype));
  for (const std::vector<std::int64_t>* numbers : {&tensor.shape, &tensor.strides}) {
    text += numbers == &tensor.shape ? ", shape" : ", strides";
    for (const std::int64_t number : *numbers) {
      text += concat(" ", number);
    }
  }
  return text + ")";
}

}  // namespace

void agree_on_request(Communicator& ranks,
                      std::int64_t step,
                      const StateView& state,
                      const Notes& notes) {
  on_all_ranks(ranks, [&] { check_request(step, state, notes); });
  std::vector<std::string> lines = {concat("step ", step)};
  for (const StateTensor& tensor : state.tensors) {
    lines.push_back(described(tensor));
  }
  check_same_on_all_ranks(
      ranks,
      "what a checkpoint is to hold",
      lines,
      "call save() in the same step, with the same model, optimizer and options, "
      "on every rank");
}

}  // namespace trireme::detail
