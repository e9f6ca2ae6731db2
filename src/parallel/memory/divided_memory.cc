// Stage 3 on GPUs of one machine: each rank has its range of every unit in memory that the others
// can read and nobody else can write, and puts together private copies of the units that it uses.

#include <algorithm>

#include "parallel/memory/live_units.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"

namespace trireme::detail {
namespace {

class DividedMemory final : public ParameterMemory {
 public:
  explicit DividedMemory(const PartContext& context)
      : context_(context),
        parts_(context.plan.units.size()),
        live_(make_live_units(context, [&](std::vector<std::size_t> bytes, std::size_t limit) {
          const auto fetch = [this](std::size_t unit, std::byte* to) {
            const Unit& its = context_.plan.units[unit];
            copy_range(unit,
                       {0, its.layout.total_numel()},
                       {to, its.layout.total_numel(), its.dtype, {}, context_.plan.device});
          };
          return make_private_source({std::move(bytes),
                                      limit,
                                      fetch,
                                      context.ledger.shared_from_this(),
                                      context.plan.device});
        })) {}
  ~DividedMemory() override { live_->close(); }
  DividedMemory(const DividedMemory&) = delete;
  DividedMemory& operator=(const DividedMemory&) = delete;

  // Rank 0's values pass through memory that all can read, for as long as that takes.
  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.plan.units[unit_index];
    const Device device = context_.plan.device;
    Part& part = parts_[unit_index];
    const Counts counts = context_.plan.ownership.counts(unit_index);
    const auto most = static_cast<std::size_t>(*std::ranges::max_element(counts));
    part.shared = context_.owners.allocate(most * dtype_bytes(unit.dtype), device);
    part.charge =
        context_.ledger.charge(MemoryCategory::kParameters, owned(unit_index).size_bytes());
    const SharedBuffer whole = context_.owners.allocate(unit.bytes(), device);
    const Span values = whole.span(unit.dtype, unit.layout.total_numel());
    on_all_ranks(context_.owners, [&] {
      if (context_.owners.rank() == 0) {
        flatten(unit, context_.plan.parameters, values);
      }
    });
    context_.owners.broadcast(values, 0).wait();
    const Span own = owned(unit_index);
    stream_for(own).copy(own, part_of(values, context_.plan.ownership.mine(unit_index)));
    finish_work(device);
    on_all_ranks(context_.owners, [&] {
      for (const std::size_t parameter : unit.parameters) {
        attach(parameter);
      }
    });
  }

  Span owned(std::size_t unit) override {
    return {parts_[unit].shared.data(),
            context_.plan.ownership.mine(unit).size(),
            context_.plan.units[unit].dtype,
            {},
            context_.plan.device};
  }

  // Note [shared updates] in shared_memory.cc; a barrier says nothing of work on a GPU.
  void begin_update() override { meet(); }
  void updated(std::size_t) override {}
  void finish_update() override {
    live_->drop_all();
    meet();
  }
  void end_of_step() override { live_->end_of_step(); }

  void read(std::size_t unit, Range range, const Span& to) override {
    copy_range(unit, range, to);
    finish_work(context_.plan.device);
  }

  void write(std::size_t unit, Range range, const ConstSpan& from) override {
    const Range mine = context_.plan.ownership.mine(unit);
    const Range own = intersection(range, mine);
    if (!own.empty()) {
      const Span to = part_of(owned(unit), {own.begin - mine.begin, own.end - mine.begin});
      stream_for(to).copy(to, part_of(from, {own.begin - range.begin, own.end - range.begin}));
      finish_work(context_.plan.device);
    }
  }

  void attach(std::size_t parameter) override {
    const Place& place = context_.plan.places[parameter];
    live_->storage(place.unit)
        .attach(context_.plan.units[place.unit], place.index, context_.plan.parameters[parameter]);
  }

 private:
  struct Part {
    SharedBuffer shared;
    MemoryLedger::Charge charge;
  };

  // Issued on the default stream, which whoever uses it is on as well.
  void copy_range(std::size_t unit, Range range, const Span& to) {
    const std::vector<Range>& ranges = context_.plan.ownership.ranges(unit);
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
      const Range theirs = intersection(range, ranges[rank]);
      if (theirs.empty()) {
        continue;
      }
      const ConstSpan part(parts_[unit].shared.peer(static_cast<int>(rank)),
                           ranges[rank].size(),
                           context_.plan.units[unit].dtype,
                           {},
                           context_.plan.device);
      stream_for(part).copy(
          part_of(to, {theirs.begin - range.begin, theirs.end - range.begin}),
          part_of(part, {theirs.begin - ranges[rank].begin, theirs.end - ranges[rank].begin}));
    }
  }
  void meet() {
    finish_work(context_.plan.device);
    context_.owners.barrier().wait();
  }

  PartContext context_;
  std::vector<Part> parts_;
  std::shared_ptr<LiveUnits> live_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_divided_memory(const PartContext& context) {
  return std::make_unique<DividedMemory>(context);
}

}  // namespace trireme::detail
