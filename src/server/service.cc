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

Span header_span(Shard::PushHeader& header) {
  return {&header, sizeof(header), Dtype::kUint8};
}

}  // namespace

Service::Service(Communicator& ranks, const ModelPlan& plan, Places places)
    : rank_(ranks.rank()),
      plan_(plan),
      places_(std::move(places)),
      versions_(index(ranks.size()), 0),
      headers_(index(ranks.size())) {
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
  line.has_header = false;
  const std::lock_guard lock(issue_);
  work = up_->recv(header_span(line.header), line.worker);
}

bool Service::take(Line& line, Work& work) {
  work.wait();  // it is finished
  if (!line.has_header) {
    if (line.header.leaves != 0) {
      shard_->leaves(line.worker);
      return false;
    }
    line.has_header = true;
    line.push = shard_->spare();
    line.push.header = line.header;
    const OwnedParts& owned = gradients_[index(rank_)];
    const std::lock_guard lock(issue_);
    work = up_->recv(line.push.used, line.worker);
    for (const OwnedPart& part : owned.parts) {
      line.parts.push_back(std::move(work));
      work = up_->recv({line.push.values.buffer.data() + part.offset,
                        part.range.size(),
                        owned.dtype(plan_, part)},
                       line.worker);
    }
    return true;
  }
  for (Work& part : line.parts) {
    part.wait();  // messages arrive in order
  }
  line.parts.clear();
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

void Service::answer(int worker, const std::shared_ptr<const Shard::Snapshot>& weights) {
  if (worker == rank_) {
    const std::lock_guard lock(mutex_);
    own_answer_ = weights;
    changed_.notify_all();
    return;
  }
  const OwnedParts& owned = weights_[index(rank_)];
  const std::lock_guard lock(issue_);
  // Nobody waits for them: their failure is that of the communicator.
  down_->send({&weights->version, sizeof(weights->version), Dtype::kUint8, weights}, worker)
      .forget();
  for (const OwnedPart& part : owned.parts) {
    down_
        ->send({weights->memory.buffer.data() + part.offset,
                part.range.size(),
                owned.dtype(plan_, part),
                weights},
               worker)
        .forget();
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
    const std::lock_guard lock(issue_);
    sending.push_back(up_->send(header_span(headers_[index(owner)]), owner));
    sending.push_back(up_->send(used, owner));
    sent_bytes_ += static_cast<std::int64_t>(sizeof(header) + used.size());
    for (const OwnedPart& part : gradients_[index(owner)].parts) {
      const Span values = sums.at(part.unit, part.range);
      sending.push_back(up_->send(values, owner));
      sent_bytes_ += static_cast<std::int64_t>(values.size_bytes());
    }
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
    shard_->take(rank_, std::move(push));
  }
  for (Work& work : sending) {
    work.wait();
  }
}

void Service::pull(const Take& take) {
  for (const int owner : places_.owners) {
    if (owner == rank_) {
      continue;
    }
    const OwnedParts& owned = weights_[index(owner)];
    const auto receive = [&](const Span& into) {
      Work work;
      {
        const std::lock_guard lock(issue_);
        work = down_->recv(into, owner);
      }
      work.wait();
    };
    receive({&versions_[index(owner)], sizeof(std::int64_t), Dtype::kUint8});
    for (const OwnedPart& part : owned.parts) {
      const Span values(scratch_.data(), part.range.size(), owned.dtype(plan_, part));
      receive(values);
      take(part, values);
    }
  }
  if (!owns()) {
    return;
  }
  std::shared_ptr<const Shard::Snapshot> weights;
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
  versions_[index(rank_)] = weights->version;
  const OwnedParts& owned = weights_[index(rank_)];
  for (const OwnedPart& part : owned.parts) {
    take(
        part,
        {weights->memory.buffer.data() + part.offset, part.range.size(), owned.dtype(plan_, part)});
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
