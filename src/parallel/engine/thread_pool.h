#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

namespace trireme::detail {

// Threads for short pieces of work, of which a step has many: they are started when they are first
// needed, and wait in between. A child of fork() has none of them: there the caller works alone.
class ThreadPool {
 public:
  // The thread that calls `run` is one of them.
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  std::size_t threads() const { return threads_; }

  // Calls work(0) to work(count - 1), in any order, on up to `threads` threads, and returns when
  // all are done. The first exception leaves out what has not begun, and is thrown here. From one
  // thread at a time.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  // The helpers, and what they wait on.
  struct Helpers {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable called;
    std::condition_variable left;
    // Guarded by mutex:
    std::size_t calls = 0;  // helpers that are wanted and have not come
    std::size_t inside = 0;
    std::exception_ptr failure;  // the first
    bool ends = false;
  };

  bool in_child() const;
  void start(std::size_t helpers);
  void help();
  void take_turns();

  const std::size_t threads_;
  const pid_t process_;
  std::unique_ptr<Helpers> helpers_ = std::make_unique<Helpers>();

  // Of the present run; set while no helper is in it.
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t count_ = 0;
  std::atomic<std::size_t> next_{0};
};

}  // namespace trireme::detail
