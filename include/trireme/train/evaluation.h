#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/data/dataset.h"
#include "trireme/metrics/confusion_matrix.h"
#include "trireme/models/task.h"

namespace trireme {

// One sample's result.
struct SampleResult {
  double target = 0;  // class or number; of tokens: how many were to be predicted
  // Class or number; of tokens: how many were predicted. -1 is no class: scores were not numbers.
  double prediction = 0;
  double loss = 0;
};

struct Evaluation {
  // "loss", and by the task "accuracy", "precision", "recall", "f1" (macro averages), "f1_micro",
  // "perplexity", or for numbers "rmse" and "mae".
  std::map<std::string, double> metrics;
  std::optional<ConfusionMatrix> confusion;  // of up to kMostClasses classes
  std::vector<SampleResult> samples;         // where asked for, in the order of the dataset
  std::uint64_t fingerprint = 0;             // of those samples, by what they hold
  std::int64_t evaluated = 0;
  bool interrupted = false;  // EvaluationOptions::stop said so; there is nothing else in it

  // "loss 0.3012, accuracy 89.31 %, f1 89.25 %"
  std::string to_string() const;
};

struct EvaluationOptions {
  std::int64_t batch = 256;   // samples evaluated at a time
  bool keep_samples = false;  // fill Evaluation::samples
  // Told the scores of the samples from `first` on, as this rank computes them, in their order; on
  // the CPU.
  std::function<void(std::int64_t first, const at::Tensor& scores)> scores{};
  // Asked after each batch, on every rank or on none; the first rank that says yes ends it for all.
  std::function<bool()> stop{};
};

// Whether a metric is a share, from 0 to 1, of which more is better; of all others less is.
bool is_share(const std::string& metric);

// A confusion matrix of more classes is of no use to a person.
inline constexpr std::int64_t kMostClasses = 1000;

// Evaluates every sample of `data` exactly once, shared out among the ranks by batches. The batches
// and the order of all sums depend on nothing but the data, so every number has the same bits for
// any number of ranks, and is the same on all of them. Runs without gradients, in evaluation mode.
// Collective.
Evaluation evaluate(const Trainable& model,
                    const Task& task,
                    const Dataset& data,
                    const EvaluationOptions& options,
                    Communicator& ranks);

}  // namespace trireme
