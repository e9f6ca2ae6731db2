#pragma once

#include <array>

#include <ATen/autocast_mode.h>

namespace trireme {

namespace detail {
// An Engine's backward asks whether its loss needs a scale.
void note_half_autocast();
}  // namespace detail

// Runs the operators that gain from it in a lower precision while it lives, by LibTorch's own
// policy for each operator (matrix products and convolutions low, norms, losses and sums in
// float32). Parameters stay float32, so no masters and, for bfloat16, no loss scale are needed; for
// float16 (at::kHalf) set EngineOptions::scale_loss. Put it around forward and loss:
//
//   auto loss = [&] { trireme::Autocast scope; return loss_of(engine.forward(x), y); }();
//
// It works the same around a whole training loop: engines drop casts of weights that they change.
// The casts of weights live until backward: with stage 3 and little memory, use Precision instead.
class Autocast {
 public:
  explicit Autocast(at::ScalarType type = at::kBFloat16) {
    at::autocast::increment_nesting();
    for (Before& before : before_) {
      at::autocast::set_autocast_enabled(before.device, true);
      at::autocast::set_autocast_dtype(before.device, type);
    }
    if (type == at::kHalf) {
      detail::note_half_autocast();
    }
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    // A cast of a weight must not outlive the weight's next update.
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    for (const Before& before : before_) {
      at::autocast::set_autocast_enabled(before.device, before.enabled);
      at::autocast::set_autocast_dtype(before.device, before.type);
    }
  }

 private:
  struct Before {
    explicit Before(at::DeviceType where) : device(where) {}
    at::DeviceType device;
    bool enabled = at::autocast::is_autocast_enabled(device);
    at::ScalarType type = at::autocast::get_autocast_dtype(device);
  };
  std::array<Before, 2> before_ = {Before(at::kCPU), Before(at::kCUDA)};
};

}  // namespace trireme
