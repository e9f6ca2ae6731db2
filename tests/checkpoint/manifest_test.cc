// The manifest: what it says comes back, and nothing else is believed.

#include "trireme/checkpoint/manifest.h"

#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"
#include "checkpoint/split_state.h"
#include "support/foreign_locale.h"
#include "support/processes.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;
using testing::MadeTensor;
using testing::random_tensor;
using testing::read_file;
using testing::TemporaryFolder;

constexpr const char* kPath = "folder/manifest.json";
constexpr std::size_t kTailBytes = 35;  // docs/checkpoint_format.md

// A text with the right checksum, whatever it says.
std::string sealed(const std::string& body) {
  return body + ",\n\"checksum\": \"" +
         detail::checksum_text(detail::checksum_of(body.data(), body.size())) + "\"\n}\n";
}
std::string sealed(const Json& json) {
  const std::string text = json.dump();
  return sealed(text.substr(0, text.size() - 1));
}

// Two files, three tensors; nothing special.
Manifest example() {
  Manifest manifest;
  manifest.step = 700;
  manifest.sequence = 7;
  manifest.saved_at = 1'800'000'000;
  manifest.ranks = 2;
  manifest.block_bytes = 1024;
  manifest.notes = {{"engine", "{\"steps\": 700}"}, {"b", "\"\\\n\t ü 🚣"}};
  manifest.files = {{"rank-00000.safetensors", 2000, {1, ~std::uint64_t{0}}},
                    {"rank-00001.safetensors", 1024, {0x0123456789abcdef}}};
  manifest.tensors = {{{kWeightKind, "a", Dtype::kFloat32, {10, 20}, {1, 10}},
                       {{{0, 150}, 0, 200}, {{150, 200}, 1, 100}}},
                      {{"optimizer.exp_avg", "a", Dtype::kFloat64, {}, {}}, {{{0, 1}, 1, 1016}}},
                      {{kBufferKind, "", Dtype::kUint8, {3, 0}, {}}, {}}};
  return manifest;
}

// The message of the CheckpointError for a text, which names the file; empty: none was thrown.
std::string refusal(const std::string& text) {
  try {
    Manifest::parse(text, kPath);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.file(), kPath);
    EXPECT_NE(std::string(error.what()).find(kPath), std::string::npos) << error.what();
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what() << "\nfor " << text;
    return error.what();
  }
  return {};
}

TEST(Manifest, SaysTheSameAfterWritingAndReading) {
  const Manifest manifest = example();
  const std::string text = manifest.to_json();
  const Manifest found = Manifest::parse(text, kPath);
  EXPECT_EQ(found.to_json(), text);
  EXPECT_EQ(found.step, manifest.step);
  EXPECT_EQ(found.sequence, manifest.sequence);
  EXPECT_EQ(found.saved_at, manifest.saved_at);
  EXPECT_EQ(found.ranks, manifest.ranks);
  EXPECT_EQ(found.block_bytes, manifest.block_bytes);
  EXPECT_EQ(found.notes, manifest.notes);
  EXPECT_EQ(found.size_bytes(), 3024U);
  ASSERT_EQ(found.files.size(), 2U);
  EXPECT_EQ(found.files[0].checksums, manifest.files[0].checksums);
  ASSERT_EQ(found.tensors.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found.tensors[i].tensor, manifest.tensors[i].tensor);
    ASSERT_EQ(found.tensors[i].parts.size(), manifest.tensors[i].parts.size());
  }
  EXPECT_EQ(found.tensors[0].parts[1].range, (Range{150, 200}));
  EXPECT_EQ(found.tensors[0].parts[1].file, 1U);
  EXPECT_EQ(found.tensors[0].parts[1].offset, 100U);
  EXPECT_EQ(found.find(kWeightKind, "a"), &found.tensors[0]);
  EXPECT_EQ(found.find(kWeightKind, "b"), nullptr);
  // As docs/checkpoint_format.md says it.
  const std::string body = text.substr(0, text.size() - kTailBytes);
  EXPECT_EQ(sealed(body), text);
  EXPECT_EQ(Json::parse(text).at("version"), 1);
}

TEST(Manifest, SaysTheSameInEveryLocale) {
  Manifest manifest = example();
  manifest.step = 1'234'567;
  const testing::ForeignLocale foreign;
  const std::string text = manifest.to_json();
  EXPECT_EQ(Json::parse(text).at("step"), 1'234'567) << text;
  EXPECT_NE(text.find("\"saved_at\": 1800000000,"), std::string::npos) << text;
  EXPECT_EQ(Manifest::parse(text, kPath).step, 1'234'567);
}

TEST(Manifest, EveryTruncationIsRefused) {
  const std::string text = example().to_json();
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(refusal(text.substr(0, length)), "") << length;
  }
  EXPECT_NE(refusal(text + "\n"), "");
  EXPECT_NE(refusal(text + text), "");
  EXPECT_NE(refusal(std::string(text.size(), '\0')), "");
}

TEST(Manifest, EveryFlippedBitIsRefused) {
  const std::string text = example().to_json();
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_NE(refusal(damaged), "") << "bit " << bit << " of byte " << at;
    }
  }
}

TEST(Manifest, EveryLostOrDoubledByteIsRefused) {
  const std::string text = example().to_json();
  for (std::size_t at = 0; at < text.size(); ++at) {
    EXPECT_NE(refusal(text.substr(0, at) + text.substr(at + 1)), "") << at;
    EXPECT_NE(refusal(text.substr(0, at) + text[at] + text.substr(at)), "") << at;
  }
}

struct Forgery {
  const char* what;
  std::function<void(Json& json)> change;
};

const std::vector<Forgery>& forgeries() {
  static const std::vector<Forgery> all = {
      {"expected version 1", [](Json& j) { j["version"] = 2; }},
      {"expected version 1", [](Json& j) { j["version"] = "1"; }},
      {"expected version 1", [](Json& j) { j.erase("version"); }},
      {"not the manifest of a checkpoint", [](Json& j) { j["format"] = "another"; }},
      {"not the manifest of a checkpoint", [](Json& j) { j.erase("format"); }},
      {"step", [](Json& j) { j["step"] = -1; }},
      {"step", [](Json& j) { j.erase("step"); }},
      {"", [](Json& j) { j["step"] = "700"; }},
      {"sequence", [](Json& j) { j["sequence"] = -7; }},
      {"ranks", [](Json& j) { j["ranks"] = 0; }},
      {"blocks", [](Json& j) { j["block_bytes"] = 0; }},
      {"blocks", [](Json& j) { j["block_bytes"] = -1024; }},
      {"blocks", [](Json& j) { j["block_bytes"] = std::uint64_t{1} << 50; }},
      {"xxh3-64", [](Json& j) { j["checksums"] = "crc32"; }},
      {"", [](Json& j) { j["notes"]["b"] = 7; }},
      {"",
       [](Json& j) {
         j["notes"] = Json::array({1, 2});
       }},
      {"", [](Json& j) { j["files"] = "none"; }},
      {"",
       [](Json& j) {
         j["tensors"] = Json{{"a", 1}};
       }},
      {"", [](Json& j) { j["tensors"][0] = nullptr; }},
      // Names that lead out of the folder.
      {"../x", [](Json& j) { j["files"][0]["name"] = "../x"; }},
      {"/etc/passwd", [](Json& j) { j["files"][0]["name"] = "/etc/passwd"; }},
      {"a/b", [](Json& j) { j["files"][0]["name"] = "a/b"; }},
      {"name of a file", [](Json& j) { j["files"][0]["name"] = ".."; }},
      {"name of a file", [](Json& j) { j["files"][0]["name"] = "."; }},
      {"name of a file", [](Json& j) { j["files"][0]["name"] = ""; }},
      {"name of a file", [](Json& j) { j["files"][0]["name"] = std::string("a\0b", 3); }},
      {"listed twice", [](Json& j) { j["files"][1]["name"] = j["files"][0]["name"]; }},
      // Sizes and checksums.
      {"checksums", [](Json& j) { j["files"][0]["bytes"] = 2049; }},
      {"checksums", [](Json& j) { j["files"][0]["bytes"] = ~std::uint64_t{0}; }},
      {"checksums", [](Json& j) { j["files"][0]["bytes"] = -1; }},
      {"checksums", [](Json& j) { j["files"][0]["checksums"].push_back("0000000000000000"); }},
      {"16 hexadecimal", [](Json& j) { j["files"][0]["checksums"][0] = "1"; }},
      {"16 hexadecimal", [](Json& j) { j["files"][0]["checksums"][0] = "000000000000000g"; }},
      {"16 hexadecimal", [](Json& j) { j["files"][0]["checksums"][0] = "-000000000000001"; }},
      {"", [](Json& j) { j["files"][0]["checksums"][0] = 1; }},
      // Tensors.
      {"unknown dtype", [](Json& j) { j["tensors"][0]["dtype"] = "F8"; }},
      {"", [](Json& j) { j["tensors"][0]["dtype"] = 3; }},
      {"listed twice", [](Json& j) { j["tensors"].push_back(j["tensors"][0]); }},
      {"weight a",
       [](Json& j) {
         j["tensors"][0]["shape"] = {10, 21};
       }},
      {"weight a",
       [](Json& j) {
         j["tensors"][0]["shape"] = {-10, -20};
       }},
      {"weight a",
       [](Json& j) {
         j["tensors"][0]["shape"] = {std::int64_t{1} << 62, 4};
       }},
      {"weight a",
       [](Json& j) {
         j["tensors"][0]["shape"] = {~std::uint64_t{0}, 1};
       }},
      {"weight a",
       [](Json& j) {
         j["tensors"][0].erase("strides");
         j["tensors"][0]["shape"] = {std::int64_t{1} << 32, std::int64_t{1} << 32, 200};
       }},
      {"weight a",
       [](Json& j) {  // 200, modulo 2^64
         j["tensors"][0].erase("strides");
         j["tensors"][0]["shape"] = {(std::int64_t{1} << 61) + 25, 8};
       }},
      {"weight a", [](Json& j) { j["tensors"][0]["shape"] = Json::array(); }},
      {"strides",
       [](Json& j) {
         j["tensors"][0]["strides"] = {1, 11};
       }},
      {"strides",
       [](Json& j) {
         j["tensors"][0]["strides"] = {1, 1};
       }},
      {"strides",
       [](Json& j) {
         j["tensors"][0]["strides"] = {-1, 10};
       }},
      {"strides", [](Json& j) { j["tensors"][0]["strides"] = {1}; }},
      {"strides",
       [](Json& j) {
         j["tensors"][0]["strides"] = {std::int64_t{1} << 62, 1};
       }},
      // Parts.
      {"found parts up to 150", [](Json& j) { j["tensors"][0]["parts"].erase(1); }},
      {"begins with element 0", [](Json& j) { j["tensors"][0]["parts"].erase(0); }},
      {"begins with element 150", [](Json& j) { j["tensors"][0]["parts"][1][0] = 149; }},
      {"begins with element 150", [](Json& j) { j["tensors"][0]["parts"][1][0] = 151; }},
      {"begins with element 0", [](Json& j) { j["tensors"][0]["parts"][0][0] = -1; }},
      {"begins with element 0", [](Json& j) { j["tensors"][0]["parts"][0][1] = 0; }},
      {"begins with element 0", [](Json& j) { j["tensors"][0]["parts"][0][1] = -5; }},
      {"expected 200 elements", [](Json& j) { j["tensors"][0]["parts"][1][1] = 201; }},
      {"expected 200 elements",
       [](Json& j) { j["tensors"][0]["parts"][1][1] = std::numeric_limits<std::int64_t>::max(); }},
      {"no file number 2", [](Json& j) { j["tensors"][0]["parts"][0][2] = 2; }},
      {"no file number", [](Json& j) { j["tensors"][0]["parts"][0][2] = -1; }},
      {"beyond the end", [](Json& j) { j["tensors"][0]["parts"][0][3] = 1401; }},
      {"beyond the end", [](Json& j) { j["tensors"][0]["parts"][0][3] = -1; }},
      {"beyond the end", [](Json& j) { j["tensors"][0]["parts"][0][3] = ~std::uint64_t{0} - 10; }},
      {"",
       [](Json& j) {
         j["tensors"][0]["parts"][0] = Json::array({0, 150, 0});
       }},
      {"", [](Json& j) { j["tensors"][0]["parts"][0] = 5; }},
      {"optimizer.exp_avg a", [](Json& j) { j["tensors"][1]["parts"] = Json::array(); }},
      {"buffer ",
       [](Json& j) {
         j["tensors"][2]["parts"].push_back(Json::array({0, 1, 0, 0}));
       }},
      {"buffer ",
       [](Json& j) {
         j["tensors"][2]["parts"].push_back(Json::array({0, 0, 0, 0}));
       }},
  };
  return all;
}

// The checksum is right: somebody, or a bug, wrote it like this.
TEST(Manifest, ContradictionsAreRefused) {
  const Json whole = Json::parse(example().to_json());
  Json unchanged = whole;
  unchanged.erase("checksum");
  EXPECT_EQ(refusal(sealed(unchanged)), "") << "the forgeries must fail for their own reasons";
  for (std::size_t i = 0; i < forgeries().size(); ++i) {
    Json json = unchanged;
    forgeries()[i].change(json);
    const std::string text = refusal(sealed(json));
    EXPECT_NE(text, "") << i << ": " << json.dump();
    EXPECT_NE(text.find(forgeries()[i].what), std::string::npos) << i << ": " << text;
  }
  // Whatever is missing.
  for (const auto& item : unchanged.items()) {
    Json json = unchanged;
    json.erase(item.key());
    EXPECT_NE(refusal(sealed(json)), "") << item.key();
  }
  for (const char* list : {"files", "tensors"}) {
    for (const auto& item : unchanged[list][0].items()) {
      Json json = unchanged;
      json[list][0].erase(item.key());
      if (item.key() != "strides") {
        EXPECT_NE(refusal(sealed(json)), "") << list << " " << item.key();
      }
    }
  }
}

TEST(Manifest, TextsThatAreNoManifestAreRefused) {
  for (const char* body : {"",
                           "{",
                           "[1",
                           "{\"format\": \"trireme checkpoint\"",
                           "null",
                           "{\"a\": 1",
                           "{\"format\": \"trireme checkpoint\", \"version\": 1",
                           "\xff\xfe"}) {
    EXPECT_NE(refusal(body), "") << body;
    EXPECT_NE(refusal(sealed(std::string(body))), "") << body;
  }
  EXPECT_NE(refusal(sealed(std::string(100'000, '['))), "");
}

// Printing what was found would need a stack as deep as the text.
TEST(Manifest, TextsThatAreNestedWithoutEndAreRefused) {
  constexpr std::size_t kLevels = 200'000;
  for (const char* place : {"format", "version", "step", "checksums", "notes"}) {
    std::string body = "{\"format\": \"trireme checkpoint\", ";
    body += std::string("\"") + place + "\": ";
    const std::size_t at = body.size();
    body += std::string(kLevels, '[') + std::string(kLevels, ']');
    const std::string message = refusal(sealed(body));
    EXPECT_NE(message.find("at most 64 levels"), std::string::npos) << message;
    EXPECT_NE(message.find("byte " + std::to_string(at + 63)), std::string::npos) << message;
  }
}

// Looking through all names for each would take minutes, which the test does not have.
TEST(Manifest, VeryManyNotesAreRead) {
  constexpr int kNotes = 300'000;
  Manifest manifest = example();
  for (int i = 0; i < kNotes; ++i) {
    manifest.notes["a.name.as.long.as.they.are." + std::to_string(i)] = "x";
  }
  Json json = Json::parse(example().to_json());
  json.erase("checksum");
  json.erase("notes");
  std::string notes = "\"notes\": {";
  const char* separator = "";
  for (const auto& [name, text] : manifest.notes) {
    notes += separator + Json(name).dump() + ": " + Json(text).dump();
    separator = ", ";
  }
  const std::string rest = json.dump();
  const std::string text = sealed("{" + notes + "}, " + rest.substr(1, rest.size() - 2));
  EXPECT_EQ(Manifest::parse(text, kPath).notes, manifest.notes);
}

// Bytes changed at random under a right checksum: refused or read, never anything else.
TEST(Manifest, NoTextLeadsAnywhereElse) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "a", Dtype::kFloat32, {30, 20}, {1, 30}),
      random_tensor(kWeightKind, "b", Dtype::kInt64, {7})};
  testing::save_split(folder.path(), 1, tensors, testing::dealt_split(50), 2);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(1);
  const std::string path = checkpoint + "/" + Manifest::kFileName;
  const std::string text = read_file(path);
  const std::string body = text.substr(0, text.size() - kTailBytes);
  const std::string alphabet = "0123456789-+.eE,:[]{}\"\\ntrufals \n";
  std::mt19937 random(11);
  int refused = 0;
  int read = 0;
  for (int i = 0; i < 1200; ++i) {
    std::string changed = body;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % changed.size();
      switch (random() % 4) {
        case 0:
          changed.erase(at, 1 + random() % 3);
          break;
        case 1:
          changed.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          changed[at] = alphabet[random() % alphabet.size()];
      }
    }
    std::ofstream(path) << sealed(changed);
    const testing::SplitState state(
        tensors, testing::even_split, 1, 0, testing::SplitState::Content::kErased);
    try {
      const CheckpointReader reader(checkpoint);
      reader.load(state.view(), {.kinds = {}, .partial = true});
      for (const SavedTensor& saved : reader.manifest().tensors) {
        std::vector<std::byte> out(saved.tensor.size_bytes());
        reader.read(saved, out.data());
      }
      reader.verify();
      ++read;
    } catch (const CheckpointError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "another exception: " << error.what() << "\nfor " << changed;
    }
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(read, 30);
}

}  // namespace
}  // namespace trireme
