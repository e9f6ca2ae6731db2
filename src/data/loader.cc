#include "trireme/data/loader.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <signal.h>

#include "data/augmentation.h"
#include "trireme/core/error.h"
#include "trireme/core/pulse.h"
#include "trireme/core/seconds_since.h"

namespace trireme {
namespace {

struct Request {
  DataPosition position = 0;
  std::int64_t micro_batch = 0;
  std::int64_t samples = 0;
};

// A request on its way to being a batch.
struct Job {
  enum class State { kWaiting, kInWork, kReady };

  Request request{};
  State state = State::kWaiting;
  bool dropped = false;  // by clear(), while in work
  Batch batch{};
  std::exception_ptr error{};
};

// Blocks all signals while it lives. Threads started meanwhile inherit that, so that a signal to
// the process is handled by the threads the program keeps for it, and interrupts no reading.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

// Jobs stand in a queue in the order of their requests. Workers take the first that waits; next()
// takes the first of all once it is ready. As the first is always begun before those behind it, a
// queue full of ready ones never waits for one that cannot begin.
class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> data, const Sampler& sampler, const LoaderOptions& options)
      : data_(std::move(data)),
        sampler_(sampler),
        options_(options),
        background_(data_->background()) {
    detail::check_augmentation(options_.augmentation, data_->shape());
    TRIREME_CHECK(options_.threads >= 0, "threads cannot be negative, found ", options_.threads);
    TRIREME_CHECK(options_.threads == 0 || options_.ahead >= 1,
                  "threads need at least one batch to prepare ahead, found ",
                  options_.ahead);
    const SignalsBlocked blocked;
    try {
      for (int i = 0; i < options_.threads; ++i) {
        workers_.emplace_back([this] { work(); });
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { stop(); }

  void request(const Request& request) {
    TRIREME_CHECK(request.position >= 0 && request.micro_batch >= 0 && request.samples >= 1,
                  "a request needs a position and micro-batch of 0 or more and at least one "
                  "sample, found {}, {} and {}",
                  {request.position, request.micro_batch, request.samples});
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::make_shared<Job>());
      queue_.back()->request = request;
    }
    may_begin_.notify_one();
  }

  std::size_t outstanding() const {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }

  const Batch& next() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    TRIREME_CHECK(!queue_.empty(), "a batch was asked for, but none had been requested");
    const std::shared_ptr<Job> job = queue_.front();
    if (workers_.empty()) {
      queue_.pop_front();
      job->batch = std::move(taken_);
      lock.unlock();
      prepare(*job);
      lock.lock();
    } else {
      became_ready_.wait(lock, [&] { return job->state == Job::State::kReady; });
      queue_.pop_front();
      --ready_;
      spare_.push_back(std::move(taken_));
    }
    taken_ = std::move(job->batch);
    waited_seconds_ += detail::seconds_since(start);
    lock.unlock();
    may_begin_.notify_one();
    if (job->error) {
      std::rethrow_exception(job->error);
    }
    detail::mark(PulsePhase::kBatch);
    return taken_;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Job>& job : queue_) {
      if (job->state == Job::State::kReady) {
        spare_.push_back(std::move(job->batch));
      }
      // One in work belongs to its worker until that is done with it.
      job->dropped = true;
    }
    queue_.clear();
    ready_ = 0;
  }

  double waited_seconds() const {
    const std::lock_guard lock(mutex_);
    return waited_seconds_;
  }

 private:
  void prepare(Job& job) const {
    try {
      const Request& request = job.request;
      thread_local std::vector<std::int64_t> samples;
      sampler_.fill(request.position, request.micro_batch, request.samples, samples);
      data_->read(samples, job.batch);
      detail::augment(options_.augmentation,
                      data_->shape(),
                      background_,
                      options_.seed,
                      request.position + request.micro_batch * request.samples,
                      job.batch);
    } catch (...) {
      job.error = std::current_exception();
    }
  }

  // The first job that may begin; null where there is none. Under mutex_.
  std::shared_ptr<Job> begin_job() {
    if (ready_ >= static_cast<std::size_t>(options_.ahead)) {
      return nullptr;
    }
    for (const std::shared_ptr<Job>& job : queue_) {
      if (job->state == Job::State::kWaiting) {
        job->state = Job::State::kInWork;
        if (!spare_.empty()) {
          job->batch = std::move(spare_.back());
          spare_.pop_back();
        }
        return job;
      }
    }
    return nullptr;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      std::shared_ptr<Job> job;
      may_begin_.wait(lock, [&] { return stopping_ || (job = begin_job()) != nullptr; });
      if (stopping_) {
        return;
      }
      lock.unlock();
      prepare(*job);
      lock.lock();
      if (job->dropped) {
        spare_.push_back(std::move(job->batch));
        continue;
      }
      job->state = Job::State::kReady;
      ++ready_;
      became_ready_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    may_begin_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }

  const std::shared_ptr<const Dataset> data_;
  const Sampler sampler_;
  const LoaderOptions options_;
  const std::vector<float> background_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<Job>> queue_;
  std::size_t ready_ = 0;  // jobs of the queue that are
  std::vector<Batch> spare_;
  bool stopping_ = false;
  double waited_seconds_ = 0;
  std::condition_variable may_begin_;  // a request, or room for a ready batch
  std::condition_variable became_ready_;

  Batch taken_;  // the caller's, from next() to next()
  std::vector<std::thread> workers_;
};

Loader::Loader(std::shared_ptr<const Dataset> data,
               const Sampler& sampler,
               const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(data), sampler, options)) {}

Loader::~Loader() = default;

void Loader::request(DataPosition position, std::int64_t micro_batch, std::int64_t samples) {
  impl_->request({position, micro_batch, samples});
}

std::size_t Loader::outstanding() const {
  return impl_->outstanding();
}

const Batch& Loader::next() {
  return impl_->next();
}

void Loader::clear() {
  impl_->clear();
}

double Loader::waited_seconds() const {
  return impl_->waited_seconds();
}

}  // namespace trireme
