// Sums on a GPU: what is added to what is worked out here, as host/sum_chain.cc does it, and the
// elements are added by kernels.

#include <algorithm>
#include <map>

#include "device/chain_stretch.h"
#include "device/cuda/cuda_scratch.h"
#include "device/cuda/cuda_stream.h"
#include "trireme/core/error.h"

namespace trireme::device::cuda {
namespace {

int op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return kChainSum;
    case ReduceOp::kAverage:
      return kChainAverage;
    case ReduceOp::kMin:
      return kChainMin;
    default:
      return kChainMax;
  }
}

// A kernel's name has the types of terms and outputs; bool is a byte.
std::string sum_name(const char* what, Dtype terms, Dtype outputs) {
  const auto name = [](Dtype dtype) {
    return dtype_name(dtype == Dtype::kBool ? Dtype::kUint8 : dtype);
  };
  return detail::concat(what, "_", name(terms), "_", name(outputs));
}

// The kernel's view of elements [at, end), in which the same terms are present; false where nobody
// has them.
bool fill_stretch(const SumChain& chain,
                  std::int64_t at,
                  std::int64_t end,
                  ChainArguments& arguments) {
  const auto offset = static_cast<std::size_t>(at - chain.range.begin);
  const std::size_t element = dtype_bytes(chain.dtype);
  const std::size_t output_element = dtype_bytes(chain.output_dtype);
  const bool adds = chain.op == ReduceOp::kSum || chain.op == ReduceOp::kAverage;
  const int group = adds && is_float(chain.dtype) ? std::max(chain.group, 1) : 1;
  std::vector<DealtArray> arrays;
  arguments = {};
  arguments.op = op_of(chain.op);
  arguments.divisor = chain.divisor;
  int group_before = -1;
  for (std::size_t rank = 0; rank < chain.terms.size(); ++rank) {
    if (!chain.terms[rank].has(at)) {
      continue;
    }
    TRIREME_CHECK(arguments.term_count < kMostTerms,
                  "a sum on a GPU has at most {} terms, found {}: use fewer ranks per machine",
                  {kMostTerms, chain.terms.size()});
    const int group_here = static_cast<int>(rank) / group;
    if (group_here != group_before) {
      arguments.begins |= 1ULL << arguments.term_count;
      group_before = group_here;
    }
    const Address term = address_of(chain.terms[rank].data) + offset * element;
    arguments.terms[arguments.term_count++] = term;
    arrays.push_back({term, element});
  }
  if (arguments.term_count == 0) {
    return false;
  }
  if (chain.accumulator != nullptr && chain.accumulator->has(at)) {
    arguments.old = address_of(chain.accumulator->data) + offset * output_element;
    arrays.push_back({arguments.old, output_element});
  }
  TRIREME_CHECK(chain.outputs.size() <= kMostOutputs,
                "a sum on a GPU goes to at most {} places, found {}: use fewer ranks per machine",
                {kMostOutputs, chain.outputs.size()});
  for (std::byte* output : chain.outputs) {
    const Address place = address_of(output) + offset * output_element;
    arguments.outputs[arguments.output_count++] = place;
    arrays.push_back({place, output_element});
  }
  const Count pack = std::min<Count>(kMostInPack, static_cast<Count>(kPackBytes / element));
  arguments.split = split_of(end - at, pack, arrays);
  return true;
}

}  // namespace

void CudaStream::reduce(const SumChain& chain) {
  TRIREME_ASSERT(
      chain.output_dtype == chain.dtype || chain.op == ReduceOp::kSum || !is_half(chain.dtype),
      "only sums keep the precision in which they are made");
  const Current current(gpu_);
  ChainArguments arguments;
  for (std::int64_t at = chain.range.begin; at < chain.range.end;) {
    const std::int64_t end = next_change(chain, at);
    if (fill_stretch(chain, at, end, arguments)) {
      launch("reduce",
             sum_name("reduce", chain.dtype, chain.output_dtype),
             blocks_for(arguments.split),
             arguments);
    }
    at = end;
  }
}

void CudaStream::add_rows(const RowSums& rows) {
  check_here(rows.sums);
  check_here(rows.values);
  // Which of the values go to a row, in order: rows are independent of each other.
  std::map<std::int64_t, std::vector<Count>> by_row;
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const std::int64_t first = rows.rows[i] * rows.width;
    if (!intersection({first, first + rows.width}, rows.range).empty()) {
      by_row[rows.rows[i]].push_back(static_cast<Count>(i));
    }
  }
  if (by_row.empty()) {
    return;
  }
  std::vector<Count> lists;  // targets, then first, then order
  lists.reserve(2 * by_row.size() + 1 + rows.rows.size());
  for (const auto& [row, values] : by_row) {
    lists.push_back(row);
  }
  Count before = 0;
  lists.push_back(before);
  for (const auto& [row, values] : by_row) {
    lists.push_back(before += static_cast<Count>(values.size()));
  }
  for (const auto& [row, values] : by_row) {
    lists.insert(lists.end(), values.begin(), values.end());
  }
  constexpr Count kMostBlocks = Count{1} << 20;
  const auto unique = static_cast<Count>(by_row.size());
  const std::size_t bytes = lists.size() * sizeof(Count);
  const Current current(gpu_);
  const Scratch scratch(stream_, bytes);
  const Address there = address_of(scratch.data());
  // Memory that the driver does not know has been read when this returns.
  check(cuda_calls().copy_async(there, address_of(lists.data()), bytes, stream_),
        "copying the numbers of rows");
  RowArguments arguments{.begin = rows.range.begin,
                         .end = rows.range.end,
                         .width = rows.width,
                         .sums = address_of(rows.sums.bytes()),
                         .values = address_of(rows.values.bytes()),
                         .targets = there,
                         .first = there + static_cast<Address>(unique) * sizeof(Count),
                         .order = there + static_cast<Address>(2 * unique + 1) * sizeof(Count),
                         .unique = unique};
  launch("rows",
         sum_name("rows", rows.values.dtype(), rows.sums.dtype()),
         std::min(unique, kMostBlocks),
         arguments);
  keep(rows.sums.owner());
  keep(rows.values.owner());
}

}  // namespace trireme::device::cuda
