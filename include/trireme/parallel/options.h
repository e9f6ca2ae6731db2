#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "trireme/comm/communicator.h"
#include "trireme/compress/compressor.h"
#include "trireme/optim/loss_scaler.h"
#include "trireme/optim/schedule.h"
#include "trireme/shard/stage.h"
#include "trireme/tensor/span.h"  // a hook's tensors are communicated

namespace trireme {

// How a unit is divided among the ranks.
enum class Split {
  kElement,    // equal parts, to within 64 bytes
  kLayer,      // whole parameters
  kDimension,  // between rows of parameters
};

// Among whom stages 1 to 3 divide things.
enum class ShardGroup {
  kWorld,    // all ranks
  kMachine,  // the ranks of a machine; every machine has all of it, and only gradients travel
};

// What a step is divided by when some ranks have run out of data.
enum class Divisor {
  kPresent,  // the micro-batches that took part
  kInitial,  // the micro-batches of a full step
};

// Placement::kCopied: whether a thread puts the next unit together while this one is used.
enum class Prefetch {
  kAutomatic,  // if the rank has a second processor
  kOn,
  kOff,
};

enum class Precision {
  kAsModel,  // 16-bit parameters of the model get float32 masters; others stay as they are
  // float32 parameters become bfloat16, their masters keep the float32 values; batch norms stay
  // float32, like their statistics
  kBFloat16,
  kFloat16,  // the same with float16 and a dynamic loss scale
};

// A run of this rank's gradients on its way to being summed.
struct GradientBucket {
  std::size_t index = 0;  // the same on all ranks and in all steps
  at::Tensor values;      // flat; what this rank contributes, zero where it has nothing
  Communicator& ranks;    // all of them are in the same call with the same bucket
};

// Replaces the exact sum: returns the sum over the ranks (not the average), the same on all of them
// and as long as `values`. For compression. Called in one order on all ranks, for every bucket in
// each round of micro-batches; by a process alone once in a step.
using GradientHook = std::function<at::Tensor(const GradientBucket& bucket)>;

// Weights that become zero and stay so: those of least magnitude of each parameter, of more and
// more of them between two steps (Zhu and Gupta's cubic schedule). The result is the same, bit for
// bit, at every stage and for any number of ranks.
struct Pruning {
  double fraction = 0;       // of each parameter's elements, in the end; 0: none
  std::int64_t begin = 0;    // the step (from 1) before whose update it begins ...
  std::int64_t end = 0;      // ... and that before whose update it ends
  std::int64_t every = 100;  // steps from one time to the next in between
  // Which parameters, by name and sizes; none: all with two dimensions or more, but for those with
  // sparse gradients, rows with a max_norm or complex numbers.
  std::function<bool(const std::string& name, at::IntArrayRef sizes)> which{};

  double fraction_at(std::int64_t step) const;
};

// Where optimizer states, masters and moving averages are between updates. The result is the same,
// bit for bit, wherever they are. For rules that take one pass over the elements (SGD, Adam, AdamW,
// Adagrad, RMSprop, Lion).
//
//   trireme::Engine engine(model, optimizer, {.zero = 2, .offload = Offload::disk("/nvme")},
//   world);
struct Offload {
  enum class To {
    kNowhere,  // beside the parameters
    kHost,     // of a model on a GPU: in the host's memory, where its threads update it
    kDisk,     // in a file for each rank, through which updates pass window by window
  };
  To to = To::kNowhere;
  std::string folder{};  // of kDisk: that must be there, on a fast disk of this machine

  static Offload host() { return {To::kHost, {}}; }
  static Offload disk(std::string folder) { return {To::kDisk, std::move(folder)}; }
  bool any() const { return to != To::kNowhere; }
};

struct EngineOptions {
  // 0: DistributedDataParallel. 1: optimizer states are divided among the ranks. 2: gradients too.
  // 3: parameters too. The result is the same, bit for bit.
  int zero = 0;
  Placement placement = Placement::kAutomatic;
  ShardGroup shard_group = ShardGroup::kWorld;

  // Micro-batches of one step over all ranks: either their number, or how many each rank has.
  std::int64_t micro_batches = 0;
  std::int64_t accumulate = 1;
  SumOrder sum_order = SumOrder::kChained;
  Divisor divisor = Divisor::kPresent;

  Offload offload{};

  double clip_norm = 0;   // clip by global norm in every step; 0: never
  double clip_value = 0;  // hold each element of the gradient within +- this; 0: no bound
  Schedule schedule{};    // of the learning rate, by steps
  double ema_decay = 0;   // keep an exponential moving average of the weights; 0: none
  SparseUpdate sparse_update = SparseUpdate::kExact;
  // Non-finite gradients stop the step on every rank, by name. (With a loss scale they skip it and
  // make the scale smaller, and stop the step where that is not possible any more.)
  // false: they are used as they are, and clipped as torch does (EngineBase::clip_grad_norm).
  bool check_gradients = true;

  Precision precision = Precision::kAsModel;
  // Scale the loss even if no parameter is float16: for Autocast(at::kHalf).
  bool scale_loss = false;
  LossScalerOptions loss_scale{};

  // Modules (by name) that live and move as one unit; the rest is grouped along the module tree
  // into units of at most unit_bytes.
  std::vector<std::string> units{};
  std::size_t unit_bytes = 16 << 20;
  Split split = Split::kElement;
  std::vector<double> shares{};  // of each rank, for ranks of different size; empty: equal

  std::size_t bucket_bytes = 1 << 20;
  int bucket_count = 8;  // buckets that may be on their way at a time
  // Of units assembled at a time (kCopied); 0: the largest two.
  std::size_t gather_bytes = 0;
  Prefetch prefetch = Prefetch::kAutomatic;

  // How gradients travel: make_compressor("int8"), or one of your own. The result is another than
  // without, but the same, bit for bit, at every stage and for any number of ranks.
  std::shared_ptr<const Compressor> compress{};
  // Every so many steps, sum the gradients exactly as well and compare (CompressionUse::check); 0:
  // never. Takes the memory of another copy of the gradients.
  std::int64_t compress_check = 0;
  // Compute with float32 parameters that are rounded to a format of fewer bytes, in which they
  // travel, and at stage 3 copied are kept: make_compressor("int8"), or another without feedback.
  // Matrices and larger tensors only; owners keep and update exact values. The result is the same,
  // bit for bit, at every stage and for any number of ranks.
  std::shared_ptr<const Compressor> round_weights{};
  Pruning prune{};
  GradientHook gradient_hook{};
  bool broadcast_buffers = true;  // rank 0's buffers (running statistics) to all, after each step
  // Threads of this rank for updates; 0: as many as LibTorch uses.
  int threads = 0;
};

}  // namespace trireme
