#pragma once

#include <memory>

#include "trireme/compress/compressor.h"

// The compressors that have names, a file each.

namespace trireme::detail {

std::shared_ptr<const Compressor> make_bf16();
std::shared_ptr<const Compressor> make_fp16();
std::shared_ptr<const Compressor> make_int8();
std::shared_ptr<const Compressor> make_sign();
// `fraction` is above 0 and at most 1.
std::shared_ptr<const Compressor> make_top_k(double fraction, double momentum);
std::shared_ptr<const Compressor> make_random_k(double fraction);

}  // namespace trireme::detail
