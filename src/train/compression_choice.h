#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trireme/comm/world.h"
#include "trireme/compress/compressor.h"
#include "trireme/settings/train_settings.h"

namespace trireme::detail {

// What settings.compress stands for in this world; null: none. Says what `auto` has come to, and
// what should be known of the others. Collective.
std::shared_ptr<const Compressor> compressor_of(const TrainSettings& settings,
                                                World& world,
                                                const std::function<void(const std::string&)>& say);

}  // namespace trireme::detail
