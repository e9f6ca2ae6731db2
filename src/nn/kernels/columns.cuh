// Kernels in which a thread keeps to its columns: it adds up what there is in them in every eighth
// row of its block's. Blocks are [columns / (32 packs), any number].
#pragma once

#include "nn/kernels/packs.cuh"

namespace trireme::nn::kernels {

constexpr int kThreads = 256;  // of a block
constexpr int kRowsOfBlock = kThreads / kLanes;

__forceinline__ Count my_column() {
  return (static_cast<Count>(blockIdx.x) * kLanes + threadIdx.x % kLanes) * kPack;
}

// Calls use(row, read(row)) for the rows of this thread, and reads several before it uses them.
template <class Read, class Use>
__forceinline__ void my_rows(Count rows, const Read& read, const Use& use) {
  constexpr int kTogether = 4;
  const Count step = static_cast<Count>(gridDim.y) * kRowsOfBlock;
  Count row = static_cast<Count>(blockIdx.y) * kRowsOfBlock + threadIdx.x / kLanes;
  for (; row + (kTogether - 1) * step < rows; row += kTogether * step) {
    decltype(read(row)) some[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      some[k] = read(row + k * step);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      use(row + k * step, some[k]);
    }
  }
  for (; row < rows; row += step) {
    use(row, read(row));
  }
}

// The sums of the block's columns, to row blockIdx.y of `partial`.
__forceinline__ void leave(Address partial, Count width, const Floats& mine) {
  __shared__ float sums[kRowsOfBlock][kLanes * kPack];
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    sums[threadIdx.x / kLanes][lane * kPack + i] = mine.at[i];
  }
  __syncthreads();
  const Count begin = static_cast<Count>(blockIdx.x) * kLanes * kPack;
  for (int k = threadIdx.x; k < kLanes * kPack && begin + k < width; k += kThreads) {
    float sum = 0;
    for (int row = 0; row < kRowsOfBlock; ++row) {
      sum += sums[row][k];
    }
    reinterpret_cast<float*>(partial)[static_cast<Count>(blockIdx.y) * width + begin + k] = sum;
  }
}

// x / (1 + exp(-2 z)), which is x (1 + tanh z) / 2 without its cancellation.
constexpr float kRoot = 0.7978845608028654F;  // of 2 / pi
constexpr float kCubic = 0.044715F;

template <class T>
__forceinline__ float exponential(T, float x) { return __expf(x); }  // of 16-bit elements
__forceinline__ float exponential(device::cuda::Plain<float>, float x) { return expf(x); }

__forceinline__ float half_of_gelu(float x) {
  const float twice = 2 * kRoot * x * fmaf(kCubic * x, x, 1.0F);
  return __fdividef(1.0F, 1.0F + exponential(Element(), -twice));
}

__forceinline__ void gelu_forward(const GeluArguments& a) {
  const Count column = my_column();
  if (column >= a.width) {
    return;
  }
  const Floats bias = load(a.bias, column);
  my_rows(
      a.rows,
      [&](Count row) { return load_raw(a.input, row * a.width + column); },
      [&](Count row, const Raw& raw) {
        Floats values = widened(raw);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          const float x = values.at[i] + bias.at[i];
          values.at[i] = x * half_of_gelu(x);
        }
        store(a.output, row * a.width + column, values);
      });
}

__forceinline__ void gelu_backward(const GeluArguments& a) {
  const Count column = my_column();
  Floats sum = {};
  if (column < a.width) {
    const Floats bias = load(a.bias, column);
    struct Both {
      Raw input, gradient;
    };
    my_rows(
        a.rows,
        [&](Count row) {
          return Both{load_raw(a.input, row * a.width + column),
                      load_raw(a.gradient, row * a.width + column)};
        },
        [&](Count row, const Both& both) {
          Floats values = widened(both.input);
          const Floats gradient = widened(both.gradient);
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            const float x = values.at[i] + bias.at[i];
            const float part = half_of_gelu(x);
            const float slope = 2 * kRoot * fmaf(3 * kCubic * x, x, 1.0F);  // of twice z
            values.at[i] = gradient.at[i] * fmaf(x * slope, part * (1.0F - part), part);
          }
          add_to(sum, values);
          store(a.output, row * a.width + column, values);
        });
  }
  leave(a.partial, a.width, sum);
}

__forceinline__ void pack(const PackArguments& a) {
  const Count column = my_column();
  const Count width = 3 * a.width;
  Floats sum = {};
  if (column < width) {
    const Count which = column / a.width;
    const Address from = which == 0 ? a.parts[0] : which == 1 ? a.parts[1] : a.parts[2];
    const Count there = column - which * a.width;
    my_rows(
        a.rows,
        [&](Count row) { return load_raw(from, row * a.width + there); },
        [&](Count row, const Raw& raw) {
          const Floats values = widened(raw);
          add_to(sum, values);
          store(a.output, row * width + column, values);
        });
  }
  leave(a.partial, width, sum);
}

// A block has 32 columns; eight threads share the rows of each.
template <class To>
__forceinline__ void add_up(const PartialArguments& a) {
  __shared__ float sums[kRowsOfBlock][kLanes];
  const int lane = threadIdx.x % kLanes;
  const int part = threadIdx.x / kLanes;
  const Count column = static_cast<Count>(blockIdx.x) * kLanes + lane;
  const float* const from =
      reinterpret_cast<const float*>(a.partial) + blockIdx.y * a.blocks * a.width;
  float sum = 0;
  if (column < a.width) {
#pragma unroll 8
    for (Count block = part; block < a.blocks; block += kRowsOfBlock) {
      sum += from[block * a.width + column];
    }
  }
  sums[part][lane] = sum;
  __syncthreads();
  if (part == 0 && column < a.width) {
    for (int row = 1; row < kRowsOfBlock; ++row) {
      sum += sums[row][lane];
    }
    const Address to = blockIdx.y == 0 ? a.outputs[0] : blockIdx.y == 1 ? a.outputs[1] : a.outputs[2];
    reinterpret_cast<Stored*>(to)[column] = narrowed(Element(), sum);
  }
}

// From float32 or from elements.
template <class From>
__forceinline__ void scale(const ScaleArguments& a) {
  const float factor = *reinterpret_cast<const float*>(a.factor);
  const Count element = (static_cast<Count>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  if (element < a.numel) {
    const auto pack =
        device::cuda::load_pack<typename From::Stored, kPack>(a.input, element);
    Floats values;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      values.at[i] = widened(From(), pack.at[i]) * factor;
    }
    store(a.output, element, values);
  }
}

}  // namespace trireme::nn::kernels

#define TRIREME_COLUMNS(name, type, call)                                              \
  extern "C" __global__ void __launch_bounds__(256)                                    \
      name(const __grid_constant__ trireme::nn::kernels::type arguments) {             \
    using namespace trireme::nn::kernels;                                              \
    call(arguments);                                                                   \
  }

TRIREME_COLUMNS(gelu, GeluArguments, gelu_forward)
TRIREME_COLUMNS(gelu_gradient, GeluArguments, gelu_backward)
TRIREME_COLUMNS(pack_gradients, PackArguments, pack)
TRIREME_COLUMNS(add_partial, PartialArguments, add_up<Element>)
TRIREME_COLUMNS(scale_elements, ScaleArguments, scale<Element>)
TRIREME_COLUMNS(scale_sums, ScaleArguments, scale<trireme::device::cuda::Plain<float>>)
