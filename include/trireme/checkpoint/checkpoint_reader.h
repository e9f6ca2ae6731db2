#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/shard/state_view.h"

namespace trireme {

// All differences between what a checkpoint holds and what is to be loaded, not just the first.
struct LoadDifferences {
  std::vector<std::string> missing;      // wanted, and not in the checkpoint
  std::vector<std::string> unexpected;   // in the checkpoint, and not wanted
  std::vector<std::string> other_shape;  // "weight a: expected [2, 3], found [2, 4]"

  bool empty() const { return missing.empty() && unexpected.empty() && other_shape.empty(); }
  std::string to_string() const;  // a line for each
};

struct LoadSelection {
  // Which kinds of state; empty: all but the generators' (kRandomKind).
  std::vector<std::string> kinds{};
  // Loads what fits and reports the rest, instead of refusing.
  bool partial = false;
};

// A complete checkpoint, open for reading. Each rank reads the blocks that its own ranges are in,
// whichever rank saved them, and checks what it reads. Not collective.
class CheckpointReader {
 public:
  // `checkpoint`: the folder of one (".../step-00000100"). Throws CheckpointError.
  explicit CheckpointReader(const std::string& checkpoint);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& path() const;
  const Manifest& manifest() const;

  // What would not be loaded into `wanted`, of the kinds that are selected.
  LoadDifferences compare(const std::vector<StateTensor>& wanted,
                          const LoadSelection& selection = {}) const;

  // Fills the slices. Other floating-point types and memory orders are converted. Throws
  // ConfigError with all differences (unless selection.partial) before anything is written, and
  // CheckpointError (file, offset, expected, found) for files that are not what was saved; slices
  // may be half filled then.
  LoadDifferences load(const StateView& into, const LoadSelection& selection = {}) const;

  // One tensor, whole, row by row, as it was saved. `out` has its bytes.
  void read(const SavedTensor& tensor, std::byte* out) const;

  // Reads and checks every byte. Returns what is wrong, by file and offset; empty: nothing.
  // `progress`: called with the bytes read so far.
  std::vector<std::string> verify(
      const std::function<void(std::uint64_t bytes)>& progress = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
