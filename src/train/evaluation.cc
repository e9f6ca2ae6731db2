#include "trireme/train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "train/out_of_memory.h"
#include "trireme/core/error.h"
#include "trireme/core/printed.h"
#include "trireme/core/pulse.h"
#include "trireme/core/random.h"
#include "trireme/observe/progress_line.h"

namespace trireme {
namespace {

// The module in evaluation mode while this lives; then each part of it in the mode it was in, since
// a user may have frozen some by hand.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : module_(module) {
    visit([this](torch::nn::Module& part) { was_training_.push_back(part.is_training()); });
    module_.eval();
  }
  ~EvaluationMode() {
    auto was = was_training_.begin();
    // Those around come before those inside, which train() changes too.
    visit([&](torch::nn::Module& part) { part.train(*was++); });
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  template <class Visit>
  void visit(const Visit& one) {
    one(module_);
    for (const auto& part : module_.modules(/*include_self=*/false)) {
      one(*part);
    }
  }

  torch::nn::Module& module_;
  std::vector<bool> was_training_;
};

// What this rank has found; slots of other ranks' batches and samples are 0, so that sums over the
// ranks are exact.
struct Tally {
  std::vector<double> losses;  // by batch
  std::vector<double> errors;  // of numbers, two for each batch: absolute ones, and squares
  std::vector<std::int64_t> correct{0};
  std::optional<ConfusionMatrix> confusion;
  std::vector<double> samples;  // three for each sample
  std::vector<std::int64_t> fingerprints;
};

void count(const Task& task,
           const Task::Judged& judged,
           std::int64_t first,
           std::size_t batch,
           Tally& tally) {
  const auto length = static_cast<double>(task.targets());
  for (std::size_t i = 0; i < judged.losses.size(); ++i) {
    const double loss = judged.losses[i];
    tally.losses[batch] += loss;
    SampleResult result;
    if (task.predicts_tokens()) {
      tally.correct[0] += judged.correct[i];
      result = {length, static_cast<double>(judged.correct[i]), loss / length};
    } else if (task.classifies()) {
      const bool right = judged.targets[i] == judged.predictions[i];
      tally.correct[0] += right ? 1 : 0;
      if (tally.confusion) {
        tally.confusion->add(judged.targets[i], judged.predictions[i]);
      }
      result = {
          static_cast<double>(judged.targets[i]), static_cast<double>(judged.predictions[i]), loss};
    } else {
      result = {judged.wanted[i], judged.outputs[i], loss};
      const double error = result.prediction - result.target;
      tally.errors[2 * batch] += std::fabs(error);
      tally.errors[2 * batch + 1] += error * error;
    }
    if (!tally.samples.empty()) {
      double* at = tally.samples.data() + 3 * (static_cast<std::size_t>(first) + i);
      // Never -0, which a sum with the zeros of other ranks makes 0, and one rank alone would keep.
      at[0] = result.target + 0.0;
      at[1] = result.prediction + 0.0;
      at[2] = result.loss + 0.0;
    }
  }
}

// The rank's part of an evaluation.
class Evaluator {
 public:
  Evaluator(const Trainable& model,
            const Task& task,
            const Dataset& data,
            const EvaluationOptions& options,
            Tally& tally)
      : model_(model), task_(task), data_(data), options_(options), tally_(tally) {}

  // Samples [first, last), which are (a part of) batch number `batch`. One that does not fit into
  // memory is evaluated in halves.
  void evaluate(std::int64_t first, std::int64_t last, std::size_t batch) {
    bool fits = true;
    const std::uint64_t peak = MemoryLimit::peak_bytes();
    try {
      ids_.resize(static_cast<std::size_t>(last - first));
      std::iota(ids_.begin(), ids_.end(), first);
      data_.read(ids_, batch_);
      const TensorBatch tensors = on_device(as_tensors(batch_, task_.shape()), device_);
      const at::Tensor scores = model_.scores(tensors);
      const Task::Judged judged = task_.judge(scores, tensors);
      MemoryLimit::check();
      if (options_.scores) {
        options_.scores(first, scores.cpu());
      }
      count(task_, judged, first, batch, tally_);
      if (!tally_.fingerprints.empty()) {
        for (const std::int64_t sample : ids_) {
          tally_.fingerprints[static_cast<std::size_t>(sample)] =
              static_cast<std::int64_t>(data_.fingerprint(sample));
        }
      }
    } catch (const std::exception& error) {
      if (!detail::ran_out_of_memory(error) || last - first == 1) {
        throw;
      }
      fits = false;
    }
    if (!fits) {
      MemoryLimit::reset_peak(peak);  // what was tried in vain is not what it takes
      const std::int64_t middle = first + (last - first) / 2;
      evaluate(first, middle, batch);
      evaluate(middle, last, batch);
    }
  }

 private:
  const Trainable& model_;
  const at::Device device_ = device_of(*model_.module);
  const Task& task_;
  const Dataset& data_;
  const EvaluationOptions& options_;
  Tally& tally_;
  std::vector<std::int64_t> ids_;
  Batch batch_;
};

bool someone_wants_to_stop(bool this_rank, Communicator& ranks) {
  std::vector<std::int64_t> wanted = {this_rank ? 1 : 0};
  ranks.all_reduce(wanted, ReduceOp::kMax).wait();
  return wanted[0] != 0;
}

}  // namespace

Evaluation evaluate(const Trainable& model,
                    const Task& task,
                    const Dataset& data,
                    const EvaluationOptions& options,
                    Communicator& ranks) {
  TRIREME_CHECK(
      options.batch >= 1, "evaluate: expected batches of at least 1, found ", options.batch);
  const std::int64_t total = data.size();
  TRIREME_CHECK(total > 0, "evaluate: there is nothing to evaluate on");
  const at::NoGradGuard no_grad;
  const EvaluationMode mode(*model.module);
  const std::int64_t at_a_time = std::min(options.batch, total);
  const std::int64_t batches = (total + at_a_time - 1) / at_a_time;
  Tally tally;
  tally.losses.resize(static_cast<std::size_t>(batches));
  const bool numbers = !task.predicts_tokens() && !task.classifies();
  tally.errors.resize(numbers ? 2 * tally.losses.size() : 0);
  if (task.classifies() && task.shape().classes <= kMostClasses) {
    tally.confusion.emplace(task.shape().classes);
  }
  if (options.keep_samples) {
    tally.samples.resize(3 * static_cast<std::size_t>(total));
    tally.fingerprints.resize(static_cast<std::size_t>(total));
  }
  Evaluator evaluator(model, task, data, options, tally);
  // Every rank takes part in every round, also in a last one that has no batch for it.
  for (std::int64_t begin = 0; begin < batches; begin += ranks.size()) {
    if (const std::int64_t b = begin + ranks.rank(); b < batches) {
      const std::int64_t first = b * at_a_time;
      evaluator.evaluate(first, std::min(first + at_a_time, total), static_cast<std::size_t>(b));
      detail::mark(PulsePhase::kEvaluation);
    }
    if (options.stop && someone_wants_to_stop(options.stop(), ranks)) {
      Evaluation none;
      none.interrupted = true;
      return none;
    }
  }
  ranks.all_reduce(tally.losses).wait();
  ranks.all_reduce(tally.correct).wait();
  if (numbers) {
    ranks.all_reduce(tally.errors).wait();
  }
  if (tally.confusion) {
    ranks.all_reduce(tally.confusion->counts()).wait();
    ranks.all_reduce(tally.confusion->unpredicted()).wait();
  }
  if (options.keep_samples) {
    ranks.all_reduce(tally.samples).wait();
    ranks.all_reduce(tally.fingerprints).wait();
  }

  Evaluation result;
  result.evaluated = total;
  const std::int64_t terms = total * task.targets();
  result.metrics["loss"] =
      std::accumulate(tally.losses.begin(), tally.losses.end(), 0.0) / static_cast<double>(terms);
  if (task.predicts_tokens()) {
    result.metrics["perplexity"] = std::exp(result.metrics["loss"]);
  }
  if (numbers) {
    double absolute = 0;
    double squares = 0;
    for (std::size_t i = 0; i < tally.errors.size(); i += 2) {
      absolute += tally.errors[i];
      squares += tally.errors[i + 1];
    }
    result.metrics["mae"] = absolute / static_cast<double>(terms);
    result.metrics["rmse"] = std::sqrt(squares / static_cast<double>(terms));
  }
  if (task.shape().classes > 0) {
    result.metrics["accuracy"] = static_cast<double>(tally.correct[0]) / static_cast<double>(terms);
  }
  if (tally.confusion) {
    const ClassScores macro = tally.confusion->macro();
    result.metrics["precision"] = macro.precision;
    result.metrics["recall"] = macro.recall;
    result.metrics["f1"] = macro.f1;
    result.metrics["f1_micro"] = tally.confusion->micro().f1;
  }
  result.confusion = std::move(tally.confusion);
  for (std::size_t i = 0; i < tally.samples.size(); i += 3) {
    result.samples.push_back({tally.samples[i], tally.samples[i + 1], tally.samples[i + 2]});
  }
  for (const std::int64_t fingerprint : tally.fingerprints) {
    result.fingerprint = mix(result.fingerprint, fingerprint);
  }
  return result;
}

bool is_share(const std::string& metric) {
  static const std::set<std::string> shares = {"accuracy", "precision", "recall", "f1", "f1_micro"};
  return shares.contains(metric);
}

std::string Evaluation::to_string() const {
  std::string text;
  for (const char* name : {"loss", "perplexity", "rmse", "mae", "accuracy", "f1"}) {
    const auto found = metrics.find(name);
    if (found == metrics.end()) {
      continue;
    }
    text += detail::concat(text.empty() ? "" : ", ",
                           name,
                           " ",
                           is_share(name) ? detail::printed("%.2f %%", 100 * found->second)
                                          : measure_text(found->second));
  }
  return text;
}

}  // namespace trireme
