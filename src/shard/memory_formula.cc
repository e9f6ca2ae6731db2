#include "trireme/shard/memory_formula.h"

#include "trireme/core/error.h"

namespace trireme {

MemoryShare memory_share(int stage, int world, std::int64_t numel, const ElementBytes& bytes) {
  TRIREME_CHECK(stage >= 0 && stage <= 3, "ZeRO has stages 0 (DDP) to 3, found ", stage);
  TRIREME_CHECK(world >= 1, "a world has at least one rank, found ", world);
  const auto whole = static_cast<double>(numel);
  const double share = whole / world;
  return {bytes.parameter * (stage >= 3 ? share : whole),
          bytes.gradient * (stage >= 2 ? share : whole),
          bytes.optimizer * (stage >= 1 ? share : whole)};
}

}  // namespace trireme
