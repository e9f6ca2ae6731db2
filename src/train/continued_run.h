#pragma once

#include <cstdint>
#include <string>

// What a run that goes on from a checkpoint keeps of the files of its folder.

namespace trireme::detail {

// The lines of a file that are of steps up to some step.
struct KeptLines {
  std::uint64_t bytes = 0;
  std::int64_t steps = 0;  // of the last step among them
  std::int64_t damaged =
      0;  // the number of the first line among them that is none; 0: all are good
};

// Of metrics.jsonl: up to `step`, and of that step's evaluation only where it is not to come again
// (`evaluated`). Ends at the last line that is one: a killed run leaves halves.
KeptLines kept_metrics(const std::string& path, std::int64_t step, bool evaluated);

// Of samples.jsonl, which has a line per step.
KeptLines kept_samples(const std::string& path, std::int64_t step);

// Of train.log: whole lines.
std::uint64_t kept_log(const std::string& path);

// What a run that was killed had not finished, which may be as large as the model.
void remove_partial_files(const std::string& folder);

// Note [best weights]
// best.safetensors is of the best evaluation so far. A run that goes on from a checkpoint needs the
// one of that moment, which a later evaluation may have replaced. So each checkpoint keeps it under
// a second name (a hard link: no bytes are copied), and puts it back.
class BestWeights {
 public:
  explicit BestWeights(std::string run);

  // Before a checkpoint of `step` is saved.
  void keep_with(std::int64_t step);
  // Those of checkpoints that are gone.
  void forget() const;
  // To what it was when the checkpoint of `step` was saved.
  void put_back(std::int64_t step, bool had_one) const;

 private:
  std::string name_of(std::int64_t step) const;

  std::string file_;
  std::string folder_;
  std::int64_t last_ = -1;  // kept, and its checkpoint may not have appeared yet
};

}  // namespace trireme::detail
