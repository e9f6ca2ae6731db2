// Stage 3 on one machine: every unit is one run of memory that all ranks map, and each rank owns a
// range of it.

#include <algorithm>
#include <cstring>

#include "parallel/live_units.h"
#include "parallel/same_on_all_ranks.h"
#include "parallel/unit_storage.h"

namespace trireme::detail {
namespace {

// What both placements have in common.
//
// Note [shared updates]
// No rank writes before every rank is in step() and reads no more (begin_update), and none reads
// before every rank has written (finish_update).
class SharedUnits : public ParameterMemory {
 public:
  explicit SharedUnits(const ParameterMemoryContext& context)
      : context_(context), runs_(context.units.size()) {}

  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.units[unit_index];
    Run& run = runs_[unit_index];
    const auto size = static_cast<std::size_t>(context_.ranks.size());
    const std::size_t page = SharedBuffer::page_bytes();
    // Equal parts in whole pages, so that together they are one run.
    const std::size_t part = ((unit.bytes() + size - 1) / size + page - 1) / page * page;
    run.shared = context_.ranks.allocate(part);
    run.charge = context_.ledger.charge(
        MemoryCategory::kParameters,
        static_cast<std::size_t>(mine(unit_index).size()) * element(unit_index));
    if (context_.ranks.rank() == 0) {
      run.rounding = context_.ledger.charge(MemoryCategory::kRounding, part * size - unit.bytes());
    }
    all_or_none(context_.ranks, [&] {
      if (context_.ranks.rank() == 0) {
        flatten(unit, context_.parameters, run.shared.whole());
      }
    });
    all_or_none(context_.ranks, [&] {  // a mapping may be one too many for a rank
      for (const std::size_t parameter : unit.parameters) {
        attach(parameter);
      }
    });
  }

  std::byte* owned(std::size_t unit) override {
    return runs_[unit].shared.whole() + offset(unit, mine(unit).begin);
  }
  void begin_update() override { context_.ranks.barrier().wait(); }
  void updated(std::size_t) override {}
  void finish_update() override { context_.ranks.barrier().wait(); }

  void read(std::size_t unit, Range range, std::byte* to) override {
    if (range.empty()) {
      return;  // of which there may be no memory
    }
    std::memcpy(to,
                runs_[unit].shared.whole() + offset(unit, range.begin),
                static_cast<std::size_t>(range.size()) * element(unit));
  }

  void write(std::size_t unit, Range range, const std::byte* from) override {
    const Range own = intersection(range, mine(unit));
    if (!own.empty()) {
      std::memcpy(runs_[unit].shared.whole() + offset(unit, own.begin),
                  from + offset(unit, own.begin - range.begin),
                  static_cast<std::size_t>(own.size()) * element(unit));
    }
  }

 protected:
  struct Run {
    SharedBuffer shared;
    MemoryLedger::Charge charge;
    MemoryLedger::Charge rounding;
  };

  Range mine(std::size_t unit) const {
    return context_.units[unit].ranges[static_cast<std::size_t>(context_.ranks.rank())];
  }
  std::size_t element(std::size_t unit) const { return dtype_bytes(context_.units[unit].dtype); }
  std::size_t offset(std::size_t unit, std::int64_t begin) const {
    return static_cast<std::size_t>(begin) * element(unit);
  }

  ParameterMemoryContext context_;
  std::vector<Run> runs_;
};

// Tensors see the run itself, through a mapping that cannot be written.
class MappedMemory final : public SharedUnits {
 public:
  explicit MappedMemory(const ParameterMemoryContext& context)
      : SharedUnits(context), storages_(context.units.size()) {}

  void attach(std::size_t parameter) override {
    const Place& place = context_.places[parameter];
    const Unit& unit = context_.units[place.unit];
    UnitStorage& storage = storages_[place.unit];
    if (!storage.storage()) {
      const SharedBuffer& shared = runs_[place.unit].shared;
      storage =
          UnitStorage(const_cast<std::byte*>(shared.whole_read_only()),
                      unit.bytes(),
                      std::make_shared<AlwaysPresent>(UnitNames(unit, context_.parameters),
                                                      std::make_shared<const SharedBuffer>(shared),
                                                      context_.engine));
    }
    storage.attach(unit, place.index, context_.parameters[parameter]);
  }

 private:
  std::vector<UnitStorage> storages_;
};

// Tensors see private copies, made when they are used.
class CopiedMemory final : public SharedUnits {
 public:
  explicit CopiedMemory(const ParameterMemoryContext& context)
      : SharedUnits(context),
        live_(make_live_units(context, [&](std::vector<std::size_t> bytes, std::size_t limit) {
          return make_private_source(
              std::move(bytes),
              limit,
              [this](std::size_t unit, std::byte* to) {
                read(unit, {0, context_.units[unit].layout.total_numel()}, to);
              },
              context.ledger.shared_from_this());
        })) {}
  ~CopiedMemory() override { live_->close(); }
  CopiedMemory(const CopiedMemory&) = delete;
  CopiedMemory& operator=(const CopiedMemory&) = delete;

  void finish_update() override {
    live_->drop_all();
    SharedUnits::finish_update();
  }

  void end_of_step() override { live_->end_of_step(); }

  void attach(std::size_t parameter) override {
    const Place& place = context_.places[parameter];
    live_->storage(place.unit)
        .attach(context_.units[place.unit], place.index, context_.parameters[parameter]);
  }

 private:
  std::shared_ptr<LiveUnits> live_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_mapped_memory(const ParameterMemoryContext& context) {
  return std::make_unique<MappedMemory>(context);
}

std::unique_ptr<ParameterMemory> make_copied_memory(const ParameterMemoryContext& context) {
  return std::make_unique<CopiedMemory>(context);
}

}  // namespace trireme::detail
