#pragma once

namespace trireme {

// Of an elastic job: each rank may have two descriptors under way in one message.
inline constexpr int kMostElasticRanks = 120;

}  // namespace trireme
