#include <algorithm>
#include <cstring>
#include <deque>

#include <ATen/ops/from_blob.h>

#include "parallel/same_on_all_ranks.h"
#include "parallel/unit_storage.h"
#include "trireme/core/host_memory.h"

namespace trireme::detail {

void flatten(const Unit& unit, const std::vector<Parameter>& parameters, std::byte* flat) {
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < unit.parameters.size(); ++index) {
    const Parameter& parameter = parameters[unit.parameters[index]];
    if (parameter.numel > 0) {
      void* to =
          flat + static_cast<std::size_t>(unit.layout.offset(index)) * dtype_bytes(unit.dtype);
      // copy_ also casts, where the engine's precision is not the model's.
      view_of(parameter, to, scalar_type_of(unit.dtype)).copy_(parameter.tensor);
    }
  }
}

namespace {

class ReplicatedMemory final : public ParameterMemory {
 public:
  ReplicatedMemory(const ParameterMemoryContext& context, bool divided)
      : context_(context),
        divided_(divided && context.ranks.size() > 1),
        places_(context.units.size()) {}
  ReplicatedMemory(const ReplicatedMemory&) = delete;
  ReplicatedMemory& operator=(const ReplicatedMemory&) = delete;
  // After an update that failed, what the ranks have begun goes on, and keeps the memory it uses.
  ~ReplicatedMemory() override {
    for (Work& work : on_their_way_) {
      work.forget();
    }
  }

  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.units[unit_index];
    UnitMemory& memory = places_[unit_index];
    std::shared_ptr<const void>& owner = memory.owner;
    if (divided_) {
      memory.shared = context_.ranks.allocate(unit.bytes());
      memory.data = memory.shared.data();
      owner = std::make_shared<const SharedBuffer>(memory.shared);
    }
    all_or_none(context_.ranks, [&] {
      if (!divided_) {
        auto own = std::make_shared<HostMemory>(unit.bytes());
        memory.data = own->data();
        owner = std::move(own);
      }
      if (context_.ranks.rank() == 0) {
        flatten(unit, context_.parameters, memory.data);
      }
    });
    memory.charge = context_.ledger.charge(MemoryCategory::kParameters, unit.bytes());
    context_.ranks.broadcast({memory.data, unit.layout.total_numel(), unit.dtype}, 0).wait();
    memory.storage = UnitStorage(memory.data,
                                 unit.bytes(),
                                 std::make_shared<AlwaysPresent>(
                                     UnitNames(unit, context_.parameters), owner, context_.engine));
    for (const std::size_t parameter : unit.parameters) {
      attach(parameter);
    }
  }

  std::byte* owned(std::size_t unit) override {
    const auto begin = divided_ ? mine(unit).begin : 0;
    return places_[unit].data + static_cast<std::size_t>(begin) * element(unit);
  }

  void begin_update() override {}  // nobody reads another's

  void updated(std::size_t unit_index) override {
    if (!divided_) {
      return;
    }
    const Unit& unit = context_.units[unit_index];
    Counts counts;
    for (const Range& range : unit.ranges) {
      counts.push_back(range.size());
    }
    on_their_way_.push_back(context_.ranks.all_gather(
        ConstSpan(
            owned(unit_index), mine(unit_index).size(), unit.dtype, places_[unit_index].owner),
        Span(places_[unit_index].data,
             unit.layout.total_numel(),
             unit.dtype,
             places_[unit_index].owner),
        std::move(counts)));
    while (!on_their_way_.empty() && on_their_way_.front().done()) {
      on_their_way_.pop_front();
    }
  }

  void finish_update() override {
    for (; !on_their_way_.empty(); on_their_way_.pop_front()) {
      on_their_way_.front().wait();
    }
  }

  void read(std::size_t unit, Range range, std::byte* to) override {
    if (range.empty()) {
      return;  // of which there may be no memory
    }
    std::memcpy(to,
                places_[unit].data + static_cast<std::size_t>(range.begin) * element(unit),
                static_cast<std::size_t>(range.size()) * element(unit));
  }

  void write(std::size_t unit, Range range, const std::byte* from) override {
    if (range.empty()) {
      return;
    }
    std::memcpy(places_[unit].data + static_cast<std::size_t>(range.begin) * element(unit),
                from,
                static_cast<std::size_t>(range.size()) * element(unit));
  }

  void attach(std::size_t parameter) override {
    const Place& place = context_.places[parameter];
    places_[place.unit].storage.attach(
        context_.units[place.unit], place.index, context_.parameters[parameter]);
  }

 private:
  struct UnitMemory {
    std::byte* data = nullptr;
    SharedBuffer shared;
    std::shared_ptr<const void> owner;  // of `data`: operations may outlive this
    UnitStorage storage;
    MemoryLedger::Charge charge;
  };

  Range mine(std::size_t unit) const {
    return context_.units[unit].ranges[static_cast<std::size_t>(context_.ranks.rank())];
  }
  std::size_t element(std::size_t unit) const { return dtype_bytes(context_.units[unit].dtype); }

  ParameterMemoryContext context_;
  bool divided_;
  std::vector<UnitMemory> places_;
  std::deque<Work> on_their_way_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_replicated_memory(const ParameterMemoryContext& context,
                                                        bool divided) {
  return std::make_unique<ReplicatedMemory>(context, divided);
}

}  // namespace trireme::detail
