#include "parallel/engine/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace trireme::detail {

ThreadPool::ThreadPool(int threads)
    : threads_(static_cast<std::size_t>(threads)), process_(getpid()) {}

ThreadPool::~ThreadPool() {
  if (in_child()) {
    // Threads that are not here cannot be joined, and a condition that they seem to wait on is
    // never free to go: all of it stays.
    (void)helpers_.release();
    return;
  }
  {
    const std::lock_guard lock(helpers_->mutex);
    helpers_->ends = true;
  }
  helpers_->called.notify_all();
  for (std::thread& helper : helpers_->threads) {
    helper.join();
  }
}

bool ThreadPool::in_child() const {
  return getpid() != process_;
}

void ThreadPool::start(std::size_t helpers) {
  while (helpers_->threads.size() < helpers) {
    try {
      helpers_->threads.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      return;  // no more threads are to be had: those that are there do the work
    }
  }
}

void ThreadPool::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  const std::size_t wanted = std::min(threads_, std::max<std::size_t>(count, 1)) - 1;
  if (wanted == 0 || in_child()) {
    for (std::size_t i = 0; i < count; ++i) {
      work(i);
    }
    return;
  }
  start(wanted);
  work_ = &work;
  count_ = count;
  next_ = 0;
  const std::size_t calls = std::min(wanted, helpers_->threads.size());
  {
    const std::lock_guard lock(helpers_->mutex);
    helpers_->calls = calls;
  }
  for (std::size_t i = 0; i < calls; ++i) {
    helpers_->called.notify_one();
  }
  take_turns();
  std::exception_ptr failure;
  {
    std::unique_lock lock(helpers_->mutex);
    helpers_->calls = 0;  // who has not come by now finds nothing to do
    helpers_->left.wait(lock, [&] { return helpers_->inside == 0; });
    failure = std::exchange(helpers_->failure, nullptr);
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void ThreadPool::help() {
  Helpers& helpers = *helpers_;
  std::unique_lock lock(helpers.mutex);
  for (;;) {
    helpers.called.wait(lock, [&] { return helpers.ends || helpers.calls > 0; });
    if (helpers.ends) {
      return;
    }
    --helpers.calls;
    ++helpers.inside;
    lock.unlock();
    take_turns();
    lock.lock();
    if (--helpers.inside == 0) {
      helpers.left.notify_one();
    }
  }
}

void ThreadPool::take_turns() {
  try {
    for (std::size_t i = next_++; i < count_; i = next_++) {
      (*work_)(i);
    }
  } catch (...) {
    const std::lock_guard lock(helpers_->mutex);
    helpers_->failure = helpers_->failure ? helpers_->failure : std::current_exception();
    next_ = count_;
  }
}

}  // namespace trireme::detail
