#include "parallel/backward_mark.h"

namespace trireme::detail {
namespace {

thread_local int in_backward = 0;

}  // namespace

InBackward::InBackward(bool& here) : here_(here) {
  here_ = true;
  ++in_backward;
}

InBackward::~InBackward() {
  here_ = false;
  --in_backward;
}

bool anyone_in_backward() {
  return in_backward > 0;
}

}  // namespace trireme::detail
