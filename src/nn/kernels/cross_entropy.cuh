// Softmax and cross entropy of rows of scores, in place. A block has a row, which it reads twice: it
// is in the GPU's cache then.
#pragma once

#include "nn/kernels/packs.cuh"

namespace trireme::nn::kernels {

constexpr int kRowThreads = 512;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kSmallest = -1.0e38F;  // its product with kLog2E is finite

// The largest of some numbers, and the sum of the exponentials of their differences from it.
struct Exponentials {
  float largest = kSmallest;
  float sum = 0;
};

// Calls use(at, scores from `at` on) for the packs of this thread before `end`.
template <class Use>
__forceinline__ void my_scores(const CrossEntropyArguments& a, Count end, const Use& use) {
  constexpr int kTogether = 4;
  constexpr Count kStep = kRowThreads * kPack;
  const Count begin = blockIdx.x * a.stride;
  Count at = threadIdx.x * kPack;
  for (; at + (kTogether - 1) * kStep < end; at += kTogether * kStep) {
    Raw some[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      some[k] = load_raw(a.scores, begin + at + k * kStep);
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      use(at + k * kStep, widened(some[k]));
    }
  }
  for (; at < end; at += kStep) {
    use(at, load(a.scores, begin + at));
  }
}

__forceinline__ float power(float x) { return exp2f(x); }

__forceinline__ Exponentials merged(const Exponentials& a, const Exponentials& b) {
  Exponentials both;
  both.largest = fmaxf(a.largest, b.largest);
  both.sum = a.sum * power((a.largest - both.largest) * kLog2E) +
             b.sum * power((b.largest - both.largest) * kLog2E);
  return both;
}

__forceinline__ Exponentials over_row(Exponentials mine) {
  __shared__ Exponentials warps[kRowThreads / kLanes];
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    // The same on both sides: a merge does not ask which comes first.
    mine = merged(mine,
                  {__shfl_xor_sync(0xFFFFFFFFU, mine.largest, step),
                   __shfl_xor_sync(0xFFFFFFFFU, mine.sum, step)});
  }
  if (threadIdx.x % kLanes == 0) {
    warps[threadIdx.x / kLanes] = mine;
  }
  __syncthreads();
  mine = warps[0];
  for (int warp = 1; warp < kRowThreads / kLanes; ++warp) {
    mine = merged(mine, warps[warp]);
  }
  return mine;
}

__forceinline__ void cross_entropy_of_row(const CrossEntropyArguments& a) {
  const Count row = blockIdx.x;
  const Count begin = row * a.stride;
  const Count target = reinterpret_cast<const Count*>(a.targets)[row];
  const bool counts = target != a.ignored;
  if (counts && (target < 0 || target >= a.words)) {
    if (threadIdx.x == 0) {
      printf("trireme::nn::linear_cross_entropy: expected targets from 0 to %lld, or %lld for none, "
             "found %lld\n", a.words - 1, a.ignored, target);
    }
    __trap();
  }
  Exponentials mine;
  if (counts) {
    my_scores(a, a.words, [&](Count at, Floats scores) {
      float largest = kSmallest;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        scores.at[i] = at + i < a.words ? scores.at[i] : kSmallest;
        largest = fmaxf(largest, scores.at[i]);
      }
      if (largest > mine.largest) {
        mine.sum *= power((mine.largest - largest) * kLog2E);
        mine.largest = largest;
      }
      const float shift = mine.largest * kLog2E;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        mine.sum += power(fmaf(scores.at[i], kLog2E, -shift));
      }
    });
    mine = over_row(mine);
    if (threadIdx.x == 0) {
      const Stored score = reinterpret_cast<const Stored*>(a.scores)[begin + target];
      reinterpret_cast<float*>(a.losses)[row] =
          logf(mine.sum) + (mine.largest - widened(Element(), score));
    }
    __syncthreads();  // that score is overwritten now
  } else if (threadIdx.x == 0) {
    reinterpret_cast<float*>(a.losses)[row] = 0;
  }
  const float share = 1.0F / mine.sum;
  const float shift = mine.largest * kLog2E;
  my_scores(a, a.stride, [&](Count at, Floats scores) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float part = power(fmaf(scores.at[i], kLog2E, -shift)) * share;
      const float slope = at + i == target ? part - 1.0F : part;
      scores.at[i] = counts && at + i < a.words ? slope : 0.0F;
    }
    store(a.scores, begin + at, scores);
  });
}

}  // namespace trireme::nn::kernels

extern "C" __global__ void __launch_bounds__(512)
    cross_entropy(const __grid_constant__ trireme::nn::kernels::CrossEntropyArguments arguments) {
  trireme::nn::kernels::cross_entropy_of_row(arguments);
}
