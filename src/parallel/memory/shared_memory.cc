// Stage 3 on one machine, on the host or on GPUs: every unit is one run of memory that all ranks
// map, and each rank owns a range of it.

#include "parallel/memory/live_units.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"

namespace trireme::detail {
namespace {

// What both placements have in common.
//
// Note [shared updates]
// No rank writes before every rank is in step() and reads no more (begin_update), and none reads
// before every rank has written (finish_update). On a GPU that is said of what has been done, not
// of what has been issued: no kernel waits for another rank's.
class SharedUnits : public ParameterMemory {
 public:
  // `keeps_coded`: rounded parameters are kept as bytes, and decoded for use.
  SharedUnits(const PartContext& context, bool keeps_coded)
      : context_(context), keeps_coded_(keeps_coded), runs_(context.plan.units.size()) {}

  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.plan.units[unit_index];
    const Device device = context_.plan.device;
    Run& run = runs_[unit_index];
    const RoundedUnit* const coded = coded_as(unit_index);
    const std::size_t bytes = coded != nullptr ? coded->bytes() : unit.bytes();
    run.shared = context_.owners.allocate_run(bytes_by_owner(unit_index), device);
    run.whole = coded != nullptr
                    ? Span(run.shared.whole(), static_cast<std::int64_t>(bytes), Dtype::kUint8)
                    : Span(run.shared.whole(), unit.layout.total_numel(), unit.dtype, {}, device);
    run.charge = context_.ledger.charge(MemoryCategory::kParameters, run.shared.size_bytes());
    if (context_.owners.rank() == 0) {
      run.rounding =
          context_.ledger.charge(MemoryCategory::kRounding, run.shared.taken_bytes() - bytes);
    }
    if (device.is_host()) {
      on_all_ranks(context_.owners, [&] {
        if (context_.owners.rank() == 0) {
          take_values(unit_index);
        }
      });
    } else {
      fetch_values(unit_index);
    }
    on_all_ranks(context_.owners, [&] {  // a mapping may be one too many for a rank
      for (const std::size_t parameter : unit.parameters) {
        attach(parameter);
      }
    });
  }

  Span owned(std::size_t unit) override { return part_of(runs_[unit].whole, mine(unit)); }
  void begin_update() override { meet(); }
  void round(std::size_t unit, Range range, const float* masters) override {
    const RoundedUnit& rounding = *context_.plan.units[unit].rounding;
    std::byte* const whole = runs_[unit].whole.bytes();
    if (coded_as(unit) != nullptr) {
      rounding.encode(range, masters, whole + rounding.begin(range.begin));
    } else {
      rounding.round(range, masters, reinterpret_cast<float*>(whole) + range.begin);
    }
  }
  void updated(std::size_t) override {}
  void finish_update() override { meet(); }

  void read(std::size_t unit, Range range, const Span& to) override {
    issue_read(unit, range, to);
    finish_work(context_.plan.device);
  }

  void write(std::size_t unit, Range range, const ConstSpan& from) override {
    const Range own = intersection(range, mine(unit));
    if (!own.empty()) {
      const Span to = part_of(runs_[unit].whole, own);
      stream_for(to, from).copy(to,
                                part_of(from, {own.begin - range.begin, own.end - range.begin}));
      finish_work(context_.plan.device);  // `from` may go
    }
  }

 protected:
  struct Run {
    SharedBuffer shared;
    Span whole;
    MemoryLedger::Charge charge;
    MemoryLedger::Charge rounding;
  };

  Range mine(std::size_t unit) const { return context_.plan.ownership.mine(unit); }

  // As `read`; on a GPU only issued, on the stream on which the elements are used.
  void issue_read(std::size_t unit, Range range, const Span& to) {
    if (const RoundedUnit* const coded = coded_as(unit)) {
      coded->decode(range,
                    runs_[unit].whole.bytes() + coded->begin(range.begin),
                    reinterpret_cast<float*>(to.bytes()));
    } else {
      const ConstSpan from = part_of(runs_[unit].whole, range);
      stream_for(to, from).copy(to, from);
    }
  }

  PartContext context_;
  bool keeps_coded_;
  std::vector<Run> runs_;

 private:
  // Null where the run has the values themselves.
  const RoundedUnit* coded_as(std::size_t unit) const {
    return keeps_coded_ ? context_.plan.units[unit].rounding.get() : nullptr;
  }

  Counts bytes_by_owner(std::size_t unit) const {
    if (const RoundedUnit* const coded = coded_as(unit)) {
      return coded->counts(context_.plan.ownership.ranges(unit));
    }
    Counts bytes = context_.plan.ownership.counts(unit);
    for (std::int64_t& part : bytes) {
      part *= static_cast<std::int64_t>(dtype_bytes(context_.plan.units[unit].dtype));
    }
    return bytes;
  }

  // This rank's work is done, and that of all others.
  void meet() {
    finish_work(context_.plan.device);
    context_.owners.barrier().wait();
  }

  // From the model's tensors.
  void take_values(std::size_t unit_index) {
    const Unit& unit = context_.plan.units[unit_index];
    const Span& whole = runs_[unit_index].whole;
    if (!unit.rounding) {
      flatten(unit, context_.plan.parameters, whole);
      return;
    }
    const Range all{0, unit.layout.total_numel()};
    const device::Buffer memory(unit.bytes());
    flatten(unit, context_.plan.parameters, {memory.data(), all.end, unit.dtype});
    round(unit_index, all, reinterpret_cast<const float*>(memory.data()));
  }

  // The same on a GPU, where nobody can write what others own: rank 0 shows its values, for as long
  // as that takes.
  void fetch_values(std::size_t unit_index) {
    const Unit& unit = context_.plan.units[unit_index];
    const Device device = context_.plan.device;
    Counts all(static_cast<std::size_t>(context_.owners.size()), 0);
    all.front() = static_cast<std::int64_t>(unit.bytes());
    const SharedBuffer shown = context_.owners.allocate_run(all, device);
    const Span values(shown.whole(), unit.layout.total_numel(), unit.dtype, {}, device);
    on_all_ranks(context_.owners, [&] {
      if (context_.owners.rank() == 0) {
        flatten(unit, context_.plan.parameters, values);
        finish_work(device);
      }
    });
    write(unit_index, {0, values.numel()}, values);
    context_.owners.barrier().wait();
  }
};

// Tensors see the run itself, through a mapping that cannot be written.
class MappedMemory final : public SharedUnits {
 public:
  explicit MappedMemory(const PartContext& context)
      : SharedUnits(context, /*keeps_coded=*/false), storages_(context.plan.units.size()) {}

  void attach(std::size_t parameter) override {
    const Place& place = context_.plan.places[parameter];
    const Unit& unit = context_.plan.units[place.unit];
    UnitStorage& storage = storages_[place.unit];
    if (!storage.storage()) {
      const SharedBuffer& shared = runs_[place.unit].shared;
      storage =
          UnitStorage(const_cast<std::byte*>(shared.whole_read_only()),
                      unit.bytes(),
                      std::make_shared<AlwaysPresent>(UnitNames(unit, context_.plan.parameters),
                                                      std::make_shared<const SharedBuffer>(shared),
                                                      context_.engine),
                      context_.plan.device);
    }
    storage.attach(unit, place.index, context_.plan.parameters[parameter]);
  }

 private:
  std::vector<UnitStorage> storages_;
};

// Tensors see private copies, made when they are used.
class CopiedMemory final : public SharedUnits {
 public:
  explicit CopiedMemory(const PartContext& context)
      : SharedUnits(context, /*keeps_coded=*/true),
        live_(make_live_units(context, [&](std::vector<std::size_t> bytes, std::size_t limit) {
          const auto fetch = [this](std::size_t unit, std::byte* to) {
            const Unit& its = context_.plan.units[unit];
            const std::int64_t numel = its.layout.total_numel();
            issue_read(unit, {0, numel}, {to, numel, its.dtype, {}, context_.plan.device});
          };
          return make_private_source({std::move(bytes),
                                      limit,
                                      fetch,
                                      context.ledger.shared_from_this(),
                                      context.plan.device});
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
    const Place& place = context_.plan.places[parameter];
    live_->storage(place.unit)
        .attach(context_.plan.units[place.unit], place.index, context_.plan.parameters[parameter]);
  }

 private:
  std::shared_ptr<LiveUnits> live_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_mapped_memory(const PartContext& context) {
  return std::make_unique<MappedMemory>(context);
}

std::unique_ptr<ParameterMemory> make_copied_memory(const PartContext& context) {
  return std::make_unique<CopiedMemory>(context);
}

}  // namespace trireme::detail
