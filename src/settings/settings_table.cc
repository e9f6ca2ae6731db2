#include "trireme/settings/settings_table.h"

#include <algorithm>
#include <set>

#include "settings/field.h"
#include "trireme/core/counted.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/model_kinds.h"

namespace trireme {
namespace {

using detail::enumerated;
using fields::field;
using S = TrainSettings;

// "What to train. gpt: a transformer ...; mlp: ...; empty: gpt."
std::string what_models_are() {
  std::string text = "What to train.";
  for (const std::string& name : model_names()) {
    text += " " + name + ": " + model_kind(name).what + ";";
  }
  return text + " empty: gpt.";
}

std::vector<Setting> model_settings() {
  return {
      field("model",
            &S::model,
            what_models_are(),
            {.choices = model_names(), .may_be_empty = true, .absent = "\"gpt\""}),
      field(
          "size",
          &S::size,
          "Size of a transformer: tiny has 4 layers of width 128, small 6 of 384, gpt2 12 of 768.",
          {.choices = {"tiny", "small", "gpt2"}}),
      field("layers",
            &S::layers,
            "Layers of a transformer; 0 uses the value for --size.",
            {.least = 0, .most = 10'000}),
      field("width",
            &S::width,
            "Width of a transformer's layers (0 uses the value for --size), or of the wide model's "
            "table (0: 16).",
            {.least = 0}),
      field("heads",
            &S::heads,
            "Attention heads of a transformer; 0 uses the value for --size.",
            {.least = 0}),
      field("hidden",
            &S::hidden,
            "Widths of the mlp's hidden layers, or of the convnet's only one; empty: the model's "
            "default.",
            {.least = 1}),
      field("stages",
            &S::stages,
            "Channels of each of the convnet's stages, every one of which halves the image; empty: "
            "the model's default.",
            {.least = 1}),
      field("dropout",
            &S::dropout,
            "Fraction of activations dropped in training; -1: the model's default.",
            {.least = 0, .most = 0.99, .automatic = -1}),
      field("initialisation",
            &S::initialisation,
            "How weights are initialised; auto: the model's default.",
            {.choices = {"auto", "torch", "he", "xavier", "gpt2"}}),
      field("recompute",
            &S::recompute,
            "Recompute each layer's activations in backward instead of keeping them: less memory, "
            "a third more time, the same bits."),
  };
}

std::vector<Setting> data_settings() {
  return {
      field("data",
            &S::data,
            "A file, a folder with MNIST's files or with texts, fashion-mnist, or licenses (the "
            "license texts on every Debian system). Empty: the model's default, if it has one."),
      field("eval_data",
            &S::eval_data,
            "Data to evaluate on. Empty: MNIST's test files, or else a part of the data."),
      field("format",
            &S::format,
            "Format of the data; auto: by its name, or text if the name does not tell. Files of "
            "any format may be gzipped (.gz).",
            {.choices = {"auto", "idx", "text", "tokens16", "tokens32", "csv", "libsvm"}}),
      field("eval_fraction",
            &S::eval_fraction,
            "Fraction of the data held out for evaluation when there is no separate file.",
            {.least = 0, .most = 0.9}),
      field(
          "sequence",
          &S::sequence,
          "Tokens that a transformer sees at a time; 0 uses the value for --size (64, 256, 1024).",
          {.least = 0}),
      field("stride",
            &S::stride,
            "Tokens from the start of one training sample to the start of the next; 0: the "
            "sequence length.",
            {.least = 0}),
      field("vocabulary",
            &S::vocabulary,
            "Number of different tokens; 0: 256 for text, otherwise the largest token plus one.",
            {.least = 0}),
      field("target",
            &S::target,
            "The column of a CSV file to predict, by name or by number, counting from 0; empty: "
            "the last."),
      field(
          "header",
          &S::header,
          "Whether the first line of a CSV file has the names of its columns; auto: yes if target "
          "or categorical refer to a column by its name, or if the line has a word in a column "
          "of numbers. A file for which neither answer is safe is refused.",
          {.choices = {"auto", "yes", "no"}}),
      field("separator",
            &S::separator,
            "The character between the cells of a CSV file; auto: a tab in .tsv files, a comma in "
            "others.",
            {.kind = "a character, tab, comma, semicolon, space or auto"}),
      field("regression",
            &S::regression,
            "The target of a CSV or libsvm file is a number, not a class."),
      field("categorical",
            &S::categorical,
            "Columns of a CSV file that hold words (or numbers that are names), by name or number "
            "from 0; each becomes one feature for every category of the training file, 1 or 0.",
            {.kind = "list of columns"}),
      field("unseen",
            &S::unseen,
            "A category that the training file does not have, in data to evaluate or predict: "
            "refuse it, "
            "or ignore it (all of the column's features are 0).",
            {.choices = {"refuse", "ignore"}}),
      field("missing",
            &S::missing,
            "A value that is missing in a CSV file: refuse; mean: of its column over the training "
            "data; zero; drop: leave the row out. A missing category has all features 0.",
            {.choices = {"refuse", "mean", "zero", "drop"}}),
      field("missing_values",
            &S::missing_values,
            "What counts as missing besides an empty cell, in small or capital letters; in columns "
            "of numbers a number counts in every spelling (-999.0 for -999). A list that is given "
            "replaces "
            "the default one.",
            {.kind = "list of words"}),
      field("normalise",
            &S::normalise,
            "standard: subtract the mean and divide by the standard deviation of each feature (of "
            "each channel of images), computed over the training data on all ranks.",
            {.choices = {"none", "standard"}}),
      field("sampling",
            &S::sampling,
            "shuffled: each sample once per epoch, in a new order; balanced: all classes equally "
            "often; weighted: by class_weights; sequential: in the order of the file.",
            {.choices = {"shuffled", "balanced", "weighted", "sequential"}}),
      field("class_weights",
            &S::class_weights,
            "With weighted sampling: the relative frequency of each class.",
            {.least = 0}),
      field("loss_weights",
            &S::loss_weights,
            "Weight of each class in the loss; empty: all equal.",
            {.least = 0}),
      field("partition",
            &S::partition,
            "uniform: micro-batches are drawn from all samples; hash: a hash of its number assigns "
            "each sample to a share, and a micro-batch holds samples of one share.",
            {.choices = {"uniform", "hash"}}),
      field("shares",
            &S::shares,
            "Number of shares with partition = hash; 0: the micro-batches of a step.",
            {.least = 0}),
      field("shift",
            &S::shift,
            "In training, shift images by up to this many pixels; the exposed border is black.",
            {.least = 0, .most = 64}),
      field("flip", &S::flip, "In training, mirror each image with probability one half."),
      field("noise",
            &S::noise,
            "Standard deviation of the noise added to dense values in training, as the model sees "
            "them: with normalise = standard, in standard deviations of the feature.",
            {.least = 0}),
      field("data_threads",
            &S::data_threads,
            "Threads per rank that prepare batches ahead of time; 0: none.",
            {.least = 0, .most = 64}),
  };
}

std::vector<Setting> training_settings() {
  return {
      field("steps",
            &S::steps,
            "Number of updates; 0: set by epochs, or the model's default if neither is given.",
            {.least = 0}),
      field("epochs",
            &S::epochs,
            "Passes over the data, fractions allowed, if steps is 0; 0: the model's default.",
            {.least = 0, .most = 1e9}),
      field("batch",
            &S::batch,
            "Samples in one update, over all ranks, no more than there are to train on; 0: the "
            "model's default.",
            {.least = 0, .most = 1e12},
            {"train_batch_size"}),
      field(
          "micro_batch",
          &S::micro_batch,
          "Samples that a rank computes at a time: a number; fixed: the largest divisor of the "
          "batch up to the model's default, and up to half of a batch of 4 or more, for any number "
          "of ranks; share: the batch divided by the number of ranks; auto: the largest divisor of "
          "the batch that fits into memory and leaves work for every rank, found by trying. With a "
          "number or fixed, the result does not depend on the number of ranks.",
          {.kind = "integer, fixed, share or auto"},
          {"train_micro_batch_size_per_gpu"}),
      field(
          "accumulate",
          &S::accumulate,
          "Micro-batches of each rank in a step, given instead of the batch or the micro-batch; 0: "
          "computed from those.",
          {.least = 0},
          {"gradient_accumulation_steps"}),
      field("batch_schedule",
            &S::batch_schedule,
            "Changes of the batch at later steps, as STEP:BATCH, each a multiple of the "
            "micro-batch: 1000:256,5000:512.",
            {.kind = "list of STEP:BATCH"}),
      field("memory_limit",
            &S::memory_limit,
            "Limit for the tensors of a rank on the CPU (512MB, 4GB); auto: its share of the free "
            "memory; "
            "none: no limit, so the kernel kills what does not fit. When memory runs out, "
            "micro-batches become smaller if the batch allows it; otherwise the run stops.",
            {.kind = "bytes, auto or none"}),
      field("seed",
            &S::seed,
            "Seed of weights, shuffling, dropout, augmentation and what is held out.",
            {},
            {"seed"}),
  };
}

// The names of all rules, or of those with a setting of this name, as a list or in a sentence.
std::vector<std::string> rules_with(const std::string& setting) {
  std::vector<std::string> names;
  for (const RuleInfo& rule : optimizer_rules()) {
    if (rule.usual(setting)) {
      names.push_back(rule.name);
    }
  }
  return names;
}

// The rules for which this setting is usually something else, with what it is: "sgd 0.1".
std::string other_values(const std::string& setting, double common) {
  std::vector<std::string> values;
  for (const RuleInfo& rule : optimizer_rules()) {
    if (const auto usual = rule.usual(setting); usual && *usual != common) {
      values.push_back(rule.name + " " + detail::exact_text(*usual));
    }
  }
  return enumerated(values);
}

// Settings of rules that have no flag of their own: "amsgrad of adamw".
std::string options_of_rules(const std::set<std::string>& flags) {
  std::vector<std::string> texts;
  for (const RuleInfo& rule : optimizer_rules()) {
    std::vector<std::string> own;
    for (const auto& [name, usual] : rule.settings) {
      if (flags.count(name) == 0) {
        own.push_back(name + "=" + detail::exact_text(usual));
      }
    }
    if (!own.empty()) {
      texts.push_back(rule.name + " has " + enumerated(own));
    }
  }
  std::string all;
  for (const std::string& text : texts) {
    all += (all.empty() ? "" : "; ") + text;
  }
  return all;
}

std::vector<Setting> optimizer_settings() {
  return {
      field("optimizer",
            &S::optimizer,
            "The update rule.",
            {.choices = rules_with("lr")},
            {"optimizer.type"}),
      field("lr",
            &S::lr,
            "Learning rate; auto: the model's default (" + other_values("lr", AdamWOptions().lr) +
                ").",
            {.least = 0, .automatic = 0, .automatic_by_word = true},
            {"optimizer.params.lr"}),
      field("momentum",
            &S::momentum,
            "Momentum of " + enumerated(rules_with("momentum")) +
                "; -1: " + other_values("momentum", 0) + ", 0 for others.",
            {.least = 0, .most = 1, .automatic = -1},
            {"optimizer.params.momentum"}),
      field("nesterov",
            &S::nesterov,
            "Nesterov momentum for " + enumerated(rules_with("nesterov")) + ".",
            {},
            {"optimizer.params.nesterov"}),
      field("beta1",
            &S::beta1,
            "First beta of " + enumerated(rules_with("beta1")) + ".",
            {.least = 0, .most = 1},
            {"optimizer.params.betas[0]"}),
      field("beta2",
            &S::beta2,
            "Second beta of " + enumerated(rules_with("beta2")) + ".",
            {.least = 0, .most = 1},
            {"optimizer.params.betas[1]"}),
      field("eps",
            &S::eps,
            "Epsilon of " + enumerated(rules_with("eps")) + ".",
            {.least = 0, .most = 1},
            {"optimizer.params.eps"}),
      field("weight_decay",
            &S::weight_decay,
            "Weight decay; -1: " + other_values("weight_decay", 0) + ", 0 for others.",
            {.least = 0, .automatic = -1},
            {"optimizer.params.weight_decay"}),
      field("decay_all",
            &S::decay_all,
            "Decay all parameters of a transformer (gpt, bert), and not only its matrices: biases "
            "and "
            "norms have no weight decay otherwise. Other models always decay all of theirs.",
            {.absent = "true"}),
      field("l1",
            &S::l1,
            "L1 penalty on the weights, added to the gradient, of " + enumerated(rules_with("l1")) +
                ".",
            {.least = 0}),
      field("optimizer_options",
            &S::optimizer_options,
            "More settings of the optimizer, as NAME=VALUE: " +
                options_of_rules(
                    {"lr", "momentum", "nesterov", "beta1", "beta2", "eps", "weight_decay", "l1"}) +
                ".",
            {.kind = "list of NAME=VALUE", .absent = "[]"}),
      field("schedule",
            &S::schedule,
            "How the learning rate changes over the steps; auto: the model's default.",
            {.choices = {"auto",
                         "constant",
                         "cosine",
                         "linear",
                         "step",
                         "multi_step",
                         "one_cycle",
                         "cyclic",
                         "plateau"}},
            {"scheduler.type"}),
      field("warm_up",
            &S::warm_up,
            "Steps over which the learning rate rises to its value; -1: 5 % of the steps for the "
            "cosine of a transformer, 0 otherwise.",
            {.least = -1},
            {"scheduler.params.warmup_num_steps"}),
      field("final_factor",
            &S::final_factor,
            "Fraction of the learning rate left at the end of cosine and linear.",
            {.least = 0, .most = 1}),
      field("schedule_steps",
            &S::schedule_steps,
            "Length of cosine, linear and one_cycle in steps; 0: all steps.",
            {.least = 0},
            {"scheduler.params.total_num_steps"}),
      field("step_every",
            &S::step_every,
            "Steps between reductions in the schedule step, from the end of the warm-up on; 0: a "
            "third "
            "of all steps.",
            {.least = 0}),
      field("milestones",
            &S::milestones,
            "Steps at which multi_step reduces the learning rate, counted from the end of the "
            "warm-up.",
            {.least = 1}),
      field("gamma",
            &S::gamma,
            "Factor of each reduction in step, multi_step and plateau.",
            {.least = 0, .most = 1}),
      field("half_period",
            &S::half_period,
            "Steps from low to high in cyclic; 0: a tenth of all steps.",
            {.least = 0}),
      field("low_factor",
            &S::low_factor,
            "The low point of cyclic, as a fraction of the learning rate.",
            {.least = 0, .most = 1}),
      field("rise",
            &S::rise,
            "Fraction of the steps during which one_cycle rises.",
            {.least = 0, .most = 1}),
      field("start_factor",
            &S::start_factor,
            "The start of one_cycle, as a fraction of the learning rate.",
            {.least = 0, .most = 1}),
      field("plateau_patience",
            &S::plateau_patience,
            "Evaluations without improvement before plateau reduces the rate.",
            {.least = 0, .most = 1'000'000'000}),
      field("lr_scaling",
            &S::lr_scaling,
            "Multiply the learning rate by the number of ranks (linear) or its square root (sqrt).",
            {.choices = {"none", "linear", "sqrt"}}),
      field("clip_norm",
            &S::clip_norm,
            "Upper bound on the norm of the gradient; 0: none; -1: the model's default.",
            {.least = 0, .automatic = -1},
            {"gradient_clipping"}),
      field("clip_value",
            &S::clip_value,
            "Upper bound on the magnitude of each element of the gradient; 0: none.",
            {.least = 0}),
      field(
          "ema_decay",
          &S::ema_decay,
          "Decay of a moving average of the weights, saved as average.safetensors; 0: no average.",
          {.least = 0, .most = 0.999999}),
      field("sparse_update",
            &S::sparse_update,
            "What a step does to the rows of the wide model's table that none of its samples has. "
            "exact: as with dense gradients, moments decay and move them; lazy: nothing, so that "
            "its time follows from the rows that are used, not from the table. Changes the result.",
            {.choices = {"exact", "lazy"}, .absent = "\"exact\""}),
  };
}

std::vector<Setting> rank_settings() {
  return {
      field("device",
            &S::device,
            "Where models are computed. cuda: on the machine's GPUs, which the ranks take in turn; "
            "auto: there if it has some that can be used and the other settings allow it, else on "
            "the CPU. Decided when a run begins; another device changes the last bits of the "
            "result.",
            {.choices = {"auto", "cpu", "cuda"}, .absent = "\"cpu\""}),
      field("ranks",
            &S::ranks,
            "Worker processes (-n); 0: one per GPU, or on the CPU one per processor, but no more "
            "than one per micro-batch. Their number does not change the result.",
            {.least = 0, .most = 4096}),
      field("threads",
            &S::threads,
            "Threads per rank. Their number changes the last bits of the result, so a resumed run "
            "keeps it.",
            {.least = 1, .most = 1024}),
      field("zero",
            &S::zero,
            "0: every rank holds everything (DDP). 1: optimizer states are divided among the "
            "ranks; 2: gradients too; 3: parameters too. The result is the same, bit for bit.",
            {.least = 0, .most = 3},
            {"zero_optimization.stage"}),
      field("placement",
            &S::placement,
            "Where stage 3 keeps parameters. mapped: in one copy that the ranks of a machine "
            "share; copied: divided among the ranks, and gathered for use.",
            {.choices = {"auto", "mapped", "copied"}}),
      field("offload",
            &S::offload,
            "Where optimizer states, moving averages and the float32 masters of 16-bit parameters "
            "are between updates. none: beside the parameters; optimizer: of a model on a GPU, in "
            "the host's memory, where its threads update them; disk:DIR: in a file for each rank "
            "in this folder, through which updates pass piece by piece. The result is the same, "
            "bit for bit.",
            {.kind = "none, optimizer or disk:DIR", .absent = "\"none\""}),
      field("precision",
            &S::precision,
            "Precision of parameters and computation; 16-bit types keep float32 master weights; "
            "autocast computes in bfloat16 with float32 parameters.",
            {.choices = {"float32", "bfloat16", "float16", "autocast"}},
            {"bf16.enabled", "fp16.enabled"}),
      field(
          "sum_order",
          &S::sum_order,
          "Order in which a step's micro-batches are summed. chained: the same bits for any number "
          "of ranks; local_first: each rank sums its own first, with one communication per step.",
          {.choices = {"chained", "local_first"}}),
      field("compress",
            &S::compress,
            "How gradients travel between ranks. none: as they are; bf16, fp16: in 2 bytes per "
            "element; int8: in 1; sign: in 1 bit, with feedback; topk:0.01: the largest hundredth, "
            "with feedback (topk:0.01:0.9 with momentum, too); randk:0.01: a hundredth that is "
            "drawn in each step; powersgd:4: matrices as two factors of rank 4, with feedback; "
            "auto: what measuring the link and encoding comes to, of none, bf16 and int8; on one "
            "machine none. Changes the result, but "
            "not with the number of ranks or the stage.",
            {.kind = "none, auto or a compressor", .absent = "\"none\""}),
      field(
          "compress_check",
          &S::compress_check,
          "Every so many steps, also sum the gradients exactly, and record how far the compressed "
          "sum is from that: relative error and cosine (0: never).",
          {.least = 0, .absent = "0"}),
      field("round_weights",
            &S::round_weights,
            "Compute with matrices whose elements are rounded to int8 (with a scale for every "
            "256), bf16 or fp16, in which stages 1 to 3 send them, and stage 3 copied keeps them; "
            "owners update exact ones. Changes the result, but not with the number of ranks or the "
            "stage.",
            {.choices = {"none", "int8", "bf16", "fp16"}, .absent = "\"none\""}),
      field(
          "prune",
          &S::prune,
          "The part of every matrix whose elements become zero and stay so, those of least "
          "magnitude (0: none; 0.9: nine of ten): more and more of them, first quickly and then "
          "slowly, between two steps of the training. Changes the result, but not with the number "
          "of ranks or the stage.",
          {.least = 0, .most = 0.9999, .absent = "0.0"}),
      field("prune_begin",
            &S::prune_begin,
            "The step in which pruning begins.",
            {.least = 0, .absent = "0"}),
      field("prune_end",
            &S::prune_end,
            "The step in which as much is pruned as is to be (0: half of the run).",
            {.least = 0, .absent = "0"}),
      field("prune_every",
            &S::prune_every,
            "Steps from one time that more is pruned to the next.",
            {.least = 1, .absent = "100"}),
      field("loss_scale_initial",
            &S::loss_scale_initial,
            "Initial loss scale of float16, a power of two.",
            {.least = 1},
            {"fp16.initial_scale_power (2 to the power of)"}),
      field("loss_scale_window",
            &S::loss_scale_window,
            "Steps of float16 without overflow before the loss scale is doubled.",
            {.least = 1},
            {"fp16.loss_scale_window"}),
      field("unit_bytes",
            &S::unit_bytes,
            "Bytes of parameters that are gathered and released together.",
            {.least = 1}),
      field("bucket_bytes",
            &S::bucket_bytes,
            "Bytes of gradients that are summed at a time.",
            {.least = 64},
            {"zero_optimization.reduce_bucket_size (elements)"}),
      field("balance",
            &S::balance,
            "How a step's micro-batches are dealt to the ranks. equal: the same number each; "
            "speeds: in proportion to `speeds`; measured: by measured times, adjusted every 20 "
            "steps. This changes no bit of the result.",
            {.choices = {"equal", "speeds", "measured"}}),
      field(
          "speeds", &S::speeds, "Relative speed of each rank, for balance = speeds.", {.least = 0}),
      field(
          "straggler_factor",
          &S::straggler_factor,
          "A rank whose micro-batches take this many times as long as the median, in 20 steps and "
          "in the 20 after them, is named in the log.",
          {.least = 1}),
      field("timeout",
            &S::timeout,
            "Seconds after which any wait for another rank gives up.",
            {.least = 1, .most = 1e9}),
  };
}

std::vector<Setting> synchronisation_settings() {
  return {
      field("sync",
            &S::sync,
            "How ranks stay in step. exact: gradients are summed in every step, and the number of "
            "ranks changes no bit. With all others the result is another one, and depends on their "
            "number. Replicas that train on their own and are averaged now and then: local: their "
            "weights become the mean; diloco: the mean is a gradient for an outer optimizer; "
            "gossip: each takes the mean with its neighbours. A parameter server: stale: no rank "
            "is more than staleness steps ahead of the slowest; async: ranks do not wait for each "
            "other. auto: exact or local, as what is measured says; on one machine exact.",
            {.choices = {"exact", "local", "diloco", "gossip", "stale", "async", "auto"},
             .absent = "\"exact\""}),
      field(
          "sync_every",
          &S::sync_every,
          "Steps between averagings; 0: 32 for local, 100 for diloco, 1 for gossip. With auto, the "
          "most that it may choose; 0: 32.",
          {.least = 0, .absent = "0"}),
      field("sync_group",
            &S::sync_group,
            "Which ranks are a replica: each rank, those of a machine, or so many. Inside a "
            "replica, all is exact. auto: each rank, and those of a machine with --sync auto.",
            {.kind = "auto, rank, machine or a number", .absent = "\"rank\""}),
      field("sync_schedule",
            &S::sync_schedule,
            "Other steps between averagings from a step on, as STEP:STEPS, counted from 0: "
            "0:1,500:8 averages after each of the first 500 steps, and then after every eighth. "
            "STEP:exact is a phase in which all ranks sum their gradients: 0:exact,500:8. With "
            "auto, STEP:auto decides from there on, as before the first entry.",
            {.kind = "list of STEP:STEPS, STEP:exact", .absent = "[]"}),
      field("sync_window",
            &S::sync_window,
            "With auto, steps from one decision to the next, over which conditions are measured.",
            {.least = 2, .absent = "20"}),
      field("sync_states",
            &S::sync_states,
            "Average the optimizer's moments with the weights; otherwise each replica keeps its "
            "own, and fewer bytes travel.",
            {.absent = "false"}),
      field("sync_graph",
            &S::sync_graph,
            "Who are neighbours in gossip. ring: the replicas before and after; exponential: the "
            "one 1, 2, 4, ... before, in turn; random: pairs that are drawn each time.",
            {.choices = {"ring", "exponential", "random"}, .absent = "\"ring\""}),
      field("outer_lr",
            &S::outer_lr,
            "Learning rate of diloco's outer optimizer.",
            {.least = 1e-9, .absent = "0.7"}),
      field("outer_momentum",
            &S::outer_momentum,
            "Momentum of diloco's outer optimizer. 0 with an outer_lr of 1 is local.",
            {.least = 0, .most = 0.9999, .absent = "0.9"}),
      field("outer_nesterov",
            &S::outer_nesterov,
            "Nesterov's momentum in diloco's outer optimizer.",
            {.absent = "true"}),
      field("staleness",
            &S::staleness,
            "Steps that a rank may be ahead of the slowest one with stale.",
            {.least = 0, .absent = "3"}),
      field("order",
            &S::order,
            "How gradients reach the weights with stale. clock: those of a step make one update, "
            "and the gradients of a step are of the weights from staleness steps before: run "
            "again, it has the same bits. arrival: each rank's make an update when they arrive, "
            "as with async.",
            {.choices = {"clock", "arrival"}, .absent = "\"clock\""}),
      field("servers",
            &S::servers,
            "With stale and async, the last so many ranks own all weights and compute no "
            "micro-batches; 0: every rank owns a part, and computes.",
            {.least = 0, .absent = "0"}),
      field("replay",
            &S::replay,
            "The folder of a run with the same settings whose order of arrival is followed: the "
            "result has the same bits.",
            {.absent = "\"\""}),
  };
}

std::vector<Setting> evaluation_settings() {
  return {
      field("eval_every",
            &S::eval_every,
            "Steps between evaluations; 0: once per epoch, and at the end.",
            {.least = 0}),
      field("eval_batch",
            &S::eval_batch,
            "Samples evaluated at a time; 0: 256, or for a transformer as many as make up 16384 "
            "tokens (size gpt2: 2048). Each sample is evaluated exactly once, by one rank.",
            {.least = 0}),
      field("early_stop",
            &S::early_stop,
            "Evaluations without improvement after which training stops; 0: never.",
            {.least = 0}),
      field("best",
            &S::best,
            "The metric that decides which model is kept as the best (best.safetensors), and that "
            "early stopping and plateau watch.",
            {.choices = {"loss", "accuracy", "f1"}}),
      field("goal",
            &S::goal,
            "METRIC:VALUE, like accuracy:0.9 or loss:1.5; the summary says at which step and after "
            "how many seconds an evaluation first reached it."),
      field("folds",
            &S::folds,
            "k-fold cross-validation: train k times, each time with a different part held out; 0: "
            "off.",
            {.least = 0, .most = 1000}),
  };
}

std::vector<Setting> checkpoint_settings() {
  return {
      field("save_every",
            &S::save_every,
            "Steps between checkpoints, from which the same command resumes the run, however it "
            "ended; another is saved after the last step and after Ctrl-C. 0: none.",
            {.least = 0}),
      field("keep_last",
            &S::keep_last,
            "How many of the newest checkpoints to keep; 0: all.",
            {.least = 0}),
      field("keep_every",
            &S::keep_every,
            "Also keep checkpoints whose step is a multiple of this; 0: only those of keep_last.",
            {.least = 0}),
      field("snapshot_limit",
            &S::snapshot_limit,
            "Memory per rank for the copy of its state that is written while training continues "
            "(512MB, 4GB); if it is smaller than the state, training waits for the disk. auto: as "
            "large as the state.",
            {.kind = "bytes or auto"}),
      field("weights_from",
            &S::weights_from,
            "Start from these weights: the folder of a run (its newest checkpoint, or else "
            "model.safetensors), the folder of a checkpoint, or a safetensors file."),
      field("weights_partial",
            &S::weights_partial,
            "Load the tensors of weights_from whose name and shape match the model's, and list the "
            "rest, instead of stopping with an error."),
      field("allow_changes",
            &S::allow_changes,
            "Resume from a checkpoint even if settings that change the result differ; they are "
            "listed. Applies to this start only."),
  };
}

std::vector<Setting> output_settings() {
  return {
      field("run", &S::run, "The folder of the run; empty: a dated one under runs/.", {}),
      field("started_in",
            &S::started_in,
            "Where relative paths of data are looked for that are not found from the working "
            "folder; empty: the folder in which the run was started.",
            {.absent = R"("")"}),
      field("log_every",
            &S::log_every,
            "Steps between lines of output, if the output is not a terminal.",
            {.least = 1},
            {"steps_per_print"}),
      field("histogram_every",
            &S::histogram_every,
            "Steps between histograms (and norms) of every parameter and gradient in TensorBoard's "
            "file; 0: none.",
            {.least = 0}),
      field("tensorboard",
            &S::tensorboard,
            "Write a file for TensorBoard.",
            {},
            {"tensorboard.enabled"}),
      field("save_weights",
            &S::save_weights,
            "Write model.safetensors at the end, and best.safetensors."),
      field("save_initial", &S::save_initial, "Write initial.safetensors before the first step."),
      field("record_samples",
            &S::record_samples,
            "Write samples.jsonl, with one line per step that lists its sample numbers in the "
            "order of its micro-batches."),
  };
}

}  // namespace

const std::vector<Setting>& settings_table() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> all;
    const auto add = [&](const char* group, std::vector<Setting> settings) {
      for (Setting& setting : settings) {
        setting.group = group;
        all.push_back(std::move(setting));
      }
    };
    add("model", model_settings());
    add("data", data_settings());
    add("training", training_settings());
    add("optimizer", optimizer_settings());
    add("ranks", rank_settings());
    add("synchronisation", synchronisation_settings());
    add("evaluation", evaluation_settings());
    add("checkpoints", checkpoint_settings());
    add("output", output_settings());
    return all;
  }();
  return table;
}

std::string Setting::flag() const {
  std::string text = "--" + name;
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace trireme
