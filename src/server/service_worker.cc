// What a service does for its rank as a worker.

#include "parallel/memory/runs.h"
#include "server/service.h"
#include "trireme/core/index.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {

// A worker's rows in an owner's part, and the sums of all of their elements: a row in which a part
// ends and the next begins goes to both.
Service::RowRun Service::rows_for(const GradientSums& sums, const OwnedPart& part) const {
  const TouchedRows& touched = sums.rows(part.unit);
  const std::int64_t width = part.width;
  RowRun run{touched.rows_in(part.range), touched.sums_in({0, 0})};
  if (!run.rows.empty()) {
    run.values = touched.sums_in({run.rows.front() * width, (run.rows.back() + 1) * width});
  }
  return run;
}

void Service::push_rows(const GradientSums& sums, int owner, std::vector<Work>& sending) {
  const std::vector<OwnedPart>& parts = gradients_[index(owner)].rows;
  std::size_t i = 0;
  for (const OwnedPart& part : parts) {
    const RowRun run = rows_for(sums, part);
    const auto count = counts_[index(owner)][i++];
    if (count > 0) {
      sending.push_back(up_->send(ConstSpan(run.rows.data(), count, Dtype::kInt64), owner));
      sending.push_back(up_->send(run.values, owner));
      sent_bytes_ += count * static_cast<std::int64_t>(sizeof(std::int64_t)) +
                     static_cast<std::int64_t>(run.values.size_bytes());
    }
  }
}

void Service::push(Shard::PushHeader header,
                   const std::vector<std::uint8_t>& used,
                   const GradientSums& sums) {
  std::vector<Work> sending;
  for (const int owner : places_.owners) {
    if (owner == rank_) {
      continue;
    }
    header.version = versions_[index(owner)];
    headers_[index(owner)] = header;
    const OwnedParts& owned = gradients_[index(owner)];
    std::vector<std::int64_t>& counts = counts_[index(owner)];
    counts.clear();
    for (const OwnedPart& part : owned.rows) {
      counts.push_back(static_cast<std::int64_t>(rows_for(sums, part).rows.size()));
    }
    const std::lock_guard lock(issue_);
    sending.push_back(up_->send(header_span(headers_[index(owner)]), owner));
    sending.push_back(up_->send(used, owner));
    sent_bytes_ += static_cast<std::int64_t>(sizeof(header) + used.size());
    if (!counts.empty()) {
      sending.push_back(up_->send(integers(counts), owner));
      sent_bytes_ += static_cast<std::int64_t>(counts.size() * sizeof(std::int64_t));
    }
    for (const OwnedPart& part : owned.parts) {
      const Span values = sums.at(part.unit, part.range);
      sending.push_back(up_->send(values, owner));
      sent_bytes_ += static_cast<std::int64_t>(values.size_bytes());
    }
    push_rows(sums, owner, sending);
  }
  if (owns()) {
    Shard::Push push = shard_->spare();
    header.version = versions_[index(rank_)];
    push.header = header;
    push.used = used;
    const OwnedParts& owned = gradients_[index(rank_)];
    for (const OwnedPart& part : owned.parts) {
      device::host().copy(
          {push.values.buffer.data() + part.offset, part.range.size(), owned.dtype(plan_, part)},
          sums.at(part.unit, part.range));
    }
    for (std::size_t i = 0; i < owned.rows.size(); ++i) {
      const RowRun run = rows_for(sums, owned.rows[i]);
      push.rows[i].rows.assign(run.rows.begin(), run.rows.end());
      push.rows[i].values.assign(run.values.bytes(), run.values.bytes() + run.values.size_bytes());
    }
    shard_->take(rank_, std::move(push));
  }
  for (Work& work : sending) {
    work.wait();
  }
}

// What a worker had of an owner's part becomes what has changed of it.
void Service::take_rows(const OwnedPart& part, const ChangedRows& changed, const Take& take) const {
  const Dtype dtype = plan_.units[part.unit].dtype;
  if (changed.whole) {
    take(part, {changed.values.data(), part.range.size(), dtype});
    return;
  }
  const std::byte* from = changed.values.data();
  for (const Range& run : runs_of_rows(changed.rows, part.width, part.range)) {
    const ConstSpan values(from, run.size(), dtype);
    take({part.unit, run, 0}, values);
    from += values.size_bytes();
  }
}

void Service::pull_from(int owner, const Take& take) {
  const OwnedParts& owned = weights_[index(owner)];
  const auto receive = [&](const Span& into) {
    if (into.numel() == 0) {
      return;
    }
    Work work;
    {
      const std::lock_guard lock(issue_);
      work = down_->recv(into, owner);
    }
    work.wait();
  };
  std::vector<std::int64_t> head(1 + owned.rows.size());
  receive(integers(head));
  versions_[index(owner)] = head[0];
  for (const OwnedPart& part : owned.parts) {
    const Span values(scratch_.data(), part.range.size(), owned.dtype(plan_, part));
    receive(values);
    take(part, values);
  }
  for (std::size_t i = 0; i < owned.rows.size(); ++i) {
    const OwnedPart& part = owned.rows[i];
    ChangedRows changed{.whole = head[1 + i] == kWhole, .rows = {}, .values = {}};
    changed.rows.resize(changed.whole ? 0 : static_cast<std::size_t>(head[1 + i]));
    receive(integers(changed.rows));
    const std::int64_t numel =
        changed.whole ? part.range.size() : elements_in(changed.rows, part.width, part.range);
    const Dtype dtype = owned.dtype(plan_, part);
    changed.values.resize(static_cast<std::size_t>(numel) * dtype_bytes(dtype));
    receive({changed.values.data(), numel, dtype});
    take_rows(part, changed, take);
  }
}

void Service::pull(const Take& take) {
  for (const int owner : places_.owners) {
    if (owner != rank_) {
      pull_from(owner, take);
    }
  }
  if (!owns()) {
    return;
  }
  std::shared_ptr<const Shard::Weights> weights;
  {
    const PulseWait waits;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return own_answer_ || failure_; });
    weights = std::move(own_answer_);
    own_answer_.reset();
  }
  if (!weights) {
    rethrow();
  }
  versions_[index(rank_)] = weights->dense->version;
  const OwnedParts& owned = weights_[index(rank_)];
  for (const OwnedPart& part : owned.parts) {
    take(part,
         {weights->dense->memory.buffer.data() + part.offset,
          part.range.size(),
          owned.dtype(plan_, part)});
  }
  for (std::size_t i = 0; i < owned.rows.size(); ++i) {
    take_rows(owned.rows[i], weights->rows[i], take);
  }
}

void Service::say_goodbye() {
  std::vector<Work> sending;
  for (const int owner : places_.owners) {
    if (owner == rank_) {
      shard_->leaves(rank_);
      continue;
    }
    headers_[index(owner)] = {.leaves = 1};
    const std::lock_guard lock(issue_);
    sending.push_back(up_->send(header_span(headers_[index(owner)]), owner));
  }
  for (Work& work : sending) {
    work.wait();
  }
}

}  // namespace trireme::detail
