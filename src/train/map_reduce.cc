#include "trireme/train/map_reduce.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"
#include "trireme/shard/range.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace {

using detail::Bytes;
using detail::concat;
using nlohmann::json;

// Of a vault's version: how many partitions are in it, and what else is to be known of them.
constexpr char kDoneNote[] = "partitions";
constexpr char kOfNote[] = "of";
constexpr char kShapesNote[] = "shapes";
constexpr char kTotalNote[] = "total";
constexpr char kSumKind[] = "sum";

// The partitions, dealt out in rounds.
class Rounds {
 public:
  Rounds(World& world, std::int64_t partitions, Vault* kept)
      : world_(world), partitions_(partitions), kept_(kept) {
    TRIREME_CHECK(partitions > 0, "partitions: expected at least 1, found ", partitions);
    if (kept_ != nullptr && kept_->newest()) {
      notes_ = kept_->newest()->notes;
      saves_ = kept_->newest()->step;
      TRIREME_CHECK(notes_.count(kDoneNote) == 1 && notes_[kOfNote] == std::to_string(partitions),
                    "the vault holds something else than a result of ",
                    partitions,
                    " partitions: give each result a vault of its own");
      done_ = std::stoll(notes_[kDoneNote]);
    }
  }

  bool resumes() const { return done_ > 0; }
  const std::string& note(const char* name) const { return notes_.at(name); }
  bool left() const { return done_ < partitions_; }
  bool is_first() const { return done_ == 0; }

  // This rank's part of the round at hand, if it has one.
  void compute(const std::function<void(std::int64_t partition)>& map) const {
    detail::mark(PulsePhase::kBatch);
    on_all_ranks(world_, [&] {
      if (has_one()) {
        map(done_ + world_.rank());
      }
    });
  }
  bool has_one() const { return done_ + world_.rank() < partitions_; }
  // In the order of the partitions, which is that of the ranks.
  std::size_t count() const {
    return static_cast<std::size_t>(std::min<std::int64_t>(world_.size(), partitions_ - done_));
  }

  // The round is over, and this is what there is.
  void end(const StateView& state, Notes notes) {
    done_ += static_cast<std::int64_t>(count());
    if (kept_ != nullptr) {
      notes[kDoneNote] = std::to_string(done_);
      notes[kOfNote] = std::to_string(partitions_);
      kept_->save(++saves_, state, notes);
    }
  }

 private:
  World& world_;
  std::int64_t partitions_;
  Vault* kept_;
  Notes notes_;
  std::int64_t done_ = 0;
  std::int64_t saves_ = 0;
};

// What `map` returns, as text that ranks tell each other: [["Float", [3, 4]], ...].
std::string shapes_of(const std::vector<at::Tensor>& tensors) {
  json all = json::array();
  for (const at::Tensor& tensor : tensors) {
    all.push_back({static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  return all.dump();
}

bool is_half(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

// The tensors of one dtype, one after another, and this rank's share of their sum.
struct SumGroup {
  at::ScalarType dtype;
  std::int64_t numel = 0;
  at::Tensor terms{}, share{};
};

class TensorSum {
 public:
  TensorSum(World& world, std::string shapes) : world_(world), shapes_(std::move(shapes)) {
    for (const json& each : json::parse(shapes_)) {
      Part part{.sizes = each[1].get<std::vector<std::int64_t>>()};
      const auto dtype = static_cast<at::ScalarType>(each[0].get<int>());
      part.group = static_cast<std::size_t>(
          std::find_if(groups_.begin(),
                       groups_.end(),
                       [&](const SumGroup& group) { return group.dtype == dtype; }) -
          groups_.begin());
      if (part.group == groups_.size()) {
        groups_.push_back({.dtype = dtype});
      }
      part.begin = groups_[part.group].numel;
      groups_[part.group].numel += c10::multiply_integers(part.sizes);
      parts_.push_back(std::move(part));
    }
    for (SumGroup& group : groups_) {
      const at::ScalarType sum = is_half(group.dtype) ? at::kFloat : group.dtype;
      group.terms = at::zeros({group.numel}, group.dtype);
      group.share = at::zeros({share_of(group).size()}, sum);
    }
  }

  const std::string& shapes() const { return shapes_; }

  void check(const std::vector<at::Tensor>& terms, std::int64_t partition) const {
    const std::string found = shapes_of(terms);
    TRIREME_CHECK(found == shapes_,
                  "map_sum: the tensors of each partition must have the dtypes and shapes of those "
                  "of partition 0, {}; found for partition {}: {}",
                  {shapes_, partition, found});
  }

  // Adds the terms of the ranks that have some, in rank order.
  void add(const std::optional<std::vector<at::Tensor>>& terms, bool is_first) {
    for (std::size_t i = 0; terms && i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const at::Tensor flat = (*terms)[i].detach().reshape({-1});
      groups_[part.group].terms.narrow(0, part.begin, flat.numel()).copy_(flat);
    }
    std::vector<Work> works;
    works.reserve(groups_.size());
    for (SumGroup& group : groups_) {
      SumTerms how{.accumulate = !is_first, .group = 1};
      if (!terms && group.numel > 0) {
        how.absent = {{0, group.numel}};
      }
      works.push_back(world_.reduce_scatter(group.terms, group.share, ReduceOp::kSum, {}, how));
    }
    for (Work& work : works) {
      work.wait();
    }
  }

  StateView state() {
    StateView view;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      SumGroup& group = groups_[i];
      view.tensors.push_back(
          {kSumKind, std::to_string(i), dtype_of(group.share.scalar_type()), {group.numel}, {}});
      view.slices.push_back(
          {i, share_of(group), static_cast<std::byte*>(group.share.mutable_data_ptr())});
    }
    return view;
  }

  std::vector<at::Tensor> take() {
    std::vector<at::Tensor> wholes;
    wholes.reserve(groups_.size());
    for (const SumGroup& group : groups_) {
      wholes.push_back(at::empty({group.numel}, group.share.options()));
      world_.all_gather(group.share, wholes.back()).wait();
    }
    std::vector<at::Tensor> sums;
    sums.reserve(parts_.size());
    for (const Part& part : parts_) {
      sums.push_back(wholes[part.group]
                         .narrow(0, part.begin, c10::multiply_integers(part.sizes))
                         .reshape(part.sizes));
    }
    return sums;
  }

 private:
  struct Part {
    std::vector<std::int64_t> sizes;
    std::size_t group = 0;
    std::int64_t begin = 0;  // in its group
  };

  Range share_of(const SumGroup& group) const {
    return even_range(group.numel, world_.size(), world_.rank());
  }

  World& world_;
  std::string shapes_;
  std::vector<Part> parts_;
  std::vector<SumGroup> groups_;
};

// Bytes as a note, which is text.
std::string to_hex(const Bytes& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

std::vector<at::Tensor> map_sum(
    World& world,
    std::int64_t partitions,
    const std::function<std::vector<at::Tensor>(std::int64_t partition)>& map,
    Vault* kept) {
  Rounds rounds(world, partitions, kept);
  std::optional<TensorSum> sum;
  if (rounds.resumes()) {
    sum.emplace(world, rounds.note(kShapesNote));
    kept->load(sum->state());
    kept->keep_loaded(sum->state());
  }
  while (rounds.left()) {
    std::optional<std::vector<at::Tensor>> terms;
    std::int64_t mine = 0;
    rounds.compute([&](std::int64_t partition) {
      mine = partition;
      terms = map(partition);
    });
    if (!sum) {  // rank 0 always has a partition
      sum.emplace(world, all_texts(world, world.rank() == 0 ? shapes_of(*terms) : "")[0]);
    }
    on_all_ranks(world, [&] {
      if (terms) {
        sum->check(*terms, mine);
      }
    });
    sum->add(terms, rounds.is_first());
    rounds.end(sum->state(), {{kShapesNote, sum->shapes()}});
  }
  return sum->take();
}

Bytes detail::fold_bytes(World& world,
                         std::int64_t partitions,
                         const std::function<Bytes(std::int64_t partition)>& map,
                         Bytes total,
                         const std::function<void(Bytes& total, const Bytes& next)>& fold,
                         Vault* kept) {
  Rounds rounds(world, partitions, kept);
  if (rounds.resumes()) {
    total = from_hex(rounds.note(kTotalNote));
    kept->keep_loaded({});
  }
  while (rounds.left()) {
    Bytes mine;
    rounds.compute([&](std::int64_t partition) { mine = map(partition); });
    const std::vector<Bytes> all = all_texts(world, mine);
    for (std::size_t i = 0; i < rounds.count(); ++i) {
      fold(total, all[i]);
    }
    rounds.end({}, {{kTotalNote, to_hex(total)}});
  }
  return total;
}

}  // namespace trireme
