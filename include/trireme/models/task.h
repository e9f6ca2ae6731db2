#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <torch/nn/module.h>

#include "trireme/data/dataset.h"
#include "trireme/settings/train_settings.h"

namespace trireme {

// Along the last dimension, the class with the highest score; -1, which is no class, where a score
// is not a number.
at::Tensor predicted_classes(const at::Tensor& scores);

// A batch as tensors; those that do not belong to its kind are undefined. As as_tensors makes it:
// views of the Batch.
struct TensorBatch {
  std::int64_t samples = 0;
  at::Tensor dense;        // [samples, shape...]
  at::Tensor tokens;       // [samples, length]
  at::Tensor host_tokens;  // the same where the host can read them, wherever the others are
  at::Tensor offsets;      // sparse rows: [samples + 1], and what they hold
  at::Tensor indices;
  at::Tensor values;
  at::Tensor labels;                    // [samples]
  at::Tensor targets;                   // [samples]
  std::span<const std::int64_t> ids{};  // which samples these are
  std::uint64_t seed = 0;               // of the micro-batch, in training

  // What is random about sample i follows from this: in training from the run's seed, the step and
  // the micro-batch, never from the rank; in evaluation from the sample alone.
  std::uint64_t key(std::int64_t i) const;
};
TensorBatch as_tensors(const Batch& batch, const SampleShape& shape);

// Where a module's parameters are; the CPU, where it has none.
at::Device device_of(const torch::nn::Module& module);
// The same on a device, where it is not there already. The host does not wait for it: what is
// copied from may be written again at once.
at::Tensor on_device(const at::Tensor& tensor, at::Device device);
TensorBatch on_device(TensorBatch batch, at::Device device);

// What a trainer needs of a model: the module, whose parameters are trained, and how it turns a
// batch into scores ([samples, classes]; of tokens [samples, length - 1, vocabulary]; of numbers to
// predict [samples, 1]; or what its own task takes).
class Task;
struct Trainable {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const TensorBatch& batch)> scores;
  std::shared_ptr<const Task> task{};  // null: what samples of this shape are for
  bool in_parts = false;               // built by build_sharded
  // What training takes on a GPU in place of task->loss(scores(batch), batch), unless there is a
  // task, a weight of classes or autocast: the same function, for which all scores need not be
  // there.
  std::function<at::Tensor(const TensorBatch& batch)> loss{};
};

// The model that the settings name, for samples of this shape, with weights that follow from the
// seed. Throws ConfigError where the two do not fit.
Trainable make_model(const TrainSettings& settings, const SampleShape& shape);

// What is learned from samples of a shape: classes, the next token, or numbers. To learn something
// else from them, derive from it and put the result into Trainable::task.
class Task {
 public:
  // `class_weights` of the loss; empty: all 1.
  explicit Task(const SampleShape& shape, const std::vector<double>& class_weights = {});
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  // The mean loss of a batch, for training: cross entropy, or the squared error. With class weights
  // it is the sum of the weighted losses, divided by `weight`; 0: by the batch's own weights.
  virtual at::Tensor loss(const at::Tensor& scores,
                          const TensorBatch& batch,
                          double weight = 0) const;

  // Whether targets (tokens, too) count by their class, how much one of this class does, and how
  // much all of a batch's do.
  bool weighs() const { return weights_.defined(); }
  double weight_of(std::int64_t label) const;
  double weight_of(const Batch& batch) const;

  // The same per sample, without weights, for evaluation.
  struct Judged {
    std::vector<float> losses;              // of each sample (of its tokens: their sum)
    std::vector<std::int64_t> targets;      // classes: what it is ...
    std::vector<std::int64_t> predictions;  // ... and what was predicted; -1: no class
    std::vector<std::int64_t> correct;      // tokens: how many were predicted
    std::vector<float> outputs;             // numbers: what was predicted
    std::vector<float> wanted;
  };
  virtual Judged judge(const at::Tensor& scores, const TensorBatch& batch) const;
  // How many tokens of a sample are predicted; 1 where it is the sample's class or number.
  virtual std::int64_t targets() const { return predicts_tokens() ? shape_.length - 1 : 1; }

  const SampleShape& shape() const { return shape_; }
  bool classifies() const { return shape_.kind != SampleKind::kTokens && shape_.classes > 0; }
  bool predicts_tokens() const { return shape_.kind == SampleKind::kTokens; }

 private:
  SampleShape shape_;
  at::Tensor weights_;
};

}  // namespace trireme
