#include "device/cuda/cuda_stream.h"

#include <algorithm>

#include "device/cuda/cuda_scratch.h"
#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

unsigned long long exponent_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return 0x7FF0000000000000ULL;
    case Dtype::kFloat32:
      return 0x7F800000ULL;
    case Dtype::kFloat16:
      return 0x7C00ULL;
    default:
      return 0x7F80ULL;
  }
}

void check_norm_type(Dtype dtype) {
  TRIREME_CHECK(dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64,
                "norms are computed for float32 and float64, found ",
                dtype_name(dtype));
}

}  // namespace

Split split_of(Count numel, Count pack, const std::vector<DealtArray>& arrays) {
  for (Count head = 0; head < std::min(pack, numel); ++head) {
    const bool fits = std::ranges::all_of(arrays, [&](const DealtArray& array) {
      const std::size_t alignment =
          std::min(kPackBytes, array.element_bytes * static_cast<std::size_t>(pack));
      return (array.address + static_cast<std::size_t>(head) * array.element_bytes) % alignment ==
             0;
    });
    if (fits) {
      const Count packs = (numel - head) / pack;
      return {head, packs, numel - packs * pack};
    }
  }
  return {0, 0, numel};
}

Count blocks_for(const Split& split) {
  return (split.packs + split.singles + kThreads - 1) / kThreads;
}

std::unique_ptr<CudaStream> CudaStream::on_its_own(Gpu& gpu) {
  auto made = std::make_unique<CudaStream>(gpu);
  const Current current(gpu);
  check(cuda_calls().stream_create(&made->stream_, kStreamOnItsOwn), "making a stream");
  return made;
}

// NOLINTNEXTLINE(bugprone-exception-escape): the driver is loaded, as there is one of these
CudaStream::~CudaStream() {
  if (stream_ != nullptr) {
    cuda_calls().stream_synchronize(stream_);
    cuda_calls().stream_destroy(stream_);
  }
}

void CudaStream::check_here(const ConstSpan& data) const {
  TRIREME_ASSERT(data.device() == device(),
                 "the stream of {} cannot work on memory of {}",
                 {device_name(device()), device_name(data.device())});
}

void CudaStream::keep(const std::shared_ptr<const void>& owner) {
  if (owner == nullptr) {
    return;
  }
  const std::lock_guard lock(mutex_);
  let_go();
  kept_.push_back({std::make_shared<CudaMoment>(gpu_, stream_), owner});
}

void CudaStream::launch(Function function, Count blocks, std::vector<void*> parameters) {
  if (blocks == 0) {
    return;
  }
  check(cuda_calls().launch(function,
                            static_cast<unsigned>(blocks),
                            1,
                            1,
                            kThreads,
                            1,
                            1,
                            0,
                            stream_,
                            parameters.data(),
                            nullptr),
        "starting a kernel");
}

void CudaStream::let_go() {
  while (!kept_.empty() && kept_.front().until->passed()) {
    kept_.pop_front();
  }
}

Event CudaStream::record() {
  {
    const std::lock_guard lock(mutex_);
    let_go();
  }
  return Event(std::make_shared<CudaMoment>(gpu_, stream_));
}

void CudaStream::wait(const Event& event) {
  if (event.moment() == nullptr) {
    return;
  }
  if (const auto* moment = dynamic_cast<const CudaMoment*>(event.moment().get())) {
    const Current current(gpu_);
    check(cuda_calls().stream_wait(stream_, moment->native(), 0), "waiting for an event");
    return;
  }
  host().wait(event);  // of another kind of device: the GPU knows nothing of it
}

Span CudaStream::scratch(Dtype dtype, std::int64_t numel) {
  if (numel == 0) {
    return {nullptr, 0, dtype, {}, device()};
  }
  const Current current(gpu_);
  const auto memory = std::make_shared<ScratchOf>(
      gpu_, stream_, static_cast<std::size_t>(numel) * dtype_bytes(dtype));
  return {memory->data(), numel, dtype, memory, device()};
}

void CudaStream::clear(const Span& data) {
  check_here(data);
  if (data.numel() == 0) {
    return;
  }
  const Current current(gpu_);
  check(cuda_calls().set_async(address_of(data.bytes()), 0, data.size_bytes(), stream_),
        "clearing memory");
  keep(data.owner());
}

void CudaStream::copy(const Span& to, const ConstSpan& from, NotFinite* not_finite) {
  TRIREME_ASSERT(to.numel() == from.numel(),
                 "a copy of {} elements has {} to go to",
                 {from.numel(), to.numel()});
  const bool to_host = to.device().is_host();
  const bool from_host = from.device().is_host();
  TRIREME_ASSERT(!to_host || !from_host, "the host copies from itself to itself");
  check_here(to_host ? from : to);
  if (from.numel() == 0) {
    return;
  }
  if (!is_float(from.dtype())) {
    not_finite = nullptr;
  }
  const Current current(gpu_);
  const bool converts = to.dtype() != from.dtype();
  if (!to_host && !from_host) {
    check_here(from);
    if (converts || not_finite != nullptr) {
      copy_by_kernel(to, from, not_finite);
    } else {
      move(to, from);
    }
  } else if (!converts) {
    move(to, from);
    copy_by_kernel({nullptr, from.numel(), from.dtype(), {}, device()},
                   from_host ? ConstSpan(to) : from,
                   not_finite);
  } else {
    // What crosses to the other side is a copy on the GPU, of the type that there is on the host.
    const ConstSpan& outside = from_host ? from : ConstSpan(to);
    const Scratch scratch(stream_, outside.size_bytes());
    const Span copy(scratch.data(), outside.numel(), outside.dtype(), {}, device());
    if (from_host) {
      move(copy, from);
      copy_by_kernel(to, copy, not_finite);
    } else {
      copy_by_kernel(copy, from, not_finite);
      move(to, copy);
    }
  }
  keep(to.owner());
  keep(from.owner());
}

// Bytes, from wherever they are. The driver has read memory of the host that it does not know when
// the call returns, and has written it.
void CudaStream::move(const Span& to, const ConstSpan& from) {
  if (to.bytes() != from.bytes()) {
    check(cuda_calls().copy_async(
              address_of(to.bytes()), address_of(from.bytes()), from.size_bytes(), stream_),
          "copying memory");
  }
}

// To nowhere: only looks.
void CudaStream::copy_by_kernel(const Span& to, const ConstSpan& from, NotFinite* not_finite) {
  const bool converts = to.dtype() != from.dtype();
  if (!converts && not_finite == nullptr && to.bytes() == nullptr) {
    return;
  }
  const Count numel = from.numel();
  CopyArguments copy{.split = {},
                     .to = to.bytes() == from.bytes() ? 0 : address_of(to.bytes()),
                     .from = address_of(from.bytes()),
                     .not_finite = address_of(not_finite),
                     .exponent = exponent_of(from.dtype())};
  const std::size_t from_bytes = dtype_bytes(from.dtype());
  const std::size_t to_bytes = dtype_bytes(to.dtype());
  if (converts) {
    TRIREME_ASSERT((is_half(from.dtype()) && to.dtype() == Dtype::kFloat32) ||
                       (from.dtype() == Dtype::kFloat32 && is_half(to.dtype())),
                   "a copy cannot make {} of {}",
                   {dtype_name(to.dtype()), dtype_name(from.dtype())});
    copy.split = split_of(numel, 4, {{copy.to, to_bytes}, {copy.from, from_bytes}});
    launch("copy",
           detail::concat("copy_{}_{}", {dtype_name(from.dtype()), dtype_name(to.dtype())}),
           blocks_for(copy.split),
           copy);
    return;
  }
  copy.split = split_of(numel,
                        static_cast<Count>(kPackBytes / from_bytes),
                        {{copy.to != 0 ? copy.to : copy.from, to_bytes}, {copy.from, from_bytes}});
  launch("copy", detail::concat("copy_", from_bytes), blocks_for(copy.split), copy);
}

void CudaStream::check_finite(const ConstSpan& data, NotFinite* not_finite) {
  check_here(data);
  if (!is_float(data.dtype()) || data.numel() == 0) {
    return;
  }
  const Current current(gpu_);
  copy_by_kernel({nullptr, data.numel(), data.dtype(), {}, device()}, data, not_finite);
  keep(data.owner());
}

void CudaStream::measure(const char* what,
                         const ConstSpan& data,
                         NormArguments& norm,
                         std::size_t numbers) {
  constexpr Count kBlocksPerProcessor = 8;
  const Current current(gpu_);
  const std::size_t element = dtype_bytes(data.dtype());
  norm.data = address_of(data.bytes());
  norm.split =
      split_of(data.numel(), static_cast<Count>(kPackBytes / element), {{norm.data, element}});
  const Count blocks =
      std::min<Count>(blocks_for(norm.split), gpu_.processors() * kBlocksPerProcessor);
  const Scratch partial(stream_, static_cast<std::size_t>(blocks) * numbers * sizeof(double));
  norm.partial = address_of(partial.data());
  norm.blocks = static_cast<int>(blocks);
  norm.scales = norm.divisor != 1 || norm.unscale != 1 ? 1 : 0;
  launch("norms", detail::concat(what, "_", dtype_name(data.dtype())), blocks, norm);
  launch("norms", detail::concat(what, "_result"), 1, norm);
  keep(data.owner());
}

void CudaStream::largest(const ConstSpan& data, const Scaling& scaling, double* largest) {
  check_here(data);
  check_norm_type(data.dtype());
  if (data.numel() > 0) {
    NormArguments norm{};
    norm.result = address_of(largest);
    norm.divisor = scaling.divisor;
    norm.unscale = scaling.unscale;
    measure("largest", data, norm, 1);
  }
}

void CudaStream::squares(const ConstSpan& data,
                         const SquareQuanta& quanta,
                         const Scaling& scaling,
                         SquareSum* sum) {
  check_here(data);
  check_norm_type(data.dtype());
  if (data.numel() > 0 && quanta.coarse != 0) {
    NormArguments norm{};
    norm.result = address_of(sum);
    norm.coarse = quanta.coarse;
    norm.fine = quanta.fine;
    norm.divisor = scaling.divisor;
    norm.unscale = scaling.unscale;
    measure("squares", data, norm, 2);
  }
}

void CudaStream::update(const UpdateRule& rule, const UpdateArrays& arrays) {
  if (arrays.numel == 0) {
    return;
  }
  const std::size_t element = dtype_bytes(arrays.dtype);
  const bool low = arrays.low != nullptr;
  UpdateArguments arguments{
      .split = {},
      .parameter = address_of(arrays.parameter),
      .gradient = address_of(arrays.gradient),
      .result = address_of(arrays.result != nullptr ? arrays.result : arrays.parameter),
      .states = {},
      .low = address_of(arrays.low)};
  std::vector<DealtArray> all = {
      {arguments.parameter, element}, {arguments.gradient, element}, {arguments.result, element}};
  for (int k = 0; k < rule.states; ++k) {
    arguments.states[k] = address_of(arrays.states[static_cast<std::size_t>(k)]);
    all.push_back({arguments.states[k], element});
  }
  if (low) {
    all.push_back({arguments.low, dtype_bytes(arrays.low_dtype)});
  }
  arguments.split = split_of(arrays.numel, static_cast<Count>(kPackBytes / element), all);
  const std::string name =
      detail::concat("update_{}{}{}",
                     {dtype_name(arrays.dtype),
                      low ? "_" : "",
                      low ? dtype_name(arrays.low_dtype) : std::string_view()});
  const Current current(gpu_);
  // The driver copies the constants when the kernel is launched.
  launch(gpu_.kernels().find(rule, name),
         blocks_for(arguments.split),
         {const_cast<void*>(rule.constants), &arguments});
}

void CudaStream::multiply(const Product& product) {
  TRIREME_ASSERT(product.dtype == Dtype::kFloat32 || product.dtype == Dtype::kFloat64,
                 "matrices are multiplied in float32 or float64, found ",
                 dtype_name(product.dtype));
  constexpr Count kMostBlocks = Count{1} << 30;
  ProductArguments arguments{.rows = product.rows,
                             .columns = product.columns,
                             .depth = product.depth,
                             .a = address_of(product.a),
                             .b = address_of(product.b),
                             .c = address_of(product.c),
                             .a_transposed = product.a_transposed ? 1 : 0,
                             .b_transposed = product.b_transposed ? 1 : 0,
                             .alpha = product.alpha,
                             .beta = product.beta};
  const Count tiles = ((product.rows + kProductTile - 1) / kProductTile) *
                      ((product.columns + kProductTile - 1) / kProductTile);
  const Current current(gpu_);
  launch("product",
         detail::concat("multiply_", dtype_name(product.dtype)),
         std::min(tiles, kMostBlocks),
         arguments);
}

void CudaStream::run(const BlockKernel& kernel) {
  constexpr Count kMostBlocks = Count{1} << 30;
  const Current current(gpu_);
  // The driver copies the arguments when the kernel is launched.
  launch(gpu_.kernels().find(kernel),
         std::min<Count>(kernel.blocks, kMostBlocks),
         {const_cast<void*>(kernel.arguments)});
}

}  // namespace trireme::device::cuda
