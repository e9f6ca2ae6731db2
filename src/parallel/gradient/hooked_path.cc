#include "parallel/gradient/hooked_path.h"

#include <ATen/ops/from_blob.h>

#include "parallel/memory/runs.h"
#include "trireme/core/error.h"
#include "trireme/tensor/span.h"

namespace trireme::detail {
namespace {

// Zeros where this rank has nothing: for absent parameters, and in the gaps between all of them.
void clear_rest(const Span& memory, const Bucket& bucket, const std::vector<Range>& absent) {
  std::int64_t done = 0;
  for (const Piece& piece : bucket.pieces) {
    const std::int64_t begin = piece.offset - bucket.range.begin;
    device::host().clear(part_of(memory, {done, begin}));
    done = begin + piece.numel;
  }
  device::host().clear(part_of(memory, {done, bucket.range.size()}));
  for (const Range& range : absent) {
    device::host().clear(part_of(memory, range));
  }
}

}  // namespace

void HookedPath::launch(const Ready& ready) {
  const Ready filled = with_memory(ready);
  const Bucket& whole = bucket(ready.bucket);
  const std::int64_t numel = whole.range.size();
  clear_rest(filled.memory, whole, ready.absent);
  at::Tensor values =
      at::from_blob(filled.memory.bytes(),
                    {numel},
                    at::TensorOptions().dtype(scalar_type_of(filled.memory.dtype())));
  const at::Tensor summed = context_.options.gradient_hook(
      {.index = ready.bucket, .values = values, .ranks = context_.ranks});
  TRIREME_CHECK(summed.defined() && summed.numel() == numel,
                "the gradient hook was given {} values and returned {}: return the sum of all of "
                "them over the ranks",
                {numel, summed.defined() ? summed.numel() : 0});
  const Dtype dtype = unit_of(ready.bucket).sum_dtype();
  const at::Tensor exact = summed.reshape({numel}).to(scalar_type_of(dtype)).contiguous();
  const Range own = own_part(ready.bucket);
  const ConstSpan ours =
      part_of(const_run_of(exact), {own.begin - whole.range.begin, own.end - whole.range.begin});
  const Span sums = sums_.at(whole.unit, own);
  const bool in_ring = memory_.space(unit_of(ready.bucket)) == BucketMemory::Space::kRing;
  device::host().add(sums, ours, context_.ranks.size() == 1 || round_.number == 0 || !in_ring);
  give_back(filled);
}

}  // namespace trireme::detail
