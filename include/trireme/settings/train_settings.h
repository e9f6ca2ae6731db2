#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/readers.h"
#include "trireme/data/sampler.h"
#include "trireme/optim/schedule.h"
#include "trireme/shard/stage.h"

namespace trireme {

// The table of settings has a word for each value, in this order, as of the enumerations of other
// rooms.
enum class Balance { kEqual, kSpeeds, kMeasured };
enum class GossipGraph { kRing, kExponential, kRandom };
enum class Normalise { kNone, kStandard };
enum class ScheduleKind {
  kAutomatic,
  kConstant,
  kCosine,
  kLinear,
  kStep,
  kMultiStep,
  kOneCycle,
  kCyclic,
  kPlateau
};
enum class Synchronisation { kExact, kLocal, kDiLoCo, kGossip, kStale, kAsynchronous, kAutomatic };
enum class TextSize { kTiny, kSmall, kGpt2 };
enum class TrainDevice { kAutomatic, kCpu, kCuda };
enum class TrainPrecision { kFloat32, kBFloat16, kFloat16, kAutocast };
enum class UpdateOrder { kClock, kArrival };

// How weights begin. All draw from LibTorch's default generator, in the order of the parameters, so
// that torch::manual_seed() fixes them.
enum class Initialisation {
  kAutomatic,  // the model's default
  kTorch,      // as LibTorch's layers do it themselves
  kHe,         // normal, variance 2 / inputs: keeps the variance through ReLU (He et al., 2015)
  kXavier,     // uniform, variance 2 / (inputs + outputs) (Glorot and Bengio, 2010)
  kGpt2,       // normal 0.02, and 0.02 / sqrt(2 * layers) where a residual branch ends (GPT-2)
};

// Everything that can be set about a training job, with its default. What each means is said once,
// in the table of settings (settings_table.h), from which flags, JSON names, help and documentation
// come. "auto", 0 or an empty value mean: chosen by the model, the data or the number of ranks;
// `resolve` puts the choice in.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order of the documentation
struct TrainSettings {
  // model
  std::string model{};  // empty: one of your own; the program trains a gpt then
  TextSize size = TextSize::kTiny;
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::vector<std::int64_t> hidden{};
  std::vector<std::int64_t> stages{};
  double dropout = -1;
  Initialisation initialisation = Initialisation::kAutomatic;
  bool recompute = false;

  // data
  std::string data{};
  std::string eval_data{};
  std::string format = "auto";
  double eval_fraction = 0.1;
  std::int64_t sequence = 0;
  std::int64_t stride = 0;
  std::int64_t vocabulary = 0;
  std::string target{};
  CsvOptions::Header header = CsvOptions::Header::kAutomatic;
  std::string separator = "auto";
  bool regression = false;
  std::vector<std::string> categorical{};
  CsvOptions::Unseen unseen = CsvOptions::Unseen::kRefuse;
  CsvOptions::Missing missing = CsvOptions::Missing::kRefuse;
  std::vector<std::string> missing_values = {"NA", "N/A", "NaN", "null", "?"};
  Normalise normalise = Normalise::kNone;
  Sampling sampling = Sampling::kShuffled;
  std::vector<double> class_weights{};
  std::vector<double> loss_weights{};
  Partition partition = Partition::kUniform;
  std::int64_t shares = 0;
  std::int64_t shift = 0;
  bool flip = false;
  double noise = 0;
  std::int64_t data_threads = 1;

  // training
  std::int64_t steps = 0;
  double epochs = 0;
  std::int64_t batch = 0;
  std::string micro_batch = "fixed";
  std::int64_t accumulate = 0;
  std::vector<std::string> batch_schedule{};
  std::string memory_limit = "auto";
  std::uint64_t seed = 1;

  // optimizer
  std::string optimizer = "adamw";
  double lr = 0;  // auto
  double momentum = -1;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = -1;
  bool decay_all = false;
  double l1 = 0;
  std::vector<std::string> optimizer_options{};
  ScheduleKind schedule = ScheduleKind::kAutomatic;
  std::int64_t warm_up = -1;
  double final_factor = 0;
  std::int64_t schedule_steps = 0;
  std::int64_t step_every = 0;
  std::vector<std::int64_t> milestones{};
  double gamma = 0.1;
  std::int64_t half_period = 0;
  double low_factor = 0.1;
  double rise = 0.3;
  double start_factor = 0.04;
  std::int64_t plateau_patience = 3;
  WorldScaling lr_scaling = WorldScaling::kNone;
  double clip_norm = -1;
  double clip_value = 0;
  double ema_decay = 0;
  SparseUpdate sparse_update = SparseUpdate::kExact;

  // ranks
  TrainDevice device = TrainDevice::kAutomatic;
  std::int64_t ranks = 0;  // one for each processor, or GPU
  std::int64_t threads = 1;
  std::int64_t zero = 0;
  Placement placement = Placement::kAutomatic;
  std::string offload = "none";
  TrainPrecision precision = TrainPrecision::kFloat32;
  SumOrder sum_order = SumOrder::kChained;
  std::string compress = "none";
  std::int64_t compress_check = 0;
  std::string round_weights = "none";
  double prune = 0;
  std::int64_t prune_begin = 0;
  std::int64_t prune_end = 0;  // half of the run
  std::int64_t prune_every = 100;
  double loss_scale_initial = 65536;
  std::int64_t loss_scale_window = 2000;
  std::int64_t unit_bytes = 16 << 20;
  std::int64_t bucket_bytes = 1 << 20;
  Balance balance = Balance::kEqual;
  std::vector<double> speeds{};
  double straggler_factor = 1.5;
  double timeout = 300;

  // synchronisation
  Synchronisation sync = Synchronisation::kExact;
  std::int64_t sync_every = 0;  // as many as suit `sync`
  std::string sync_group = "auto";
  std::vector<std::string> sync_schedule{};
  std::int64_t sync_window = 20;
  bool sync_states = false;
  GossipGraph sync_graph = GossipGraph::kRing;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  bool outer_nesterov = true;
  std::int64_t staleness = 3;
  UpdateOrder order = UpdateOrder::kClock;
  std::int64_t servers = 0;
  std::string replay{};

  // evaluation
  std::int64_t eval_every = 0;
  std::int64_t eval_batch = 0;
  std::int64_t early_stop = 0;
  std::string best = "loss";
  std::string goal{};
  std::int64_t folds = 0;

  // checkpoints
  std::int64_t save_every = 0;
  std::int64_t keep_last = 3;
  std::int64_t keep_every = 0;
  std::string snapshot_limit = "auto";
  std::string weights_from{};
  bool weights_partial = false;
  bool allow_changes = false;

  // output
  std::string run{};
  std::string started_in{};
  std::int64_t log_every = 10;
  std::int64_t histogram_every = 0;
  bool tensorboard = true;
  bool save_weights = true;
  bool save_initial = false;
  bool record_samples = false;
};

// Puts in what follows from the model and the other settings, and checks that they fit together.
// Throws ConfigError that names the setting, what was expected and what was found.
TrainSettings resolve(TrainSettings settings);

}  // namespace trireme
