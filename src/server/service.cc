#include "server/service.h"

#include <algorithm>

#include "parallel/memory/runs.h"
#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"
#include "trireme/core/pulse.h"

namespace trireme::detail {
namespace {

// Between two looks at whether the thread is to end, and whether a worker is late.
constexpr Milliseconds kLook{200};

}  // namespace

Service::Service(Communicator& ranks, const ModelPlan& plan, Places places)
    : rank_(ranks.rank()),
      plan_(plan),
      places_(std::move(places)),
      versions_(index(ranks.size()), 0),
      headers_(index(ranks.size())),
      counts_(index(ranks.size())) {
  std::size_t most = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    gradients_.emplace_back(plan, rank, Content::kGradients);
    weights_.emplace_back(plan, rank, Content::kWeights);
    for (const OwnedPart& part : weights_.back().parts) {
      most = std::max(most,
                      static_cast<std::size_t>(part.range.size()) *
                          dtype_bytes(weights_.back().dtype(plan, part)));
    }
  }
  scratch_ = device::Buffer(most);
  up_ = ranks.split(0);
  down_ = ranks.split(0);
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  for (Work& work : waits_) {
    work.forget();
  }
  for (const auto& line : lines_) {
    for (Work& work : line->parts) {
      work.forget();
    }
  }
}

bool Service::owns() const {
  return std::ranges::count(places_.owners, rank_) > 0;
}

void Service::start(Shard& shard) {
  shard_ = &shard;
  for (int worker = 0; worker < places_.workers && owns(); ++worker) {
    if (worker != rank_) {
      lines_.push_back(std::make_unique<Line>());
      lines_.back()->worker = worker;
    }
  }
  if (!lines_.empty()) {
    served_ = false;
    thread_ = std::thread([this] { serve(); });
  }
}

void Service::serve() {
  try {
    waits_.resize(lines_.size());
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      expect(*lines_[i], waits_[i]);
    }
    while (!lines_.empty()) {
      {
        const std::lock_guard lock(mutex_);
        if (ends_) {
          return;
        }
      }
      const auto found = up_->wait_any(waits_, kLook);
      if (found && !take(*lines_[*found], waits_[*found])) {
        const auto at = static_cast<std::ptrdiff_t>(*found);
        lines_.erase(lines_.begin() + at);
        waits_.erase(waits_.begin() + at);
      }
      check_late();
    }
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    // Whoever waits for this owner hears why.
    if (dynamic_cast<const CommError*>(&error) == nullptr) {
      up_->abort(error.what());
      down_->abort(error.what());
    }
  }
  const std::lock_guard lock(mutex_);
  served_ = true;
  changed_.notify_all();
}

void Service::expect(Line& line, Work& work) {
  line.next = Line::Next::kHeader;
  const std::lock_guard lock(issue_);
  work = up_->recv(header_span(line.header), line.worker);
}

void Service::expect_parts(Line& line, Work& work) {
  line.next = Line::Next::kParts;
  line.push = shard_->spare();
  line.push.header = line.header;
  const OwnedParts& owned = gradients_[index(rank_)];
  const std::lock_guard lock(issue_);
  work = up_->recv(line.push.used, line.worker);
  const auto then = [&](const Span& into) {
    line.parts.push_back(std::move(work));
    work = up_->recv(into, line.worker);
  };
  if (!owned.rows.empty()) {
    line.counts.resize(owned.rows.size());
    then(integers(line.counts));
  }
  for (const OwnedPart& part : owned.parts) {
    then({line.push.values.buffer.data() + part.offset,
          part.range.size(),
          owned.dtype(plan_, part)});
  }
}

bool Service::expect_rows(Line& line, Work& work) {
  const OwnedParts& owned = gradients_[index(rank_)];
  std::vector<Span> runs;
  for (std::size_t i = 0; i < owned.rows.size(); ++i) {
    const OwnedPart& part = owned.rows[i];
    Shard::Push::Rows& its = line.push.rows[i];
    const std::int64_t numel = line.counts[i] * part.width;
    its.rows.resize(static_cast<std::size_t>(line.counts[i]));
    its.values.resize(static_cast<std::size_t>(numel) * dtype_bytes(owned.dtype(plan_, part)));
    if (line.counts[i] > 0) {
      runs.push_back(integers(its.rows));
      runs.emplace_back(its.values.data(), numel, owned.dtype(plan_, part));
    }
  }
  if (runs.empty()) {
    return false;
  }
  line.next = Line::Next::kRows;
  const std::lock_guard lock(issue_);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (i > 0) {
      line.parts.push_back(std::move(work));
    }
    work = up_->recv(runs[i], line.worker);
  }
  return true;
}

bool Service::take(Line& line, Work& work) {
  work.wait();  // it is finished
  if (line.next == Line::Next::kHeader) {
    if (line.header.leaves != 0) {
      shard_->leaves(line.worker);
      return false;
    }
    expect_parts(line, work);
    return true;
  }
  for (Work& part : line.parts) {
    part.wait();  // messages arrive in order
  }
  line.parts.clear();
  if (line.next == Line::Next::kParts && expect_rows(line, work)) {
    return true;
  }
  shard_->take(line.worker, std::move(line.push));
  expect(line, work);
  return true;
}

// Those who wait for a worker would blame the owner that does not answer.
void Service::check_late() {
  const auto late = shard_->late(up_->timeout() * 4 / 5);
  if (late) {
    const CommError failure(
        CommError::Reason::kTimeout,
        late->worker,
        concat("rank {} has taken {} steps and nothing came of the next one for {} s, for which "
               "rank {} waits: it is stopped, or slower than the deadline; --timeout allows more",
               {late->worker,
                late->clock,
                std::chrono::duration<double>(up_->timeout() * 4 / 5).count(),
                late->waiting}));
    down_->fail(failure);
    throw CommError(up_->fail(failure));
  }
}

void Service::answer(int worker, std::shared_ptr<const Shard::Weights> weights) {
  if (worker == rank_) {
    const std::lock_guard lock(mutex_);
    own_answer_ = std::move(weights);
    changed_.notify_all();
    return;
  }
  const OwnedParts& owned = weights_[index(rank_)];
  // The version, and how many rows follow of each part that has rows.
  const auto head = std::make_shared<std::vector<std::int64_t>>();
  head->push_back(weights->dense->version);
  for (const ChangedRows& changed : weights->rows) {
    head->push_back(changed.whole ? kWhole : static_cast<std::int64_t>(changed.rows.size()));
  }
  const std::lock_guard lock(issue_);
  // Nobody waits for them: their failure is that of the communicator.
  const auto send = [&](const void* data, std::int64_t numel, Dtype dtype, auto owner) {
    if (numel > 0) {
      down_->send(ConstSpan(data, numel, dtype, std::move(owner)), worker).forget();
    }
  };
  send(head->data(), static_cast<std::int64_t>(head->size()), Dtype::kInt64, head);
  for (const OwnedPart& part : owned.parts) {
    send(weights->dense->memory.buffer.data() + part.offset,
         part.range.size(),
         owned.dtype(plan_, part),
         weights);
  }
  for (std::size_t i = 0; i < owned.rows.size(); ++i) {
    const ChangedRows& changed = weights->rows[i];
    const Dtype dtype = owned.dtype(plan_, owned.rows[i]);
    send(changed.rows.data(),
         static_cast<std::int64_t>(changed.rows.size()),
         Dtype::kInt64,
         weights);
    send(changed.values.data(),
         static_cast<std::int64_t>(changed.values.size() / dtype_bytes(dtype)),
         dtype,
         weights);
  }
}

void Service::finish() {
  {
    const PulseWait waits;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return served_; });
  }
  rethrow();
}

void Service::rethrow() {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

}  // namespace trireme::detail
