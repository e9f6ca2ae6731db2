#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "server/owned_parts.h"
#include "trireme/core/span.h"

namespace trireme::detail {

// What has changed of an owner's part of a parameter whose gradients are rows.
struct ChangedRows {
  bool whole = false;              // all of it: `rows` is empty
  std::vector<std::int64_t> rows;  // of the parameter, which ascend
  std::vector<std::byte> values;   // of their elements that the owner has, row after row
};

// The elements that rows have in common with a range, which is where an owner's part begins or
// ends: runs of the unit, neighbours together.
std::int64_t elements_in(const std::vector<std::int64_t>& rows, std::int64_t width, Range range);

// Which rows of an owner's weights each version has changed, for workers that have an older one:
// they get those rows alone. Where the optimizer moves all of them (Adam's moments, unless
// sparse_update = kLazy), they get all.
class RowChanges {
 public:
  // `parts`: those of OwnedParts::rows. `keeps_values`: also versions that are not the newest are
  // asked for.
  RowChanges(std::vector<OwnedPart> parts, int workers, bool keeps_values);

  // Every worker has this version.
  void begin_at(std::int64_t version);
  // The version that was made of the one before: by part, what it has changed; `owned` has the
  // weights as they are now.
  using Owned = std::function<Span(std::size_t unit)>;
  void made(std::int64_t version, const std::vector<ChangedRows>& changed, const Owned& owned);
  // What a worker needs to have this version, which is the newest one or an older one; from then on
  // it has it.
  std::vector<ChangedRows> answer(int worker,
                                  std::int64_t version,
                                  std::int64_t newest,
                                  const Owned& owned);
  void leaves(int worker);  // it asks for nothing any more

 private:
  // Versions that are remembered one by one where the newest alone is asked for: more are taken
  // together, which may name rows too many.
  static constexpr std::size_t kMostVersions = 64;

  using AllChanges = std::map<std::int64_t, std::vector<ChangedRows>>;  // by the version they made
  using Changes = std::pair<AllChanges::const_iterator, AllChanges::const_iterator>;
  void make_older(std::vector<std::byte>& values,
                  std::size_t part,
                  Dtype dtype,
                  Changes some) const;
  void forget();

  const std::vector<OwnedPart> parts_;
  const bool keeps_values_;
  AllChanges changes_;
  std::vector<std::int64_t> has_;  // by worker
};

}  // namespace trireme::detail
