#pragma once

#include <string>

#include "trireme/comm/world.h"
#include "trireme/settings/train_settings.h"

namespace trireme::worker {

// Replaces --compress auto by what it comes to, which is found once in a run and recorded with its
// settings: one that goes on has what it began with. Returns what rank 0 is to say about it;
// nothing where it is not auto. Collective.
std::string settle_compression(TrainSettings& settings, World& world, bool goes_on);

}  // namespace trireme::worker
