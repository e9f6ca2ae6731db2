#include "parallel/gradient/backward_mark.h"

namespace trireme::detail {
namespace {

thread_local int in_backward = 0;

}  // namespace

InBackward::InBackward() {
  ++in_backward;
}

InBackward::~InBackward() {
  --in_backward;
}

bool anyone_in_backward() {
  return in_backward > 0;
}

bool several_in_backward() {
  return in_backward > 1;
}

}  // namespace trireme::detail
