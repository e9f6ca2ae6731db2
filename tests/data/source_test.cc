#include "trireme/data/source.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "data/data_files.h"

namespace trireme {
namespace {

using testing::DataFolder;
using testing::expect_data_error;
using testing::idx_images;
using testing::idx_labels;
using testing::token_bytes;

Batch read_all(const Dataset& data) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(data.size()));
  std::iota(samples.begin(), samples.end(), 0);
  Batch batch;
  data.read(samples, batch);
  return batch;
}

std::vector<std::int64_t> class_counts(const Dataset& data) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(data.shape().classes), 0);
  for (std::int64_t i = 0; i < data.size(); ++i) {
    ++counts[static_cast<std::size_t>(data.label(i))];
  }
  return counts;
}

TEST(Source, OpensFashionMnist) {
  ASSERT_TRUE(std::filesystem::exists("/usr/share/datasets/fashion-mnist"))
      << "Fashion-MNIST is not installed: apt install dataset-fashion-mnist";
  const OpenedData opened = open_data({.path = "fashion-mnist"});
  EXPECT_EQ(opened.format, "idx");
  EXPECT_EQ(opened.description,
            "fashion-mnist: 60000 images of 28x28, 10 classes; 10000 to evaluate");
  EXPECT_EQ(class_counts(*opened.parts.train), std::vector<std::int64_t>(10, 6000));
  EXPECT_EQ(class_counts(*opened.parts.held_out), std::vector<std::int64_t>(10, 1000));
  // The mean and deviation that everybody quotes for its training images.
  const auto statistics =
      statistics_of(*opened.parts.train, {feature_sums(*opened.parts.train, 0, 1)});
  EXPECT_NEAR(statistics.mean.at(0), 0.2860, 5e-5);
  EXPECT_NEAR(statistics.deviation.at(0), 0.3530, 5e-5);
}

TEST(Source, OpensTheLicensesEachOnce) {
  std::int64_t bytes = 0;
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("/usr/share/common-licenses")) {
    if (!entry.is_symlink() && entry.is_regular_file()) {
      bytes += static_cast<std::int64_t>(entry.file_size());
      files.insert(entry.path());
    }
  }
  const OpenedData opened =
      open_data({.path = "licenses", .evaluation_fraction = 0, .sequence = 16, .stride = 16});
  EXPECT_EQ(opened.format, "text");
  EXPECT_EQ(opened.parts.train->size(), (bytes - 1) / 16);
  EXPECT_EQ(opened.parts.held_out, nullptr);
  std::ifstream first(*files.begin(), std::ios::binary);
  std::string start(17, '\0');
  first.read(start.data(), 17);
  const std::int64_t zero = 0;
  Batch batch;
  opened.parts.train->read({&zero, 1}, batch);
  EXPECT_EQ(std::string(batch.tokens.begin(), batch.tokens.end()), start);
}

void write_mnist(const DataFolder& folder,
                 const std::vector<int>& train,
                 const std::vector<int>& test) {
  folder.write("train-images-idx3-ubyte",
               idx_images(static_cast<std::uint32_t>(train.size()), 4, 3));
  folder.write("train-labels-idx1-ubyte", idx_labels(train));
  if (!test.empty()) {
    folder.write("t10k-images-idx3-ubyte",
                 idx_images(static_cast<std::uint32_t>(test.size()), 4, 3));
    folder.write("t10k-labels-idx1-ubyte", idx_labels(test));
  }
}

TEST(Source, FindsMnistsFilesInAFolderOrBesideTheImages) {
  const DataFolder folder;
  write_mnist(folder, {0, 2, 1, 0}, {1, 0});
  for (const std::string& path : {folder.path(), folder.path() + "/train-images-idx3-ubyte"}) {
    const OpenedData opened = open_data({.path = path});
    EXPECT_EQ(opened.format, "idx");
    EXPECT_EQ(opened.parts.train->size(), 4);
    EXPECT_EQ(opened.parts.held_out->size(), 2);
    EXPECT_EQ(opened.parts.held_out->shape(), opened.parts.train->shape());
  }
  const OpenedData other =
      open_data({.path = folder.path() + "/t10k-images-idx3-ubyte", .evaluation_fraction = 0.5});
  EXPECT_EQ(other.parts.train->size(), 1);
  EXPECT_EQ(other.parts.held_out->size(), 1);
}

TEST(Source, SaysWhatAFolderMayHold) {
  const std::vector<std::string> words = {"train-images-idx3-ubyte",
                                          "train-labels-idx1-ubyte",
                                          "t10k-images-idx3-ubyte",
                                          "t10k-labels-idx1-ubyte",
                                          "*.txt",
                                          "found neither"};
  const DataFolder folder;
  const auto refused = [&] {
    expect_data_error([&] { data_format({.path = folder.path()}); }, folder.path(), -1, words);
    expect_data_error([&] { open_data({.path = folder.path()}); }, folder.path(), -1, words);
  };
  refused();
  folder.write("t10k-images-idx3-ubyte", idx_images(2, 4, 3));
  refused();
  folder.write("train-images.idx3-ubyte", idx_images(2, 4, 3));
  refused();
  folder.write("a.txt", "text");
  EXPECT_EQ(data_format({.path = folder.path()}), "text");
}

TEST(Source, OpensNoTestFilesForFolds) {
  const DataFolder folder;
  write_mnist(folder, {0, 2, 1, 0}, {1, 0});
  const OpenedData opened =
      open_data({.path = folder.path(), .evaluation_fraction = 0, .for_folds = true});
  EXPECT_EQ(opened.parts.held_out, nullptr);
  EXPECT_TRUE(opened.description.ends_with(": 4 images of 4x3, 3 classes")) << opened.description;
}

TEST(Source, HoldsImagesOutWhereThereAreNoTestFiles) {
  const DataFolder folder;
  write_mnist(folder, {0, 2, 1, 0, 1, 1, 0, 0, 2, 1}, {});
  const OpenedData opened = open_data({.path = folder.path(), .evaluation_fraction = 0.3});
  EXPECT_EQ(opened.parts.train->size(), 7);
  EXPECT_EQ(opened.parts.held_out->size(), 3);
  EXPECT_EQ(open_data({.path = folder.path(), .evaluation_fraction = 0}).parts.held_out, nullptr);
}

TEST(Source, RefusesTestImagesThatTrainingDoesNotKnow) {
  const DataFolder folder;
  write_mnist(folder, {0, 1, 1}, {1, 2});
  expect_data_error([&] { open_data({.path = folder.path()}); },
                    folder.path() + "/t10k-labels-idx1-ubyte",
                    9,
                    {"below 2", "found 2"});
  folder.write("t10k-labels-idx1-ubyte", idx_labels({1, 0}));
  folder.write("t10k-images-idx3-ubyte", idx_images(2, 3, 4));
  expect_data_error([&] { open_data({.path = folder.path()}); },
                    folder.path() + "/t10k-images-idx3-ubyte",
                    8,
                    {"4x3", "3x4"});
  std::filesystem::remove(folder.path() + "/t10k-labels-idx1-ubyte");
  expect_data_error([&] { open_data({.path = folder.path()}); },
                    folder.path(),
                    -1,
                    {"t10k-labels-idx1-ubyte.gz"});
  std::filesystem::remove(folder.path() + "/train-labels-idx1-ubyte");
  expect_data_error(
      [&] { open_data({.path = folder.path()}); }, folder.path(), -1, {"train-labels-idx1-ubyte"});
}

TEST(Source, ReadsTheTextsOfAFolderInOrder) {
  const DataFolder folder;
  folder.write("b.txt", "bbbb");
  folder.write("a.txt", "aaaa");
  folder.write("c.other", "cccc");
  const OpenedData opened =
      open_data({.path = folder.path(), .evaluation_fraction = 0, .sequence = 7});
  const Batch batch = read_all(*opened.parts.train);
  EXPECT_EQ(std::string(batch.tokens.begin(), batch.tokens.end()), "aaaabbbb");
  const DataFolder none;
  none.write("c.other", "cccc");
  expect_data_error([&] { open_data({.path = none.path()}); }, none.path(), -1, {"*.txt"});
}

TEST(Source, KnowsFormatsByName) {
  const DataFolder folder;
  const std::vector<std::uint16_t> narrow(200, 3);
  const std::vector<std::uint32_t> wide(200, 70000);
  struct Case {
    std::string name;
    std::string bytes;
    std::string format;
    std::int64_t classes;
  };
  for (const Case& c : {Case{"a.csv", "1,a\n2,b\n", "csv", 2},
                        Case{"a.tsv", "1\ta\n2\tb\n", "csv", 2},
                        Case{"a.svm", "1 1:1\n-1 2:1\n", "libsvm", 2},
                        Case{"a.libsvm", "1 1:1\n-1 2:1\n", "libsvm", 2},
                        Case{"a.u16", token_bytes(narrow), "tokens16", 4},
                        Case{"a.u32", token_bytes(wide), "tokens32", 70001},
                        Case{"a.txt", std::string(200, 'x'), "text", 256},
                        Case{"readme", std::string(200, 'x'), "text", 256}}) {
    const OpenedData opened = open_data(
        {.path = folder.write(c.name, c.bytes), .evaluation_fraction = 0.5, .sequence = 9});
    EXPECT_EQ(opened.format, c.format);
    EXPECT_EQ(opened.parts.train->shape().classes, c.classes);
    EXPECT_EQ(opened.parts.held_out->shape(), opened.parts.train->shape());
    EXPECT_EQ(opened.description.find(c.name + ": "), 0U) << opened.description;
  }
  const std::string vague = folder.write("a.bin", token_bytes(narrow));
  EXPECT_THROW(open_data({.path = vague}), ConfigError);
  EXPECT_EQ(
      open_data({.path = vague, .format = "tokens16", .sequence = 9}).parts.train->shape().classes,
      4);
  EXPECT_THROW(open_data({.path = vague, .format = "parquet"}), ConfigError);
  EXPECT_THROW(open_data({.path = vague, .format = "tokens16", .evaluation_fraction = 1}),
               ConfigError);
  try {
    open_data({});
    ADD_FAILURE() << "nothing is no data";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("--data"), std::string::npos) << error.what();
  }
  const std::string missing = folder.path() + "/missing.csv";
  expect_data_error([&] { open_data({.path = missing}); }, missing, -1, {"found nothing"});
}

TEST(Source, EvaluatesTokensOnTheEndOfTheFile) {
  const DataFolder folder;
  std::vector<std::uint16_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::string path = folder.write("a.u16", token_bytes(tokens));
  const OpenedData opened =
      open_data({.path = path, .evaluation_fraction = 0.2, .sequence = 10, .stride = 1});
  EXPECT_EQ(opened.parts.train->size(), 800 - 10);
  EXPECT_EQ(read_all(*opened.parts.train).tokens.back(), 799);
  const Batch held = read_all(*opened.parts.held_out);
  EXPECT_EQ(held.samples, 19);  // 200 tokens: 199 to predict, 10 at a time
  EXPECT_EQ(held.tokens.front(), 800);
  EXPECT_EQ(opened.parts.held_out->shape().classes, 1000);
  // Another file, with a token that the vocabulary of the first does not have.
  const std::string other =
      folder.write("b.u16", token_bytes(std::vector<std::uint16_t>(20, 1000)));
  const auto open_both = [&] {
    return open_data({.path = path, .evaluation = other, .sequence = 10});
  };
  expect_data_error(open_both, other, 0, {"below 1000"});
  folder.write("b.u16", token_bytes(std::vector<std::uint16_t>(20, 999)));
  EXPECT_EQ(open_both().parts.train->size(), 99);
}

TEST(Source, GivesClassesOfAnEvaluationFileTheNumbersOfTraining) {
  const DataFolder folder;
  const std::string train = folder.write("train.csv", "x,kind\n1,cat\n2,dog\n3,ant\n");
  const std::string same = folder.write("same.csv", "x,kind\n5,dog\n6,cat\n");
  const OpenedData opened = open_data({.path = train, .evaluation = same});
  EXPECT_EQ(read_all(*opened.parts.train).labels, (std::vector<std::int64_t>{1, 2, 0}));
  EXPECT_EQ(read_all(*opened.parts.held_out).labels, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(opened.parts.held_out->shape(), opened.parts.train->shape());
  const auto refused = [&](const std::string& text,
                           std::int64_t offset,
                           const std::vector<std::string>& words) {
    const std::string path = folder.write("other.csv", text);
    expect_data_error([&] { open_data({.path = train, .evaluation = path}); }, path, offset, words);
  };
  refused("x,kind\n5,cow\n", 9, {"line 2", "\"ant\", \"cat\", \"dog\"", "\"cow\""});
  refused("x,y,kind\n5,6,cat\n", 0, {"2 columns", "found 3"});
  refused("x;kind\n5;cat\n", 0, {"2 columns", "found 1", "is there a ','"});
  refused("kind,x\n5,cat\n", 0, {"other names"});
}

TEST(Source, KeepsFeaturesAndLabelsOfSparseTraining) {
  const DataFolder folder;
  const std::string train = folder.write("train.svm", "-1 1:1 5:1\n3 2:1\n");
  const std::string same = folder.write("same.svm", "+3 1:1\n");
  const OpenedData opened = open_data({.path = train, .evaluation = same});
  EXPECT_EQ(opened.parts.held_out->shape(), opened.parts.train->shape());
  EXPECT_EQ(opened.parts.held_out->label(0), 1);
  const std::string unseen = folder.write("unseen.svm", "2 1:1\n");
  expect_data_error([&] { open_data({.path = train, .evaluation = unseen}); },
                    unseen,
                    0,
                    {"\"-1\", \"3\"", "\"2\""});
  const std::string beyond = folder.write("beyond.svm", "3 6:1\n");
  expect_data_error([&] { open_data({.path = train, .evaluation = beyond}); },
                    beyond,
                    2,
                    {"at most 5", "found 6"});
}

std::string packed(const std::string& path) {
  EXPECT_EQ(testing::run_program({"gzip", "-f", path}).code, 0);
  return path + ".gz";
}

TEST(Source, ReadsWhatIsPackedAsIfItWereNot) {
  const DataFolder folder;
  std::string letters;
  for (int i = 0; i < 3'000'000; ++i) {
    letters += static_cast<char>('a' + (i % 97) * (i % 31) % 26);
  }
  std::vector<std::uint16_t> tokens(300);
  std::iota(tokens.begin(),
            tokens.end(),
            std::uint16_t{35615});  // its first bytes are those of gzip: no text
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.txt", letters},
      {"corpus", "no name tells what this is, and it is read all the same"},
      {"a.u16", token_bytes(tokens)},
      {"a.csv", "x,kind\n1,cat\n2,dog\n3,cat\n4,dog\n"},
      {"a.tsv", "x\tkind\n1\tcat\n2\tdog\n3\tcat\n"},
      {"a.svm", "1 1:1\n-1 2:1\n1 1:3\n"}};
  for (const auto& [name, bytes] : files) {
    const auto opened = [&](const std::string& path) {
      return open_data({.path = path, .evaluation_fraction = 0, .sequence = 9});
    };
    const OpenedData plain = opened(folder.write(name, bytes));
    const Batch expected = read_all(*plain.parts.train);
    const OpenedData unpacked = opened(packed(folder.path() + "/" + name));
    EXPECT_EQ(unpacked.format, plain.format) << name;
    EXPECT_EQ(unpacked.parts.train->shape(), plain.parts.train->shape()) << name;
    const Batch found = read_all(*unpacked.parts.train);
    EXPECT_EQ(found.tokens, expected.tokens) << name;
    EXPECT_EQ(found.dense, expected.dense) << name;
    EXPECT_EQ(found.values, expected.values) << name;
    EXPECT_EQ(found.labels, expected.labels) << name;
  }
  // A folder of both.
  const DataFolder texts;
  texts.write("a.txt", "aaaa");
  packed(texts.write("b.txt", "bbbb"));
  const Batch batch = read_all(
      *open_data({.path = texts.path(), .evaluation_fraction = 0, .sequence = 7}).parts.train);
  EXPECT_EQ(std::string(batch.tokens.begin(), batch.tokens.end()), "aaaabbbb");
  // Damaged, cut, or not what the name says.
  const std::string whole = testing::read_file(packed(folder.write("b.txt", letters)));
  const std::string cut = folder.write("cut.txt.gz", whole.substr(0, whole.size() / 2));
  EXPECT_THROW(open_data({.path = cut, .sequence = 9}), DataError);
  const std::string other = folder.write("other.txt.gz", letters);
  EXPECT_THROW(open_data({.path = other, .sequence = 9}), DataError);
}

TEST(Source, TakesNothingForTextThatIsNone) {
  const DataFolder folder;
  const std::string text(500, 'x');
  for (const char* name : {"a.zip", "a.parquet", "a.npy", "a.npz", "a.pt", "a.tar", "a.bz2"}) {
    const std::string path = folder.write(name, text);
    try {
      open_data({.path = path, .sequence = 9});
      ADD_FAILURE() << name;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
    EXPECT_EQ(open_data({.path = path, .format = "text", .sequence = 9}).format, "text");
  }
  // By what they hold, under a name that says nothing.
  const std::vector<std::pair<std::string, std::string>> beginnings = {
      {std::string("PK\x03\x04", 4), "zip"},
      {"PAR1", "Parquet"},
      {"\x93NUMPY", "NumPy"},
      {"BZh91AY&SY", "bzip2"},
      {std::string("\x1f\x8b\x08", 3), ".gz"},
      {std::string("\xfd\x37zXZ\0", 6), "xz"}};
  for (const auto& [bytes, what] : beginnings) {
    const std::string path = folder.write("corpus", bytes + text);
    expect_data_error([&] { open_data({.path = path, .sequence = 9}); }, path, 0, {what});
    EXPECT_EQ(open_data({.path = path, .format = "text", .sequence = 9}).format, "text");
  }
  const std::string zero = folder.write("zero.txt", text + std::string(1, '\0') + text);
  expect_data_error([&] { open_data({.path = zero, .sequence = 9}); }, zero, 500, {"zero byte"});
  const std::string good = folder.write("good.txt", text);
  expect_data_error([&] { open_data({.path = good, .evaluation = zero, .sequence = 9}); },
                    zero,
                    500,
                    {"zero byte"});
  // The advice that its name should end with .gz has been followed.
  packed(folder.write("twice", text));
  std::filesystem::rename(folder.path() + "/twice.gz", folder.path() + "/twice");
  const std::string twice = packed(folder.path() + "/twice");
  expect_data_error(
      [&] { open_data({.path = twice, .sequence = 9}); }, twice, 0, {"compressed twice", "gunzip"});
  const std::string table = folder.path() + "/twice.csv.gz";
  std::filesystem::rename(twice, table);
  expect_data_error([&] { open_data({.path = table}); }, table, 0, {"compressed twice"});
  packed(folder.write("hidden", "PAR1" + text));
  expect_data_error([&] { open_data({.path = folder.path() + "/hidden.gz", .sequence = 9}); },
                    folder.path() + "/hidden.gz",
                    0,
                    {"Parquet"});
}

// Every answer would be right.
TEST(Source, RefusesATargetOfOneClass) {
  const DataFolder folder;
  const std::string columns = folder.write("a.csv", "x,y,kind\n1,2,cat\n3,4,cat\n5,6,cat\n");
  expect_data_error([&] { open_data({.path = columns}); },
                    columns,
                    -1,
                    {"at least two classes", "found one, \"cat\"", "all 3 rows", "--target"});
  EXPECT_EQ(
      open_data(
          {.path = columns, .evaluation_fraction = 0, .csv = {.target = "0", .categorical = {"2"}}})
          .parts.train->shape()
          .classes,
      3);
  const std::string sparse = folder.write("a.svm", "1 1:1\n1 2:1\n");
  expect_data_error(
      [&] { open_data({.path = sparse}); }, sparse, -1, {"found one, \"1\"", "label"});
}

// Nor is there anything to learn where every number is the same one.
TEST(Source, RefusesATargetOfOneNumber) {
  const DataFolder folder;
  std::string rows = "x,y\n";
  for (int i = 0; i < 10'000; ++i) {
    rows += std::to_string(i) + ",5\n";
  }
  const std::string same = folder.write("same.csv", rows);
  expect_data_error(
      [&] { open_data({.path = same, .regression = true}); },
      same,
      -1,
      {"at least two different numbers", "found one, 5", "all 10000 rows", "--target"});
  const std::string last = folder.write("last.csv", rows + "0,6\n");
  EXPECT_EQ(open_data({.path = last, .regression = true}).parts.train->shape().classes, 0);
  const std::string sparse = folder.write("a.svm", "1 1:1\n1 2:1\n");
  expect_data_error([&] { open_data({.path = sparse, .regression = true}); },
                    sparse,
                    -1,
                    {"found one, 1", "all 2 rows", "label"});
}

// A regression without --regression: each number is a class that no other row has.
TEST(Source, SaysThatNumbersAreTakenForClasses) {
  const DataFolder folder;
  const auto warning = [&](int rows, const std::function<std::string(int)>& target) {
    std::string text = "x,y\n";
    for (int row = 0; row < rows; ++row) {
      text += std::to_string(row) + "," + target(row) + "\n";
    }
    const std::string path = folder.write("a.csv", text);
    ::testing::internal::CaptureStderr();
    open_data({.path = path});
    return ::testing::internal::GetCapturedStderr();
  };
  const auto number = [](int row) { return std::to_string(row * 7); };
  const auto tenth = [](int row) { return std::to_string(row % 30) + ".5"; };
  const std::string all = warning(60, number);
  EXPECT_NE(all.find("60 different numbers in 60 rows"), std::string::npos) << all;
  EXPECT_NE(all.find("add --regression"), std::string::npos) << all;
  const std::string some = warning(300, tenth);
  EXPECT_NE(some.find("30 different numbers in 300 rows"), std::string::npos) << some;
  const std::string mixed =
      warning(60, [](int row) { return row == 7 ? "high" : std::to_string(row * 7); });
  EXPECT_NE(mixed.find("60 different values, most of them numbers"), std::string::npos) << mixed;
  EXPECT_NE(mixed.find("add --regression"), std::string::npos) << mixed;
  const std::string names = warning(60, [](int row) { return "name" + std::to_string(row); });
  EXPECT_NE(names.find("60 different words in 60 rows"), std::string::npos) << names;
  EXPECT_NE(names.find("another --target"), std::string::npos) << names;
  // These are classes.
  EXPECT_EQ(warning(60, [](int row) { return std::to_string(row % 25); }), "");
  EXPECT_EQ(warning(10, number), "");
  EXPECT_EQ(warning(60, [](int row) { return "name" + std::to_string(row % 25); }), "");
}

TEST(Source, SaysThatItEvaluatesOnWhatItIsTrainedOn) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,kind\n1,cat\n2,dog\n");
  const std::string other = folder.write("b.csv", "x,kind\n1,cat\n2,dog\n");
  const auto warning = [&](const std::string& evaluation) {
    ::testing::internal::CaptureStderr();
    open_data({.path = path, .evaluation = evaluation});
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string same = warning(folder.path() + "/./a.csv");
  EXPECT_NE(same.find("is the file that is trained on"), std::string::npos) << same;
  EXPECT_EQ(warning(other), "");
}

TEST(Source, SaysWhatToDoWhereNothingCanBeHeldOut) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,y\n1,2\n");
  expect_data_error([&] { open_data({.path = path, .regression = true}); },
                    path,
                    -1,
                    {"at least 2 samples", "found 1", "--eval-data", "--eval-fraction 0"});
  EXPECT_EQ(open_data({.path = path, .evaluation_fraction = 0, .regression = true}).description,
            "a.csv: 1 row of 1 feature, a number to predict");
}

// As spreadsheets write it; what the message says is done, word for word.
TEST(Source, SaysHowTextInUtf16IsConverted) {
  const DataFolder folder;
  const std::string plain = folder.write("plain", "x,kind\n1,cat\n2,dog\n3,cat\n4,dog\n");
  const auto convert = [](std::string command, const std::string& from, const std::string& to) {
    command.replace(command.find("OLD"), 3, from);
    command.replace(command.find("NEW"), 3, to);
    ASSERT_EQ(testing::run_program({"sh", "-c", command}).code, 0) << command;
  };
  for (const std::string order : {"UTF-16", "UTF-16LE", "UTF-16BE"}) {
    const std::string advice = "iconv -f " + order + " -t UTF-8 OLD > NEW";
    for (const std::string name : {"a.csv", "a.svm", "a.txt"}) {
      const std::string path = folder.path() + "/" + name;
      convert("iconv -f UTF-8 -t " + order + " OLD > NEW", plain, path);
      expect_data_error([&] { open_data({.path = path, .sequence = 9}); },
                        path,
                        0,
                        {"found UTF-16", "(" + advice + ")"});
    }
    const std::string converted = folder.path() + "/converted.csv";
    convert(advice, folder.path() + "/a.csv", converted);
    EXPECT_EQ(testing::read_file(converted), testing::read_file(plain));
    EXPECT_EQ(open_data({.path = converted}).parts.train->shape().classes, 2);
  }
}

// Before anything is trained: the last evaluation would be the first to notice.
TEST(Source, ComparesAllTokensWithTheVocabulary) {
  const DataFolder folder;
  std::vector<std::uint16_t> tokens(100'000, 49);
  const std::string good = folder.write("a.u16", testing::token_bytes(tokens));
  tokens[99'990] = 50;
  const std::string bad = folder.write("b.u16", testing::token_bytes(tokens));
  const std::vector<std::string> words = {"below 50 (the vocabulary)", "found 50"};
  expect_data_error(
      [&] { open_data({.path = good, .evaluation = bad, .sequence = 9}); }, bad, 2 * 99'990, words);
  for (const double fraction : {0.0, 0.1}) {  // to train on, or held out
    expect_data_error(
        [&] {
          open_data(
              {.path = bad, .evaluation_fraction = fraction, .sequence = 9, .vocabulary = 50});
        },
        bad,
        2 * 99'990,
        words);
  }
  EXPECT_EQ(
      open_data({.path = bad, .evaluation = good, .sequence = 9}).parts.train->shape().classes, 51);
}

TEST(Source, TakesHeaderAndSeparatorForCsvOnly) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "1;2;x\n3;4;y\n5;6;x\n7;8;y\n");
  const CsvOptions options{.separator = ';', .header = CsvOptions::Header::kYes};
  EXPECT_EQ(open_data({.path = path, .evaluation_fraction = 0, .csv = options}).parts.train->size(),
            3);
  const std::string text = folder.write("a.txt", std::string(200, 'x'));
  for (const CsvOptions& each :
       {CsvOptions{.separator = ';'}, CsvOptions{.header = CsvOptions::Header::kNo}}) {
    EXPECT_THROW(open_data({.path = text, .sequence = 9, .csv = each}), ConfigError);
  }
}

TEST(Source, PredictsNumbersWhereItIsAskedTo) {
  const DataFolder folder;
  const std::string sparse = folder.write("a.svm", "0.5 1:1\n1.5 2:1\n2.5 1:1\n3.5 2:1\n");
  const std::string other = folder.write("b.svm", "9.75 1:1\n");
  const OpenedData opened = open_data({.path = sparse, .evaluation = other, .regression = true});
  EXPECT_EQ(read_all(*opened.parts.train).targets, (std::vector<float>{0.5F, 1.5F, 2.5F, 3.5F}));
  EXPECT_EQ(read_all(*opened.parts.held_out).targets, (std::vector<float>{9.75F}));
  EXPECT_NE(opened.description.find("a number to predict"), std::string::npos)
      << opened.description;
  const std::string columns = folder.write("a.csv", "x,y\n1,0.5\n2,1.5\n");
  EXPECT_EQ(open_data({.path = columns, .evaluation_fraction = 0, .regression = true}).description,
            "a.csv: 2 rows of 1 feature, a number to predict");
  EXPECT_EQ(
      read_all(
          *open_data({.path = columns, .evaluation_fraction = 0, .regression = true}).parts.train)
          .targets,
      (std::vector<float>{0.5F, 1.5F}));
  // Never ignored.
  const std::string text = folder.write("a.txt", std::string(200, 'x'));
  write_mnist(folder, {0, 2, 1, 0}, {1, 0});
  for (const std::string& path : {text, folder.path()}) {
    EXPECT_THROW(open_data({.path = path, .sequence = 9, .regression = true}), ConfigError);
  }
}

}  // namespace
}  // namespace trireme
