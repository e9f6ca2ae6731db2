// Layer norm, forward and backward. TRIREME_WIDTH elements are a row.
#pragma once

#include "nn/kernels/packs.cuh"

namespace trireme::nn::kernels {

constexpr int kWidth = TRIREME_WIDTH;
constexpr int kPacks = kWidth / kPack;
// A row belongs to a warp, or to a block where that would be too much for a warp's registers.
constexpr bool kNarrow = kWidth <= 1024;
constexpr int kThreads = kNarrow ? 128 : 256;  // of a block
constexpr int kGroup = kNarrow ? kLanes : kThreads;
constexpr int kMine = (kPacks + kGroup - 1) / kGroup;  // packs of a thread, at most
constexpr int kRowsOfBlock = kThreads / kGroup;
static_assert(kWidth % kPack == 0 && kMine * kPack <= 32);

// Calls body(k, column) for the packs of this thread.
template <class Body>
__forceinline__ void my_packs(const Body& body) {
  const int lane = threadIdx.x % kGroup;
#pragma unroll
  for (int k = 0; k < kMine; ++k) {
    const int pack = lane + k * kGroup;
    if (pack < kPacks) {
      body(k, pack * kPack);
    }
  }
}

__forceinline__ Count first_row() {
  return static_cast<Count>(blockIdx.x) * kRowsOfBlock + threadIdx.x / kGroup;
}

template <bool kAdds, bool kBias>
__forceinline__ void forward(const NormArguments& a) {
  const Count row = first_row();
  if (row >= a.rows) {
    return;
  }
  const Count begin = row * kWidth;
  Raw input[kMine];
  Raw branch[kMine];
  Raw bias[kMine];
  my_packs([&](int k, int column) {
    input[k] = load_raw(a.input, begin + column);
    if (kAdds) {
      branch[k] = load_raw(a.branch, begin + column);
    }
    if (kBias) {
      bias[k] = load_raw(a.bias, column);
    }
  });
  Floats values[kMine];
  float sum = 0;
  my_packs([&](int k, int column) {
    values[k] = widened(input[k]);
    if (kAdds) {
      Floats term = widened(branch[k]);
      if (kBias) {
        add_to(term, widened(bias[k]));
      }
      add_to(values[k], term);
      store(a.sum, begin + column, values[k]);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      // Backward sees the sum as it was stored.
      values[k].at[i] = kAdds ? rounded(values[k].at[i]) : values[k].at[i];
      sum += values[k].at[i];
    }
  });
  const float mean = over_group<kGroup>(sum) / kWidth;
  float squares = 0;
  my_packs([&](int k, int) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float difference = values[k].at[i] - mean;
      squares = fmaf(difference, difference, squares);
    }
  });
  const float scale = __frsqrt_rn(over_group<kGroup>(squares) / kWidth + a.epsilon);
  if (threadIdx.x % kGroup == 0) {
    reinterpret_cast<float*>(a.mean)[row] = mean;
    reinterpret_cast<float*>(a.scale)[row] = scale;
  }
  Raw weight[kMine];
  Raw offset[kMine];
  my_packs([&](int k, int column) {
    weight[k] = load_raw(a.weight, column);
    offset[k] = load_raw(a.offset, column);
  });
  my_packs([&](int k, int column) {
    const Floats factor = widened(weight[k]);
    Floats result = widened(offset[k]);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      result.at[i] = fmaf((values[k].at[i] - mean) * scale, factor.at[i], result.at[i]);
    }
    store(a.output, begin + column, result);
  });
}

// What each warp of the block has found for the columns, added in their order.
__forceinline__ void leave(Address partial, int which, const Floats (&mine)[kMine]) {
  float* const to = reinterpret_cast<float*>(partial) +
                    (static_cast<Count>(which) * gridDim.x + blockIdx.x) * kWidth;
  if constexpr (kGroup == kThreads) {
    my_packs([&](int k, int column) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        to[column + i] = mine[k].at[i];
      }
    });
  } else {
    __shared__ float sums[kWidth];
#pragma unroll 1
    for (int group = 0; group < kRowsOfBlock; ++group) {
      __syncthreads();
      if (threadIdx.x / kGroup == group) {
        my_packs([&](int k, int column) {
#pragma unroll
          for (int i = 0; i < kPack; ++i) {
            sums[column + i] = mine[k].at[i] + (group > 0 ? sums[column + i] : 0.0F);
          }
        });
      }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < kWidth; column += kThreads) {
      to[column] = sums[column];
    }
  }
}

template <bool kAdds, bool kBias>
__forceinline__ void backward(const NormGradientArguments& a) {
  Floats of_weight[kMine] = {};
  Floats of_offset[kMine] = {};
  Floats of_bias[kMine] = {};
  for (Count row = first_row(); row < a.rows; row += static_cast<Count>(gridDim.x) * kRowsOfBlock) {
    const Count begin = row * kWidth;
    const float mean = reinterpret_cast<const float*>(a.mean)[row];
    const float scale = reinterpret_cast<const float*>(a.scale)[row];
    // As they are stored, which takes half of the registers.
    Raw input[kMine];
    Raw gradient[kMine];
    Raw more[kMine];
    Raw weight[kMine];
    float sum = 0;
    float product = 0;
    my_packs([&](int k, int column) {
      input[k] = load_raw(a.input, begin + column);
      gradient[k] = load_raw(a.gradient, begin + column);
      if (kAdds) {
        more[k] = load_raw(a.sum_gradient, begin + column);
      }
      weight[k] = load_raw(a.weight, column);
    });
    my_packs([&](int k, int) {
      const Floats factor = widened(weight[k]);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float normal = (widened(Element(), input[k].at[i]) - mean) * scale;
        const float slope = widened(Element(), gradient[k].at[i]);
        const float weighted = slope * factor.at[i];
        of_weight[k].at[i] = fmaf(slope, normal, of_weight[k].at[i]);
        of_offset[k].at[i] += slope;
        sum += weighted;
        product = fmaf(weighted, normal, product);
      }
    });
    sum = over_group<kGroup>(sum) / kWidth;
    product = over_group<kGroup>(product) / kWidth;
    my_packs([&](int k, int column) {
      const Floats factor = widened(weight[k]);
      Floats result;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float normal = (widened(Element(), input[k].at[i]) - mean) * scale;
        const float weighted = widened(Element(), gradient[k].at[i]) * factor.at[i];
        const float own = (weighted - fmaf(normal, product, sum)) * scale;
        result.at[i] = kAdds ? own + widened(Element(), more[k].at[i]) : own;
        if (kBias) {
          of_bias[k].at[i] += result.at[i];
        }
      }
      store(a.result, begin + column, result);
    });
  }
  leave(a.partial, 0, of_weight);
  leave(a.partial, 1, of_offset);
  if (kBias) {
    leave(a.partial, 2, of_bias);
  }
}

}  // namespace trireme::nn::kernels

#define TRIREME_NORM(name, kind, adds, bias, type)                                         \
  extern "C" __global__ void __launch_bounds__(trireme::nn::kernels::kThreads,                \
                                               trireme::nn::kernels::kNarrow ? 3 : 1)         \
      name(const __grid_constant__ trireme::nn::kernels::type arguments) {                 \
    trireme::nn::kernels::kind<adds, bias>(arguments);                                     \
  }

TRIREME_NORM(layer_norm, forward, false, false, NormArguments)
TRIREME_NORM(add_layer_norm, forward, true, false, NormArguments)
TRIREME_NORM(add_bias_layer_norm, forward, true, true, NormArguments)
// Whether something comes to the sum from elsewhere, and whether there is a bias.
TRIREME_NORM(norm_gradient, backward, false, false, NormGradientArguments)
TRIREME_NORM(add_norm_gradient, backward, true, false, NormGradientArguments)
TRIREME_NORM(norm_gradient_bias, backward, false, true, NormGradientArguments)
TRIREME_NORM(add_norm_gradient_bias, backward, true, true, NormGradientArguments)
