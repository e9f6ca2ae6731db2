#pragma once

#include "device/stream.h"

namespace trireme::device {

// The host's work: done when a call returns, on the thread that calls. Has no state.
class HostStream final : public Stream {
 public:
  Device device() const override { return {}; }
  Event record() override { return {}; }
  void wait(const Event& event) override;
  Span scratch(Dtype dtype, std::int64_t numel) override;
  void clear(const Span& data) override;
  void copy(const Span& to, const ConstSpan& from, NotFinite* not_finite) override;
  void check_finite(const ConstSpan& data, NotFinite* not_finite) override;
  void reduce(const SumChain& chain) override;  // sum_chain.cc
  void add_rows(const RowSums& rows) override;
  void largest(const ConstSpan& data, const Scaling& scaling, double* largest) override;
  void squares(const ConstSpan& data,
               const SquareQuanta& quanta,
               const Scaling& scaling,
               SquareSum* sum) override;
  void update(const UpdateRule& rule, const UpdateArrays& arrays) override;
  void multiply(const Product& product) override;
  void run(const BlockKernel& kernel) override;
};

}  // namespace trireme::device
