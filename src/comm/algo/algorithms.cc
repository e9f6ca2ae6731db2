#include "comm/algo/algorithms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "comm/order/copy_bytes.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr std::array<std::pair<std::string_view, Algorithm>, 6> kNames = {{
    {"auto", Algorithm::kAutomatic},
    {"direct", Algorithm::kDirect},
    {"ring", Algorithm::kRing},
    {"tree", Algorithm::kTree},
    {"doubling", Algorithm::kDoubling},
    {"aggregator", Algorithm::kAggregator},
}};

}  // namespace

Algorithm algorithm_named(std::string_view name, const std::string& where) {
  for (const auto& [known_name, algorithm] : kNames) {
    if (name == known_name) {
      return algorithm;
    }
  }
  const std::string known = listed(kNames, [](const auto& each) { return each.first; });
  throw ConfigError(concat(where, ": expected one of ", known, "; found \"", name, "\""));
}

std::string_view name_of(Algorithm algorithm) {
  return std::ranges::find(kNames, algorithm, &std::pair<std::string_view, Algorithm>::second)
      ->first;
}

bool keeps_order_of_sums(Algorithm algorithm) {
  return algorithm != Algorithm::kRing;
}

void finish_from_announcements(NetCall& call) {
  const Operation& op = call.operation();
  std::byte* output = op.output.bytes();
  if (op.output.numel() == 0) {
    return;
  }
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter: {
      const std::int64_t first = op.kind == OpKind::kReduceScatter ? call.begin(call.rank()) : 0;
      std::vector<const std::byte*> inputs;
      inputs.reserve(static_cast<std::size_t>(call.size()));
      for (int rank = 0; rank < call.size(); ++rank) {
        inputs.push_back(call.eager_term(rank, first));
      }
      call.reduce({first, first + op.output.numel()}, inputs, std::span(&output, 1));
      break;
    }
    case OpKind::kBroadcast:
      if (call.rank() != op.root) {
        std::memcpy(output, call.eager(op.root), op.output.size_bytes());
      }
      break;
    case OpKind::kAllGather:
      for (int rank = 0; rank < call.size(); ++rank) {
        if (const std::byte* input = call.eager(rank)) {
          const Span part = call.part(rank);
          copy_bytes(
              part.bytes(), rank == call.rank() ? op.input.bytes() : input, part.size_bytes());
        }
      }
      break;
    default:
      break;
  }
}

}  // namespace trireme::detail
