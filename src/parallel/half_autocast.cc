#include "parallel/half_autocast.h"

#include <utility>

#include "trireme/parallel/autocast.h"

namespace trireme::detail {
namespace {

thread_local bool noted_half = false;

}  // namespace

void note_half_autocast() {
  noted_half = true;
}

bool take_half_autocast() {
  return std::exchange(noted_half, false);
}

}  // namespace trireme::detail
