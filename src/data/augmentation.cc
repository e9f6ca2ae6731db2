#include "data/augmentation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "data/gaussian.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme::detail {
namespace {

// Keeps these numbers apart from what the sampler draws for the same place with the same seed.
constexpr std::uint64_t kAugmentKey = 0x6175676d656e74;  // "augment"

struct Plane {
  float* values;
  std::int64_t rows;
  std::int64_t columns;
  float background;
};

// Moves the picture `down` and `right` in place; background moves in.
void shift(const Plane& plane, std::int64_t down, std::int64_t right) {
  const std::int64_t kept = std::max<std::int64_t>(0, plane.columns - std::abs(right));
  for (std::int64_t i = 0; i < plane.rows; ++i) {
    // Rows are overwritten after they were moved: upwards from the bottom where they move down.
    const std::int64_t row = down > 0 ? plane.rows - 1 - i : i;
    const std::int64_t source = row - down;
    float* out = plane.values + row * plane.columns;
    if (source < 0 || source >= plane.rows || kept == 0) {
      std::fill_n(out, plane.columns, plane.background);
      continue;
    }
    const float* in = plane.values + source * plane.columns;
    std::memmove(out + std::max<std::int64_t>(right, 0),
                 in + std::max<std::int64_t>(-right, 0),
                 static_cast<std::size_t>(kept) * sizeof(float));
    std::fill_n(right > 0 ? out : out + kept, plane.columns - kept, plane.background);
  }
}

void flip(const Plane& plane) {
  for (std::int64_t row = 0; row < plane.rows; ++row) {
    float* begin = plane.values + row * plane.columns;
    std::reverse(begin, begin + plane.columns);
  }
}

// From -most to most.
std::int64_t symmetric(RandomStream& random, std::int64_t most) {
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 * most + 1))) - most;
}

void move_image(const Augmentation& augmentation,
                const SampleShape& shape,
                const std::vector<float>& background,
                RandomStream& random,
                float* image) {
  const std::int64_t down = symmetric(random, augmentation.shift);
  const std::int64_t right = symmetric(random, augmentation.shift);
  const bool flipped = augmentation.flip && random.below(2) == 1;
  for (std::int64_t channel = 0; channel < shape.dense[0]; ++channel) {
    const Plane plane{image + channel * shape.dense[1] * shape.dense[2],
                      shape.dense[1],
                      shape.dense[2],
                      background.empty() ? 0 : background[static_cast<std::size_t>(channel)]};
    if (down != 0 || right != 0) {
      shift(plane, down, right);
    }
    if (flipped) {
      flip(plane);
    }
  }
}

}  // namespace

void check_augmentation(const Augmentation& augmentation, const SampleShape& shape) {
  TRIREME_CHECK(
      augmentation.shift >= 0, "the shift cannot be negative, found ", augmentation.shift);
  TRIREME_CHECK(std::isfinite(augmentation.noise) && augmentation.noise >= 0,
                "the noise must be a finite number of 0 or more, found ",
                augmentation.noise);
  const bool moves = augmentation.shift > 0 || augmentation.flip;
  TRIREME_CHECK(!moves || (shape.kind == SampleKind::kDense && shape.dense.size() == 3),
                "shift and flip need images [channels, rows, columns], found samples of another "
                "shape: leave them out");
  TRIREME_CHECK(augmentation.noise == 0 || shape.kind == SampleKind::kDense,
                "noise needs samples of numbers, found tokens or sparse samples: leave it out");
}

void augment(const Augmentation& augmentation,
             const SampleShape& shape,
             const std::vector<float>& background,
             std::uint64_t seed,
             std::int64_t first,
             Batch& batch) {
  static const Gaussian gaussian;
  const bool moves = augmentation.shift > 0 || augmentation.flip;
  if (!moves && augmentation.noise == 0) {
    return;
  }
  const std::int64_t numel = shape.dense_numel();
  const auto deviation = static_cast<float>(augmentation.noise);
  for (std::int64_t i = 0; i < batch.samples; ++i) {
    RandomStream random(mix(seed, kAugmentKey, first + i));
    float* sample = batch.dense.data() + i * numel;
    if (moves) {
      move_image(augmentation, shape, background, random, sample);
    }
    if (augmentation.noise > 0) {
      for (std::int64_t j = 0; j < numel; ++j) {
        sample[j] += deviation * static_cast<float>(gaussian.draw(random));
      }
    }
  }
}

}  // namespace trireme::detail
