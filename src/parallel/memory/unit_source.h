#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "device/buffer.h"
#include "trireme/comm/communicator.h"
#include "trireme/core/memory_ledger.h"

namespace trireme::detail {

// Where units that exist in parts are put together.
class UnitSource {
 public:
  virtual ~UnitSource() = default;
  // A unit, whole, until it is released. From any thread, never twice at a time for one unit.
  // Throws MemoryError and CommError.
  virtual const std::byte* acquire(std::size_t unit) = 0;
  virtual void release(std::size_t unit) = 0;
  // What is there is out of date from now on; nothing is acquired.
  virtual void outdate() {}
};

// Writes a whole unit to `to`.
using FetchUnit = std::function<void(std::size_t unit, std::byte* to)>;

struct FetchedUnits {
  std::vector<std::size_t> bytes;  // of each unit
  std::size_t limit;               // about so many bytes are kept; of a GPU's, as much again
  FetchUnit fetch;
  std::shared_ptr<MemoryLedger> ledger;
  Device device{};
};

// In memory of this rank, which goes from unit to unit.
std::unique_ptr<UnitSource> make_private_source(FetchedUnits units);

// In memory that the ranks of a machine share: whoever needs a unit first fetches it, the others
// find it there. Collective over the ranks of this one's machine; `world` outlives it.
std::unique_ptr<UnitSource> make_machine_source(Communicator& world, const FetchedUnits& units);

}  // namespace trireme::detail
