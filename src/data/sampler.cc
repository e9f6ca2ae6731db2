#include "trireme/data/sampler.h"

#include <algorithm>
#include <cmath>

#include "data/permutation.h"
#include "data/sample_groups.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"

namespace trireme {
namespace {

// Keep what is drawn here apart from what others draw with the same seed.
constexpr std::uint64_t kDrawKey = 0x64726177;     // "draw"
constexpr std::uint64_t kShareKey = 0x7368617265;  // "share"

// The classes that can be drawn in one share, and the chance of each, summed up.
struct ClassDraw {
  std::vector<std::int64_t> classes;
  std::vector<double> chance_up_to;

  std::int64_t at(double uniform) const {
    const auto found = std::ranges::upper_bound(chance_up_to, uniform * chance_up_to.back());
    // The product can be rounded up to the last sum.
    const auto place = std::min(found - chance_up_to.begin(), std::ssize(chance_up_to) - 1);
    return classes[static_cast<std::size_t>(place)];
  }
};

bool draws_classes(Sampling sampling) {
  return sampling == Sampling::kBalanced || sampling == Sampling::kWeighted;
}

void check(const Dataset& data, const SamplerOptions& options) {
  TRIREME_CHECK(data.size() >= 1, "a sampler needs at least one sample, found none");
  TRIREME_CHECK(options.shares >= 1, "there must be at least one share, found ", options.shares);
  TRIREME_CHECK(options.partition != Partition::kUniform || options.shares == 1,
                "a uniform partition has no shares, found {}: choose kHash or kCustom",
                {options.shares});
  TRIREME_CHECK(options.partition != Partition::kCustom || options.share_of != nullptr,
                "a custom partition needs the function share_of");
  const SampleShape& shape = data.shape();
  TRIREME_CHECK(
      !draws_classes(options.sampling) || (shape.kind != SampleKind::kTokens && shape.classes > 0),
      "drawing by class needs samples with classes, found samples without: use "
      "kShuffled or kSequential");
  if (options.sampling != Sampling::kWeighted) {
    return;
  }
  TRIREME_CHECK(std::ssize(options.class_weights) == shape.classes,
                "expected a weight for each of the {} classes, found {}",
                {shape.classes, options.class_weights.size()});
  for (const double weight : options.class_weights) {
    TRIREME_CHECK(std::isfinite(weight) && weight >= 0,
                  "expected finite class weights of 0 or more, found ",
                  weight);
  }
}

}  // namespace

class Sampler::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> data, const SamplerOptions& options)
      : data_(std::move(data)), options_(options) {
    check(*data_, options_);
    if (options_.partition == Partition::kUniform && !draws_classes(options_.sampling)) {
      return;  // the samples' own numbers will do
    }
    const std::int64_t classes = draws_classes(options_.sampling) ? data_->shape().classes : 1;
    groups_ =
        detail::SampleGroups(data_->size(), options_.shares * classes, [&](std::int64_t sample) {
          return share_of(sample) * classes + (classes > 1 ? data_->label(sample) : 0);
        });
    for (std::int64_t share = 0; share < options_.shares; ++share) {
      shares_.push_back({groups_.begin(share * classes), groups_.end((share + 1) * classes - 1)});
      TRIREME_CHECK(
          shares_.back().begin < shares_.back().end,
          "share {} of {} has no sample ({} in all): use fewer shares or another partition",
          {share, options_.shares, data_->size()});
      if (draws_classes(options_.sampling)) {
        draws_.push_back(draw_in(share, classes));
      }
    }
  }

  void fill(DataPosition position,
            std::int64_t micro_batch,
            std::int64_t samples,
            std::vector<std::int64_t>& out) const {
    TRIREME_CHECK(position >= 0 && micro_batch >= 0 && samples >= 0,
                  "position, micro-batch and samples cannot be negative, found {}, {} and {}",
                  {position, micro_batch, samples});
    // Every share is a stream of its own, and a step takes the same from each. Without shares there
    // is one stream, and the formulas are those of a single share.
    const std::int64_t share = micro_batch % options_.shares;
    const std::int64_t first = position / options_.shares + micro_batch / options_.shares * samples;
    out.clear();
    if (draws_classes(options_.sampling)) {
      for (std::int64_t i = first; i < first + samples; ++i) {
        out.push_back(drawn(share, i));
      }
      return;
    }
    const std::int64_t begin = shares_.empty() ? 0 : member_range(share).begin;
    const std::int64_t n = share_samples(share);
    for (std::int64_t i = first; i < first + samples;) {
      const std::int64_t epoch = i / n;
      const std::int64_t end = std::min(first + samples, (epoch + 1) * n);
      if (options_.sampling == Sampling::kSequential) {
        for (; i < end; ++i) {
          out.push_back(sample_at(begin + (i - epoch * n)));
        }
        continue;
      }
      const detail::Permutation order(n, order_key(epoch, share));
      for (; i < end; ++i) {
        out.push_back(sample_at(begin + order.at(i - epoch * n)));
      }
    }
  }

  std::int64_t epoch_samples() const {
    std::int64_t longest = 0;
    for (std::int64_t share = 0; share < options_.shares; ++share) {
      longest = std::max(longest, share_samples(share));
    }
    return longest * options_.shares;
  }

  std::vector<std::vector<std::int64_t>> class_content() const {
    const SampleShape& shape = data_->shape();
    if (shape.kind == SampleKind::kTokens || shape.classes == 0) {
      return {};
    }
    std::vector<std::vector<std::int64_t>> content;
    for (std::int64_t share = 0; share < options_.shares; ++share) {
      std::vector<std::int64_t>& counts = content.emplace_back(shape.classes, 0);
      const std::int64_t begin = shares_.empty() ? 0 : member_range(share).begin;
      for (std::int64_t place = begin; place < begin + share_samples(share); ++place) {
        ++counts[static_cast<std::size_t>(data_->label(sample_at(place)))];
      }
    }
    return content;
  }

 private:
  struct MemberRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  std::int64_t share_of(std::int64_t sample) const {
    if (options_.partition == Partition::kUniform) {
      return 0;
    }
    if (options_.partition == Partition::kHash) {
      // No seed: a sample stays in its share from run to run.
      return static_cast<std::int64_t>(mix(kShareKey, sample) %
                                       static_cast<std::uint64_t>(options_.shares));
    }
    const std::int64_t share = options_.share_of(sample);
    TRIREME_CHECK(share >= 0 && share < options_.shares,
                  "share_of must return a share from 0 to {}, found {} for sample {}",
                  {options_.shares - 1, share, sample});
    return share;
  }

  ClassDraw draw_in(std::int64_t share, std::int64_t classes) const {
    ClassDraw draw;
    double sum = 0;
    for (std::int64_t label = 0; label < classes; ++label) {
      const double weight = options_.sampling == Sampling::kBalanced
                                ? 1
                                : options_.class_weights[static_cast<std::size_t>(label)];
      const std::int64_t group = share * classes + label;
      // A class that is not there cannot be drawn; the others take its part.
      if (weight > 0 && groups_.begin(group) < groups_.end(group)) {
        sum += weight;
        draw.classes.push_back(label);
        draw.chance_up_to.push_back(sum);
      }
    }
    TRIREME_CHECK(sum > 0,
                  "expected a class with samples and a weight above 0",
                  options_.shares > 1 ? detail::concat(" in share ", share) : "",
                  ", found none: there is nothing to draw from");
    return draw;
  }

  std::int64_t drawn(std::int64_t share, std::int64_t i) const {
    RandomStream random(mix(options_.seed, kDrawKey, share, i));
    const std::int64_t classes = data_->shape().classes;
    const std::int64_t group =
        share * classes + draws_[static_cast<std::size_t>(share)].at(random.uniform());
    const std::int64_t begin = groups_.begin(group);
    const auto count = static_cast<std::uint64_t>(groups_.end(group) - begin);
    return groups_.member(begin + static_cast<std::int64_t>(random.below(count)));
  }

  // Shares of equal length do not walk through their members in step.
  std::uint64_t order_key(std::int64_t epoch, std::int64_t share) const {
    return shares_.empty() ? mix(options_.seed, epoch) : mix(options_.seed, epoch, share);
  }

  const MemberRange& member_range(std::int64_t share) const {
    return shares_[static_cast<std::size_t>(share)];
  }
  std::int64_t share_samples(std::int64_t share) const {
    return shares_.empty() ? data_->size() : member_range(share).end - member_range(share).begin;
  }
  std::int64_t sample_at(std::int64_t place) const {
    return shares_.empty() ? place : groups_.member(place);
  }

  std::shared_ptr<const Dataset> data_;
  SamplerOptions options_;
  // Empty where there is one share and no drawing by class.
  detail::SampleGroups groups_;      // by share, and in it by class where classes are drawn
  std::vector<MemberRange> shares_;  // the groups of each share, side by side
  std::vector<ClassDraw> draws_;     // of each share
};

Sampler::Sampler(std::shared_ptr<const Dataset> data, const SamplerOptions& options)
    : impl_(std::make_shared<const Impl>(std::move(data), options)) {}

void Sampler::fill(DataPosition position,
                   std::int64_t micro_batch,
                   std::int64_t samples,
                   std::vector<std::int64_t>& out) const {
  impl_->fill(position, micro_batch, samples, out);
}

std::int64_t Sampler::epoch_samples() const {
  return impl_->epoch_samples();
}

double Sampler::epoch_at(DataPosition position) const {
  return static_cast<double>(position) / static_cast<double>(impl_->epoch_samples());
}

std::vector<std::vector<std::int64_t>> Sampler::class_content() const {
  return impl_->class_content();
}

}  // namespace trireme
