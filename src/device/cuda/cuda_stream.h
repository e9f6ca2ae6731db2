#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/cuda_event.h"
#include "device/stream.h"

namespace trireme::device::cuda {

// Work on a GPU. The bits are the host's in every call (docs/gpu.md says what that leaves out).
class CudaStream final : public Stream {
 public:
  // The default stream: LibTorch's work goes there where nobody chose another, so what is issued
  // here follows it, and it follows this.
  explicit CudaStream(Gpu& gpu) : gpu_(gpu) {}
  static std::unique_ptr<CudaStream> on_its_own(Gpu& gpu);
  // What was issued is still done, and waited for.
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device device() const override { return gpu_.device(); }
  NativeStream native() const { return stream_; }

  Event record() override;
  void wait(const Event& event) override;
  Span scratch(Dtype dtype, std::int64_t numel) override;
  void clear(const Span& data) override;
  void copy(const Span& to, const ConstSpan& from, NotFinite* not_finite) override;
  void check_finite(const ConstSpan& data, NotFinite* not_finite) override;
  void reduce(const SumChain& chain) override;  // cuda_sums.cc
  void add_rows(const RowSums& rows) override;  // cuda_sums.cc
  void largest(const ConstSpan& data, const Scaling& scaling, double* largest) override;
  void squares(const ConstSpan& data,
               const SquareQuanta& quanta,
               const Scaling& scaling,
               SquareSum* sum) override;
  void update(const UpdateRule& rule, const UpdateArrays& arrays) override;
  void multiply(const Product& product) override;
  void run(const BlockKernel& kernel) override;

 private:
  void check_here(const ConstSpan& data) const;
  // Keeps what a span lies in until what has been issued is done.
  void keep(const std::shared_ptr<const void>& owner);
  void let_go();  // of what was kept for work that is done; under mutex_
  void launch(Function function, Count blocks, std::vector<void*> parameters);
  template <class Arguments>
  void launch(const char* file, const std::string& name, Count blocks, Arguments& arguments) {
    launch(gpu_.kernels().find(file, name), blocks, {&arguments});
  }
  void move(const Span& to, const ConstSpan& from);
  void copy_by_kernel(const Span& to, const ConstSpan& from, NotFinite* not_finite);
  void measure(const char* what, const ConstSpan& data, NormArguments& norm, std::size_t numbers);

  struct Kept {
    std::shared_ptr<CudaMoment> until;
    std::shared_ptr<const void> owner;
  };

  Gpu& gpu_;
  NativeStream stream_ = nullptr;
  std::mutex mutex_;       // ranks that are threads of one process share the default stream
  std::deque<Kept> kept_;  // guarded by mutex_
};

inline Address address_of(const void* data) {
  return reinterpret_cast<Address>(data);
}

constexpr std::size_t kPackBytes = 16;

// How `numel` elements are dealt out where `arrays` are at these addresses, in packs of `pack`.
struct DealtArray {
  Address address;
  std::size_t element_bytes;
};
Split split_of(Count numel, Count pack, const std::vector<DealtArray>& arrays);
// Blocks that are needed for it.
Count blocks_for(const Split& split);

}  // namespace trireme::device::cuda
