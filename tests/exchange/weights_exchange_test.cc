#include "trireme/exchange/weights_exchange.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/made_checkpoint.h"
#include "support/processes.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/compare.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::by_columns;
using testing::made;
using testing::MadeTensor;
using testing::message_of;
using testing::save_checkpoint;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MadeTensor floats(const std::string& kind, const std::string& name, Range shape, float scale) {
  return made<float>(kind, name, {shape.begin, shape.end}, [=](std::int64_t i) {
    return scale * static_cast<float>(i) - 1.5F;
  });
}

// Tensors of all kinds: a matrix in both orders, a buffer, integers, a scalar, nothing.
std::vector<MadeTensor> some_state() {
  return {
      floats(kWeightKind, "a.weight", {5, 7}, 0.25F),
      by_columns(floats(kWeightKind, "b.weight", {4, 6}, 0.125F)),
      made<std::int64_t>(kBufferKind, "norm.count", {}, [](std::int64_t) { return 41; }),
      made<float>(
          kBufferKind, "mean", {3}, [](std::int64_t i) { return 1 / static_cast<float>(1 + i); }),
      made<float>(kWeightKind, "none", {0, 3}, [](std::int64_t) { return 0.0F; }),
      floats(kAverageKind, "a.weight", {5, 7}, 0.5F),
      floats("optimizer.exp_avg", "a.weight", {5, 7}, 2.0F)};
}

template <class T>
std::vector<T> values_in(const SafetensorsFile& file, const std::string& name) {
  const ConstSpan span = file.tensor(name);
  std::vector<T> values(span.size_bytes() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), span.bytes(), span.size_bytes());
  }
  return values;
}

std::vector<float> ramp(std::int64_t numel, float scale) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) {
    values.push_back(scale * static_cast<float>(i) - 1.5F);
  }
  return values;
}

class Exchange : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string checkpoint() const { return CheckpointFolder(path("saved")).path_of(7); }

  void write_file(const std::string& name,
                  const std::vector<MadeTensor>& tensors,
                  const std::map<std::string, std::string>& metadata = {}) const {
    std::vector<TensorEntry> entries;
    for (const MadeTensor& each : tensors) {
      entries.push_back({each.tensor.name, each.tensor.dtype, each.tensor.shape});
    }
    SafetensorsWriter writer(path(name), entries, metadata);
    for (const MadeTensor& each : tensors) {
      writer.write({each.bytes.data(), each.tensor.numel(), each.tensor.dtype});
    }
    writer.finish();
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Exchange, ExportsWeightsAndBuffersAsOnePlainFile) {
  for (const int ranks : {1, 2, 3}) {
    save_checkpoint(path("saved"), 7, some_state(), {}, ranks);
    export_safetensors(*weights_of_checkpoint(checkpoint()), path("out.safetensors"));
    const SafetensorsFile file(path("out.safetensors"));
    EXPECT_EQ(file.metadata().at("format"), "pt");
    ASSERT_EQ(file.entries().size(), 5U);
    EXPECT_EQ(file.entries()[0].name, "a.weight");
    EXPECT_EQ(values_in<float>(file, "a.weight"), ramp(35, 0.25F));
    // By columns in memory and in the checkpoint, by rows here.
    EXPECT_EQ(values_in<float>(file, "b.weight"), ramp(24, 0.125F));
    EXPECT_EQ(values_in<std::int64_t>(file, "norm.count"), std::vector<std::int64_t>{41});
    EXPECT_EQ(values_in<float>(file, "mean").at(2), 1.0F / 3);
    EXPECT_TRUE(values_in<float>(file, "none").empty());
  }
}

TEST_F(Exchange, ExportsAveragesInThePlaceOfWeights) {
  save_checkpoint(path("saved"), 7, some_state());
  export_safetensors(*weights_of_checkpoint(checkpoint(), /*averages=*/true), path("average"));
  const SafetensorsFile file(path("average"));
  EXPECT_EQ(values_in<float>(file, "a.weight"), ramp(35, 0.5F));
  EXPECT_EQ(values_in<float>(file, "b.weight"), ramp(24, 0.125F));  // has none

  save_checkpoint(path("other"), 7, {floats(kWeightKind, "a.weight", {5, 7}, 1)});
  const std::string text = message_of<ConfigError>(
      [&] { weights_of_checkpoint(CheckpointFolder(path("other")).path_of(7), true); });
  EXPECT_TRUE(has(text, "no moving averages")) << text;
}

TEST_F(Exchange, ConvertsToOtherFloatingPointTypes) {
  save_checkpoint(path("saved"), 7, some_state());
  const auto values = ramp(35, 0.25F);  // exact in every type
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    export_safetensors(*converted(weights_of_checkpoint(checkpoint()), dtype), path("out"));
    const SafetensorsFile file(path("out"));
    EXPECT_EQ(file.tensor("a.weight").dtype(), dtype);
    EXPECT_EQ(file.tensor("norm.count").dtype(), Dtype::kInt64);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == Dtype::kFloat64) {
        EXPECT_EQ(values_in<double>(file, "a.weight").at(i), values[i]);
      } else if (dtype == Dtype::kBFloat16) {
        EXPECT_EQ(values_in<std::uint16_t>(file, "a.weight").at(i),
                  std::bit_cast<std::uint32_t>(values[i]) >> 16);
      }
    }
  }
  EXPECT_THROW(converted(weights_of_checkpoint(checkpoint()), Dtype::kInt32), ConfigError);
}

TEST_F(Exchange, ADamagedCheckpointLeavesNoFile) {
  save_checkpoint(path("saved"), 7, some_state());
  const std::string damaged = checkpoint() + "/rank-00001.safetensors";
  std::fstream file(damaged, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(damaged)) - 3);
  file.put('?');
  file.close();
  EXPECT_THROW(export_safetensors(*weights_of_checkpoint(checkpoint()), path("out")),
               CheckpointError);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);  // the checkpoints
}

TEST_F(Exchange, AnImportedFileIsACheckpointWithTheSameBits) {
  save_checkpoint(path("saved"), 7, some_state(), {{"aliases", R"({"twin":"a.weight"})"}});
  export_safetensors(*weights_of_checkpoint(checkpoint()), path("out.safetensors"));
  EXPECT_EQ(SafetensorsFile(path("out.safetensors")).entries().size(), 6U);  // and the twin
  const std::string made = import_weights(
      *weights_of_safetensors(path("out.safetensors")), path("imported"), 3, {{"by", "me"}});
  EXPECT_EQ(made, CheckpointFolder(path("imported")).path_of(3));
  EXPECT_TRUE(verify_checkpoint(made).empty());
  const Manifest manifest = Manifest::read(made);
  EXPECT_EQ(manifest.step, 3);
  EXPECT_EQ(manifest.ranks, 1);
  EXPECT_EQ(manifest.notes.at("by"), "me");
  EXPECT_EQ(manifest.notes.at("imported_from"), path("out.safetensors"));
  EXPECT_EQ(manifest.tensors.size(), 5U);
  EXPECT_NE(manifest.find(kBufferKind, "mean"), nullptr);  // the file says that it is one
  EXPECT_NE(manifest.find(kWeightKind, "b.weight"), nullptr);
  const auto comparison =
      compare_tensors(*weights_of_checkpoint(checkpoint()), *weights_of_checkpoint(made));
  EXPECT_TRUE(comparison.same());
  EXPECT_EQ(comparison.equal, 6U);

  const std::string taken = message_of<ConfigError>([&] {
    import_weights(*weights_of_safetensors(path("out.safetensors")), path("imported"), 3);
  });
  EXPECT_TRUE(has(taken, "already exists")) << taken;
  const FolderLock lock(path("imported"));
  EXPECT_THROW(
      import_weights(*weights_of_safetensors(path("out.safetensors")), path("imported"), 4),
      ConfigError);
}

// A tied model was exported, its head trained apart by a program that keeps the metadata.
TEST_F(Exchange, AnAliasWithOtherValuesIsRefused) {
  const std::map<std::string, std::string> tied = {{"aliases", R"({"head":"tokens"})"}};
  const MadeTensor tokens = floats("", "tokens", {2, 3}, 0.5F);
  const auto refusal = [&](const MadeTensor& head) {
    write_file("tied", {tokens, head}, tied);
    return message_of<ConfigError>(
        [&] { import_weights(*weights_of_safetensors(path("tied")), path("imported")); });
  };
  for (const MadeTensor& head : {floats("", "head", {2, 3}, 0.25F),
                                 floats("", "head", {3, 2}, 0.5F),
                                 made<double>("", "head", {2, 3}, [](std::int64_t i) {
                                   return 0.5 * static_cast<double>(i) - 1.5;
                                 })}) {
    const std::string text = refusal(head);
    EXPECT_TRUE(has(text, path("tied")) && has(text, "the same values for head and tokens"))
        << text;
    EXPECT_FALSE(fs::exists(path("imported"))) << "nothing was begun";
  }
  write_file("tied", {tokens, floats("", "head", {2, 3}, 0.5F)}, tied);
  const std::string made = import_weights(*weights_of_safetensors(path("tied")), path("imported"));
  EXPECT_EQ(Manifest::read(made).tensors.size(), 1U);
}

TEST_F(Exchange, KnowsBuffersOfFilesThatDoNotSayWhatTheyAre) {
  write_file("plain",
             {floats("", "norm.running_mean", {1, 4}, 1), floats("", "norm.weight", {1, 4}, 1)});
  const auto source = weights_of_safetensors(path("plain"));
  EXPECT_EQ(source->tensors()[0].kind, kBufferKind);
  EXPECT_EQ(source->tensors()[1].kind, kWeightKind);
  EXPECT_FALSE(source->about().empty_modules.has_value());
  write_file("broken", {floats("", "a", {1, 4}, 1)}, {{"buffers", "a, b"}});
  const std::string text = message_of<DataError>([&] { weights_of_safetensors(path("broken")); });
  EXPECT_TRUE(has(text, "expected names as JSON")) << text;
  const std::string deep = std::string(100, '[') + "\"a\"" + std::string(100, ']');
  write_file("deep", {floats("", "a", {1, 4}, 1)}, {{"buffers", deep}});
  EXPECT_TRUE(has(message_of<DataError>([&] { weights_of_safetensors(path("deep")); }),
                  "expected names as JSON"));
}

TEST_F(Exchange, ComparesElementByElementWhateverTheOrder) {
  const MadeTensor matrix = floats(kWeightKind, "m", {8, 3}, 0.5F);
  save_checkpoint(path("rows"), 1, {matrix}, {}, 1);
  save_checkpoint(path("columns"), 1, {by_columns(matrix)}, {}, 3);
  const auto at = [&](const std::string& name) {
    return state_of_checkpoint(CheckpointFolder(path(name)).path_of(1));
  };
  EXPECT_TRUE(compare_tensors(*at("rows"), *at("columns")).same());

  MadeTensor changed = matrix;
  for (const std::size_t i : {3, 20}) {
    float value = 0;
    std::memcpy(&value, changed.bytes.data() + i * sizeof(float), sizeof(float));
    value += i == 3 ? -2.0F : 0.5F;
    std::memcpy(changed.bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  const MadeTensor other = floats(kWeightKind, "other", {2, 2}, 1);
  save_checkpoint(path("changed"), 1, {by_columns(changed), other});
  const TensorComparison comparison = compare_tensors(*at("rows"), *at("changed"));
  EXPECT_FALSE(comparison.same());
  EXPECT_TRUE(comparison.only_a.empty());
  EXPECT_EQ(comparison.only_b, std::vector<std::string>{"weight other"});
  ASSERT_EQ(comparison.different.size(), 1U);
  EXPECT_EQ(comparison.different[0].title, "weight m");
  EXPECT_EQ(comparison.different[0].differing, 2);
  EXPECT_EQ(comparison.different[0].numel, 24);
  EXPECT_EQ(comparison.different[0].largest, 2.0);
}

TEST_F(Exchange, ComparesWhatIsNoNumberAndOtherTypes) {
  const auto row = [&](const std::string& name, std::vector<float> values) {
    return made<float>("", name, {static_cast<std::int64_t>(values.size())}, [=](std::int64_t i) {
      return values[static_cast<std::size_t>(i)];
    });
  };
  write_file("a",
             {row("nan", {NAN, 1, 2}), row("zero", {0.0F}), row("type", {1, 2}), row("size", {1})});
  write_file("b",
             {row("nan", {NAN, NAN, 2}),
              row("zero", {-0.0F}),
              made<double>("", "type", {2}, [](std::int64_t i) { return i == 0 ? 1.0 : 2.25; }),
              row("size", {1, 2})});
  const TensorComparison comparison =
      compare_tensors(*weights_of_safetensors(path("a")), *weights_of_safetensors(path("b")));
  ASSERT_EQ(comparison.different.size(), 4U);
  const auto& [nan, zero, type, size] = std::tie(comparison.different[0],
                                                 comparison.different[1],
                                                 comparison.different[2],
                                                 comparison.different[3]);
  EXPECT_EQ(nan.differing, 1);
  EXPECT_TRUE(std::isinf(nan.largest));
  EXPECT_EQ(zero.differing, 1);
  EXPECT_EQ(zero.largest, 0);
  EXPECT_EQ(type.form, "float32 [2] and float64 [2]");
  EXPECT_EQ(type.differing, 1);
  EXPECT_EQ(type.largest, 0.25);
  EXPECT_EQ(size.form, "float32 [1] and float32 [2]");
  EXPECT_EQ(size.differing, 0);
}

TEST_F(Exchange, VerifyNamesEverythingThatIsWrong) {
  save_checkpoint(path("saved"), 7, some_state(), {}, 3);
  EXPECT_TRUE(verify_checkpoint(checkpoint()).empty());
  std::ofstream(checkpoint() + "/rank-00000.safetensors", std::ios::app) << "?";
  fs::remove(checkpoint() + "/rank-00001.safetensors");
  const std::string third = checkpoint() + "/rank-00002.safetensors";
  std::fstream file(third, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(fs::file_size(third)) - 1);
  file.put('?');
  file.close();
  const std::vector<std::string> wrong = verify_checkpoint(checkpoint());
  ASSERT_EQ(wrong.size(), 3U);
  EXPECT_TRUE(has(wrong[0], "rank-00000.safetensors")) << wrong[0];
  EXPECT_TRUE(has(wrong[1], "rank-00001.safetensors")) << wrong[1];
  EXPECT_TRUE(has(wrong[2], "rank-00002.safetensors")) << wrong[2];
  std::ofstream(checkpoint() + "/manifest.json", std::ios::app) << "\n";
  EXPECT_EQ(verify_checkpoint(checkpoint()).size(), 1U);
}

}  // namespace
}  // namespace trireme
