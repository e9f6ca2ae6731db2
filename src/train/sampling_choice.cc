#include "train/sampling_choice.h"

#include <cmath>
#include <numeric>

#include "trireme/core/counted.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/random.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme::detail {

SamplerOptions sampler_options(const TrainSettings& s,
                               std::int64_t micro_batches,
                               const SampleShape& shape) {
  SamplerOptions options;
  options.seed = mix(s.seed, 0x73616d706c6572u);  // "sampler"
  options.sampling = s.sampling;
  options.class_weights = s.class_weights;
  const bool is_text = shape.kind == SampleKind::kTokens;
  TRIREME_CHECK(
      (s.sampling != Sampling::kBalanced && s.sampling != Sampling::kWeighted) ||
          (!is_text && shape.classes > 0),
      "sampling: expected shuffled or sequential for {}, which has no classes to draw by, found {}",
      {is_text ? "a text" : "a number to predict", value_text("sampling", s)});
  TRIREME_CHECK(s.sampling != Sampling::kWeighted ||
                    static_cast<std::int64_t>(s.class_weights.size()) == shape.classes,
                "class_weights: expected one for each of the {} classes, found {}",
                {shape.classes, s.class_weights.size()});
  if (s.partition == Partition::kHash) {
    TRIREME_CHECK(
        s.micro_batch != "auto",
        "micro_batch: with partition = hash a micro-batch belongs to a share of the data: "
        "expected a number, found auto");
    options.partition = Partition::kHash;
    options.shares = s.shares > 0 ? s.shares : micro_batches;
    TRIREME_CHECK(micro_batches % options.shares == 0,
                  "shares: expected a divisor of the {} micro-batches of a step, found {}",
                  {micro_batches, options.shares});
    for (const BatchChange& change : batch_changes(s)) {
      TRIREME_CHECK(change.batch % (s.batch / micro_batches * options.shares) == 0,
                    "batch_schedule: with partition = hash expected multiples of micro_batch x "
                    "shares = {}, found {}",
                    {s.batch / micro_batches * options.shares, change.batch});
    }
  }
  return options;
}

void check_batch(const TrainSettings& s, const Dataset& training_data) {
  if (s.sampling == Sampling::kBalanced || s.sampling == Sampling::kWeighted) {
    return;
  }
  const std::int64_t samples = training_data.size();
  std::string there = concat(counted(samples, "sample"), " to train on");
  std::string more = "or more data";
  if (training_data.shape().kind == SampleKind::kTokens) {
    there += concat(" (windows of ", counted(training_data.shape().length - 1, "token"), ")");
    more = "a shorter --sequence, or more data";
  }
  if (s.folds > 0) {
    there += concat(" (what a fold of ", s.folds, " leaves)");
  }
  const std::int64_t micro_batch = first_micro_batch(s);
  const std::int64_t fits = samples >= micro_batch ? samples / micro_batch * micro_batch : samples;
  const std::string why =
      fits < samples ? concat(" (a multiple of the micro-batch of ", micro_batch, ")") : "";
  TRIREME_CHECK(s.batch <= samples,
                "batch: expected no more than the {}, found {}, for which a step would take "
                "samples twice: use --batch {}{}{}{}",
                {there, s.batch, fits, why, fits > 1 ? " or less, " : ", ", more});
  for (const BatchChange& change : batch_changes(s)) {
    TRIREME_CHECK(change.batch <= samples,
                  "batch_schedule: expected batches of no more than the {}, found {} from step {} "
                  "on, which would take samples twice: use --batch-schedule {}:{}{}{}{}",
                  {there,
                   change.batch,
                   change.step,
                   change.step,
                   fits,
                   why,
                   fits > 1 ? " or less, " : ", ",
                   more});
  }
}

void check_micro_batch(const TrainSettings& s) {
  const std::int64_t micro_batch = first_micro_batch(s);
  TRIREME_CHECK(
      micro_batch >= 1, "micro_batch: expected a number of 1 or more, found ", s.micro_batch);
  const auto check = [&](const char* name, std::int64_t batch) {
    TRIREME_CHECK(batch >= 1 && batch % micro_batch == 0,
                  "{}: expected a multiple of micro_batch = {}, found {}: choose another one; "
                  "resolve() checks settings that are changed in a program",
                  {name, micro_batch, batch});
  };
  check("batch", s.batch);
  for (const BatchChange& change : batch_changes(s)) {
    check("batch_schedule", change.batch);
  }
}

LoaderOptions loader_options(const TrainSettings& s) {
  return {.augmentation = {.shift = static_cast<int>(s.shift), .flip = s.flip, .noise = s.noise},
          .seed = mix(s.seed, 0x6175676d656e74u),  // "augment"
          .threads = static_cast<int>(s.data_threads)};
}

std::int64_t first_micro_batch(const TrainSettings& s) {
  return parse_integer(s.micro_batch).value_or(1);  // "auto": found by trying
}

std::string single_samples(const TrainSettings& s) {
  std::int64_t common = s.batch;
  std::string batches = std::to_string(s.batch);
  for (const BatchChange& change : batch_changes(s)) {
    common = std::gcd(common, change.batch);
    batches += concat(", ", change.batch);
  }
  return common > 1 || s.batch == 1
             ? ""
             : concat(
                   "batch_schedule: the batches {} have no common divisor but 1, so "
                   "micro-batches are single samples, which takes longer: choose multiples of "
                   "16, say",
                   {batches});
}

std::string uneven_classes(const Sampler& sampler) {
  constexpr double kNotable = 2;    // times more or fewer
  constexpr double kExpected = 10;  // fewer say nothing
  const auto content = sampler.class_content();
  std::vector<double> of_class(content.empty() ? 0 : content[0].size(), 0);
  double total = 0;
  for (const auto& share : content) {
    for (std::size_t c = 0; c < share.size(); ++c) {
      of_class[c] += static_cast<double>(share[c]);
      total += static_cast<double>(share[c]);
    }
  }
  for (std::size_t s = 0; s < content.size() && content.size() > 1; ++s) {
    const double size = std::accumulate(content[s].begin(), content[s].end(), 0.0);
    for (std::size_t c = 0; c < of_class.size(); ++c) {
      const double even = of_class[c] * size / total;
      const auto found = static_cast<double>(content[s][c]);
      if (even >= kExpected && (found * kNotable < even || found > even * kNotable)) {
        return concat(
            "share {} of the data has {} of class {} where {} would be even; --sampling balanced "
            "draws classes equally often",
            {s, counted(content[s][c], "sample"), c, std::llround(even)});
      }
    }
  }
  return {};
}

}  // namespace trireme::detail
