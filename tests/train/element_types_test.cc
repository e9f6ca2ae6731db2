// Frozen parameters and buffers of every type that LibTorch has for numbers: engines, checkpoints,
// files of weights and archives keep them as they are, or refuse them by name when training begins.

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include "data/formula_dataset.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/archive/torch_archive.h"
#include "trireme/checkpoint/compare.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/train/checkpoints.h"
#include "trireme/train/trainer.h"
#include "trireme/train/weights.h"

namespace trireme::element_types_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using at::Tensor;
using testing::fork_ranks;
using testing::message_of;
using testing::TemporaryFolder;

struct ElementType {
  const char* name;     // of a tensor of it, in the model
  const char* in_file;  // what safetensors calls it
  at::ScalarType type;
};
constexpr ElementType kTypes[] = {{"flags", "BOOL", at::kBool},
                                  {"bytes", "U8", at::kByte},
                                  {"signs", "I8", at::kChar},
                                  {"shorts", "I16", at::kShort},
                                  {"ints", "I32", at::kInt},
                                  {"longs", "I64", at::kLong}};

constexpr std::int64_t kNumel = 77;

// Element i of a tensor: different for every type, place and `turn`; negative where there are
// negative numbers, and larger than a byte where there is room.
Tensor values_of(const ElementType& element, bool buffer, int turn) {
  Tensor values = at::zeros({7, 11}, element.type);
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const std::int64_t number = (i * 37 + turn * 101 + (buffer ? 13 : 0)) % 127;
    std::int64_t value = number;
    if (element.type == at::kBool) {
      value = number % 3 == 0 ? 1 : 0;
    } else if (element.type == at::kByte) {
      value = number * 2;
    } else if (element.type == at::kChar) {
      value = i % 2 == 0 ? number : -number;
    } else {
      value = (number * 250 + 1) * (i % 2 == 0 ? 1 : -1);
      value *= element.type == at::kShort ? 1 : 65'537;
      value *= element.type == at::kLong ? 1'000'003 : 1;
    }
    values[i / 11][i % 11] = value;
  }
  return values;
}

// A layer that is trained, and a frozen parameter and a buffer of every type.
struct ModelImpl : nn::Module {
  nn::Linear layer{nullptr};
  explicit ModelImpl(int turn) {
    torch::manual_seed(9);
    layer = register_module("layer", nn::Linear(6, 3));
    for (const ElementType& element : kTypes) {
      register_parameter(parameter_name(element), values_of(element, false, turn), false);
      register_buffer(buffer_name(element), values_of(element, true, turn));
    }
  }
  static std::string parameter_name(const ElementType& element) {
    return std::string("frozen_") + element.name;
  }
  static std::string buffer_name(const ElementType& element) {
    return std::string("kept_") + element.name;
  }
  // All of them take part, so that they are read wherever they are.
  Tensor forward(const Tensor& x) {
    Tensor sum = layer->forward(x);
    for (const ElementType& element : kTypes) {
      sum = sum + 1e-9 * (named_parameters()[parameter_name(element)].to(at::kDouble).sum() +
                          named_buffers()[buffer_name(element)].to(at::kDouble).sum())
                             .to(at::kFloat);
    }
    return sum;
  }
};
TORCH_MODULE(Model);

void expect_values(const nn::Module& model, int turn, const std::string& what) {
  for (const ElementType& element : kTypes) {
    const Tensor frozen = model.named_parameters()[ModelImpl::parameter_name(element)];
    const Tensor kept = model.named_buffers()[ModelImpl::buffer_name(element)];
    EXPECT_EQ(frozen.scalar_type(), element.type) << what << ": " << element.name;
    EXPECT_EQ(kept.scalar_type(), element.type) << what << ": " << element.name;
    EXPECT_TRUE(at::equal(frozen.clone(), values_of(element, false, turn)))
        << what << ": frozen " << element.name;
    EXPECT_TRUE(at::equal(kept, values_of(element, true, turn)))
        << what << ": buffer " << element.name;
  }
}

constexpr std::pair<int, Placement> kModes[] = {{0, Placement::kAutomatic},
                                                {1, Placement::kAutomatic},
                                                {2, Placement::kAutomatic},
                                                {3, Placement::kMapped},
                                                {3, Placement::kCopied}};

void in_every_mode(int size,
                   const std::function<void(std::shared_ptr<World>, const EngineOptions&)>& body) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const std::shared_ptr<World> world = init(testing::options_for(job, rank, size));
    for (const auto& [zero, placement] : kModes) {
      SCOPED_TRACE(
          detail::concat("stage ", zero, placement == Placement::kCopied ? " copied" : ""));
      EngineOptions options;
      options.zero = zero;
      options.placement = placement;
      body(world, options);
    }
  });
}

void take_steps(EngineBase& engine, ModelImpl& model) {
  for (int step = 0; step < 2; ++step) {
    engine.backward(model.forward(torch::ones({2, 6})).pow(2).mean());
    EXPECT_TRUE(engine.step());
  }
}

// Rank 0's values become everyone's, at every stage; scopes write them, unwrap() gives them back.
TEST(ElementTypes, GoThroughEngines) {
  for (const int size : {1, 3}) {
    in_every_mode(size, [](std::shared_ptr<World> world, const EngineOptions& options) {
      Model model(world->rank());
      Engine engine(model, AdamW({.lr = 1e-2}), options, world);
      expect_values(*model, 0, "from rank 0");
      take_steps(engine, *model);
      expect_values(*model, 0, "after steps");
      {
        const auto scope = engine.gathered();
        const torch::NoGradGuard no_grad;
        for (const ElementType& element : kTypes) {
          model->named_parameters()[ModelImpl::parameter_name(element)].copy_(
              values_of(element, false, 5));
          model->named_buffers()[ModelImpl::buffer_name(element)].copy_(
              values_of(element, true, 5));
        }
      }
      expect_values(*model, 5, "written in a scope");
      take_steps(engine, *model);
      engine.unwrap();
      expect_values(*model, 5, "unwrapped");
    });
  }
}

// Saved at one stage by two ranks, loaded at every stage by three.
TEST(ElementTypes, GoThroughCheckpoints) {
  const TemporaryFolder folder;
  in_every_mode(2, [&](std::shared_ptr<World> world, const EngineOptions& options) {
    Model model(3);
    Engine engine(model, AdamW({.lr = 1e-2}), options, world);
    const std::string mode = detail::concat(options.zero, static_cast<int>(options.placement));
    Checkpoints checkpoints(folder.path() + "/" + mode, world, {.wait = true});
    checkpoints.save(engine, {}, 1);
    checkpoints.finish();
    // What the checkpoint calls them, and what a file of its weights has.
    const auto source = weights_of_checkpoint(checkpoints.folder().path_of(1));
    Model loaded(0);
    load_weights(*source, *loaded);
    expect_values(*loaded, 3, "weights of the checkpoint");
    for (const StateTensor& tensor : source->tensors()) {
      EXPECT_EQ(tensor.shape.size(), tensor.name == "layer.bias" ? 1U : 2U) << tensor.name;
    }
  });
  in_every_mode(3, [&](std::shared_ptr<World> world, const EngineOptions& options) {
    for (const auto& saved : fs::directory_iterator(folder.path())) {
      Model model(0);
      Engine engine(model, AdamW({.lr = 1e-2}), options, world);
      load_checkpoint(CheckpointFolder(saved.path().string()).path_of(1), engine);
      expect_values(*model, 3, "loaded from " + saved.path().filename().string());
      take_steps(engine, *model);
    }
  });
}

TEST(ElementTypes, GoThroughFilesOfWeights) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/model.safetensors";
  const Model model(2);
  save_weights(path, *model);
  Model loaded(0);
  load_weights(path, *loaded);
  expect_values(*loaded, 2, "loaded");
  load_weights(*weights_of_safetensors(path), *Model(0));

  // The file says so itself, as others read it: names, sizes and bytes.
  const std::string file = testing::read_file(path);
  for (const ElementType& element : kTypes) {
    const std::string entry = detail::concat("\"",
                                             ModelImpl::buffer_name(element),
                                             "\":{\"dtype\":\"",
                                             element.in_file,
                                             "\",\"shape\":[7,11]");
    EXPECT_NE(file.find(entry), std::string::npos) << entry;
    const Tensor values = values_of(element, true, 2);
    EXPECT_NE(
        file.find(std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes())),
        std::string::npos)
        << element.name;
  }

  // To an archive of torch::save and back.
  const std::string archive = folder.path() + "/model.pt";
  export_torch_archive(*weights_of_safetensors(path), archive);
  Model unpacked(0);
  torch::load(unpacked, archive);
  expect_values(*unpacked, 2, "from an archive");
  EXPECT_TRUE(compare_tensors(*weights_of_safetensors(path), *open_torch_archive(archive)).same());
  // Where they differ, by how much.
  save_weights(folder.path() + "/other.safetensors", *Model(1));
  const auto differences = compare_tensors(
      *weights_of_safetensors(path), *weights_of_safetensors(folder.path() + "/other.safetensors"));
  EXPECT_FALSE(differences.same());
}

// --- what no file has

// Complex numbers: frozen, or a buffer. One is on memory in another order.
struct PhasedImpl : nn::Module {
  nn::Linear layer{nullptr};
  Tensor phase, turned, exact;
  explicit PhasedImpl(int turn) {
    layer = register_module("layer", nn::Linear(6, 3));
    phase = register_parameter("phase", values(turn, at::kComplexFloat), false);
    turned = register_parameter(
        "turned", torch::empty_strided({5, 7}, {1, 5}, at::kComplexFloat), false);
    turned.copy_(values(turn + 1, at::kComplexFloat));
    exact = register_parameter("exact", values(turn + 2, at::kComplexDouble), false);
    register_buffer("wave", values(turn + 3, at::kComplexFloat));
  }
  static Tensor values(int turn, at::ScalarType type) {
    const Tensor numbers = torch::arange(35, at::kDouble).view({5, 7}) + 0.1 * turn;
    return torch::complex(numbers, -numbers.sqrt()).to(type);
  }
  Tensor forward(const Tensor& x) {
    return layer->forward(x) + 1e-3 * torch::real(phase * turned * exact).sum().to(at::kFloat);
  }
  void expect(int turn, const std::string& what) const {
    EXPECT_TRUE(at::equal(phase.clone(), values(turn, at::kComplexFloat))) << what;
    EXPECT_TRUE(at::equal(turned.clone(), values(turn + 1, at::kComplexFloat))) << what;
    EXPECT_TRUE(at::equal(exact.clone(), values(turn + 2, at::kComplexDouble))) << what;
    EXPECT_TRUE(at::equal(named_buffers()["wave"], values(turn + 3, at::kComplexFloat))) << what;
  }
};
TORCH_MODULE(Phased);

bool names(const std::string& message, const std::string& tensor) {
  return message.find(tensor) != std::string::npos &&
         message.find("ComplexFloat") != std::string::npos &&
         message.find("view_as_real") != std::string::npos;
}

TEST(ElementTypes, FrozenComplexOnesGoThroughEnginesAndCheckpoints) {
  const TemporaryFolder folder;
  for (const int size : {1, 2, 3}) {
    in_every_mode(size, [&](std::shared_ptr<World> world, EngineOptions options) {
      options.precision = size == 2 ? Precision::kBFloat16 : Precision::kAsModel;
      Phased model(10 * world->rank());
      Engine engine(model, AdamW({.lr = 1e-2}), options, world);
      model->expect(0, "from rank 0");
      EXPECT_EQ(engine.frozen(), (std::vector<std::string>{"phase", "turned", "exact"}));
      const auto input = torch::ones({2, 6}, size == 2 ? at::kBFloat16 : at::kFloat);
      for (int step = 0; step < 2; ++step) {
        engine.backward(engine.forward(input).pow(2).mean());
        EXPECT_TRUE(engine.step());
      }
      engine.check_replicas();
      const std::string write = message_of<ConfigError>([&] { model->phase.mul_(2); });
      EXPECT_TRUE(write.find("parameter phase") != std::string::npos) << write;
      {
        const auto scope = engine.gathered();
        model->phase.copy_(PhasedImpl::values(4, at::kComplexFloat));
        model->turned.copy_(PhasedImpl::values(5, at::kComplexFloat));
        model->exact.copy_(PhasedImpl::values(6, at::kComplexDouble));
        model->named_buffers()["wave"].copy_(PhasedImpl::values(7, at::kComplexFloat));
      }
      model->expect(4, "written in a scope");
      const std::string mode =
          detail::concat(size, options.zero, static_cast<int>(options.placement));
      Checkpoints checkpoints(folder.path() + "/" + mode, world, {.wait = true});
      checkpoints.save(engine, {}, 1);
      checkpoints.finish();
      engine.unwrap();
      model->expect(4, "unwrapped");
      EXPECT_EQ(model->turned.strides().vec(), (std::vector<std::int64_t>{1, 5}));
    });
  }
  in_every_mode(3, [&](std::shared_ptr<World> world, const EngineOptions& options) {
    for (const auto& saved : fs::directory_iterator(folder.path())) {
      Phased model(0);
      Engine engine(model, AdamW({.lr = 1e-2}), options, world);
      load_checkpoint(CheckpointFolder(saved.path().string()).path_of(1), engine);
      model->expect(4, "loaded from " + saved.path().filename().string());
    }
  });
}

TEST(ElementTypes, ComplexOnesAreRefusedByNameWhereTheyAreTrainedOrWrittenToAFile) {
  const TemporaryFolder folder;
  in_every_mode(2, [&](std::shared_ptr<World> world, const EngineOptions& options) {
    Phased trained(0);
    trained->turned.requires_grad_(true);
    const std::string message = message_of<ConfigError>(
        [&] { Engine engine(trained, AdamW({.lr = 1e-2}), options, world); });
    EXPECT_TRUE(names(message, "turned")) << message;
    const std::string path = folder.path() + "/weights.safetensors";
    const std::string unsaved = message_of<ConfigError>([&] { save_weights(path, *Phased(0)); });
    EXPECT_TRUE(names(unsaved, "phase")) << unsaved;
    EXPECT_FALSE(fs::exists(path));
  });
}

// --- the trainer

class Keeper final : public TrainObserver {
 public:
  explicit Keeper(std::string folder) : folder_(std::move(folder)) {}
  void step(const StepReport&) override { ++steps; }
  void evaluated(std::int64_t, const Evaluation&, bool) override {}
  void values(const std::string&, std::int64_t, std::span<const float>) override {}
  void message(const std::string&) override {}
  void samples(const std::vector<std::int64_t>&) override {}
  void weights(const std::string& which, const nn::Module& module) override {
    save_weights(folder_ + "/" + which + ".safetensors", module);
  }
  int steps = 0;

 private:
  std::string folder_;
};

TrainSettings settings_of(int ranks, int zero) {
  TrainSettings settings;
  settings.model = "mine";
  settings.data = "mine";
  settings.steps = 3;
  settings.batch = 12;
  settings.micro_batch = "4";
  settings.schedule = ScheduleKind::kConstant;
  settings.lr = 1e-2;
  settings.ranks = ranks;
  settings.zero = zero;
  settings.data_threads = 1;
  settings.memory_limit = "1GB";
  return settings;
}

Parts data() {
  return {std::make_shared<testing::FormulaDataset>(
              24,
              std::vector<std::int64_t>{6},
              3,
              [](std::int64_t sample) { return sample % 3; },
              [](std::int64_t sample, std::int64_t place) {
                return static_cast<float>(sample % 5 - place);
              }),
          nullptr};
}

template <class Holder>
Trainable trainable(const Holder& net) {
  return {net.ptr(),
          [net = net.ptr()](const TensorBatch& batch) { return net->forward(batch.dense); }};
}

TEST(ElementTypes, AreWrittenAtTheEndOfATraining) {
  const TemporaryFolder folder;
  for (const int zero : {0, 3}) {
    fork_ranks(2, [&, job = testing::unique_job()](int rank) {
      at::set_num_threads(1);
      const std::shared_ptr<World> world = init(testing::options_for(job, rank, 2));
      Model model(4);
      Keeper keeper(folder.path());
      train(resolve(settings_of(2, zero)),
            trainable(model),
            data(),
            world,
            rank == 0 ? &keeper : nullptr);
    });
    Model loaded(0);
    load_weights(folder.path() + "/model.safetensors", *loaded);
    expect_values(*loaded, 4, "trained");
    fs::remove(folder.path() + "/model.safetensors");
  }
}

// Not when hours have passed.
TEST(ElementTypes, ThatNoFileHasAreRefusedBeforeTheFirstStep) {
  const TemporaryFolder folder;
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const std::shared_ptr<World> world = init(testing::options_for(job, rank, 2));
    Keeper keeper(folder.path());
    TrainObserver* const observer = rank == 0 ? &keeper : nullptr;
    Phased model(0);
    TrainSettings settings = settings_of(2, 0);
    for (const bool initial : {false, true}) {
      settings.save_weights = !initial;
      settings.save_initial = initial;
      const std::string message = message_of<ConfigError>(
          [&] { train(resolve(settings), trainable(model), data(), world, observer); });
      EXPECT_TRUE(names(message, "phase") && message.find("save_weights") != std::string::npos)
          << message;
      EXPECT_EQ(keeper.steps, 0);
    }
    settings.save_weights = false;
    settings.save_initial = false;
    train(resolve(settings), trainable(model), data(), world, observer);
    EXPECT_EQ(keeper.steps, rank == 0 ? 3 : 0);
    EXPECT_TRUE(fs::is_empty(folder.path()));
  });
}

}  // namespace
}  // namespace trireme::element_types_test
