// What is saved at any stage by any number of ranks is loaded at any other, and training goes on as
// if nothing had happened: the same bits as a run that never stopped.

#include "trireme/train/checkpoints.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "parity/case.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "trireme/core/error.h"

namespace trireme::checkpoints_test {
namespace {

using testing::Case;
using testing::fork_ranks;
using testing::kMicroBatches;
using testing::TemporaryFolder;
using torch::Tensor;

constexpr std::int64_t kBefore = 3;
constexpr std::int64_t kAfter = 6;

struct Mode {
  const char* name;
  int zero;
  Placement placement;
  bool on_disk = false;  // EngineOptions::offload
};
constexpr Mode kModes[] = {
    {"ddp", 0, Placement::kAutomatic},
    {"zero1", 1, Placement::kAutomatic},
    {"zero2", 2, Placement::kAutomatic},
    {"zero3", 3, Placement::kMapped},
    {"zero3-copied", 3, Placement::kCopied},
};

Case exact_case() {
  Case item = testing::float32_cases()[5];  // tied, frozen, unused and rarely used parameters
  item.options.ema_decay = 0.9;
  item.options.schedule = Schedule::cosine(kBefore + kAfter, 0.1);
  item.clip_norm = 0.3;
  return item;
}

struct Training {
  std::shared_ptr<testing::TestModel> model;
  std::unique_ptr<EngineBase> engine;
  std::shared_ptr<World> world;
  double clip = 0;

  Training(const Case& item, const Mode& mode, std::shared_ptr<World> ranks)
      : model(item.model()), world(std::move(ranks)), clip(item.clip_norm) {
    EngineOptions options = item.options;
    options.zero = mode.zero;
    options.placement = mode.placement;
    if (mode.on_disk) {
      options.offload = Offload::disk(std::filesystem::temp_directory_path().string());
    }
    options.micro_batches = kMicroBatches;
    engine = std::make_unique<EngineBase>(model, *item.optimizer(), options, world);
  }

  void run(std::int64_t from, std::int64_t to) const {
    for (std::int64_t step = from; step < to; ++step) {
      for (std::int64_t k = 0; k < engine->local_micro_batches(); ++k) {
        engine->backward(model->loss(step, engine->micro_batch(k)));
        if (clip > 0) {
          engine->clip_grad_norm(clip);
        }
        engine->step();
      }
    }
  }
};

std::string folder_for(const TemporaryFolder& folder, const std::string& what, int ranks) {
  return folder.path() + "/" + what + "-" + std::to_string(ranks);
}

// Every tensor of both, whole, whoever wrote which part.
void expect_equal(const std::string& a, const std::string& b, const std::string& what) {
  const CheckpointReader one(a);
  const CheckpointReader two(b);
  std::size_t compared = 0;
  for (const SavedTensor& saved : one.manifest().tensors) {
    if (saved.tensor.kind == kRandomKind) {
      continue;
    }
    const SavedTensor* other = two.manifest().find(saved.tensor.kind, saved.tensor.name);
    ASSERT_NE(other, nullptr) << what << ": " << saved.tensor.title();
    const std::size_t bytes =
        static_cast<std::size_t>(saved.tensor.numel()) * dtype_bytes(saved.tensor.dtype);
    std::vector<std::byte> first(bytes);
    std::vector<std::byte> second(bytes);
    one.read(saved, first.data());
    two.read(*other, second.data());
    EXPECT_TRUE(first == second) << what << ": " << saved.tensor.title() << " differs";
    ++compared;
  }
  EXPECT_GE(compared, 9U);
  EXPECT_EQ(one.manifest().notes.at("engine"), two.manifest().notes.at("engine")) << what;
}

using Modes = std::vector<Mode>;
const Modes& all_modes() {
  static const Modes modes(std::begin(kModes), std::end(kModes));
  return modes;
}

// Saves after kBefore steps and after kAfter more, on `size` ranks.
void save_everywhere(const Case& item,
                     const TemporaryFolder& folder,
                     const Modes& modes,
                     int size) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, size));
    for (const Mode& mode : modes) {
      const Training training(item, mode, world);
      Checkpoints checkpoints(folder_for(folder, mode.name, size), world);
      training.run(0, kBefore);
      checkpoints.save(*training.engine, {{"hello", "world"}}, kBefore);
      training.run(kBefore, kBefore + kAfter);  // while it is written
      checkpoints.save(*training.engine, {}, kBefore + kAfter);
      checkpoints.finish();
    }
  });
}

// Which loaders meet which savers: all of them, or every fourth pair, in which each mode meets each
// mode and each number of ranks each number.
enum class Pairs { kAll, kEveryFourth };

// Loads each of `saved` on `size` ranks.
void load_everywhere(const Case& item,
                     const TemporaryFolder& folder,
                     const Modes& modes,
                     const std::vector<std::string>& saved,
                     const std::string& reference,
                     int size,
                     Pairs pairs) {
  fork_ranks(size, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, size));
    for (std::size_t s = 0; s < saved.size(); ++s) {
      const std::string& from = saved[s];
      for (std::size_t m = 0; m < modes.size(); ++m) {
        const Mode& mode = modes[m];
        const std::size_t pair =
            s / modes.size() + s % modes.size() + m + static_cast<std::size_t>(size);
        if (pairs == Pairs::kEveryFourth && pair % 4 != 0) {
          continue;
        }
        const std::string what =
            from.substr(from.rfind('/') + 1) + " on " + std::to_string(size) + " in " + mode.name;
        const std::string again = folder_for(folder, "again", size);
        const Training training(item, mode, world);
        Checkpoints checkpoints(again, world, {.wait = true});
        const Resumed resumed = load_checkpoint(CheckpointFolder(from).path_of(kBefore),  //
                                                *training.engine);
        ASSERT_EQ(resumed.step, kBefore);
        ASSERT_EQ(resumed.notes.at("hello"), "world");
        checkpoints.save(*training.engine, {}, kBefore);
        training.run(kBefore, kBefore + kAfter);
        checkpoints.save(*training.engine, {}, kBefore + kAfter);
        if (rank == 0) {
          const CheckpointFolder there(again);
          expect_equal(CheckpointFolder(from).path_of(kBefore), there.path_of(kBefore), what);
          expect_equal(reference, there.path_of(kBefore + kAfter), what + ", at the end");
        }
        world->barrier().wait();
      }
    }
  });
}

// In these modes and by so many ranks.
struct Side {
  Modes modes;
  std::vector<int> sizes;
};

void all_to_all(const Case& item,
                const Side& savers,
                const Side& loaders,
                Pairs pairs = Pairs::kAll) {
  const TemporaryFolder folder;
  std::vector<std::string> saved;
  for (const int size : savers.sizes) {
    save_everywhere(item, folder, savers.modes, size);
    for (const Mode& mode : savers.modes) {
      saved.push_back(folder_for(folder, mode.name, size));
    }
  }
  // The run that never stopped is the same in every mode; the parity tests say so.
  const std::string reference = CheckpointFolder(saved[0]).path_of(kBefore + kAfter);
  for (const std::string& each : saved) {
    expect_equal(reference, CheckpointFolder(each).path_of(kBefore + kAfter), each);
  }
  for (const int size : loaders.sizes) {
    load_everywhere(item, folder, loaders.modes, saved, reference, size, pairs);
  }
}

TEST(CheckpointsTest, AnyStageAndWorldLoadsWhatAnyOtherSaved) {
  const Side everywhere{all_modes(), {1, 2, 3, 4}};
  const bool all = std::getenv("TRIREME_TEST_ALL_PAIRS") != nullptr;
  all_to_all(exact_case(), everywhere, everywhere, all ? Pairs::kAll : Pairs::kEveryFourth);
}

TEST(CheckpointsTest, BFloat16KeepsItsMasters) {
  all_to_all(testing::half_cases()[0], {{kModes[1], kModes[3]}, {1, 3}}, {all_modes(), {2}});
}

// Masters, states and averages that are never in memory as a whole: saved from where they are, and
// loaded to there.
TEST(CheckpointsTest, StatesOnADiskAreThoseInMemory) {
  const Mode on_disk[] = {{"ddp-disk", 0, Placement::kAutomatic, true},
                          {"zero1-disk", 1, Placement::kAutomatic, true},
                          {"zero3-disk", 3, Placement::kCopied, true}};
  Case item = testing::half_cases()[2];  // tied, frozen, unused
  item.options.ema_decay = 0.9;
  all_to_all(item, {{kModes[1], on_disk[1]}, {2}}, {{kModes[0], on_disk[0], on_disk[2]}, {1, 3}});
  all_to_all(exact_case(), {{kModes[0], on_disk[2]}, {3}}, {{on_disk[1], kModes[4]}, {2}});
}

TEST(CheckpointsTest, Float16KeepsItsScale) {
  all_to_all(testing::half_cases()[3], {{kModes[0], kModes[4]}, {2}}, {all_modes(), {1, 3}});
}

Case case_named(const std::string& name) {
  for (const Case& item : testing::float32_cases()) {
    if (item.name == name) {
      return item;
    }
  }
  throw std::invalid_argument(name);
}

TEST(CheckpointsTest, EveryRuleKeepsItsStates) {
  for (const char* name : {"amsgrad, odd, by layer",
                           "rmsprop, tied, clipped",
                           "adafactor, convolutions",
                           "adafactor, tied, averaged",
                           "groups of rules, attention",
                           "muon and adamw, attention"}) {
    SCOPED_TRACE(name);
    all_to_all(case_named(name), {{kModes[0], kModes[4]}, {2}}, {{kModes[1], kModes[3]}, {3}});
  }
}

TEST(CheckpointsTest, MemoryOrderOfConvolutionsIsKept) {
  all_to_all(testing::float32_cases()[8], {{kModes[2]}, {3}}, {{kModes[3]}, {2}});
}

// --- what is random

struct Dropping : testing::TestModel {
  torch::nn::Linear layer{nullptr};
  Dropping() {
    torch::manual_seed(5);
    layer = register_module("layer", torch::nn::Linear(9, 9));
    register_buffer("seen", torch::zeros({3, 5}).t());  // not row by row
    register_buffer("flags", torch::ones({4}, torch::kBool));
    register_buffer("count", torch::zeros({}, torch::kLong));
  }
  Tensor loss(std::int64_t step, std::int64_t m) override {
    named_buffers()["count"].add_(1);
    const Tensor x = testing::sample(step, m, 0, {4, 9});
    return torch::dropout(layer->forward(x), 0.5, true).pow(2).mean();
  }
};

TEST(CheckpointsTest, GeneratorsOfAllRanksGoOnWhereTheyWere) {
  const TemporaryFolder folder;
  Case item = testing::float32_cases()[1];
  item.model = [] { return std::make_shared<Dropping>(); };
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    const Training training(item, kModes[3], world);
    torch::manual_seed(static_cast<std::uint64_t>(100 + rank));
    Checkpoints checkpoints(folder.path(), world);
    training.run(0, kBefore);
    training.model->named_buffers()["flags"][2] = false;
    training.model->named_buffers()["seen"].fill_(7);
    checkpoints.save(*training.engine, {}, kBefore);
    training.run(kBefore, 2 * kBefore);
    checkpoints.save(*training.engine, {}, 2 * kBefore);
    checkpoints.finish();
  });
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    const Training training(item, kModes[1], world);
    Checkpoints checkpoints(folder.path() + "/again", world, {.wait = true});
    load_checkpoint(CheckpointFolder(folder.path()).path_of(kBefore), *training.engine);
    EXPECT_EQ(training.model->named_buffers()["seen"].sum().item<double>(), 7 * 15);
    training.run(kBefore, 2 * kBefore);
    checkpoints.save(*training.engine, {}, 2 * kBefore);
    if (rank == 0) {
      expect_equal(CheckpointFolder(folder.path()).path_of(2 * kBefore),
                   checkpoints.folder().path_of(2 * kBefore),
                   "after dropout");
    }
    world->barrier().wait();
  });
}

// --- other precisions, other models

TEST(CheckpointsTest, AnyPrecisionLoadsWhatAnotherSaved) {
  const TemporaryFolder folder;
  Case item = exact_case();
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    const auto weights = [&](const Training& training) {
      std::vector<Tensor> all;
      const auto scope = training.engine->gathered();
      for (const Tensor& parameter : training.model->parameters()) {
        all.push_back(parameter.detach().clone());
      }
      return all;
    };
    const Training exact(item, kModes[3], world);
    exact.run(0, kBefore);
    Checkpoints checkpoints(folder.path(), world, {.wait = true});
    checkpoints.save(*exact.engine, {}, kBefore);
    item.options.precision = Precision::kBFloat16;
    const Training rounded(item, kModes[2], world);
    load_checkpoint(checkpoints.folder().path_of(kBefore), *rounded.engine);
    const std::vector<Tensor> wide = weights(exact);
    const std::vector<Tensor> narrow = weights(rounded);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_TRUE(torch::equal(narrow[i], wide[i].to(torch::kBFloat16))) << i;
    }
    // And back: the masters were the exact values, of all but the frozen ones.
    checkpoints.save(*rounded.engine, {}, kBefore + 1);
    item.options.precision = Precision::kAsModel;
    const Training again(item, kModes[0], world);
    load_checkpoint(checkpoints.folder().path_of(kBefore + 1), *again.engine);
    const auto names = again.model->named_parameters().keys();
    const std::vector<Tensor> back = weights(again);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const bool frozen = names[i].rfind("frozen", 0) == 0;
      EXPECT_TRUE(
          torch::equal(back[i], frozen ? wide[i].to(torch::kBFloat16).to(torch::kFloat) : wide[i]))
          << names[i];
    }
  });
}

TEST(CheckpointsTest, AllDifferencesAreListedAndNothingChanges) {
  const TemporaryFolder folder;
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    const Training odd(testing::float32_cases()[1], kModes[3], world);
    Checkpoints checkpoints(folder.path(), world, {.wait = true});
    checkpoints.save(*odd.engine, {}, 0);
    const std::string saved = checkpoints.folder().path_of(0);
    const Training other(testing::float32_cases()[10], kModes[3], world);  // attention
    const std::string message =
        testing::message_of<ConfigError>([&] { load_checkpoint(saved, *other.engine); });
    for (const char* part : {"missing in the checkpoint: weight tokens.weight",
                             "missing in the checkpoint: optimizer.exp_avg_sq head.weight",
                             "not expected: weight first.weight",
                             "not expected: optimizer.exp_avg extra"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
    }
    other.run(0, 1);  // still good
    // Another optimizer is refused by name.
    const Training sgd(testing::float32_cases()[0], kModes[0], world);
    EXPECT_NE(testing::message_of<ConfigError>([&] {
                load_checkpoint(saved, *sgd.engine);
              }).find("adamw"),
              std::string::npos);
    // Weights alone do.
    odd.run(0, 2);
    checkpoints.save(*odd.engine, {}, 2);
    EXPECT_TRUE(load_checkpoint_weights(checkpoints.folder().path_of(2), *sgd.engine).empty());
    const auto one = odd.engine->gathered();
    const auto two = sgd.engine->gathered();
    for (const auto& item : odd.model->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), sgd.model->named_parameters()[item.key()]));
    }
    EXPECT_EQ(sgd.engine->steps(), 0);
  });
}

TEST(CheckpointsTest, PartialLoadingTakesWhatFitsAndNamesTheRest) {
  const TemporaryFolder folder;
  fork_ranks(2, [&, job = testing::unique_job()](int rank) {
    at::set_num_threads(1);
    const auto world = init(testing::options_for(job, rank, 2));
    struct Net : testing::TestModel {
      explicit Net(std::int64_t out, const std::string& head) {
        body = register_module("body", torch::nn::Linear(4, 4));
        register_module("head", torch::nn::Linear(4, out));
        register_module(head, torch::nn::Linear(2, 2));
      }
      torch::nn::Linear body{nullptr};
      Tensor loss(std::int64_t, std::int64_t) override { return body->weight.sum(); }
    };
    Case item = testing::float32_cases()[1];
    item.model = [] { return std::make_shared<Net>(3, "first"); };
    const Training from(item, kModes[1], world);
    Checkpoints checkpoints(folder.path(), world, {.wait = true});
    checkpoints.save(*from.engine);
    item.model = [] { return std::make_shared<Net>(5, "second"); };
    const Training to(item, kModes[3], world);
    const Tensor before = to.model->named_parameters()["head.bias"].detach().clone();
    const LoadDifferences rest =
        load_checkpoint_weights(checkpoints.folder().path_of(0), *to.engine, /*partial=*/true);
    EXPECT_EQ(rest.missing,
              (std::vector<std::string>{"weight second.weight", "weight second.bias"}));
    EXPECT_EQ(rest.unexpected,
              (std::vector<std::string>{"weight first.weight", "weight first.bias"}));
    EXPECT_EQ(rest.other_shape,
              (std::vector<std::string>{"weight head.weight: expected [5, 4], found [3, 4]",
                                        "weight head.bias: expected [5], found [3]"}));
    EXPECT_TRUE(torch::equal(to.model->named_parameters()["body.weight"],
                             from.model->named_parameters()["body.weight"]));
    EXPECT_TRUE(torch::equal(to.model->named_parameters()["head.bias"], before));
  });
}

}  // namespace
}  // namespace trireme::checkpoints_test
