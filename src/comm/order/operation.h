#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/operation.h"
#include "trireme/core/device.h"
#include "trireme/core/span.h"

namespace trireme::detail {

// Values are part of the shared-memory format.
enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kReduce = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kSend = 9,
  kRecv = 10,
  kAllocate = 11,
  kNeighbourAllGather = 12,
};

std::string_view op_name(OpKind kind);
bool reduces(OpKind kind);
bool has_root(OpKind kind);

// Operation::counts of a rank that is no neighbour.
inline constexpr std::int64_t kNotHeard = -1;

// What a rank's peers know of one of its calls.
struct CallFacts {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  Dtype dtype = Dtype::kFloat32;
  int root = -1;
  std::int64_t total = 0;
  std::int64_t input_numel = 0;
  std::int64_t output_numel = 0;
  const std::int64_t* counts = nullptr;   // null where the rank cannot know them
  DeviceType device = DeviceType::kHost;  // where the data is; ranks may have GPUs of their own
};

// One call as one rank made it, checked by `Communicator`: what a backend carries out.
struct Operation {
  OpKind kind = OpKind::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  Dtype dtype = Dtype::kFloat32;
  int root = -1;      // of rooted collectives
  int peer = -1;      // of send and recv
  int tag = 0;        // of send and recv
  ConstSpan input{};  // what this rank contributes; empty where it contributes nothing
  Span output{};      // what this rank receives; empty where it receives nothing

  // Elements per rank: the split that reduce_scatter, all_gather, gather and scatter agree on (the
  // same on all ranks), or what this rank sends to each (all_to_all, and neighbour_all_gather, with
  // kNotHeard for those who do not hear it). Empty on a rank that cannot
  // know it: the non-roots of a gather or scatter without explicit counts.
  std::vector<std::int64_t> counts{};
  std::vector<int> heard{};  // of neighbour_all_gather: whom this rank hears, as in the output
  SumTerms terms{};
  std::int64_t total = 0;  // elements of the whole operation; of an allocation, its bytes
  Device device{};         // where input and output are, or what is allocated
  // What the user called, where this is only a part of it.
  std::optional<CallFacts> whole{};
};

CallFacts facts_of(const Operation& operation);

// "all_reduce(sum, float32 x 1024)"; for messages.
std::string describe(OpKind kind,
                     ReduceOp reduce,
                     Dtype dtype,
                     std::int64_t total,
                     int root,
                     DeviceType device = DeviceType::kHost);

}  // namespace trireme::detail
