#pragma once

#include <cstdint>
#include <string>

#include "trireme/data/loader.h"
#include "trireme/data/sampler.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// How the settings want samples to be drawn and prepared. Throw ConfigError for what does not fit
// the data.
SamplerOptions sampler_options(const TrainSettings& settings,
                               std::int64_t micro_batches,
                               const SampleShape& shape);
LoaderOptions loader_options(const TrainSettings& settings);

// Throws ConfigError where a step would take more samples than an epoch has: it would hold some of
// them twice. Samples that are drawn by their class may be drawn again at any time.
void check_batch(const TrainSettings& settings, const Dataset& training_data);

// Throws ConfigError for settings that resolve() has not seen, or that were changed since: batches
// that are no multiple of the micro-batch, the rest of which nobody would train on.
void check_micro_batch(const TrainSettings& settings);

// The micro-batch that is set; 1 where it is to be found by trying ("auto").
std::int64_t first_micro_batch(const TrainSettings& settings);

// Says why micro-batches are single samples where nobody has asked for that: the batches of the
// schedule have no common divisor. Empty where they have one.
std::string single_samples(const TrainSettings& settings);

// Says where the shares of the data are not alike: what a class has in a share, beside what it
// would have if classes were spread evenly. Empty where they are.
std::string uneven_classes(const Sampler& sampler);

}  // namespace trireme::detail
