#include "trireme/exchange/gpt2_names.h"

#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/made_checkpoint.h"
#include "support/processes.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"
#include "trireme/exchange/weights_exchange.h"

namespace trireme {
namespace {

using testing::made;
using testing::MadeTensor;
using testing::message_of;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kVocabulary = 11;
constexpr std::int64_t kSequence = 5;
constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kLayers = 2;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Written out, so that nothing of the code under test is in it: theirs, ours, our shape, whether
// the matrix is the other way round.
struct Line {
  std::string theirs;
  std::string ours;
  Shape shape;
  bool transposed = false;
};

std::vector<Line> gpt_lines() {
  constexpr std::int64_t kW = kWidth;
  std::vector<Line> lines = {{"wte.weight", "tokens.weight", {kVocabulary, kW}},
                             {"wpe.weight", "places.weight", {kSequence, kW}}};
  for (const char* n : {"0", "1"}) {
    const std::string h = std::string("h.") + n + ".";
    const std::string b = std::string("block") + n + ".";
    lines.insert(lines.end(),
                 {{h + "ln_1.weight", b + "norm1.weight", {kW}},
                  {h + "ln_1.bias", b + "norm1.bias", {kW}},
                  {h + "attn.c_attn.weight", b + "qkv.weight", {3 * kW, kW}, true},
                  {h + "attn.c_attn.bias", b + "qkv.bias", {3 * kW}},
                  {h + "attn.c_proj.weight", b + "out.weight", {kW, kW}, true},
                  {h + "attn.c_proj.bias", b + "out.bias", {kW}},
                  {h + "ln_2.weight", b + "norm2.weight", {kW}},
                  {h + "ln_2.bias", b + "norm2.bias", {kW}},
                  {h + "mlp.c_fc.weight", b + "up.weight", {4 * kW, kW}, true},
                  {h + "mlp.c_fc.bias", b + "up.bias", {4 * kW}},
                  {h + "mlp.c_proj.weight", b + "down.weight", {kW, 4 * kW}, true},
                  {h + "mlp.c_proj.bias", b + "down.bias", {kW}}});
  }
  lines.insert(lines.end(),
               {{"ln_f.weight", "norm.weight", {kW}}, {"ln_f.bias", "norm.bias", {kW}}});
  return lines;
}

// Element (row, column) of our matrix `name`, whatever it is called and however it lies.
float element(const std::string& ours, std::int64_t row, std::int64_t column) {
  const auto seed = static_cast<std::int64_t>(std::hash<std::string>{}(ours) % 9973);
  return static_cast<float>(seed) + 100 * static_cast<float>(row) +
         0.5F * static_cast<float>(column);
}

MadeTensor tensor_of(const Line& line, const std::string& name, bool theirs) {
  Shape shape = line.shape;
  const bool flip = theirs && line.transposed;
  if (flip) {
    std::swap(shape[0], shape[1]);
  }
  const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
  return made<float>(kWeightKind, name, shape, [=](std::int64_t i) {
    return flip ? element(line.ours, i % columns, i / columns)
                : element(line.ours, i / columns, i % columns);
  });
}

class Gpt2Names : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  static std::vector<MadeTensor> theirs(const std::string& prefix = "") {
    std::vector<MadeTensor> tensors;
    for (const Line& line : gpt_lines()) {
      tensors.push_back(tensor_of(line, prefix + line.theirs, true));
    }
    return tensors;
  }
  static std::vector<MadeTensor> ours() {
    std::vector<MadeTensor> tensors;
    for (const Line& line : gpt_lines()) {
      tensors.push_back(tensor_of(line, line.ours, false));
    }
    return tensors;
  }

  std::string write(const std::string& name, const std::vector<MadeTensor>& tensors) const {
    std::vector<TensorEntry> entries;
    for (const MadeTensor& each : tensors) {
      entries.push_back({each.tensor.name, each.tensor.dtype, each.tensor.shape});
    }
    SafetensorsWriter writer(path(name), entries);
    for (const MadeTensor& each : tensors) {
      writer.write({each.bytes.data(), each.tensor.numel(), each.tensor.dtype});
    }
    writer.finish();
    return path(name);
  }

  // The source has exactly these tensors, read row by row.
  static void expect_tensors(const TensorSource& source, const std::vector<MadeTensor>& expected) {
    ASSERT_EQ(source.tensors().size(), expected.size());
    for (const MadeTensor& each : expected) {
      std::size_t at = 0;
      while (at < source.tensors().size() && source.tensors()[at].name != each.tensor.name) {
        ++at;
      }
      ASSERT_LT(at, source.tensors().size()) << each.tensor.name;
      EXPECT_EQ(source.tensors()[at].shape, each.tensor.shape) << each.tensor.name;
      std::vector<std::byte> found(each.bytes.size());
      source.read(at, found.data());
      EXPECT_TRUE(found == each.bytes) << each.tensor.name;
    }
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Gpt2Names, WritesTheirNamesAndMatrices) {
  const auto source = as_gpt2(weights_of_safetensors(write("ours", ours())));
  expect_tensors(*source, theirs("transformer."));
}

TEST_F(Gpt2Names, WritesAHeadOfItsOwnWithoutPrefix) {
  const Line head{"lm_head.weight", "head.weight", {kVocabulary, kWidth}};
  auto given = ours();
  given.push_back(tensor_of(head, head.ours, false));
  auto expected = theirs("transformer.");
  expected.push_back(tensor_of(head, head.theirs, true));
  expect_tensors(*as_gpt2(weights_of_safetensors(write("ours", given))), expected);
}

TEST_F(Gpt2Names, ReadsTheirsWithAndWithoutPrefix) {
  for (const char* prefix : {"", "transformer."}) {
    const auto source = from_gpt2(weights_of_gpt2_file(write("theirs", theirs(prefix))));
    expect_tensors(*source, ours());
    EXPECT_EQ(source->about().empty_modules.value(),
              (std::vector<std::string>{"drop", "block0.drop", "block1.drop"}));
    // And as a checkpoint, which keeps the memory as it is.
    const std::string saved =
        import_weights(*source, path("checkpoints"), prefix[0] == '\0' ? 0 : 1);
    expect_tensors(*weights_of_checkpoint(saved), ours());
    expect_tensors(*as_gpt2(weights_of_checkpoint(saved)), theirs("transformer."));
  }
  EXPECT_TRUE(has_gpt2_names(*weights_of_safetensors(write("theirs", theirs("transformer.")))));
  EXPECT_FALSE(has_gpt2_names(*weights_of_safetensors(write("ours", ours()))));
}

TEST_F(Gpt2Names, AHeadThatEqualsTheEmbeddingsIsTied) {
  const Line head{"lm_head.weight", "head.weight", {kVocabulary, kWidth}};
  auto tied = theirs("transformer.");
  tied.push_back(tied[0]);
  tied.back().tensor.name = head.theirs;
  expect_tensors(*from_gpt2(weights_of_gpt2_file(write("tied", tied))), ours());

  auto with_copy = ours();
  with_copy.push_back(with_copy[0]);
  with_copy.back().tensor.name = head.ours;
  expect_tensors(*from_gpt2(weights_of_gpt2_file(write("tied", tied)), /*untied=*/true), with_copy);
  expect_tensors(*from_gpt2(weights_of_gpt2_file(write("none", theirs())), /*untied=*/true),
                 with_copy);

  auto own = theirs("transformer.");
  own.push_back(tensor_of(head, head.theirs, true));
  auto expected = ours();
  expected.push_back(tensor_of(head, head.ours, false));
  expect_tensors(*from_gpt2(weights_of_gpt2_file(write("own", own))), expected);
}

TEST_F(Gpt2Names, LeavesOutMasksOfAnyType) {
  // By hand: a mask of booleans, which Trireme has no type for, before and behind other tensors.
  std::string header = "{";
  std::string data;
  const auto add = [&](const std::string& name,
                       const char* dtype,
                       const Shape& shape,
                       const std::string& bytes) {
    header += (header.size() > 1 ? "," : "") + nlohmann::json(name).dump() + ":" +
              nlohmann::json({{"dtype", dtype},
                              {"shape", shape},
                              {"data_offsets", {data.size(), data.size() + bytes.size()}}})
                  .dump();
    data += bytes;
  };
  const std::string mask(kSequence * kSequence, '\1');
  add("h.0.attn.bias", "BOOL", {1, 1, kSequence, kSequence}, mask);
  for (const MadeTensor& each : theirs()) {
    add(each.tensor.name,
        "F32",
        each.tensor.shape,
        {reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size()});
  }
  add("h.0.attn.masked_bias", "F32", {}, "1234");
  add("h.1.attn.masked_bias", "F8_E4M3", {}, "1");
  add("h.1.attn.bias", "BOOL", {1, 1, kSequence, kSequence}, mask);
  header += "}";
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(header.size() >> (8 * i));
  }
  std::ofstream(path("masks"), std::ios::binary) << file + header + data;
  expect_tensors(*from_gpt2(weights_of_gpt2_file(path("masks"))), ours());
  // Not as ordinary tensors, of which no other dtype is known.
  EXPECT_THROW(weights_of_safetensors(path("masks")), DataError);
  // Cut short, it is refused like any other.
  std::ofstream(path("masks"), std::ios::binary) << file + header + data.substr(0, data.size() - 1);
  EXPECT_THROW(weights_of_gpt2_file(path("masks")), DataError);
}

TEST_F(Gpt2Names, RefusesWhatDoesNotMapAllAtOnce) {
  auto given = theirs();
  given[2].tensor.name = "h.0.ln_1.scale";  // block0.norm1.weight is missing
  given[4] =
      made<float>("", "h.0.attn.c_attn.weight", {3 * kWidth, kWidth}, [](auto) { return 0.0F; });
  given.push_back(made<float>("", "classifier.weight", {2}, [](auto) { return 0.0F; }));
  given.push_back(made<float>("", "h.01.ln_1.bias", {2}, [](auto) { return 0.0F; }));
  const std::string file = write("theirs", given);
  const std::string text = message_of<ConfigError>([&] { from_gpt2(weights_of_gpt2_file(file)); });
  for (const std::string part : {file.c_str(),
                                 "missing: h.0.ln_1.weight",
                                 "not part of a gpt: h.0.ln_1.scale",
                                 "not part of a gpt: classifier.weight",
                                 "not part of a gpt: h.01.ln_1.bias",
                                 "h.0.attn.c_attn.weight: expected shape [4, 12], found [12, 4]"}) {
    EXPECT_TRUE(has(text, part)) << "no " << part << " in " << text;
  }
  // Another model of ours.
  const std::string other =
      write("mlp", {made<float>("", "layer0.weight", {3, 3}, [](auto) { return 0.0F; })});
  const std::string mlp = message_of<ConfigError>([&] { as_gpt2(weights_of_safetensors(other)); });
  EXPECT_TRUE(has(mlp, "tokens.weight")) << mlp;
  EXPECT_TRUE(has(mlp, "layer0.weight")) << mlp;
  // A layer left out.
  auto gap = theirs();
  for (MadeTensor& each : gap) {
    if (each.tensor.name.starts_with("h.1.")) {
      each.tensor.name = "h.900000000000." + each.tensor.name.substr(4);
    }
  }
  const std::string missing =
      message_of<ConfigError>([&] { from_gpt2(weights_of_gpt2_file(write("gap", gap))); });
  EXPECT_TRUE(has(missing, "missing: h.1.ln_1.weight")) << missing.substr(0, 500);
  // Both names of one tensor.
  auto twice = theirs();
  twice.push_back(theirs("transformer.")[3]);
  const std::string both =
      message_of<ConfigError>([&] { from_gpt2(weights_of_gpt2_file(write("twice", twice))); });
  EXPECT_TRUE(has(both, "h.0.ln_1.bias twice")) << both;
}

TEST_F(Gpt2Names, SaysTheSizesThatFollowFromTheTensors) {
  const GptSizes sizes = gpt_sizes(*weights_of_safetensors(write("ours", ours())));
  EXPECT_EQ(sizes.vocabulary, kVocabulary);
  EXPECT_EQ(sizes.sequence, kSequence);
  EXPECT_EQ(sizes.width, kWidth);
  EXPECT_EQ(sizes.layers, kLayers);
  EXPECT_TRUE(sizes.tied);
  const auto config = nlohmann::json::parse(gpt2_config(sizes, 2));
  EXPECT_EQ(config["n_head"], 2);
  EXPECT_EQ(config["n_embd"], kWidth);
  EXPECT_EQ(config["activation_function"], "gelu_new");
  EXPECT_THROW(gpt2_config(sizes, 3), ConfigError);
}

}  // namespace
}  // namespace trireme
