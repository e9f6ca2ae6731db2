// Checkpoints that were damaged on disk: the file and the place are named, and no wrong value is
// ever taken for a right one.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/checksum.h"
#include "checkpoint/split_state.h"
#include "support/processes.h"
#include "trireme/checkpoint/verify.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::dealt_split;
using testing::even_split;
using testing::load_split;
using testing::MadeTensor;
using testing::message_of;
using testing::random_tensor;
using testing::read_file;
using testing::SplitState;
using testing::TemporaryFolder;

using Names = std::vector<std::string>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

void flip(const std::string& path, std::uint64_t at, int bit = 0) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

// Blocks of another size, so that a small file has many.
void set_block_bytes(const std::string& checkpoint, std::size_t block_bytes) {
  Manifest manifest = Manifest::read(checkpoint);
  manifest.block_bytes = block_bytes;
  for (SavedFile& file : manifest.files) {
    const std::string bytes = read_file(checkpoint + "/" + file.name);
    file.checksums.clear();
    for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
      file.checksums.push_back(
          detail::checksum_of(bytes.data() + at, std::min(block_bytes, bytes.size() - at)));
    }
  }
  write_file(checkpoint + "/" + Manifest::kFileName, manifest.to_json());
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  void save(const std::vector<MadeTensor>& tensors, std::int64_t step = 1) {
    tensors_ = tensors;
    testing::save_split(temporary_.path(), step, tensors_, even_split, 2);
    checkpoint_ = CheckpointFolder(temporary_.path()).path_of(step);
  }
  void save_small() {
    save({random_tensor(kWeightKind, "a", Dtype::kFloat32, {400}),
          random_tensor(kWeightKind, "columns", Dtype::kFloat16, {10, 20}, {1, 10}),
          random_tensor(kBufferKind, "b", Dtype::kInt64, {31})});
  }
  // Three blocks and a bit in each file.
  void save_large() {
    save({random_tensor(kWeightKind, "a", Dtype::kFloat32, {1'299'709}),
          random_tensor(kWeightKind, "b", Dtype::kFloat64, {149'993})});
  }
  std::string file(const std::string& name) const { return checkpoint_ + "/" + name; }

  // What loading everything, as anybody, comes to: the error, which names this file.
  CheckpointError error_of(const std::string& path, int ranks = 2) const {
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        const CheckpointReader reader(checkpoint_);
        const SplitState state(
            tensors_, dealt_split(333), ranks, rank, SplitState::Content::kErased);
        reader.load(state.view());
        EXPECT_EQ(state.wrong(), Names()) << "wrong values were taken for right ones";
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.file(), path);
        EXPECT_TRUE(has(error.what(), path)) << error.what();
        return error;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "another exception: " << error.what();
      }
    }
    return {"nothing was thrown", -2, "nothing was thrown"};
  }

  TemporaryFolder temporary_;
  std::vector<MadeTensor> tensors_;
  std::string checkpoint_;
};

const char* const kFiles[] = {"rank-00000.safetensors", "rank-00001.safetensors"};

TEST_F(DamagedCheckpoint, IsWholeBeforeItIsDamaged) {
  save_small();
  set_block_bytes(checkpoint_, 512);
  EXPECT_EQ(error_of("").offset(), -2);
  EXPECT_EQ(verify_checkpoint(checkpoint_), Names());
}

// Every byte of small data files, header included; every bit of some.
TEST_F(DamagedCheckpoint, AFlippedBitAnywhereIsFound) {
  save_small();
  constexpr std::size_t kBlock = 512;
  set_block_bytes(checkpoint_, kBlock);
  for (const char* name : kFiles) {
    const std::string path = file(name);
    const std::uint64_t size = fs::file_size(path);
    ASSERT_GT(size, 2 * kBlock);
    for (std::uint64_t at = 0; at < size; ++at) {
      const bool thorough = at % 97 == 0;
      for (int bit = static_cast<int>(at % 8); bit < 8; bit += thorough ? 1 : 8) {
        flip(path, at, bit);
        const std::uint64_t block = at / kBlock * kBlock;
        // The first error of a load; a load of everything touches every block that has values.
        EXPECT_EQ(error_of(path).offset(), static_cast<std::int64_t>(block)) << name << " " << at;
        if (at % 5 == 0) {
          const Names wrong = CheckpointReader(checkpoint_).verify();
          ASSERT_EQ(wrong.size(), 1U) << at;
          EXPECT_TRUE(has(wrong[0], path) && has(wrong[0], detail::concat("bytes ", block, " to ")))
              << wrong[0];
        }
        flip(path, at, bit);
      }
    }
  }
  EXPECT_EQ(error_of("").offset(), -2);
}

// With the blocks as they are written.
TEST_F(DamagedCheckpoint, AFlippedBitInEveryBlockAndAtItsEdgesIsFound) {
  save_large();
  const auto block = static_cast<std::uint64_t>(Manifest().block_bytes);
  for (const char* name : kFiles) {
    const std::string path = file(name);
    const std::uint64_t size = fs::file_size(path);
    ASSERT_GT(size, 3 * block);
    for (std::uint64_t begin = 0; begin < size; begin += block) {
      const std::uint64_t end = std::min(begin + block, size);
      for (const std::uint64_t at : {begin, begin + (end - begin) / 2, end - 1}) {
        flip(path, at, 7);
        const Names wrong = verify_checkpoint(checkpoint_);
        ASSERT_EQ(wrong.size(), 1U);
        EXPECT_TRUE(has(wrong[0], detail::concat("bytes ", begin, " to ", end))) << wrong[0];
        // Somebody who reads all of a part, to where it belongs, and somebody who reads a bit.
        const CheckpointReader reader(checkpoint_);
        const SplitState whole(tensors_, even_split, 1, 0, SplitState::Content::kErased);
        try {
          reader.load(whole.view());
          ADD_FAILURE() << "nothing was thrown";
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.file(), path);
          EXPECT_EQ(error.offset(), static_cast<std::int64_t>(begin));
        }
        flip(path, at, 7);
      }
    }
  }
  EXPECT_EQ(load_split(checkpoint_, tensors_, even_split, 2), Names());
}

// A rank that needs nothing of a damaged block is not held up by it.
TEST_F(DamagedCheckpoint, OnlyTheBlocksThatAreNeededCount) {
  save_large();
  const Manifest manifest = Manifest::read(checkpoint_);
  const SavedPart part = manifest.find(kWeightKind, "a")->parts[0];
  ASSERT_EQ(part.file, 0U);
  flip(file(kFiles[0]), fs::file_size(file(kFiles[0])) - 1);  // the last block
  const std::int64_t until = static_cast<std::int64_t>(manifest.block_bytes - part.offset) / 4;
  std::vector<std::byte> values(static_cast<std::size_t>(until) * 4);
  StateView view;
  view.tensors.push_back(tensors_[0].tensor);
  view.slices.push_back({0, {0, until}, values.data()});
  const CheckpointReader reader(checkpoint_);
  reader.load(view, {.kinds = {}, .partial = true});
  EXPECT_TRUE(std::equal(values.begin(), values.end(), tensors_[0].bytes.begin()));
}

TEST_F(DamagedCheckpoint, AllDamageIsListedAtOnce) {
  save_large();
  const auto block = static_cast<std::uint64_t>(Manifest().block_bytes);
  flip(file(kFiles[0]), 5);
  flip(file(kFiles[0]), 2 * block);
  flip(file(kFiles[1]), block + 77);
  flip(file(kFiles[1]), block + 78);
  for (const Names& wrong :
       {CheckpointReader(checkpoint_).verify(), verify_checkpoint(checkpoint_)}) {
    ASSERT_EQ(wrong.size(), 3U);
    EXPECT_TRUE(has(wrong[0], kFiles[0]) && has(wrong[0], "bytes 0 to ")) << wrong[0];
    EXPECT_TRUE(has(wrong[1], kFiles[0]) && has(wrong[1], "bytes 2097152 to ")) << wrong[1];
    EXPECT_TRUE(has(wrong[2], kFiles[1]) && has(wrong[2], "bytes 1048576 to ")) << wrong[2];
  }
  fs::remove(file(kFiles[0]));
  const Names wrong = verify_checkpoint(checkpoint_);
  ASSERT_EQ(wrong.size(), 2U);
  EXPECT_TRUE(has(wrong[0], kFiles[0]) && has(wrong[0], "No such file")) << wrong[0];
}

TEST_F(DamagedCheckpoint, EveryTruncationIsFoundWhenItIsOpened) {
  save_small();
  for (const char* name : kFiles) {
    const std::string path = file(name);
    const std::string bytes = read_file(path);
    for (std::size_t length = 0; length < bytes.size(); length += length < 20 ? 1 : 37) {
      fs::resize_file(path, length);
      const CheckpointError error = error_of(path);
      EXPECT_EQ(error.offset(), static_cast<std::int64_t>(length));
      EXPECT_TRUE(has(error.what(), "truncated")) << error.what();
      EXPECT_EQ(verify_checkpoint(checkpoint_).size(), 1U);
      write_file(path, bytes);
    }
    fs::resize_file(path, bytes.size() - 1);
    EXPECT_EQ(error_of(path).offset(), static_cast<std::int64_t>(bytes.size() - 1));
    write_file(path, bytes + '\0');
    EXPECT_EQ(error_of(path).offset(), static_cast<std::int64_t>(bytes.size()));
    write_file(path, bytes);
  }
}

// Cut while it is open: read() says so where a mapping would kill the process.
TEST_F(DamagedCheckpoint, AFileThatShrinksWhileItIsReadIsFound) {
  save_large();
  const CheckpointReader reader(checkpoint_);
  const std::uint64_t half = fs::file_size(file(kFiles[1])) / 2;
  fs::resize_file(file(kFiles[1]), half);
  const SplitState state(tensors_, even_split, 1, 0, SplitState::Content::kErased);
  try {
    reader.load(state.view());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.file(), file(kFiles[1]));
    EXPECT_EQ(error.offset(), static_cast<std::int64_t>(half));
  }
  EXPECT_FALSE(reader.verify().empty());
}

TEST_F(DamagedCheckpoint, MissingFilesAreNamedTogether) {
  save_small();
  fs::remove(file(kFiles[0]));
  EXPECT_TRUE(has(error_of(file(kFiles[0])).what(), "No such file"));
  fs::remove(file(kFiles[1]));
  const CheckpointError both = error_of(file(kFiles[0]));
  EXPECT_TRUE(has(both.what(), file(kFiles[1]))) << both.what();
  EXPECT_EQ(verify_checkpoint(checkpoint_).size(), 2U);
  fs::remove(file(Manifest::kFileName));
  EXPECT_TRUE(has(error_of(file(Manifest::kFileName)).what(), "No such file"));
  ASSERT_EQ(verify_checkpoint(checkpoint_).size(), 1U);
  EXPECT_EQ(CheckpointFolder(temporary_.path()).newest(), 1) << "damaged, and not absent";
}

TEST_F(DamagedCheckpoint, WhatIsNoFileIsNamed) {
  save_small();
  const std::string path = file(kFiles[1]);
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(has(error_of(path).what(), path));  // and does not wait for a writer
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_TRUE(has(error_of(path).what(), path));
  fs::remove(path);
  fs::create_symlink(path, path);
  EXPECT_TRUE(has(error_of(path).what(), path));
  const std::string manifest = file(Manifest::kFileName);
  fs::remove(manifest);
  fs::create_directory(manifest);
  EXPECT_TRUE(has(error_of(manifest).what(), "not a file"));
  fs::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_TRUE(has(error_of(manifest).what(), "not a file"));
  EXPECT_TRUE(
      has(message_of<CheckpointError>([&] { CheckpointReader none("/nowhere"); }), "/nowhere"));
  EXPECT_TRUE(
      has(message_of<CheckpointError>([&] { CheckpointReader none(""); }), "manifest.json"));
}

// The files of another checkpoint of the same training: all sizes are right.
TEST_F(DamagedCheckpoint, PartsOfAnotherCheckpointAreFound) {
  save_small();
  const std::string first = checkpoint_;
  const std::vector<MadeTensor> before = tensors_;
  std::vector<MadeTensor> after = before;
  for (MadeTensor& each : after) {
    each.bytes.back() ^= std::byte{1};
  }
  save(after, 2);
  const std::string last = kFiles[1];  // has the last element of each tensor
  const std::string bytes = read_file(file(last));
  fs::copy_file(first + "/" + last, file(last), fs::copy_options::overwrite_existing);
  EXPECT_EQ(error_of(file(last)).offset(), 0);
  write_file(file(last), bytes);
  EXPECT_EQ(error_of("").offset(), -2);

  fs::copy_file(first + "/" + Manifest::kFileName,
                file(Manifest::kFileName),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(error_of(file(last)).offset(), 0);
  EXPECT_FALSE(verify_checkpoint(checkpoint_).empty());
  // Of a checkpoint with other tensors.
  save({random_tensor(kWeightKind, "other", Dtype::kFloat32, {11})}, 3);
  fs::copy_file(first + "/" + Manifest::kFileName,
                file(Manifest::kFileName),
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(has(error_of(file(kFiles[0])).what(), "expected a file of"));
}

TEST_F(DamagedCheckpoint, TheManifestsDamageIsFoundOnDisk) {
  save_small();
  const std::string path = file(Manifest::kFileName);
  const std::string text = read_file(path);
  for (std::size_t at = 0; at < text.size(); at += 3) {
    flip(path, at, static_cast<int>(at % 8));
    EXPECT_GE(error_of(path).offset(), 0) << at;
    flip(path, at, static_cast<int>(at % 8));
  }
  for (std::size_t length = 0; length < text.size(); length += 29) {
    write_file(path, text.substr(0, length));
    EXPECT_GE(error_of(path).offset(), 0) << length;
  }
}

}  // namespace
}  // namespace trireme
