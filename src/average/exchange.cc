#include "average/exchange.h"

#include <algorithm>

#include "average/elements.h"
#include "trireme/core/index.h"

namespace trireme::detail {
namespace {

// Elements that are exchanged at a time.
constexpr std::int64_t kPortion = 1 << 20;

void divide(std::span<double> sums, double by) {
  for (double& sum : sums) {
    sum /= by;
  }
}

std::vector<std::byte> memory_for(std::int64_t numel, Dtype dtype) {
  return std::vector<std::byte>(size_of(numel) * dtype_bytes(dtype));
}

Span span_of(std::vector<std::byte>& memory, std::int64_t numel, Dtype dtype) {
  return {memory.data(), numel, dtype};
}

}  // namespace

std::vector<Exchange::Portion> Exchange::portions(const FlatState& run, Held held) const {
  std::vector<Portion> all;
  const Communicator& ranks = *replicas_.mine();
  for (std::int64_t at = 0; at < run.numel(); at += kPortion) {
    const Range portion{at, std::min(at + kPortion, run.numel())};
    const Range part = held == Held::kByAll ? even_range(portion.size(), ranks.size(), ranks.rank())
                                            : Range{0, portion.size()};
    all.push_back({portion, {at + part.begin, at + part.end}});
  }
  return all;
}

std::vector<Range> Exchange::shares(const FlatState& run, Held held) const {
  std::vector<Range> all;
  for (const Portion& portion : portions(run, held)) {
    const Range part = even_range(portion.mine.size(), replicas_.count(), replicas_.number());
    all.push_back({portion.mine.begin + part.begin, portion.mine.begin + part.end});
  }
  return all;
}

void Exchange::mean(const FlatState& run, Held held, const Then& then) {
  Communicator& across = replicas_.across();
  const Dtype dtype = run.dtype();
  for (const Portion& portion : portions(run, held)) {
    const std::int64_t numel = portion.mine.size();
    const Counts counts = even_counts(numel, replicas_.count());
    const Range share = even_range(numel, replicas_.count(), replicas_.number());
    std::vector<std::byte> own = memory_for(numel, dtype);
    std::vector<std::byte> terms = memory_for(share.size() * replicas_.count(), dtype);
    run.read(portion.mine, own.data());
    const Span all = span_of(own, numel, dtype);
    across.all_to_all(all, span_of(terms, share.size() * replicas_.count(), dtype), counts).wait();
    std::vector<double> means(size_of(share.size()), -0.0);
    for (int replica = 0; replica < replicas_.count(); ++replica) {
      add_elements(
          dtype, terms.data() + size_of(replica * share.size()) * dtype_bytes(dtype), means);
    }
    divide(means, replicas_.count());
    if (then) {
      then(means);
    }
    const Span mine = all.part(share.begin, share.size());
    round_elements(dtype, means, mine.bytes());
    across.all_gather(mine, all, counts).wait();
    sent_bytes_ += static_cast<std::int64_t>(all.size_bytes() - mine.size_bytes() +
                                             mine.size_bytes() * index(replicas_.count() - 1));
    run.write(portion.mine, own.data());
    if (held == Held::kByAll) {
      tell_replica(run, portion, own.data());
    }
  }
}

void Exchange::gossip(const FlatState& run, Held held, const Neighbours& neighbours) {
  Communicator& across = replicas_.across();
  const Dtype dtype = run.dtype();
  // Those whose mean it is, in order; each beside where its values are.
  std::vector<std::pair<int, std::vector<std::byte>>> members;
  for (const Portion& portion : portions(run, held)) {
    const std::int64_t numel = portion.mine.size();
    members.clear();
    members.emplace_back(replicas_.number(), memory_for(numel, dtype));
    run.read(portion.mine, members[0].second.data());
    for (const int from : neighbours.from) {
      members.emplace_back(from, memory_for(numel, dtype));
    }
    std::vector<Work> works;
    for (std::size_t i = 1; i < members.size(); ++i) {
      works.push_back(across.recv(span_of(members[i].second, numel, dtype), members[i].first));
    }
    for (const int to : neighbours.to) {
      works.push_back(across.send(span_of(members[0].second, numel, dtype), to));
      sent_bytes_ += static_cast<std::int64_t>(members[0].second.size());
    }
    for (Work& work : works) {
      work.wait();
    }
    std::ranges::sort(members, {}, [](const auto& member) { return member.first; });
    std::vector<double> means(size_of(numel), -0.0);
    for (const auto& [replica, values] : members) {
      add_elements(dtype, values.data(), means);
    }
    divide(means, static_cast<double>(members.size()));
    round_elements(dtype, means, members[0].second.data());
    run.write(portion.mine, members[0].second.data());
    if (held == Held::kByAll) {
      tell_replica(run, portion, members[0].second.data());
    }
  }
}

void Exchange::take_first(const FlatState& run) {
  for (const Portion& portion : portions(run, Held::kByEach)) {
    std::vector<std::byte> values = memory_for(portion.all.size(), run.dtype());
    run.read(portion.all, values.data());
    replicas_.across()
        .broadcast(span_of(values, portion.all.size(), run.dtype()), /*root=*/0)
        .wait();
    run.write(portion.all, values.data());
  }
}

void Exchange::tell_replica(const FlatState& run,
                            const Portion& portion,
                            const std::byte* mine) const {
  std::vector<std::byte> whole = memory_for(portion.all.size(), run.dtype());
  replicas_.mine()
      ->all_gather({mine, portion.mine.size(), run.dtype()},
                   span_of(whole, portion.all.size(), run.dtype()))
      .wait();
  run.write(portion.all, whole.data());
}

}  // namespace trireme::detail
