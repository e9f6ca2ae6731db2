#include <deque>
#include <numeric>

#include "device/buffer.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/touched_rows.h"
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
    for (Fetch& fetch : on_their_way_) {
      fetch.work.forget();
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
        if (unit.rounding) {
          unit.rounding->round({0, numel}, values(unit_index, 0), values(unit_index, 0));
        }
      }
    });
    if (divided_ && unit.rounding) {
      const SharedBuffer buffer = context_.owners.allocate(unit.rounding->bytes());
      memory.coded = {buffer.data(),
                      static_cast<std::int64_t>(unit.rounding->bytes()),
                      Dtype::kUint8,
                      std::make_shared<const SharedBuffer>(buffer)};
      memory.coded_charge =
          context_.ledger.charge(MemoryCategory::kGather, memory.coded.size_bytes());
    }
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

  void announce_rows(std::size_t unit, std::span<const std::int64_t> rows) override {
    if (!divided_ || context_.plan.units[unit].rounding) {
      return;
    }
    const Parameter& parameter = context_.plan.parameters[context_.plan.units[unit].parameters[0]];
    const Ownership& ownership = context_.plan.ownership;
    auto changed = std::make_unique<ChangedRows>();
    changed->rows = OwnedRows(rows, parameter.width(), ownership.ranges(unit), context_.owners);
    on_all_ranks(context_.owners, [&] {
      std::int64_t total = 0;
      for (const std::int64_t numel : changed->rows.elements()) {
        total += numel;
      }
      const Dtype dtype = context_.plan.units[unit].dtype;
      const auto memory =
          std::make_shared<device::Buffer>(static_cast<std::size_t>(total) * dtype_bytes(dtype));
      changed->values = {memory->data(), total, dtype, memory};
      changed->charge = context_.ledger.charge(
          MemoryCategory::kGather, changed->values.size_bytes() + changed->rows.bytes());
    });
    units_[unit].changed = std::move(changed);
  }

  void round(std::size_t unit, Range range, const float* masters) override {
    const RoundedUnit& rounding = *context_.plan.units[unit].rounding;
    if (!divided_) {
      rounding.round(range, masters, values(unit, range.begin));
      return;
    }
    // This rank, too, goes on with what the others get.
    std::byte* const coded = units_[unit].coded.bytes() + rounding.begin(range.begin);
    rounding.encode(range, masters, coded);
    rounding.decode(range, coded, values(unit, range.begin));
  }

  void updated(std::size_t unit) override {
    if (!divided_) {
      return;
    }
    const Ownership& ownership = context_.plan.ownership;
    Work work;
    if (units_[unit].changed) {
      work = send_rows(unit, *units_[unit].changed);
    } else if (const auto& rounding = context_.plan.units[unit].rounding) {
      const Span& coded = units_[unit].coded;
      const auto begin = static_cast<std::int64_t>(rounding->begin(ownership.mine(unit).begin));
      const auto end = static_cast<std::int64_t>(rounding->begin(ownership.mine(unit).end));
      work = context_.owners.all_gather(
          part_of(coded, {begin, end}), coded, rounding->counts(ownership.ranges(unit)));
    } else {
      work = context_.owners.all_gather(owned(unit), units_[unit].run, ownership.counts(unit));
    }
    on_their_way_.push_back({std::move(work), unit});
    while (!on_their_way_.empty() && on_their_way_.front().work.done()) {
      take_in();
    }
  }

  void finish_update() override {
    while (!on_their_way_.empty()) {
      take_in();
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

  CompressionUse::Weights received() const override { return received_; }

  void attach(std::size_t parameter) override {
    const Place& place = context_.plan.places[parameter];
    units_[place.unit].storage.attach(
        context_.plan.units[place.unit], place.index, context_.plan.parameters[parameter]);
  }

 private:
  // Rows that an update changes, and their values on their way.
  struct ChangedRows {
    OwnedRows rows;
    Span values;  // owner after owner
    MemoryLedger::Charge charge;
  };
  struct UnitMemory {
    Span run;  // with an owner: operations may outlive this
    UnitStorage storage;
    MemoryLedger::Charge charge;
    Span coded;  // where it is rounded and divided: on its way
    MemoryLedger::Charge coded_charge;
    std::unique_ptr<ChangedRows> changed;  // in an update of which they were announced
  };
  struct Fetch {
    Work work;
    std::size_t unit = 0;
  };

  float* values(std::size_t unit, std::int64_t first) {
    return reinterpret_cast<float*>(units_[unit].run.bytes()) + first;
  }

  // The rows of one owner between the unit and `values`.
  enum class Way { kOut, kIn };
  void copy_rows(std::size_t unit, const ChangedRows& changed, int owner, Way way) {
    const Counts& elements = changed.rows.elements();
    std::int64_t at = std::accumulate(elements.begin(), elements.begin() + owner, std::int64_t{0});
    for (const Range& run : changed.rows.runs(owner)) {
      const Span there = part_of(units_[unit].run, run);
      const Span here = part_of(changed.values, {at, at + run.size()});
      device::host().copy(way == Way::kOut ? here : there, way == Way::kOut ? there : here);
      at += run.size();
    }
  }

  Work send_rows(std::size_t unit, const ChangedRows& changed) {
    const Counts& elements = changed.rows.elements();
    const int rank = context_.owners.rank();
    copy_rows(unit, changed, rank, Way::kOut);
    const std::int64_t begin =
        std::accumulate(elements.begin(), elements.begin() + rank, std::int64_t{0});
    const std::int64_t own = elements[static_cast<std::size_t>(rank)];
    if (context_.sparse_use != nullptr) {
      const auto others = static_cast<std::int64_t>(context_.owners.size() - 1);
      const auto element = static_cast<std::int64_t>(dtype_bytes(changed.values.dtype()));
      const auto rows = static_cast<std::int64_t>(changed.rows.rows(rank).size_bytes());
      context_.sparse_use->weight_bytes += (own * element + rows) * others;
      context_.sparse_use->dense_bytes +=
          context_.plan.ownership.mine(unit).size() * element * others;
    }
    return context_.owners.all_gather(
        part_of(changed.values, {begin, begin + own}), changed.values, elements);
  }

  // The first that is on its way has come.
  void take_in() {
    on_their_way_.front().work.wait();
    const std::size_t unit = on_their_way_.front().unit;
    on_their_way_.pop_front();
    if (const auto changed = std::move(units_[unit].changed)) {
      for (int owner = 0; owner < context_.owners.size(); ++owner) {
        if (owner != context_.owners.rank()) {
          copy_rows(unit, *changed, owner, Way::kIn);
        }
      }
      return;
    }
    const RoundedUnit* const rounding = context_.plan.units[unit].rounding.get();
    if (rounding == nullptr) {
      return;
    }
    const std::vector<Range>& ranges = context_.plan.ownership.ranges(unit);
    for (std::size_t owner = 0; owner < ranges.size(); ++owner) {
      if (static_cast<int>(owner) == context_.owners.rank()) {
        continue;
      }
      const Range theirs = ranges[owner];
      rounding->decode(theirs,
                       units_[unit].coded.bytes() + rounding->begin(theirs.begin),
                       values(unit, theirs.begin));
      received_.received_bytes += static_cast<std::int64_t>(rounding->bytes(theirs));
      received_.exact_bytes += theirs.size() * static_cast<std::int64_t>(sizeof(float));
    }
  }

  PartContext context_;
  bool divided_;  // each rank updates its range, and the others fetch it
  std::vector<UnitMemory> units_;
  std::deque<Fetch> on_their_way_;
  CompressionUse::Weights received_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_replicated_memory(const PartContext& context) {
  return std::make_unique<ReplicatedMemory>(context);
}

}  // namespace trireme::detail
