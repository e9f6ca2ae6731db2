#pragma once

#include <initializer_list>

#include <ATen/core/Tensor.h>

#include "device/kernel_launch.h"
#include "nn/kernel_arguments.h"

namespace trireme::nn {

using kernels::Address;

// Kernels are compiled for a type of elements, for how many a thread reads at a time, and some for
// the length of a row.
struct KernelKind {
  at::ScalarType type;
  int pack = 1;
  std::int64_t width = 0;
};

struct Grid {
  std::int64_t blocks_x = 1;
  std::int64_t blocks_y = 1;
  int threads = 256;
};

inline Address address_of(const at::Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<Address>(tensor.const_data_ptr()) : 0;
}

// All have the type of the first, or are not there, and kernels can be used for it.
bool can_use_kernels(std::initializer_list<at::Tensor> tensors);

// For rows of `width` elements that begin at these addresses: packs as large as they allow, up to
// 16 bytes.
KernelKind kind_of(at::ScalarType type, std::int64_t width, std::initializer_list<Address> rows);

// What is compiled for it: kernels/FILE.cuh.
device::KernelText text_of(const char* file, const KernelKind& kind);

// On LibTorch's current stream of the device where the tensor is.
void launch_any(const at::Tensor& where,
                const char* file,
                const char* kernel,
                const KernelKind& kind,
                const Grid& grid,
                void* arguments);

template <class Arguments>
void launch(const at::Tensor& where,
            const char* file,
            const char* kernel,
            const KernelKind& kind,
            const Grid& grid,
            Arguments& arguments) {
  launch_any(where, file, kernel, kind, grid, &arguments);
}

constexpr std::int64_t divided_up(std::int64_t number, std::int64_t by) {
  return (number + by - 1) / by;
}

// In backward of a function whose gradient has none. Throws ConfigError.
void refuse_second_gradients(const char* function);

}  // namespace trireme::nn
