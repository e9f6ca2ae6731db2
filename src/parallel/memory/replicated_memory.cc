#include <deque>

#include "device/buffer.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"

namespace trireme::detail {

void flatten(const Unit& unit, const std::vector<Parameter>& parameters, const Span& flat) {
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < unit.parameters.size(); ++index) {
    const Parameter& parameter = parameters[unit.parameters[index]];
    if (parameter.numel > 0) {
      const std::int64_t offset = unit.layout.offset(index);
      const Span to = part_of(flat, {offset, offset + parameter.numel});
      // copy_ also casts, where the engine's precision is not the model's.
      view_of(parameter, to.bytes(), scalar_type_of(flat.dtype()), {}, flat.device())
          .copy_(real_values(parameter));
    }
  }
}

std::unique_ptr<ParameterMemory> make_parameter_memory(const PartContext& context) {
  std::unique_ptr<ParameterMemory> memory;
  const ParameterHome home = context.plan.ownership.home();
  if (!context.plan.device.is_host() && home != ParameterHome::kReplicated) {
    return make_divided_memory(context);
  }
  if (home == ParameterHome::kScattered) {
    return make_scattered_memory(context);  // in which the ranks agree anyway
  }
  on_all_ranks(context.ranks, [&] {
    memory = home == ParameterHome::kReplicated ? make_replicated_memory(context)
             : home == ParameterHome::kCopied   ? make_copied_memory(context)
                                                : make_mapped_memory(context);
  });
  return memory;
}

namespace {

class ReplicatedMemory final : public ParameterMemory {
 public:
  explicit ReplicatedMemory(const PartContext& context)
      : context_(context),
        divided_(context.plan.ownership.divides_states() && context.owners.size() > 1),
        units_(context.plan.units.size()) {}
  ReplicatedMemory(const ReplicatedMemory&) = delete;
  ReplicatedMemory& operator=(const ReplicatedMemory&) = delete;
  // After an update that failed, what the ranks have begun goes on, and keeps the memory it uses.
  ~ReplicatedMemory() override {
    for (Work& work : on_their_way_) {
      work.forget();
    }
  }

  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.plan.units[unit_index];
    const std::int64_t numel = unit.layout.total_numel();
    UnitMemory& memory = units_[unit_index];
    const Device device = context_.plan.device;
    const bool shared = divided_ || !device.is_host();  // on a GPU, also to be broadcast
    if (shared) {
      const SharedBuffer buffer = context_.owners.allocate(unit.bytes(), device);
      memory.run = {
          buffer.data(), numel, unit.dtype, std::make_shared<const SharedBuffer>(buffer), device};
    }
    on_all_ranks(context_.owners, [&] {
      if (!shared) {
        const auto own = std::make_shared<device::Buffer>(unit.bytes());
        memory.run = {own->data(), numel, unit.dtype, own};
      }
      if (context_.owners.rank() == 0) {
        flatten(unit, context_.plan.parameters, memory.run);
      }
    });
    memory.charge = context_.ledger.charge(MemoryCategory::kParameters, unit.bytes());
    context_.owners.broadcast(memory.run, 0).wait();
    memory.storage = UnitStorage(
        memory.run.bytes(),
        unit.bytes(),
        std::make_shared<AlwaysPresent>(
            UnitNames(unit, context_.plan.parameters), memory.run.owner(), context_.engine),
        device);
    for (const std::size_t parameter : unit.parameters) {
      attach(parameter);
    }
  }

  Span owned(std::size_t unit) override {
    return part_of(units_[unit].run, context_.plan.ownership.updated(unit));
  }

  void begin_update() override {}  // nobody reads another's

  void updated(std::size_t unit) override {
    if (!divided_) {
      return;
    }
    on_their_way_.push_back(context_.owners.all_gather(
        owned(unit), units_[unit].run, context_.plan.ownership.counts(unit)));
    while (!on_their_way_.empty() && on_their_way_.front().done()) {
      on_their_way_.pop_front();
    }
  }

  void finish_update() override {
    for (; !on_their_way_.empty(); on_their_way_.pop_front()) {
      on_their_way_.front().wait();
    }
  }

  void read(std::size_t unit, Range range, const Span& to) override {
    stream_for(to, units_[unit].run).copy(to, part_of(units_[unit].run, range));
    finish_work(context_.plan.device);
  }

  void write(std::size_t unit, Range range, const ConstSpan& from) override {
    stream_for(from, units_[unit].run).copy(part_of(units_[unit].run, range), from);
    finish_work(context_.plan.device);
  }

  void attach(std::size_t parameter) override {
    const Place& place = context_.plan.places[parameter];
    units_[place.unit].storage.attach(
        context_.plan.units[place.unit], place.index, context_.plan.parameters[parameter]);
  }

 private:
  struct UnitMemory {
    Span run;  // with an owner: operations may outlive this
    UnitStorage storage;
    MemoryLedger::Charge charge;
  };

  PartContext context_;
  bool divided_;  // each rank updates its range, and the others fetch it
  std::vector<UnitMemory> units_;
  std::deque<Work> on_their_way_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_replicated_memory(const PartContext& context) {
  return std::make_unique<ReplicatedMemory>(context);
}

}  // namespace trireme::detail
