// Stage 3 on several machines: every rank has its range of every unit, in memory that the others on
// its machine map and that ranks elsewhere read through a window. Units are put together for use,
// in memory that the machine's ranks share, so that each crosses the network once per machine.

#include <algorithm>
#include <atomic>
#include <exception>

#include "parallel/memory/live_units.h"
#include "parallel/memory/parameter_memory.h"
#include "parallel/memory/runs.h"
#include "parallel/memory/unit_storage.h"
#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme::detail {
namespace {

class ScatteredMemory final : public ParameterMemory {
 public:
  explicit ScatteredMemory(const PartContext& context) : context_(context) {
    find_neighbours();
    // Where each unit's range is in the memory of its owner: at the same place on all ranks.
    constexpr std::size_t kAlignment = 64;
    std::size_t total = 0;
    std::size_t mine_bytes = 0;
    for (std::size_t unit = 0; unit < context.plan.units.size(); ++unit) {
      offsets_.push_back(total);
      std::size_t longest = 0;
      for (const Range& range : context.plan.ownership.ranges(unit)) {
        longest = std::max(longest, kept_bytes(unit, range));
      }
      total += (longest + kAlignment - 1) / kAlignment * kAlignment;
      mine_bytes += kept_bytes(unit, mine(unit));
    }
    Communicator& machine = context_.owners.machine();
    memory_ = machine.allocate(std::max<std::size_t>(total, 1));
    charge_ = context_.ledger.charge(MemoryCategory::kParameters, mine_bytes);
    rounding_ = context_.ledger.charge(MemoryCategory::kRounding, total - mine_bytes);
    window_ = context_.owners.expose(memory_.data(), total);
    live_ = make_live_units(context, [&](std::vector<std::size_t> bytes, std::size_t limit) {
      const auto fetch = [this](std::size_t unit, std::byte* to) {
        const Range whole{0, context_.plan.units[unit].layout.total_numel()};
        read(unit, whole, {to, whole.size(), context_.plan.units[unit].dtype});
      };
      const FetchedUnits units{std::move(bytes), limit, fetch, context.ledger.shared_from_this()};
      return machine.size() > 1 ? make_machine_source(context_.owners, units)
                                : make_private_source(units);
    });
  }
  ScatteredMemory(const ScatteredMemory&) = delete;
  ScatteredMemory& operator=(const ScatteredMemory&) = delete;
  ~ScatteredMemory() override {
    live_->close();
    // The others may still read what is here. A rank that fails leaves at once: they are told.
    if (std::uncaught_exceptions() == 0) {
      try {
        context_.owners.barrier().wait();
      } catch (const Error& error) {
        log(LogLevel::kDebug, error.what());
      }
    }
  }

  void adopt(std::size_t unit_index) override {
    const Unit& unit = context_.plan.units[unit_index];
    // Rank 0's values: it has all of the unit while it deals it out.
    const bool root = context_.owners.rank() == 0;
    const RoundedUnit* const coded = unit.rounding.get();
    std::vector<std::byte> bytes;
    std::vector<std::byte> coded_bytes;
    Span whole;
    on_all_ranks(context_.owners, [&] {
      if (root) {
        bytes.resize(unit.bytes());
        whole = {bytes.data(), unit.layout.total_numel(), unit.dtype};
        flatten(unit, context_.plan.parameters, whole);
      }
      if (root && coded != nullptr) {
        coded_bytes.resize(coded->bytes());
        coded->encode(
            {0, whole.numel()}, reinterpret_cast<const float*>(whole.bytes()), coded_bytes.data());
        whole = {coded_bytes.data(), static_cast<std::int64_t>(coded_bytes.size()), Dtype::kUint8};
      }
    });
    const Ownership& ownership = context_.plan.ownership;
    const Span own = coded == nullptr
                         ? owned(unit_index)
                         : Span(memory_.data() + offsets_[unit_index],
                                static_cast<std::int64_t>(coded->bytes(mine(unit_index))),
                                Dtype::kUint8);
    context_.owners
        .scatter({whole.bytes(), whole.numel(), own.dtype()},
                 own,
                 0,
                 coded == nullptr ? ownership.counts(unit_index)
                                  : coded->counts(ownership.ranges(unit_index)))
        .wait();
    for (const std::size_t parameter : unit.parameters) {
      attach(parameter);
    }
    if (unit_index + 1 == context_.plan.units.size()) {
      context_.owners.barrier().wait();  // from here on anyone may read
    }
  }

  // Windows are read while their ranks are there, once those have what they show.
  void settle() override { context_.owners.barrier().wait(); }

  Span owned(std::size_t unit) override {
    return {memory_.data() + offsets_[unit], mine(unit).size(), context_.plan.units[unit].dtype};
  }

  // See Note [shared updates] in shared_memory.cc.
  void begin_update() override { context_.owners.barrier().wait(); }
  void round(std::size_t unit, Range range, const float* masters) override {
    const RoundedUnit& rounding = *context_.plan.units[unit].rounding;
    const std::size_t before = kept_bytes(unit, {mine(unit).begin, range.begin});
    rounding.encode(range, masters, memory_.data() + offsets_[unit] + before);
  }
  void updated(std::size_t) override {}
  void finish_update() override {
    live_->drop_all();
    context_.owners.barrier().wait();
  }
  void end_of_step() override { live_->end_of_step(); }

  void read(std::size_t unit, Range range, const Span& to) override {
    const auto& ranges = context_.plan.ownership.ranges(unit);
    for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
      const Range part = intersection(range, ranges[rank]);
      if (part.empty()) {
        continue;
      }
      const std::size_t at = offsets_[unit] + kept_bytes(unit, {ranges[rank].begin, part.begin});
      const Span place = part_of(to, {part.begin - range.begin, part.end - range.begin});
      if (context_.plan.units[unit].rounding) {
        decode(unit, part, static_cast<int>(rank), at, place);
      } else if (local_[rank] >= 0) {
        device::host().copy(place, {memory_.peer(local_[rank]) + at, part.size(), place.dtype()});
      } else {
        window_->read(static_cast<int>(rank), at, place.size_bytes(), place.bytes());
      }
    }
  }

  void write(std::size_t unit, Range range, const ConstSpan& from) override {
    const Range own = intersection(range, mine(unit));
    if (!own.empty()) {
      const std::int64_t first = mine(unit).begin;
      device::host().copy(part_of(owned(unit), {own.begin - first, own.end - first}),
                          part_of(from, {own.begin - range.begin, own.end - range.begin}));
    }
  }

  CompressionUse::Weights received() const override {
    return {received_bytes_.load(), exact_bytes_.load()};
  }

  void attach(std::size_t parameter) override {
    const Place& place = context_.plan.places[parameter];
    live_->storage(place.unit)
        .attach(context_.plan.units[place.unit], place.index, context_.plan.parameters[parameter]);
  }

 private:
  // Which of the world's ranks share this machine, as the machine numbers them.
  void find_neighbours() {
    Communicator& machine = context_.owners.machine();
    std::vector<std::int32_t> own = {context_.owners.rank()};
    std::vector<std::int32_t> here(static_cast<std::size_t>(machine.size()));
    machine.all_gather(own, here).wait();
    local_.assign(static_cast<std::size_t>(context_.owners.size()), -1);
    for (std::size_t i = 0; i < here.size(); ++i) {
      local_[static_cast<std::size_t>(here[i])] = static_cast<int>(i);
    }
  }

  // Elements of a rounded unit that one rank has, from `at` in its memory.
  void decode(std::size_t unit, Range part, int rank, std::size_t at, const Span& to) {
    const RoundedUnit& rounding = *context_.plan.units[unit].rounding;
    auto* values = reinterpret_cast<float*>(to.bytes());
    const int local = local_[static_cast<std::size_t>(rank)];
    if (local >= 0) {
      rounding.decode(part, memory_.peer(local) + at, values);
      return;
    }
    std::vector<std::byte> coded(rounding.bytes(part));
    window_->read(rank, at, coded.size(), coded.data());
    rounding.decode(part, coded.data(), values);
    received_bytes_ += static_cast<std::int64_t>(coded.size());
    exact_bytes_ += static_cast<std::int64_t>(to.size_bytes());
  }

  Range mine(std::size_t unit) const { return context_.plan.ownership.mine(unit); }
  // That an owner has of elements: of rounded ones, what they are encoded to.
  std::size_t kept_bytes(std::size_t unit, Range range) const {
    const Unit& its = context_.plan.units[unit];
    return its.rounding ? its.rounding->bytes(range)
                        : static_cast<std::size_t>(range.size()) * dtype_bytes(its.dtype);
  }

  PartContext context_;
  std::vector<std::size_t> offsets_;  // by unit, in every rank's memory
  std::vector<int> local_;            // by rank: its number on this machine, or -1
  SharedBuffer memory_;
  MemoryLedger::Charge charge_;
  MemoryLedger::Charge rounding_;
  std::unique_ptr<Window> window_;
  std::atomic<std::int64_t> received_bytes_ = 0;  // also by the thread that fetches ahead
  std::atomic<std::int64_t> exact_bytes_ = 0;
  std::shared_ptr<LiveUnits> live_;
};

}  // namespace

std::unique_ptr<ParameterMemory> make_scattered_memory(const PartContext& context) {
  return std::make_unique<ScatteredMemory>(context);
}

}  // namespace trireme::detail
