#pragma once

#include <c10/util/Exception.h>

namespace trireme::worker {

// LibTorch says of every rank, with a trace of its calls, that it has no fast kernel for a product;
// what that means is said once, in our own words (half_speed.h).
class SlowProductsAreKnown final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("switching to BLAS gemm") == std::string::npos) {
      c10::WarningHandler::process(warning);
    }
  }
};

}  // namespace trireme::worker
