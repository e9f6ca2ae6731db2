#pragma once

#include <atomic>
#include <cstddef>

#include <sys/mman.h>

namespace trireme::testing {

// Numbers that ranks and the test share.
template <class T>
class SharedNumbers {
 public:
  explicit SharedNumbers(std::size_t count)
      : data_(static_cast<std::atomic<T>*>(mmap(nullptr,
                                                count * sizeof(std::atomic<T>),
                                                PROT_READ | PROT_WRITE,
                                                MAP_SHARED | MAP_ANONYMOUS,
                                                -1,
                                                0))),
        count_(count) {}
  SharedNumbers(const SharedNumbers&) = delete;
  SharedNumbers& operator=(const SharedNumbers&) = delete;
  ~SharedNumbers() { munmap(data_, count_ * sizeof(std::atomic<T>)); }
  std::atomic<T>& operator[](std::size_t i) { return data_[i]; }

 private:
  std::atomic<T>* data_;
  std::size_t count_;
};

}  // namespace trireme::testing
