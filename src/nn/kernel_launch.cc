#include "nn/kernel_launch.h"

#include <algorithm>
#include <string>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "nn/kernel_texts.h"
#include "trireme/core/error.h"
#include "trireme/nn/kernels.h"

namespace trireme::nn {
namespace {

// As the kernels call it; empty where they do not know it.
const char* name_of(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return "Brain";
    case at::kHalf:
      return "Ieee";
    case at::kFloat:
      return "Plain<float>";
    default:
      return "";
  }
}

}  // namespace

bool has_kernels(const at::Tensor& tensor) {
  return tensor.is_cuda() && *name_of(tensor.scalar_type()) != '\0' &&
         !at::autocast::is_autocast_enabled(at::kCUDA);
}

bool can_use_kernels(std::initializer_list<at::Tensor> tensors) {
  const at::Tensor& first = *tensors.begin();
  return has_kernels(first) && std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
           return !tensor.defined() || (tensor.device() == first.device() &&
                                        tensor.scalar_type() == first.scalar_type());
         });
}

KernelKind kind_of(at::ScalarType type, std::int64_t width, std::initializer_list<Address> rows) {
  constexpr int kPackBytes = 16;
  const auto bytes = static_cast<int>(c10::elementSize(type));
  int pack = kPackBytes / bytes;
  const auto fits = [&](Address row) { return row % static_cast<Address>(pack * bytes) == 0; };
  while (pack > 1 && (width % pack != 0 || !std::ranges::all_of(rows, fits))) {
    pack /= 2;
  }
  return {type, pack};
}

device::KernelText text_of(const char* file, const KernelKind& kind) {
  std::string main = detail::concat("#define TRIREME_ELEMENT {}\n#define TRIREME_PACK {}\n",
                                    {name_of(kind.type), kind.pack});
  if (kind.width > 0) {
    main += detail::concat("#define TRIREME_WIDTH {}\n", {kind.width});
  }
  main += detail::concat("#include \"nn/kernels/{}.cuh\"\n", {file});
  return {std::move(main), kernel_texts()};
}

void launch_any(const at::Tensor& where,
                const char* file,
                const char* kernel,
                const KernelKind& kind,
                const Grid& grid,
                void* arguments) {
  if (grid.blocks_x == 0 || grid.blocks_y == 0) {
    return;
  }
  const c10::Device device = where.device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device);
  device::launch_kernel(device.index(),
                        text_of(file, kind),
                        kernel,
                        {.blocks_x = static_cast<unsigned>(grid.blocks_x),
                         .blocks_y = static_cast<unsigned>(grid.blocks_y),
                         .threads = static_cast<unsigned>(grid.threads),
                         .stream = stream.native_handle(),
                         .arguments = arguments});
}

void refuse_second_gradients(const char* function) {
  TRIREME_CHECK(!at::GradMode::is_enabled(),
                "the gradient of trireme::nn::{} was asked for its own gradient (create_graph), "
                "which it does not have: use LibTorch's operators for it",
                {function});
}

}  // namespace trireme::nn
