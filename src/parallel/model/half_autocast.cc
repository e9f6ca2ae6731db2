#include "parallel/model/half_autocast.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "trireme/parallel/autocast.h"

namespace trireme::detail {
namespace {

thread_local bool noted_half = false;

}  // namespace

void note_half_autocast() {
  // An evaluation has no backward.
  noted_half = noted_half || at::GradMode::is_enabled();
}

bool take_half_autocast() {
  return std::exchange(noted_half, false);
}

void forget_casts() {
  at::autocast::clear_cache();
}

}  // namespace trireme::detail
