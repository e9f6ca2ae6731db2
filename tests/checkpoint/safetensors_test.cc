#include "trireme/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "support/processes.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::read_file;

constexpr Dtype kAllDtypes[] = {Dtype::kFloat32,
                                Dtype::kFloat64,
                                Dtype::kFloat16,
                                Dtype::kBFloat16,
                                Dtype::kInt32,
                                Dtype::kInt64,
                                Dtype::kUint8,
                                Dtype::kInt8,
                                Dtype::kInt16,
                                Dtype::kBool};

struct NamedBytes {
  TensorEntry entry;
  std::vector<std::uint8_t> bytes;

  ConstSpan span() const { return {bytes.data(), entry.numel(), entry.dtype}; }
};

// Bytes that differ from place to place and are ordinary numbers in every type (no NaN).
NamedBytes tensor(const std::string& name, Dtype dtype, std::vector<std::int64_t> shape) {
  NamedBytes made{{name, dtype, std::move(shape)}, {}};
  for (std::size_t i = 0; i < made.entry.size_bytes(); ++i) {
    const std::size_t kinds = dtype == Dtype::kBool ? 2 : 120;
    made.bytes.push_back(static_cast<std::uint8_t>((i * 37 + name.size()) % kinds));
  }
  return made;
}

std::vector<NamedBytes> some_of_everything() {
  std::vector<NamedBytes> all;
  for (const Dtype dtype : kAllDtypes) {
    const std::string name(dtype_name(dtype));
    all.push_back(tensor(name + ".matrix", dtype, {3, 5}));
    all.push_back(tensor(name + ".empty", dtype, {4, 0, 2}));
    all.push_back(tensor(name + ".scalar", dtype, {}));
  }
  all.push_back(tensor("näme \"with\" \\ everything\n", Dtype::kUint8, {1}));
  return all;
}

void write(const std::string& path,
           const std::vector<NamedBytes>& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorEntry> entries;
  for (const NamedBytes& each : tensors) {
    entries.push_back(each.entry);
  }
  SafetensorsWriter writer(path, entries, metadata);
  for (const NamedBytes& each : tensors) {
    writer.write(each.span());
  }
  writer.finish();
}

void expect_tensors(const std::string& path, const std::vector<NamedBytes>& tensors) {
  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const NamedBytes& each : tensors) {
    const ConstSpan found = file.tensor(each.entry.name);
    EXPECT_EQ(found.dtype(), each.entry.dtype) << each.entry.name;
    ASSERT_EQ(found.size_bytes(), each.bytes.size()) << each.entry.name;
    EXPECT_TRUE(std::equal(
        each.bytes.begin(), each.bytes.end(), reinterpret_cast<const std::uint8_t*>(found.bytes())))
        << each.entry.name;
    const auto entry =
        std::find_if(file.entries().begin(), file.entries().end(), [&](const TensorEntry& one) {
          return one.name == each.entry.name;
        });
    ASSERT_NE(entry, file.entries().end());
    EXPECT_EQ(entry->shape, each.entry.shape) << each.entry.name;
  }
}

// A file with this header and that many bytes of data behind it.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  }
  return bytes + header + std::string(data_bytes, '\1');
}

class Safetensors : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "x.safetensors") const {
    return folder_.path() + "/" + name;
  }
  void put(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.path()), {}));
  }

  // The file is refused, by its name and with the place.
  void expect_refused(const std::string& part, std::int64_t offset) const {
    try {
      const SafetensorsFile file(path());
      ADD_FAILURE() << "accepted, expected: " << part;
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.file(), path());
      EXPECT_EQ(error.offset(), offset) << text;
      EXPECT_NE(text.find(path()), std::string::npos) << text;
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
      if (offset >= 0) {
        EXPECT_NE(text.find("byte " + std::to_string(offset)), std::string::npos) << text;
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << "expected a DataError, found: " << error.what();
    }
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Safetensors, GivesBackEveryTypeAndShape) {
  const std::vector<NamedBytes> all = some_of_everything();
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"more", "\"ä\"\n"}};
  write(path(), all, metadata);
  expect_tensors(path(), all);
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata(), metadata);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(file.entries()[i].name, all[i].entry.name) << "in the order they were written";
  }
  EXPECT_EQ(files(), 1U);
}

TEST_F(Safetensors, AlignsTheFirstTensor) {
  for (int letters = 0; letters < 9; ++letters) {
    write(path(),
          {tensor(std::string(static_cast<std::size_t>(letters) + 1, 'a'), Dtype::kFloat64, {2})});
    EXPECT_EQ((fs::file_size(path()) - 16) % 8, 0U);
  }
}

TEST_F(Safetensors, HoldsNoTensorsAtAll) {
  write(path(), {});
  EXPECT_TRUE(SafetensorsFile(path()).entries().empty());
  write(path(), {tensor("only", Dtype::kInt64, {0})}, {{"a", "b"}});
  expect_tensors(path(), {tensor("only", Dtype::kInt64, {0})});
}

TEST_F(Safetensors, ReplacesAFileWhole) {
  write(path(), {tensor("old", Dtype::kFloat32, {100})});
  write(path(), {tensor("new", Dtype::kFloat32, {2})});
  expect_tensors(path(), {tensor("new", Dtype::kFloat32, {2})});
}

TEST_F(Safetensors, SaysWhichTensorIsNotThere) {
  write(path(), {tensor("weight", Dtype::kFloat32, {1})});
  try {
    SafetensorsFile(path()).tensor("bias");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("bias"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("weight"), std::string::npos);
  }
}

// --- beside the Python package

class SafetensorsPackage : public Safetensors {
 protected:
  void SetUp() override {
    python_ = env_string("TRIREME_TORCH_PYTHON").value_or("");
    if (python_.empty()) {
      GTEST_SKIP() << "no Python on this machine has torch";
    }
    // Looked for only: torch takes seconds to import, which the tests do.
    ASSERT_EQ(
        run("import importlib.util, sys; sys.exit(not importlib.util.find_spec('safetensors'))")
            .code,
        0)
        << python_ << " has torch, but no safetensors: " << python_
        << " -m pip install safetensors";
  }

  testing::Finished run(const std::string& script) const {
    return testing::run_program({python_, "-c", script, path()});
  }

  std::string python_;
};

TEST_F(SafetensorsPackage, ReadsWhatIsWrittenHere) {
  const std::vector<NamedBytes> all = some_of_everything();
  write(path(), all, {{"format", "pt"}});
  // Every tensor as name, type, shape and bytes, which are then compared with what was written.
  const auto result = run(
      "import sys, torch, safetensors\n"
      "with safetensors.safe_open(sys.argv[1], 'pt') as f:\n"
      "  print(f.metadata())\n"
      "  for name in f.keys():\n"
      "    t = f.get_tensor(name)\n"
      "    print(name.encode().hex(), str(t.dtype)[6:], list(t.shape),\n"
      "          bytes(t.reshape(-1).view(torch.uint8).tolist()).hex() if t.numel() else '')\n");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("{'format': 'pt'}"), std::string::npos) << result.out;
  const auto hex = [](const auto& bytes) {
    std::string text;
    for (const auto byte : bytes) {
      char digits[3];
      std::snprintf(
          digits, sizeof(digits), "%02x", static_cast<unsigned>(static_cast<std::uint8_t>(byte)));
      text += digits;
    }
    return text;
  };
  for (const NamedBytes& each : all) {
    std::string shape;
    for (const std::int64_t size : each.entry.shape) {
      shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    }
    const std::string line = hex(each.entry.name) + " " +
                             std::string(dtype_name(each.entry.dtype)) + " [" + shape + "] " +
                             hex(each.bytes) + "\n";
    EXPECT_NE(result.out.find(line), std::string::npos) << line << " is not in\n" << result.out;
  }
}

TEST_F(SafetensorsPackage, WritesWhatIsReadHere) {
  const auto result =
      run("import sys, torch, safetensors.torch\n"
          "types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, "
          "torch.int64, torch.uint8, torch.int8, torch.int16, torch.bool]\n"
          "tensors = {'s': torch.tensor(7.), 'e': torch.zeros(2, 0)}\n"
          "tensors.update({str(t)[6:]: torch.arange(6).reshape(2, 3).to(t) for t in types})\n"
          "safetensors.torch.save_file(tensors, sys.argv[1], {'who': 'python'})\n");
  ASSERT_EQ(result.code, 0) << result.err;
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"who", "python"}}));
  EXPECT_EQ(file.entries().size(), std::size(kAllDtypes) + 2);
  const auto first = [&](const std::string& name, auto kind, std::size_t index) {
    decltype(kind) value;
    std::memcpy(&value, file.tensor(name).bytes() + index * sizeof(value), sizeof(value));
    return value;
  };
  EXPECT_EQ(first("s", float{}, 0), 7.0F);
  EXPECT_EQ(file.tensor("e").numel(), 0);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(first("float32", float{}, i), static_cast<float>(i));
    EXPECT_EQ(first("float64", double{}, i), static_cast<double>(i));
    EXPECT_EQ(first("int32", std::int32_t{}, i), static_cast<std::int32_t>(i));
    EXPECT_EQ(first("int64", std::int64_t{}, i), static_cast<std::int64_t>(i));
    EXPECT_EQ(first("uint8", std::uint8_t{}, i), i);
    EXPECT_EQ(first("int8", std::int8_t{}, i), static_cast<std::int8_t>(i));
    EXPECT_EQ(first("int16", std::int16_t{}, i), static_cast<std::int16_t>(i));
    EXPECT_EQ(first("bool", std::uint8_t{}, i), i == 0 ? 0 : 1);
    // A bfloat16 is the upper half of a float32.
    const float value = static_cast<float>(i);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    EXPECT_EQ(first("bfloat16", std::uint16_t{}, i), bits >> 16);
  }
  EXPECT_EQ(first("float16", std::uint16_t{}, 1), 0x3C00);
  for (const Dtype dtype : kAllDtypes) {
    EXPECT_EQ(file.tensor(std::string(dtype_name(dtype))).dtype(), dtype);
  }
}

// --- writing that does not succeed

TEST_F(Safetensors, LeavesNothingWhenItIsNotFinished) {
  {
    SafetensorsWriter writer(path(), {{"a", Dtype::kFloat32, {2}}, {"b", Dtype::kFloat32, {2}}});
    writer.write(std::vector<float>{1, 2});
    EXPECT_FALSE(fs::exists(path())) << "a file that is not complete has another name";
    EXPECT_THROW(writer.finish(), ConfigError) << "b is missing";
  }
  EXPECT_EQ(files(), 0U);
}

TEST_F(Safetensors, RefusesTensorsThatAreNotTheNextEntry) {
  {
    SafetensorsWriter writer(path(), {{"a", Dtype::kFloat32, {2}}});
    EXPECT_THROW(writer.write(std::vector<float>{1}), ConfigError);
    EXPECT_THROW(writer.write(std::vector<double>{1, 2}), ConfigError);
    writer.write(std::vector<float>{1, 2});
    EXPECT_THROW(writer.write(std::vector<float>{1, 2}), ConfigError);
    writer.finish();
  }
  EXPECT_EQ(SafetensorsFile(path()).entries().size(), 1U);
}

TEST_F(Safetensors, RefusesEntriesThatNoFileCanHave) {
  const std::vector<std::vector<TensorEntry>> wrong = {
      {{"a", Dtype::kFloat32, {1}}, {"a", Dtype::kFloat32, {1}}},
      {{"__metadata__", Dtype::kFloat32, {1}}},
      {{"a", Dtype::kFloat32, {2, -1}}},
      {{"a\xff", Dtype::kFloat32, {1}}},
  };
  for (const auto& entries : wrong) {
    EXPECT_THROW(SafetensorsWriter(path(), entries), ConfigError);
  }
  EXPECT_EQ(files(), 0U);
}

TEST_F(Safetensors, NamesAPlaceThatCannotBeWritten) {
  for (const std::string& place : {path("no/such/folder"), std::string("/proc/nothing")}) {
    try {
      SafetensorsWriter writer(place, {});
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    }
  }
}

TEST_F(Safetensors, LeavesNothingWhenThereIsNoRoom) {
  // Files of this process end at this size, as on a disk that is full.
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const std::vector<NamedBytes> tensors = {tensor("a", Dtype::kFloat32, {100}),
                                           tensor("b", Dtype::kFloat32, {5000})};
  write(path("whole"), tensors);
  const std::size_t whole = fs::file_size(path("whole"));
  for (const std::size_t room :
       {std::size_t{0}, std::size_t{4}, std::size_t{20}, std::size_t{400}, whole / 2, whole - 1}) {
    struct rlimit limit = before;
    limit.rlim_cur = room;
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string reason;
    try {
      write(path(), tensors);
    } catch (const Error& error) {
      reason = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_NE(reason.find(path()), std::string::npos) << room << ": " << reason;
    EXPECT_NE(reason.find("File too large"), std::string::npos) << reason;
    EXPECT_EQ(files(), 1U) << "only the file that was there";
  }
  signal(SIGXFSZ, ignored);
}

TEST_F(Safetensors, KeepsTheOldFileWhenTheNewOneFails) {
  write(path(), {tensor("old", Dtype::kFloat32, {3})});
  { SafetensorsWriter writer(path(), {{"new", Dtype::kFloat32, {2}}}); }
  expect_tensors(path(), {tensor("old", Dtype::kFloat32, {3})});
}

// --- reading what is broken

TEST_F(Safetensors, RefusesAFileTruncatedAnywhere) {
  write(path(), some_of_everything(), {{"format", "pt"}});
  const std::string whole = read_file(path());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    try {
      const SafetensorsFile file(path());
      ADD_FAILURE() << length << " of " << whole.size() << " bytes were accepted";
    } catch (const DataError& error) {
      EXPECT_EQ(error.file(), path());
      EXPECT_GE(error.offset(), 0);
      EXPECT_LE(error.offset(), static_cast<std::int64_t>(length));
    }
  }
}

TEST_F(Safetensors, RefusesAbsurdHeaderLengths) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  for (const std::uint64_t length : {std::uint64_t{1000},
                                     std::uint64_t{100'000'001},
                                     std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}}) {
    std::string bytes = file_of(header, 1);
    for (std::size_t i = 0; i < 8; ++i) {
      bytes[i] = static_cast<char>(length >> (8 * i));
    }
    put(bytes);
    expect_refused("found " + std::to_string(length), 0);
  }
  put(std::string(8, '\0'));
  expect_refused("header", 8);
}

TEST_F(Safetensors, RefusesBrokenHeaders) {
  const std::string good = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  put(file_of(good, 4));
  EXPECT_EQ(SafetensorsFile(path()).entries().size(), 1U);
  put(file_of(good.substr(0, 30) + "?" + good.substr(31), 4));
  expect_refused("JSON", 8 + 30);
  put(file_of("[1]", 0));
  expect_refused("object", 8);
  put(file_of("7", 0));
  expect_refused("object", 8);
  put(file_of(R"({"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,4]}})", 4));
  expect_refused("header", 8);
  for (const char* metadata : {"3", "\"x\"", "[1]", R"({"a":1})"}) {
    put(file_of(R"({"__metadata__":)" + std::string(metadata) + "}", 0));
    expect_refused("__metadata__", 8);
  }
}

// Brackets inside brackets, deeper than any stack.
std::string nested(std::size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST_F(Safetensors, RefusesHeadersThatAreNestedWithoutEnd) {
  constexpr std::size_t kLevels = 200'000;
  constexpr int kMost = 16;
  for (const char* before : {"{\"__metadata__\":",
                             "{\"a\":",
                             "{\"a\":{\"dtype\":",
                             R"({"a":{"dtype":"U8","data_offsets":[0,4],"shape":)"}) {
    const std::string text = before;
    const bool inside = std::count(text.begin(), text.end(), '{') == 2;
    put(file_of(text + nested(kLevels) + (inside ? "}}" : "}"), 4));
    // Level 17 begins this many brackets after the objects.
    expect_refused("at most 16 levels",
                   8 + static_cast<std::int64_t>(text.size()) + kMost - (inside ? 2 : 1));
  }
  put(file_of(nested(kLevels), 0));
  expect_refused("at most 16 levels", 8 + kMost);
  put(file_of(std::string(kLevels, '{'), 0));
  expect_refused("at most 16 levels", 8 + kMost);
  // What is deep for no reason, but not dangerous, is refused for what it is.
  put(file_of("{\"__metadata__\":" + nested(10) + "}", 0));
  expect_refused("__metadata__", 8);
  put(file_of("{\"[[[[[[[[[[[[[[[[[[[[[[\":" + std::string("3}"), 0));
  expect_refused("tensor [[[[", 8);
}

TEST_F(Safetensors, RefusesNamesThatAreThereTwice) {
  const std::string one = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string empty = R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{" + one + "," + one + "}", "\"a\" twice"},
      {"{" + empty + "," + one + "}", "\"a\" twice"},
      {R"({"a":{"dtype":"U8","shape":[9],"shape":[4],"data_offsets":[0,4]}})", "\"shape\" twice"},
      {R"({"__metadata__":{"k":"1","k":"2"},)" + one + "}", "\"k\" twice"},
      {R"({"__metadata__":{},"__metadata__":{},)" + one + "}", "\"__metadata__\" twice"},
  };
  for (const auto& [header, part] : cases) {
    put(file_of(header, 4));
    expect_refused(part, 8);
  }
  // The same name in different places is no contradiction.
  put(file_of(R"({"__metadata__":{"a":"x","dtype":"y"},)" + one + "}", 4));
  EXPECT_EQ(SafetensorsFile(path()).entries().size(), 1U);
}

// Looking through all names for each would take minutes, which the test does not have.
TEST_F(Safetensors, ReadsVeryManyTensors) {
  constexpr std::size_t kTensors = 300'000;
  std::string header = "{";
  for (std::size_t i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "\"a.name.as.long.as.they.are." : ",\"a.name.as.long.as.they.are.") +
              std::to_string(i) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
              std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  }
  std::string bytes = file_of(header + "}", kTensors);
  for (std::size_t i = 0; i < kTensors; ++i) {
    bytes[bytes.size() - kTensors + i] = static_cast<char>(i % 251);
  }
  put(bytes);
  const SafetensorsFile file(path());
  ASSERT_EQ(file.entries().size(), kTensors);
  for (std::size_t i = 0; i < kTensors; ++i) {
    const ConstSpan found = file.tensor("a.name.as.long.as.they.are." + std::to_string(i));
    ASSERT_EQ(*found.bytes(), static_cast<std::byte>(i % 251)) << i;
  }
}

TEST_F(Safetensors, KeepsTheOrderOfEmptyTensors) {
  std::vector<NamedBytes> all;
  for (int i = 0; i < 100; ++i) {
    all.push_back(tensor("t" + std::to_string(i * 37 % 100), Dtype::kFloat32, {0}));
  }
  write(path(), all);
  const SafetensorsFile file(path());
  ASSERT_EQ(file.entries().size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(file.entries()[i].name, all[i].entry.name);
  }
}

TEST_F(Safetensors, RefusesTensorsThatAreNotDescribedWell) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("dtype":"U7","shape":[4],"data_offsets":[0,4])", "U7"},
      {R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])", "F8_E4M3"},
      {R"("dtype":7,"shape":[4],"data_offsets":[0,4])", "7"},
      {R"("shape":[4],"data_offsets":[0,4])", "dtype"},
      {R"("dtype":"U8","data_offsets":[0,4])", "shape"},
      {R"("dtype":"U8","shape":[4])", "data_offsets"},
      {R"("dtype":"U8","shape":4,"data_offsets":[0,4])", "shape"},
      {R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])", "-4"},
      {R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])", "4.0"},
      {R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])", "sizes"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[0])", "data_offsets"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[0,4,8])", "data_offsets"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[-4,0])", "offsets"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[4,0])", "offsets"},
      {R"("dtype":"U8","shape":[4],"data_offsets":[0,3])", "4 bytes"},
      {R"("dtype":"U8","shape":[3],"data_offsets":[0,4])", "3 bytes"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[0,4])", "16 bytes"},
      {R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])",
       "larger than any memory"},
      {R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615])",
       "larger than"},
      {R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", "larger than"},
      {R"("dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0])", "larger than"},
  };
  for (const auto& [tensor, part] : cases) {
    put(file_of("{\"name\":{" + tensor + "}}", 4));
    expect_refused(part, 8);
  }
  put(file_of(R"({"name":3})", 0));
  expect_refused("name", 8);
}

TEST_F(Safetensors, RefusesTensorsThatDoNotFillTheFileExactly) {
  const auto two = [](int begin, int end, int second, int last) {
    return "{\"a\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) +
           "]},\"b\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(last - second) +
           "],\"data_offsets\":[" + std::to_string(second) + "," + std::to_string(last) + "]}}";
  };
  const auto after_header = [](const std::string& header, std::size_t bytes) {
    return static_cast<std::int64_t>(8 + header.size() + bytes);
  };
  std::string header = two(0, 4, 4, 8);
  put(file_of(header, 8));
  EXPECT_EQ(SafetensorsFile(path()).entries().size(), 2U);
  put(file_of(header, 9));
  expect_refused("expected a file of", after_header(header, 8));
  put(file_of(header, 7));
  expect_refused("truncated; copy or download it again", after_header(header, 7));
  header = two(0, 4, 5, 9);
  put(file_of(header, 9));
  expect_refused("tensor b", after_header(header, 4));
  header = two(0, 4, 3, 7);
  put(file_of(header, 7));
  expect_refused("tensor b", after_header(header, 4));
  header = two(1, 5, 5, 9);
  put(file_of(header, 9));
  expect_refused("tensor a", after_header(header, 0));
  header = two(0, 4, 0, 4);
  put(file_of(header, 4));
  expect_refused("tensor", after_header(header, 4));
  // Not in the order of their bytes is allowed.
  put(file_of(two(4, 8, 0, 4), 8));
  EXPECT_EQ(SafetensorsFile(path()).entries().front().name, "b");
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  expect_refused("No such file", -1);
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  expect_refused("folder", -1);
  ASSERT_EQ(rmdir(path().c_str()), 0);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  expect_refused("folder or device", -1);  // and does not wait for somebody to write
}

TEST_F(Safetensors, NamesEveryFileThatHasOneByteChangedInItsHeaderOrReadsIt) {
  write(path(), {tensor("weight", Dtype::kFloat32, {2, 3})}, {{"format", "pt"}});
  const std::string whole = read_file(path());
  const std::size_t end = whole.size() - 24;
  int read = 0;
  int refused = 0;
  for (std::size_t at = 0; at < end; ++at) {
    for (const char byte : {'\0', ' ', '9', '"', '}', '\xff'}) {
      std::string changed = whole;
      changed[at] = byte;
      put(changed);
      try {
        const SafetensorsFile file(path());
        for (const TensorEntry& entry : file.entries()) {
          EXPECT_LE(file.tensor(entry.name).size_bytes(), changed.size());
        }
        ++read;
      } catch (const DataError& error) {
        EXPECT_EQ(error.file(), path());
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace trireme
