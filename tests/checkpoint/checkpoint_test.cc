// What is saved comes back bit by bit, however it was divided and however it is divided now.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "checkpoint/checksum.h"
#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::borrowed;
using testing::dealt_split;
using testing::even_split;
using testing::load_split;
using testing::MadeTensor;
using testing::message_of;
using testing::random_tensor;
using testing::read_file;
using testing::save_split;
using testing::Split;
using testing::SplitState;
using testing::TemporaryFolder;
using testing::whole_split;

constexpr Dtype kDtypes[] = {Dtype::kFloat32,
                             Dtype::kFloat64,
                             Dtype::kFloat16,
                             Dtype::kBFloat16,
                             Dtype::kInt32,
                             Dtype::kInt64,
                             Dtype::kUint8,
                             Dtype::kInt8,
                             Dtype::kInt16,
                             Dtype::kBool};

// All dtypes; scalars, nothing, one element, primes; orders of memory.
std::vector<MadeTensor> all_kinds() {
  std::vector<MadeTensor> tensors;
  for (const Dtype dtype : kDtypes) {
    const std::string name(dtype_name(dtype));
    tensors.push_back(random_tensor(kWeightKind, name + ".prime", dtype, {7919}));
    tensors.push_back(random_tensor(kBufferKind, name + ".scalar", dtype, {}));
    tensors.push_back(random_tensor(kWeightKind, name + ".nothing", dtype, {4, 0, 3}));
    tensors.push_back(random_tensor(kWeightKind, name + ".one", dtype, {1, 1}));
  }
  tensors.push_back(
      random_tensor(kWeightKind, "channels last", Dtype::kFloat32, {2, 3, 5, 7}, {105, 1, 21, 3}));
  tensors.push_back(random_tensor(kWeightKind, "columns", Dtype::kFloat16, {13, 17}, {1, 13}));
  tensors.push_back(random_tensor(kWeightKind, "no order", Dtype::kFloat64, {2, 0}, {5, 9}));
  tensors.push_back(random_tensor("optimizer.exp_avg", "float32.prime", Dtype::kFloat32, {7919}));
  return tensors;
}

struct NamedSplit {
  const char* name;
  Split split;
};
std::vector<NamedSplit> splits() {
  return {{"even", even_split}, {"whole", whole_split}, {"dealt", dealt_split(61)}};
}

TEST(Checkpoint, AnySplitSavesWhatAnyOtherLoads) {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  for (const int saved : {1, 2, 3}) {
    for (const NamedSplit& from : splits()) {
      const std::string place = detail::concat(folder.path(), "/", from.name, saved);
      save_split(place, 5, tensors, from.split, saved);
      const std::string checkpoint = CheckpointFolder(place).path_of(5);
      EXPECT_EQ(CheckpointReader(checkpoint).verify(), std::vector<std::string>());
      for (const int loaded : {1, 2, 3}) {
        for (const NamedSplit& to : splits()) {
          EXPECT_EQ(load_split(checkpoint, tensors, to.split, loaded), std::vector<std::string>())
              << from.name << " by " << saved << " as " << to.name << " by " << loaded;
        }
      }
    }
  }
}

TEST(Checkpoint, RanksThatAreProcessesSaveTheSame) {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  testing::fork_world(3, [&](World& world) {
    const SplitState state(tensors, dealt_split(61), world.size(), world.rank());
    CheckpointWriter writer(folder.path(), borrowed(world));
    writer.save(1, state.view(), {});
    writer.save(2, state.view(), {});
    writer.finish();
    writer.save(3, state.view(), {});
    writer.finish();
    writer.check();
    EXPECT_EQ(writer.failure(), "");
  });
  EXPECT_EQ(CheckpointFolder(folder.path()).steps(), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_TRUE(CheckpointFolder(folder.path()).unfinished().empty());
  for (const std::int64_t step : {1, 2, 3}) {
    const std::string checkpoint = CheckpointFolder(folder.path()).path_of(step);
    EXPECT_EQ(load_split(checkpoint, tensors, even_split, 2), std::vector<std::string>());
  }
}

// Over many blocks: runs that begin and end anywhere in them.
TEST(Checkpoint, RunsAcrossBlocksAreWhole) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "large", Dtype::kFloat32, {1'299'709}),
      random_tensor(kWeightKind, "wide", Dtype::kFloat64, {104'729}),
      random_tensor(kWeightKind, "bytes", Dtype::kUint8, {1'048'583})};
  save_split(folder.path(), 0, tensors, dealt_split(300'007), 2);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(0);
  for (const std::int64_t length : {8'191, 70'001, 262'144, 1'000'003}) {
    EXPECT_EQ(load_split(checkpoint, tensors, dealt_split(length), 3), std::vector<std::string>())
        << length;
  }
}

// The same with blocks so small that every run has many.
TEST(Checkpoint, BlocksOfAnySizeAreRead) {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  save_split(folder.path(), 0, tensors, dealt_split(997), 2);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(0);
  for (const std::size_t block_bytes : {std::size_t{512}, std::size_t{4096}, std::size_t{999}}) {
    Manifest manifest = Manifest::read(checkpoint);
    manifest.block_bytes = block_bytes;
    for (SavedFile& file : manifest.files) {
      const std::string bytes = read_file(checkpoint + "/" + file.name);
      ASSERT_EQ(bytes.size(), file.size_bytes);
      file.checksums.clear();
      for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
        file.checksums.push_back(
            detail::checksum_of(bytes.data() + at, std::min(block_bytes, bytes.size() - at)));
      }
    }
    std::ofstream(checkpoint + "/" + Manifest::kFileName) << manifest.to_json();
    for (const NamedSplit& to : splits()) {
      EXPECT_EQ(load_split(checkpoint, tensors, to.split, 3), std::vector<std::string>())
          << block_bytes << " " << to.name;
    }
    EXPECT_EQ(CheckpointReader(checkpoint).verify(), std::vector<std::string>());
  }
}

// Element (i, j, ...) of a tensor row by row, from where its strides put it.
std::vector<std::byte> row_by_row(const MadeTensor& made) {
  const std::vector<std::int64_t>& shape = made.tensor.shape;
  const std::vector<std::int64_t> strides =
      made.tensor.strides.empty() ? row_strides(shape) : made.tensor.strides;
  const std::size_t element = dtype_bytes(made.tensor.dtype);
  std::vector<std::byte> out(made.bytes.size());
  for (std::int64_t i = 0; i < made.tensor.numel(); ++i) {
    std::int64_t rest = i;
    std::int64_t at = 0;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    std::memcpy(out.data() + static_cast<std::size_t>(i) * element,
                made.bytes.data() + static_cast<std::size_t>(at) * element,
                element);
  }
  return out;
}

TEST(Checkpoint, AWholeTensorIsReadRowByRow) {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  save_split(folder.path(), 1, tensors, dealt_split(10), 3);
  const CheckpointReader reader(CheckpointFolder(folder.path()).path_of(1));
  ASSERT_EQ(reader.manifest().tensors.size(), tensors.size());
  for (const MadeTensor& made : tensors) {
    const SavedTensor* saved = reader.manifest().find(made.tensor.kind, made.tensor.name);
    ASSERT_NE(saved, nullptr) << made.tensor.title();
    EXPECT_EQ(saved->tensor, made.tensor);
    std::vector<std::byte> found(made.bytes.size());
    reader.read(*saved, found.data());
    EXPECT_TRUE(found == row_by_row(made)) << made.tensor.title();
  }
}

// Any reader of safetensors finds the elements under their names.
TEST(Checkpoint, DataFilesAreSafetensors) {
  const TemporaryFolder folder;
  const auto tensors = all_kinds();
  save_split(folder.path(), 1, tensors, even_split, 3);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(1);
  const Manifest manifest = Manifest::read(checkpoint);
  std::size_t seen = 0;
  for (const SavedTensor& saved : manifest.tensors) {
    const auto made = std::find_if(tensors.begin(), tensors.end(), [&](const MadeTensor& each) {
      return each.tensor == saved.tensor;
    });
    ASSERT_NE(made, tensors.end());
    const std::size_t element = dtype_bytes(saved.tensor.dtype);
    for (const SavedPart& part : saved.parts) {
      const SafetensorsFile file(checkpoint + "/" + manifest.files[part.file].name);
      const ConstSpan span = file.tensor(detail::concat(saved.tensor.kind,
                                                        "/",
                                                        saved.tensor.name,
                                                        "[",
                                                        part.range.begin,
                                                        ":",
                                                        part.range.end,
                                                        "]"));
      ASSERT_EQ(span.size_bytes(), static_cast<std::size_t>(part.range.size()) * element);
      EXPECT_EQ(
          std::memcmp(span.bytes(),
                      made->bytes.data() + static_cast<std::size_t>(part.range.begin) * element,
                      span.size_bytes()),
          0);
      EXPECT_EQ(part.offset % element, 0U) << "not aligned";
      ++seen;
    }
  }
  EXPECT_GT(seen, tensors.size());
}

TEST(Checkpoint, DifferencesAreAllNamedAndNothingIsWritten) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> saved = {
      random_tensor(kWeightKind, "same", Dtype::kFloat32, {3, 4}),
      random_tensor(kWeightKind, "other shape", Dtype::kFloat32, {3, 4}),
      random_tensor(kWeightKind, "integers", Dtype::kInt64, {3}),
      random_tensor(kWeightKind, "extra", Dtype::kFloat32, {2}),
      random_tensor(kRandomKind, "rank-0", Dtype::kUint8, {9})};
  save_split(folder.path(), 1, saved, even_split, 2);
  const std::vector<MadeTensor> wanted = {
      saved[0],
      random_tensor(kWeightKind, "other shape", Dtype::kFloat32, {4, 3}),
      random_tensor(kWeightKind, "integers", Dtype::kFloat32, {3}),
      random_tensor(kAverageKind, "same", Dtype::kFloat32, {3, 4})};
  const CheckpointReader reader(CheckpointFolder(folder.path()).path_of(1));
  const SplitState state(wanted, even_split, 1, 0, SplitState::Content::kErased);
  const std::string text = message_of<ConfigError>([&] { reader.load(state.view()); });
  for (const char* part : {"missing in the checkpoint: average same",
                           "not expected: weight extra",
                           "weight other shape: expected [4, 3], found [3, 4]",
                           "weight integers: expected float32, found int64"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(text.find("rank-0"), std::string::npos) << text;
  EXPECT_EQ(state.wrong().size(), wanted.size()) << "something was written";

  const LoadDifferences differences = reader.load(state.view(), {.kinds = {}, .partial = true});
  EXPECT_EQ(differences.missing, std::vector<std::string>{"average same"});
  EXPECT_EQ(differences.unexpected, std::vector<std::string>{"weight extra"});
  EXPECT_EQ(differences.other_shape.size(), 2U);
  EXPECT_EQ(state.wrong(),
            (std::vector<std::string>{"weight other shape", "weight integers", "average same"}));
}

// As versions without these dtypes have saved them.
TEST(Checkpoint, BuffersThatWereSavedAsBytesAreLoaded) {
  const TemporaryFolder folder;
  std::vector<MadeTensor> wanted;
  std::vector<MadeTensor> saved;
  for (const Dtype dtype : {Dtype::kInt8, Dtype::kInt16, Dtype::kBool}) {
    const std::string name(dtype_name(dtype));
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {211}, {3, 5}}) {
      wanted.push_back(random_tensor(
          kBufferKind, detail::concat(name, shape.size()), dtype, shape, {}, /*seed=*/4));
      saved.push_back(wanted.back());
      saved.back().tensor.dtype = Dtype::kUint8;
      saved.back().tensor.shape.push_back(dtype == Dtype::kInt16 ? 2 : 1);
    }
  }
  save_split(folder.path(), 5, saved, even_split, 2);
  const std::string checkpoint = CheckpointFolder(folder.path()).path_of(5);
  for (const NamedSplit& to : splits()) {
    load_split(checkpoint, wanted, to.split, 3);
  }
  // Of parameters there was no such form.
  for (auto* tensors : {&wanted, &saved}) {
    for (MadeTensor& each : *tensors) {
      each.tensor.kind = kWeightKind;
    }
  }
  save_split(folder.path(), 6, saved, even_split, 2);
  const CheckpointReader reader(CheckpointFolder(folder.path()).path_of(6));
  SplitState state(wanted, even_split, 1, 0, SplitState::Content::kErased);
  EXPECT_NE(message_of<ConfigError>([&] { reader.load(state.view()); }).find("found [211, 2]"),
            std::string::npos);
}

TEST(Checkpoint, OnlyTheKindsThatWereAskedForAreLoaded) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "a", Dtype::kFloat32, {5}),
      random_tensor("optimizer.exp_avg", "a", Dtype::kFloat32, {5}, {}, 1),
      random_tensor(kRandomKind, "rank-0", Dtype::kUint8, {7})};
  save_split(folder.path(), 1, tensors, whole_split, 3);
  const CheckpointReader reader(CheckpointFolder(folder.path()).path_of(1));
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{}, {"random rank-0"}},
      {{kWeightKind}, {"optimizer.exp_avg a", "random rank-0"}},
      {{kRandomKind, "optimizer.exp_avg"}, {"weight a"}},
      {{"nothing of this name"}, {"weight a", "optimizer.exp_avg a", "random rank-0"}}};
  for (const auto& [kinds, untouched] : cases) {
    const SplitState state(tensors, even_split, 1, 0, SplitState::Content::kErased);
    EXPECT_TRUE(reader.load(state.view(), {.kinds = kinds, .partial = false}).empty());
    EXPECT_EQ(state.wrong(), untouched);
  }
}

TEST(Checkpoint, FoldersAndTextsMayHaveAnyName) {
  const TemporaryFolder folder;
  const std::string place = folder.path() + "/a run, \"quoted\"/übung 試験/checkpoints";
  const std::vector<MadeTensor> tensors = {
      random_tensor(kWeightKind, "层.\"权重\"\n/[0:3]\\", Dtype::kFloat32, {3, 5}),
      random_tensor(kWeightKind, "", Dtype::kFloat32, {3})};
  std::string control("\0\x01\x1f\x7f", 4);
  const Notes notes = {{"large", std::string(3'000'000, 'x')},
                       {"lines", "one\ntwo\r\n\"three\"\t\\"},
                       {"control", control},
                       {"", "no name"},
                       {"表", "文字 🚣"}};
  save_split(place, 12, tensors, even_split, 2, notes);
  const CheckpointReader reader(CheckpointFolder(place).path_of(12));
  EXPECT_EQ(reader.manifest().notes, notes);
  EXPECT_EQ(load_split(reader.path(), tensors, even_split, 3), std::vector<std::string>());
}

// On every rank, whoever has the elements, and the writer goes on being of use.
TEST(Checkpoint, TextsThatAreNotUtf8AreRefusedOnEveryRank) {
  const TemporaryFolder folder;
  const std::vector<MadeTensor> good = {random_tensor(kWeightKind, "a", Dtype::kFloat32, {7})};
  std::vector<MadeTensor> bad = good;
  bad.push_back(random_tensor(kWeightKind, "not \xff text", Dtype::kFloat32, {7}));
  std::vector<MadeTensor> empty = good;
  empty.push_back(random_tensor(kWeightKind, "none \xc0\xaf", Dtype::kFloat32, {0}));
  for (const auto& tensors : {bad, empty, good}) {
    testing::fork_world(3, [&](World& world) {
      const SplitState state(tensors, whole_split, world.size(), world.rank());
      const SplitState whole(good, whole_split, world.size(), world.rank());
      CheckpointWriter writer(folder.path(), borrowed(world));
      const Notes notes = tensors.size() > 1 ? Notes{} : Notes{{"key", "value \xf0\x28"}};
      const std::string text = message_of<ConfigError>([&] {
        writer.save(1, state.view(), notes);
        writer.finish();
      });
      EXPECT_NE(text.find("UTF-8"), std::string::npos) << text;
      // As text: the wrong bytes are replaced.
      const std::string& name = tensors.size() > 1 ? tensors[1].tensor.name : "key";
      EXPECT_NE(text.find(name.substr(0, 4)), std::string::npos) << text;
      EXPECT_EQ(text.find_first_of("\xff\xc0\xf0"), std::string::npos) << text;
      writer.save(2, whole.view(), {{"note", "good"}});
      writer.finish();
    });
    EXPECT_EQ(CheckpointFolder(folder.path()).steps(), std::vector<std::int64_t>{2});
    EXPECT_TRUE(CheckpointFolder(folder.path()).unfinished().empty());
  }
}

// Of more ranks than a process may have files open.
TEST(Checkpoint, HasMoreFilesThanMayBeOpen) {
  const TemporaryFolder folder;
  constexpr std::int64_t kFiles = 300;
  Manifest manifest;
  manifest.step = 1;
  manifest.ranks = static_cast<int>(kFiles);
  SavedTensor saved{{kWeightKind, "a", Dtype::kUint8, {kFiles}, {}}, {}};
  const auto value = [](std::int64_t i) { return static_cast<char>(i * 7 % 251); };
  for (std::int64_t i = 0; i < kFiles; ++i) {
    const std::string name = detail::concat("rank-", i, ".safetensors");
    const char byte = value(i);
    std::ofstream(folder.path() + "/" + name, std::ios::binary).put(byte);
    manifest.files.push_back({name, 1, {detail::checksum_of(&byte, 1)}});
    saved.parts.push_back({{i, i + 1}, static_cast<std::size_t>(i), 0});
  }
  manifest.tensors.push_back(saved);
  std::ofstream(folder.path() + "/" + Manifest::kFileName) << manifest.to_json();
  testing::fork_ranks(1, [&](int) {
    const rlimit limit{kFiles - 50, kFiles - 50};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    const CheckpointReader reader(folder.path());
    std::vector<char> found(kFiles);
    reader.read(reader.manifest().tensors.at(0), reinterpret_cast<std::byte*>(found.data()));
    for (std::int64_t i = 0; i < kFiles; ++i) {
      EXPECT_EQ(found[static_cast<std::size_t>(i)], value(i)) << i;
    }
    EXPECT_TRUE(reader.verify().empty());
    // One of those that are opened when they are needed.
    std::ofstream(folder.path() + "/rank-299.safetensors", std::ios::binary).put('?');
    const std::vector<std::string> wrong = reader.verify();
    ASSERT_EQ(wrong.size(), 1U);
    EXPECT_NE(wrong[0].find("rank-299.safetensors"), std::string::npos) << wrong[0];
  });
}

}  // namespace
}  // namespace trireme
