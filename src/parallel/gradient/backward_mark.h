#pragma once

namespace trireme::detail {

// This thread runs a backward while it lives; hooks on CPU tensors are called by the same one.
// Another thread's is none of its business: there, a gradient outside of backward stays a mistake.
class InBackward {
 public:
  InBackward();
  InBackward(const InBackward&) = delete;
  InBackward& operator=(const InBackward&) = delete;
  ~InBackward();
};

// An engine or a DataParallel is in backward. Its loss may lead through another one's model, as a
// generator's does through its discriminator: the gradients there are nobody's.
bool anyone_in_backward();
// Several engines are, for one loss.
bool several_in_backward();

}  // namespace trireme::detail
