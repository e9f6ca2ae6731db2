#pragma once

#include <coroutine>
#include <exception>
#include <utility>
#include <vector>

namespace trireme::detail {

// What a step waits for.
class Condition {
 public:
  virtual ~Condition() = default;
  // Cheap; may throw when it finds that the wait can never end well (peers disagree).
  virtual bool ready() = 0;
  // The ranks it is waiting for; for messages.
  virtual std::vector<int> missing() = 0;
  // Nobody rings when it has come: a GPU's work. Whoever waits looks often.
  virtual bool is_silent() const { return false; }
  // A part of the operation is waited for that has posted all of its messages, and there is nothing
  // to post after it.
  virtual bool all_posted() const { return false; }
};

// `co_await AllPosted()`: the operation will post no more messages. See Note [ahead].
struct AllPosted {};

// An operation written as one function that reads top to bottom and stops at every `co_await` of a
// Condition. Whoever makes progress (the waiting thread, or a helper) calls `advance`; nothing
// blocks inside. Started by the first advance.
class Steps {
 public:
  // NOLINTNEXTLINE(readability-identifier-naming): the language's name
  struct promise_type {
    Condition* waiting = nullptr;
    bool all_posted = false;
    std::exception_ptr failure;

    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { failure = std::current_exception(); }

    // The condition lives in the coroutine's frame for as long as the wait lasts.
    struct Awaiter {
      Condition& condition;
      promise_type& promise;
      // What it throws does not unwind the operation: messages that are on their way may still use
      // its memory, which therefore stays until the operation itself is dropped.
      bool await_ready() noexcept {
        try {
          return condition.ready();
        } catch (...) {
          promise.failure = std::current_exception();
          return false;
        }
      }
      void await_suspend(std::coroutine_handle<>) noexcept { promise.waiting = &condition; }
      void await_resume() noexcept { promise.waiting = nullptr; }
    };
    Awaiter await_transform(Condition& condition) { return {condition, *this}; }
    Awaiter await_transform(Condition&& condition) { return {condition, *this}; }
    std::suspend_never await_transform(AllPosted /*mark*/) noexcept {
      all_posted = true;
      return {};
    }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Steps() = default;
  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) {
      handle_.destroy();
    }
  }

  // Goes on if what it waits for has come; true if it did. Throws what the operation threw.
  bool advance() {
    auto& promise = handle_.promise();
    if (handle_.done() || (promise.waiting != nullptr && !promise.waiting->ready())) {
      return false;
    }
    handle_.resume();
    if (promise.failure) {
      std::rethrow_exception(std::exchange(promise.failure, {}));
    }
    return true;
  }
  bool valid() const { return static_cast<bool>(handle_); }
  bool finished() const { return handle_.done(); }
  Condition* waiting() const { return handle_.promise().waiting; }
  bool all_posted() const {
    const promise_type& promise = handle_.promise();
    return promise.all_posted || (promise.waiting != nullptr && promise.waiting->all_posted());
  }

 private:
  explicit Steps(Handle handle) : handle_(handle) {}
  Handle handle_;
};

}  // namespace trireme::detail
