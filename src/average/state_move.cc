#include "average/state_move.h"

#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Messages of a rank that are on their way at a time.
constexpr std::size_t kOnTheirWay = 16;

// Elements of a tensor, by its number in the list that is moved from.
struct Part {
  std::size_t tensor = 0;
  Range range;
};

// A part that goes from one rank to another, or stays.
struct Move {
  Part part;
  int from = 0;
  int to = 0;
};

// Every rank's numbers.
std::vector<std::vector<std::int64_t>> all_numbers(Communicator& ranks,
                                                   const std::vector<std::int64_t>& mine) {
  const auto size = index(ranks.size());
  std::vector<std::int64_t> length = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> lengths(size);
  ranks.all_gather(length, lengths).wait();
  std::int64_t total = 0;
  for (const std::int64_t each : lengths) {
    total += each;
  }
  std::vector<std::int64_t> together(static_cast<std::size_t>(total));
  ranks.all_gather(mine, together, lengths).wait();
  std::vector<std::vector<std::int64_t>> all;
  auto at = together.begin();
  for (const std::int64_t each : lengths) {
    all.emplace_back(at, at + each);
    at += each;
  }
  return all;
}

std::vector<std::vector<Part>> all_parts(Communicator& ranks, const std::vector<Part>& mine) {
  std::vector<std::int64_t> numbers;
  for (const Part& part : mine) {
    numbers.insert(numbers.end(),
                   {static_cast<std::int64_t>(part.tensor), part.range.begin, part.range.end});
  }
  std::vector<std::vector<Part>> all;
  for (const std::vector<std::int64_t>& each : all_numbers(ranks, numbers)) {
    all.emplace_back();
    for (std::size_t i = 0; i < each.size(); i += 3) {
      all.back().push_back({static_cast<std::size_t>(each[i]), {each[i + 1], each[i + 2]}});
    }
  }
  return all;
}

// Where the elements of a part are in the slices of this rank.
class Places {
 public:
  // `number` of a tensor of the view in the list that is moved from.
  template <class Number>
  Places(const StateView& view, const Number& number) {
    for (const StateSlice& slice : view.slices) {
      const StateTensor& tensor = view.tensors[slice.tensor];
      if (tensor.kind != kRandomKind && !slice.range.empty()) {
        places_[number(slice.tensor)].push_back({&slice, tensor.dtype});
        parts_.push_back({number(slice.tensor), slice.range});
      }
    }
  }

  const std::vector<Part>& parts() const { return parts_; }
  Span at(const Part& part) const {
    for (const auto& [slice, dtype] : places_.at(part.tensor)) {
      if (slice->range.begin <= part.range.begin && part.range.end <= slice->range.end) {
        const auto offset = static_cast<std::size_t>(part.range.begin - slice->range.begin);
        return {slice->data + offset * dtype_bytes(dtype), part.range.size(), dtype};
      }
    }
    throw Error("a part of a state is not where its rank has said that it is");
  }

 private:
  std::map<std::size_t, std::vector<std::pair<const StateSlice*, Dtype>>> places_;
  std::vector<Part> parts_;
};

// Which ranks get what from whom, in one order for all.
std::vector<Move> moves_of(const std::vector<std::vector<Part>>& have,
                           const std::vector<std::vector<Part>>& want,
                           const std::vector<StateTensor>& tensors) {
  const auto ranks = static_cast<int>(have.size());
  std::vector<std::map<std::size_t, std::vector<Range>>> held(have.size());
  for (std::size_t rank = 0; rank < have.size(); ++rank) {
    for (const Part& part : have[rank]) {
      held[rank][part.tensor].push_back(part.range);
    }
  }
  std::vector<Move> moves;
  for (int to = 0; to < ranks; ++to) {
    for (const Part& part : want[index(to)]) {
      std::vector<Range> missing = {part.range};
      for (int next = 0; next < ranks && !missing.empty(); ++next) {
        const int from = (to + next) % ranks;
        const auto found = held[index(from)].find(part.tensor);
        if (found == held[index(from)].end()) {
          continue;
        }
        for (const Range& there : found->second) {
          std::vector<Range> still;
          for (const Range& piece : missing) {
            const Range common = intersection(piece, there);
            if (common.empty()) {
              still.push_back(piece);
              continue;
            }
            moves.push_back({{part.tensor, common}, from, to});
            for (const Range& rest :
                 {Range{piece.begin, common.begin}, Range{common.end, piece.end}}) {
              if (!rest.empty()) {
                still.push_back(rest);
              }
            }
          }
          missing = std::move(still);
        }
      }
      TRIREME_CHECK(missing.empty(),
                    "expected all of {} on the ranks, found no elements {} to {}",
                    {tensors[part.tensor].title(),
                     missing.empty() ? 0 : missing.front().begin,
                     missing.empty() ? 0 : missing.front().end - 1});
    }
  }
  return moves;
}

// Each rank's is its own, under whatever number.
void keep_generator(const StateView& from, const StateView& into) {
  const auto find = [](const StateView& view) -> const StateSlice* {
    for (const StateSlice& slice : view.slices) {
      if (view.tensors[slice.tensor].kind == kRandomKind) {
        return &slice;
      }
    }
    return nullptr;
  };
  const StateSlice* source = find(from);
  const StateSlice* target = find(into);
  if (source != nullptr && target != nullptr) {
    std::memcpy(target->data, source->data, static_cast<std::size_t>(target->range.size()));
  }
}

}  // namespace

StateCopy StateCopy::of(const StateView& view) {
  StateCopy copy{view, {}};
  for (StateSlice& slice : copy.view.slices) {
    const std::size_t bytes = static_cast<std::size_t>(slice.range.size()) *
                              dtype_bytes(view.tensors[slice.tensor].dtype);
    copy.memory.emplace_back(slice.data, slice.data + bytes);
    slice.data = copy.memory.back().data();
  }
  return copy;
}

void move_state(const StateView& from, const StateView& into, Communicator& ranks) {
  std::map<std::string, std::size_t> numbers;
  for (std::size_t t = 0; t < from.tensors.size(); ++t) {
    numbers[from.tensors[t].title()] = t;
  }
  for (const StateTensor& tensor : into.tensors) {
    const auto found = numbers.find(tensor.title());
    TRIREME_CHECK(tensor.kind == kRandomKind ||
                      (found != numbers.end() && from.tensors[found->second] == tensor),
                  "expected {} in the state that is moved, found another shape or nothing",
                  {tensor.title()});
  }
  const Places source(from, [](std::size_t tensor) { return tensor; });
  const Places target(into,
                      [&](std::size_t tensor) { return numbers.at(into.tensors[tensor].title()); });
  const std::vector<Move> moves =
      moves_of(all_parts(ranks, source.parts()), all_parts(ranks, target.parts()), from.tensors);
  keep_generator(from, into);
  std::deque<Work> works;
  for (const Move& move : moves) {
    if (move.from == ranks.rank() && move.to == ranks.rank()) {
      const Span to = target.at(move.part);
      std::memcpy(to.bytes(), source.at(move.part).bytes(), to.size_bytes());
    } else if (move.from == ranks.rank()) {
      works.push_back(ranks.send(source.at(move.part), move.to));
    } else if (move.to == ranks.rank()) {
      works.push_back(ranks.recv(target.at(move.part), move.from));
    }
    if (works.size() >= kOnTheirWay) {
      works.front().wait();
      works.pop_front();
    }
  }
  for (Work& work : works) {
    work.wait();
  }
}

}  // namespace trireme::detail
