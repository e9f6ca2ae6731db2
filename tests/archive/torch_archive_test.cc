#include "trireme/archive/torch_archive.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <torch/optim.h>
#include <torch/serialize.h>

#include "support/processes.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/checkpoint/compare.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/exchange/weights_exchange.h"
#include "trireme/models/convnet.h"
#include "trireme/models/gpt.h"
#include "trireme/models/mlp.h"
#include "trireme/models/wide.h"
#include "trireme/train/weights.h"

namespace trireme::torch_archive_test {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::read_file;
using Module = std::shared_ptr<torch::nn::Module>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

models::GptOptions small_gpt(bool tied) {
  models::GptOptions options;
  options.vocabulary = 23;
  options.sequence = 8;
  options.width = 16;
  options.layers = 2;
  options.heads = 2;
  options.tied = tied;
  return options;
}

// Half of a pair that may share its weight.
struct Half : torch::nn::Module {
  explicit Half(const torch::Tensor& weight) {
    register_parameter("weight", weight);
    register_parameter("bias", torch::randn({3}));
  }
};

struct Sharing : torch::nn::Module {
  Sharing() {
    const torch::Tensor weight = torch::randn({3, 3}).requires_grad_();
    register_module("first", std::make_shared<Half>(weight));
    register_module("second", std::make_shared<Half>(weight));
    register_module(
        "rest",
        torch::nn::Sequential(
            torch::nn::Linear(2, 2), torch::nn::ReLU(), torch::nn::Functional(torch::relu)));
  }
};

struct Kind {
  const char* name;
  std::function<Module()> make;
};

std::vector<Kind> kinds() {
  return {
      {"tied gpt", [] { return models::Gpt(small_gpt(true)).ptr(); }},
      {"untied gpt", [] { return models::Gpt(small_gpt(false)).ptr(); }},
      {"mlp", [] { return models::Mlp(models::MlpOptions{.inputs = 6, .hidden = {5}}).ptr(); }},
      {"convnet",
       [] {
         return models::Convnet(models::ConvnetOptions{.rows = 8, .columns = 8, .stages = {3, 4}})
             .ptr();
       }},
      {"wide", [] { return models::Wide(models::WideOptions{.features = 30}).ptr(); }}};
}

// Every tensor different from what a new module has, buffers too.
Module filled(const Kind& kind, int seed) {
  torch::manual_seed(seed);
  Module module = kind.make();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.normal_();
  }
  for (auto& buffer : module->buffers()) {
    buffer.is_floating_point() ? buffer.normal_() : buffer.random_();
  }
  return module;
}

void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto expected = a.named_parameters();
  EXPECT_EQ(expected.size(), b.named_parameters().size());
  for (const auto& item : b.named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
  }
  const auto buffers = a.named_buffers();
  EXPECT_EQ(buffers.size(), b.named_buffers().size());
  EXPECT_GT(expected.size() + buffers.size(), 0U);
  for (const auto& item : b.named_buffers()) {
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()])) << item.key();
  }
}

class TorchArchive : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), {}));
  }
  testing::TemporaryFolder folder_;
};

TEST_F(TorchArchive, TorchLoadReadsWhatIsExported) {
  int step = 0;
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Module module = filled(kind, 1);
    save_weights(path("weights"), *module);
    const auto source = weights_of_safetensors(path("weights"));
    export_torch_archive(*source, path("archive.pt"));
    Module from_file = filled(kind, 2);
    torch::load(from_file, path("archive.pt"));
    expect_equal(*module, *from_file);

    const std::string checkpoint = import_weights(*source, path("checkpoints"), ++step);
    export_torch_archive(*weights_of_checkpoint(checkpoint), path("archive.pt"));
    Module from_checkpoint = filled(kind, 3);
    torch::load(from_checkpoint, path("archive.pt"));
    expect_equal(*module, *from_checkpoint);
  }
}

TEST_F(TorchArchive, ReadsWhatTorchSaveHasWritten) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    Module module = filled(kind, 4);
    torch::save(module, path("saved.pt"));
    save_weights(path("weights"), *module);
    const auto archive = open_torch_archive(path("saved.pt"));
    const auto expected = weights_of_safetensors(path("weights"));
    const TensorComparison comparison = compare_tensors(*expected, *archive);
    EXPECT_TRUE(comparison.same());  // of the same kinds, too
    EXPECT_EQ(comparison.equal, expected->tensors().size());
    EXPECT_EQ(module_notes(*module).at("empty_modules"),
              archive->about().to_notes().at("empty_modules"));
  }
}

TEST_F(TorchArchive, SharedParametersStayShared) {
  const auto make = [](int seed) {
    torch::manual_seed(seed);
    return std::make_shared<Sharing>();
  };
  auto module = make(1);
  const Notes notes = module_notes(*module);
  EXPECT_EQ(notes.at("aliases"), R"({"second.weight":"first.weight"})");
  EXPECT_EQ(notes.at("empty_modules"), R"(["rest.1"])");  // a Functional is not saved
  torch::save(module, path("saved.pt"));
  const auto archive = open_torch_archive(path("saved.pt"));
  EXPECT_EQ(archive->about().aliases.at("second.weight"), "first.weight");
  const std::string checkpoint = import_weights(*archive, path("checkpoints"));
  const Manifest manifest = Manifest::read(checkpoint);
  EXPECT_EQ(manifest.find(kWeightKind, "second.weight"), nullptr);
  EXPECT_NE(manifest.find(kWeightKind, "first.weight"), nullptr);
  export_torch_archive(*weights_of_checkpoint(checkpoint), path("again.pt"));
  auto other = make(2);
  torch::load(other, path("again.pt"));
  expect_equal(*module, *other);
}

TEST_F(TorchArchive, KeepsTheOrderInMemory) {
  struct Striped : torch::nn::Module {
    explicit Striped(int seed) {
      torch::manual_seed(seed);
      register_parameter("matrix", torch::randn({3, 5}).t());
      register_parameter("image",
                         torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
      register_buffer("part", torch::randn({6, 4}).slice(1, 0, 2));
    }
  };
  auto module = std::make_shared<Striped>(1);
  torch::save(module, path("saved.pt"));
  const auto archive = open_torch_archive(path("saved.pt"));
  const std::string checkpoint = import_weights(*archive, path("checkpoints"));
  EXPECT_EQ(Manifest::read(checkpoint).find(kWeightKind, "matrix")->tensor.strides,
            (std::vector<std::int64_t>{1, 5}));
  EXPECT_TRUE(compare_tensors(*archive, *weights_of_checkpoint(checkpoint)).same());
  export_torch_archive(*weights_of_checkpoint(checkpoint), path("again.pt"));
  auto other = std::make_shared<Striped>(2);
  torch::load(other, path("again.pt"));
  expect_equal(*module, *other);
}

TEST_F(TorchArchive, RefusesWhatIsNone) {
  const auto refusal = [&](const std::string& file) {
    return message_of<DataError>([&] { open_torch_archive(file); });
  };
  EXPECT_TRUE(has(refusal(path("missing")), "No such file")) << refusal(path("missing"));
  EXPECT_TRUE(has(refusal(folder_.path()), "folder or device"));
  std::ofstream(path("text")) << "some text";
  EXPECT_TRUE(has(refusal(path("text")), path("text")));
  std::ofstream(path("empty")) << "";
  EXPECT_TRUE(has(refusal(path("empty")), "expected an archive of torch::save"));
}

TEST_F(TorchArchive, NamesArchivesThatAreCutShortAnywhere) {
  Module module = filled(kinds()[2], 5);
  torch::save(module, path("saved.pt"));
  const std::string whole = read_file(path("saved.pt"));
  for (std::size_t length = 0; length < whole.size(); length += length < 100 ? 1 : 97) {
    std::ofstream(path("cut.pt"), std::ios::binary) << whole.substr(0, length);
    const std::string text = message_of<DataError>([&] { open_torch_archive(path("cut.pt")); });
    EXPECT_TRUE(has(text, path("cut.pt"))) << length << ": " << text;
  }
}

TEST_F(TorchArchive, NoDamagedByteReachesAWeight) {
  Module module = filled(kinds()[2], 6);
  torch::save(module, path("saved.pt"));
  const auto original = open_torch_archive(path("saved.pt"));
  const std::string whole = read_file(path("saved.pt"));
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); at += 13) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x21);
    std::ofstream(path("damaged.pt"), std::ios::binary) << damaged;
    try {
      const auto source = open_torch_archive(path("damaged.pt"));
      EXPECT_TRUE(compare_tensors(*original, *source).same()) << "byte " << at;
    } catch (const DataError& error) {
      EXPECT_TRUE(has(error.what(), path("damaged.pt"))) << error.what();
      EXPECT_FALSE(has(error.what(), "frame #")) << error.what();  // no stack trace
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

TEST_F(TorchArchive, ListsAllTensorsOfForeignTypes) {
  struct Masked : torch::nn::Module {
    Masked() {
      register_parameter("weight", torch::randn({2}));
      register_buffer("mask", torch::ones({2}, torch::kBool));
      register_buffer("phase", torch::ones({2}, torch::kComplexFloat));
      register_buffer("turn", torch::ones({2}, torch::kComplexDouble));
    }
  };
  auto module = std::make_shared<Masked>();
  torch::save(module, path("saved.pt"));
  const std::string text = message_of<ConfigError>([&] { open_torch_archive(path("saved.pt")); });
  EXPECT_TRUE(has(text, "\n  phase: ")) << text;
  EXPECT_TRUE(has(text, "\n  turn: ")) << text;
  EXPECT_FALSE(has(text, "\n  mask")) << text;
  EXPECT_FALSE(has(text, "\n  weight")) << text;

  torch::optim::Adam optimizer(module->parameters());
  torch::save(optimizer, path("optimizer.pt"));
  const std::string other =
      message_of<ConfigError>([&] { open_torch_archive(path("optimizer.pt")); });
  EXPECT_TRUE(has(other, "optimizer")) << other;
}

TEST_F(TorchArchive, RefusesNamesThatNoModuleHas) {
  const std::vector<float> one = {1};
  for (const auto& names : std::vector<std::vector<std::string>>{
           {"a", "a.b"}, {"a.b", "a"}, {"a..b"}, {""}, {"a."}, {".a"}, {"a\"b"}}) {
    std::vector<TensorEntry> entries;
    for (const std::string& name : names) {
      entries.push_back({name, Dtype::kFloat32, {1}});
    }
    SafetensorsWriter writer(path("names"), entries);
    for (std::size_t i = 0; i < names.size(); ++i) {
      writer.write(one);
    }
    writer.finish();
    const std::string text = message_of<ConfigError>(
        [&] { export_torch_archive(*weights_of_safetensors(path("names")), path("out.pt")); });
    EXPECT_TRUE(has(text, "has no place in an archive")) << text;
    EXPECT_FALSE(fs::exists(path("out.pt")));
  }
}

// It has them without LibTorch, and must have the same.
TEST_F(TorchArchive, TheCommandKnowsTheHeadsOfEverySizeOfAGpt) {
  models::GptOptions options = small_gpt(true);
  options.width = 24;
  save_weights(path("model.safetensors"), *models::Gpt(options));
  for (const auto& [size, value] : {std::pair("tiny", TextSize::kTiny),
                                    {"small", TextSize::kSmall},
                                    {"gpt2", TextSize::kGpt2}}) {
    std::ofstream(path("config.json")) << R"({"model":"gpt","size":")" << size << "\"}";
    const testing::Finished done = testing::run_program({testing::trireme_binary(),
                                                         "ckpt",
                                                         "export",
                                                         path("model.safetensors"),
                                                         path(size),
                                                         "--format",
                                                         "gpt2"});
    ASSERT_EQ(done.code, 0) << done.err;
    const std::string config = read_file(path(size) + "/config.json");
    const std::int64_t heads = models::GptOptions::of_size(value).heads;
    EXPECT_TRUE(has(config, "\"n_head\": " + std::to_string(heads) + ",")) << config;
  }
}

TEST_F(TorchArchive, WeightsOfATypeThatFilesDoNotHaveAreNamed) {
  struct Phased : torch::nn::Module {
    Phased() { register_buffer("phase", torch::ones({2}, torch::kComplexFloat)); }
  };
  const std::string text =
      testing::message_of<ConfigError>([&] { save_weights(path("phased"), Phased()); });
  EXPECT_TRUE(has(text, path("phased")) && has(text, "the tensor phase") &&
              has(text, "ComplexFloat") && has(text, "view_as_real"))
      << text;
  EXPECT_EQ(files(), 0U);
}

TEST_F(TorchArchive, LeavesNothingWhenThereIsNoRoom) {
  const Module module = filled(kinds()[2], 7);
  save_weights(path("weights"), *module);
  const auto source = weights_of_safetensors(path("weights"));
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  for (const std::size_t room : {0, 4, 400, 1000, 3000}) {
    struct rlimit limit = before;
    limit.rlim_cur = room;
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string reason;
    try {
      export_torch_archive(*source, path("out.pt"));
    } catch (const Error& error) {
      reason = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_TRUE(has(reason, path("out.pt")) && has(reason, "File too large")) << reason;
    EXPECT_EQ(files(), 1U);
  }
  signal(SIGXFSZ, ignored);
}

}  // namespace
}  // namespace trireme::torch_archive_test
