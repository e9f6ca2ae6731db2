#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trireme/checkpoint/vault.h"
#include "trireme/comm/world.h"

// A function of each partition of a data set, computed by the ranks together: gradients of all
// samples, statistics, evaluations. What is the same for any number of ranks is the result, bit for
// bit, because it is put together in the order of the partitions. So choose their number once, a
// few times the largest number of ranks, and not by the ranks at hand:
//
//   auto sums = trireme::map_sum(*world, 64, [&](std::int64_t partition) {
//     const auto [begin, end] = trireme::even_range(samples, 64, static_cast<int>(partition));
//     return gradients_of(data.slice(0, begin, end));
//   });
//
// `map` is called on one rank for each partition, in rounds of one for each rank, and must give the
// same for a partition on whichever rank it is called. What it throws on one rank is thrown on all
// of them, named.
//
// In an elastic job (run_elastic) `kept`, a vault for this one result, holds what there is after
// each round: when a rank is lost, those that are left, or come, go on with the next partition that
// nobody has done.

namespace trireme {

// ((map(0) + map(1)) + map(2)) + ..., on every rank. `map` returns tensors of the same shapes and
// dtypes for each partition. Tensors of 16 bits are added up in float32, which is returned. Throws
// ConfigError where shapes differ, or there is no partition. Collective.
std::vector<at::Tensor> map_sum(
    World& world,
    std::int64_t partitions,
    const std::function<std::vector<at::Tensor>(std::int64_t partition)>& map,
    Vault* kept = nullptr);

namespace detail {

using Bytes = std::string;
Bytes fold_bytes(World& world,
                 std::int64_t partitions,
                 const std::function<Bytes(std::int64_t partition)>& map,
                 Bytes total,
                 const std::function<void(Bytes& total, const Bytes& next)>& fold,
                 Vault* kept);

// Numbers, structures of them, and vectors of such.
template <class Value>
struct AsBytes {
  static_assert(std::is_trivially_copyable_v<Value>);
  static Bytes pack(const Value& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  static Value unpack(const Bytes& bytes) {
    Value value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
};
template <class Element>
struct AsBytes<std::vector<Element>> {
  static_assert(std::is_trivially_copyable_v<Element>);
  static Bytes pack(const std::vector<Element>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Element)};
  }
  static std::vector<Element> unpack(const Bytes& bytes) {
    std::vector<Element> values(bytes.size() / sizeof(Element));
    if (!values.empty()) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
  }
};
template <>
struct AsBytes<std::string> {
  static Bytes pack(const std::string& text) { return text; }
  static std::string unpack(const Bytes& bytes) { return bytes; }
};

}  // namespace detail

// fold(...fold(fold(total, map(0)), map(1))...), on every rank: for what is small, and put together
// in another way than by adding. `map` returns a Value: trivially copyable, a vector of such, or a
// string. `fold(Value& total, const Value& next)` runs on every rank, for every partition.
// Collective.
template <class Value, class Map, class Fold>
Value map_reduce(World& world,
                 std::int64_t partitions,
                 const Map& map,
                 const Value& total,
                 const Fold& fold,
                 Vault* kept = nullptr) {
  using As = detail::AsBytes<Value>;
  return As::unpack(detail::fold_bytes(
      world,
      partitions,
      [&](std::int64_t partition) { return As::pack(map(partition)); },
      As::pack(total),
      [&](detail::Bytes& sofar, const detail::Bytes& next) {
        Value value = As::unpack(sofar);
        fold(value, As::unpack(next));
        sofar = As::pack(value);
      },
      kept));
}

}  // namespace trireme
