#include "trireme/data/readers.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>
#include <zlib.h>

#include "data/data_files.h"

namespace trireme {
namespace {

using testing::big_endian;
using testing::DataFolder;
using testing::expect_data_error;
using testing::idx_images;
using testing::idx_labels;
using testing::pixel_of;
using testing::token_bytes;

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::vector<std::int64_t> all_of(const Dataset& data) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    samples.push_back(i);
  }
  return samples;
}

Batch read_all(const Dataset& data) {
  Batch batch;
  data.read(all_of(data), batch);
  return batch;
}

void expect_images(const Dataset& data, const std::vector<int>& labels) {
  ASSERT_EQ(data.size(), static_cast<std::int64_t>(labels.size()));
  EXPECT_EQ(data.shape().dense, (std::vector<std::int64_t>{1, 3, 5}));
  const std::vector<std::int64_t> wanted{4, 0, 4, 2};
  Batch batch;
  data.read(wanted, batch);
  EXPECT_EQ(batch.samples, 4);
  EXPECT_EQ(batch.ids, wanted);
  ASSERT_EQ(batch.dense.size(), 4U * 15);
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    EXPECT_EQ(batch.labels[row], labels[static_cast<std::size_t>(wanted[row])]);
    EXPECT_EQ(data.label(wanted[row]), batch.labels[row]);
    for (std::int64_t pixel = 0; pixel < 15; ++pixel) {
      EXPECT_EQ(batch.dense[row * 15 + static_cast<std::size_t>(pixel)],
                static_cast<float>(pixel_of(wanted[row], pixel)) / 255.0F);
    }
  }
  const std::int64_t beyond = data.size();
  EXPECT_THROW(data.read({&beyond, 1}, batch), ConfigError);
  EXPECT_THROW(data.label(-1), ConfigError);
}

TEST(IdxFiles, AreReadPlainOrPacked) {
  const DataFolder folder;
  const std::vector<int> labels{3, 0, 9, 1, 3};
  const std::string images = idx_images(5, 3, 5);
  const std::string plain_images = folder.write("i", images);
  const std::string plain_labels = folder.write("l", idx_labels(labels));
  const std::string packed_images = folder.write("i.gz", gzip(images));
  const std::string packed_labels = folder.write("l.gz", gzip(idx_labels(labels)));
  // Several streams one after another are one file to gzip.
  const std::string two =
      folder.write("two.gz", gzip(images.substr(0, 20)) + gzip(images.substr(20)));
  expect_images(*open_idx(plain_images, plain_labels), labels);
  expect_images(*open_idx(packed_images, packed_labels), labels);
  expect_images(*open_idx(packed_images, plain_labels), labels);
  expect_images(*open_idx(two, plain_labels), labels);
  EXPECT_EQ(open_idx(plain_images, plain_labels)->shape().classes, 10);
  EXPECT_EQ(open_idx(plain_images, plain_labels, 12)->shape().classes, 12);
}

TEST(IdxFiles, OfAnotherFormatSayWhatTheyAre) {
  const DataFolder folder;
  const std::string images = folder.write("i", idx_images(2, 2, 2));
  const std::string labels = folder.write("l", idx_labels({0, 1}));
  expect_data_error([&] { open_idx(labels, images); },
                    labels,
                    0,
                    {"0x00000803", "0x00000801", "labels, not images", "swapped"});
  expect_data_error([&] { open_idx(images, images); }, images, 0, {"images, not labels"});
  const std::string floats = folder.write("f", big_endian(0xd03) + std::string(100, 'x'));
  expect_data_error([&] { open_idx(floats, labels); }, floats, 0, {"a type other than"});
  const std::string twice = folder.write("t.gz", gzip(gzip(idx_images(2, 2, 2))));
  expect_data_error([&] { open_idx(twice, labels); }, twice, 0, {"gzip file, packed twice"});
  const std::string zip = folder.write("z", "PK\x03\x04" + std::string(40, 'z'));
  expect_data_error([&] { open_idx(zip, labels); }, zip, 0, {"zip file"});
  const std::string png = folder.write("p", "\x89PNG\r\n\x1a\n");
  expect_data_error([&] { open_idx(png, labels); }, png, 0, {"PNG"});
  const std::string text = folder.write("x", "hello, world");
  expect_data_error([&] { open_idx(text, labels); }, text, 0, {"not an idx file", "0x68656c6c"});
}

TEST(IdxFiles, ThatAreCutShortOrTooLongAreRefused) {
  const DataFolder folder;
  const std::string images = idx_images(4, 2, 3);
  const std::string labels = folder.write("l", idx_labels({0, 1, 0, 1}));
  for (const std::size_t kept :
       {images.size() - 1, std::size_t{16}, std::size_t{15}, std::size_t{5}, std::size_t{3}}) {
    const auto offset = static_cast<std::int64_t>(kept);
    const std::string plain = folder.write("short", images.substr(0, kept));
    expect_data_error(
        [&] { open_idx(plain, labels); }, plain, offset, {"expected", "end of the file"});
    const std::string packed = folder.write("short.gz", gzip(images.substr(0, kept)));
    expect_data_error(
        [&] { open_idx(packed, labels); }, packed, offset, {"expected", "end of the file"});
  }
  const std::string longer = folder.write("long", images + "!!");
  expect_data_error(
      [&] { open_idx(longer, labels); }, longer, 16 + 24, {"4 x 2 x 3", "more bytes"});
  const std::string packed = folder.write("long.gz", gzip(images + std::string(1 << 20, 'x')));
  expect_data_error(
      [&] { open_idx(packed, labels); }, packed, 16 + 24, {"4 x 2 x 3", "more bytes"});
}

// Whatever the header says, memory is asked for only after a look at the file's size.
TEST(IdxFiles, WithAbsurdHeadersTakeNoMemory) {
  const DataFolder folder;
  const std::string labels = folder.write("l", idx_labels({0, 1}));
  const std::string all_ones(4, '\xff');
  for (const std::string& header :
       {big_endian(0x803) + all_ones + all_ones + all_ones,
        big_endian(0x803) + big_endian(1 << 31) + big_endian(1 << 31) +
            big_endian(4),  // 2^64: 0 in 64 bits
        big_endian(0x803) + big_endian(1 << 20) + big_endian(1 << 11) + big_endian(1 << 10)}) {
    const std::string plain = folder.write("huge", header + "pixels");
    expect_data_error([&] { open_idx(plain, labels); }, plain, 22, {"header", "end of the file"});
    const std::string packed = folder.write("huge.gz", gzip(header + "pixels"));
    expect_data_error([&] { open_idx(packed, labels); }, packed, 4, {"cannot hold"});
  }
  const std::string none =
      folder.write("none", big_endian(0x803) + big_endian(0) + big_endian(28) + big_endian(28));
  expect_data_error([&] { open_idx(none, labels); }, none, 4, {"above 0"});
}

TEST(IdxFiles, DamagedOrCutInTheirGzipStreamAreRefused) {
  const DataFolder folder;
  const std::string labels = folder.write("l", idx_labels(std::vector<int>(50, 1)));
  const std::string good = gzip(idx_images(50, 9, 9));
  for (const std::size_t kept : {std::size_t{5},
                                 std::size_t{12},
                                 good.size() / 2,
                                 good.size() - 4,
                                 good.size() - 8,
                                 good.size() - 1}) {
    const std::string cut = folder.write("cut.gz", good.substr(0, kept));
    expect_data_error(
        [&] { open_idx(cut, labels); }, cut, static_cast<std::int64_t>(kept), {"cut short"});
  }
  std::string wrong_sum = good;
  wrong_sum[good.size() - 6] = static_cast<char>(wrong_sum[good.size() - 6] ^ 1);
  const std::string sum = folder.write("sum.gz", wrong_sum);
  EXPECT_THROW(open_idx(sum, labels), DataError);
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {  // any flipped bit: an error or, in the header's name bits, none
    std::string damaged = good;
    const std::size_t at = random() % good.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    const std::string path = folder.write("damaged.gz", damaged);
    try {
      EXPECT_EQ(read_all(*open_idx(path, labels)).dense,
                read_all(*open_idx(folder.write("good.gz", good), labels)).dense);
      EXPECT_LT(at, 10U);
    } catch (const DataError& error) {
      EXPECT_EQ(error.file(), path);
    }
  }
  const std::string tail = folder.write("tail.gz", good + "tail");
  expect_data_error([&] { open_idx(tail, labels); },
                    tail,
                    static_cast<std::int64_t>(good.size()),
                    {"end of the file"});
}

TEST(IdxFiles, WhoseImagesAndLabelsDoNotMatchAreRefused) {
  const DataFolder folder;
  const std::string images = folder.write("i", idx_images(3, 2, 2));
  const std::string few = folder.write("few", idx_labels({0, 1}));
  expect_data_error([&] { open_idx(images, few); }, few, 4, {"expected 3", "found 2"});
  const std::string labels = folder.write("l", idx_labels({0, 1, 7}));
  expect_data_error([&] { open_idx(images, labels, 5); }, labels, 8 + 2, {"below 5", "found 7"});
}

TEST(Files, ThatCannotBeReadAreNamed) {
  const DataFolder folder;
  const std::string missing = folder.path() + "/missing";
  const std::string empty = folder.write("empty", "");
  const auto each = [&](const std::function<void(const std::string&)>& open) {
    expect_data_error([&] { open(missing); }, missing, -1, {"No such file"});
    expect_data_error([&] { open(folder.path()); }, folder.path(), -1, {"folder"});
    expect_data_error([&] { open(empty); }, empty, 0, {"empty"});
    expect_data_error([&] { open("/dev/null"); }, "/dev/null", -1, {"regular file"});
  };
  each([](const std::string& path) { open_idx(path, path); });
  each([](const std::string& path) { open_tokens({path}, {}); });
  each([](const std::string& path) { open_csv(path); });
  each([](const std::string& path) { open_libsvm(path); });
}

std::vector<std::int64_t> naive_tokens(const std::vector<std::int64_t>& text,
                                       std::int64_t first,
                                       std::int64_t length) {
  return {text.begin() + first, text.begin() + first + length};
}

TEST(Tokens, RunOverAllFilesAsOne) {
  const DataFolder folder;
  std::mt19937 random(7);
  std::vector<std::string> files;
  std::vector<std::int64_t> text;
  for (int i = 0; i < 6; ++i) {
    // Files shorter than a sample: some samples touch three.
    std::vector<std::uint16_t> tokens(1 + random() % 9);
    for (auto& token : tokens) {
      token = static_cast<std::uint16_t>(random() % 50000);
      text.push_back(token);
    }
    files.push_back(folder.write(std::to_string(i), token_bytes(tokens)));
  }
  for (const std::int64_t sequence : {1, 3, 8}) {
    for (const std::int64_t stride : {1, 2, 8, 11}) {
      const auto data =
          open_tokens(files, {.type = TokenType::kUint16, .sequence = sequence, .stride = stride});
      EXPECT_EQ(data->shape().classes, *std::max_element(text.begin(), text.end()) + 1);
      EXPECT_EQ(data->shape().length, sequence + 1);
      std::int64_t samples = 0;
      while (samples * stride + sequence + 1 <= static_cast<std::int64_t>(text.size())) {
        ++samples;
      }
      ASSERT_EQ(data->size(), samples);
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        Batch batch;
        data->read({&sample, 1}, batch);
        EXPECT_EQ(batch.tokens, naive_tokens(text, sample * stride, sequence + 1));
      }
    }
  }
}

TEST(Tokens, OfEveryWidthAreWidened) {
  const DataFolder folder;
  const std::string text = folder.write("text", std::string("a\xff\0b", 4));
  EXPECT_EQ(read_all(*open_tokens({text}, {.sequence = 3})).tokens,
            (std::vector<std::int64_t>{'a', 255, 0, 'b'}));
  EXPECT_EQ(open_tokens({text}, {.sequence = 3})->shape().classes, 256);
  const std::vector<std::uint32_t> wide{1, 4'000'000'000U, 7};
  const std::string words = folder.write("words", token_bytes(wide));
  const auto data = open_tokens({words}, {.type = TokenType::kUint32, .sequence = 2});
  EXPECT_EQ(read_all(*data).tokens, (std::vector<std::int64_t>{1, 4'000'000'000, 7}));
  EXPECT_EQ(data->shape().classes, 4'000'000'001);
  EXPECT_THROW(data->label(0), ConfigError);
}

// Training and held-out parts meet at a token and share none; every token of the evaluation's part
// but the first, and but a tail shorter than a sample, is predicted once.
TEST(Tokens, PartsMeetAndEvaluationPredictsEveryTokenOnce) {
  const DataFolder folder;
  for (const std::int64_t length : {100, 101, 257, 1000}) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::uint16_t>(i);
    }
    const std::string path = folder.write("tokens", token_bytes(tokens));
    for (const double cut : {0.5, 0.77, 0.9}) {
      TokenOptions options{.type = TokenType::kUint16, .sequence = 4, .stride = 1, .end = cut};
      const Batch train = read_all(*open_tokens({path}, options));
      options = {.type = TokenType::kUint16, .sequence = 4, .begin = cut};
      const Batch held = read_all(*open_tokens({path}, options));
      const std::int64_t border = train.tokens.back() + 1;
      EXPECT_EQ(border, std::llround(static_cast<double>(length) * cut));
      EXPECT_EQ(held.tokens.front(), border);
      std::vector<int> predicted(tokens.size(), 0);
      for (std::int64_t sample = 0; sample < held.samples; ++sample) {
        for (std::int64_t place = 1; place <= 4; ++place) {
          ++predicted[static_cast<std::size_t>(
              held.tokens[static_cast<std::size_t>(sample * 5 + place)])];
        }
      }
      const std::int64_t covered = border + 1 + held.samples * 4;
      EXPECT_LT(length - covered, 4);
      for (std::int64_t token = 0; token < length; ++token) {
        EXPECT_EQ(predicted[static_cast<std::size_t>(token)], token > border && token < covered);
      }
    }
  }
}

TEST(Tokens, ThatDoNotFitAreRefused) {
  const DataFolder folder;
  const std::string text = folder.write("text", "abcdef");
  expect_data_error(
      [&] { open_tokens({text}, {.sequence = 6}); }, text, 6, {"at least 7", "found 6"});
  expect_data_error([&] { open_tokens({text}, {.sequence = 3, .begin = 0.5}); },
                    text,
                    6,
                    {"at least 4", "found 3", "part"});
  EXPECT_EQ(open_tokens({text}, {.sequence = 5})->size(), 1);
  expect_data_error([&] { open_tokens({text}, {.type = TokenType::kUint32, .sequence = 1}); },
                    text,
                    4,
                    {"4 bytes", "after 2"});
  const std::vector<std::uint16_t> tokens{1, 2, 3, 900, 4, 5};
  const std::string path = folder.write("tokens", token_bytes(tokens));
  const TokenOptions below_900{.type = TokenType::kUint16, .sequence = 2, .vocabulary = 900};
  expect_data_error(
      [&] { open_tokens({path}, below_900); }, path, 6, {"below 900", "found 900", "tokenizer"});
  expect_data_error([&] { open_tokens({text}, {.sequence = 3, .vocabulary = 10}); },
                    text,
                    0,
                    {"below 10", "found 97", "a vocabulary of 256"});
  // However late it comes; another part of the data is not looked at.
  const std::string longer =
      folder.write("longer", token_bytes(std::vector<std::uint16_t>(70000, 899)));
  expect_data_error(
      [&] {
        open_tokens({longer, path}, below_900);
      },
      path,
      6,
      {"below 900", "found 900"});
  TokenOptions first_half = below_900;
  first_half.end = 0.5;
  EXPECT_GT(open_tokens({longer, path}, first_half)->size(), 0);
  // A file that changes while it is used.
  const auto data = open_tokens({longer}, below_900);
  std::fstream(longer, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(2 * 69998)
      .write("\xff\xff", 2);
  Batch batch;
  const std::int64_t last = data->size() - 1;
  expect_data_error(
      [&] {
        data->read({&last, 1}, batch);
      },
      longer,
      2 * 69998,
      {"below 900", "found 65535"});
  EXPECT_THROW(open_tokens({}, {}), ConfigError);
  EXPECT_THROW(open_tokens({text}, {.sequence = 0}), ConfigError);
  EXPECT_THROW(open_tokens({text}, {.sequence = 1, .begin = 0.6, .end = 0.5}), ConfigError);
}

TEST(Csv, ReadsColumnsQuotesAndEveryEndOfLine) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv",
                                        "\xef\xbb\xbfwidth , \"the, kind\",height\r\n"
                                        "1.5,\"b,\"\"x\"\"\",-2\r\n"
                                        "\r\n"
                                        " +3e2 , a , \"0.25\" \n"
                                        "0,\"b,\"\"x\"\"\",1e-60");
  const auto data = open_csv(path, {.target = "the, kind"});
  EXPECT_EQ(data->size(), 3);
  EXPECT_EQ(data->shape().dense, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(data->shape().classes, 2);
  const Batch batch = read_all(*data);
  EXPECT_EQ(batch.dense, (std::vector<float>{1.5F, -2, 300, 0.25F, 0, 0}));
  EXPECT_EQ(batch.labels, (std::vector<std::int64_t>{1, 0, 1}));
  EXPECT_EQ(data->label(1), 0);
  const auto by_number = open_csv(path, {.target = "1"});
  EXPECT_EQ(read_all(*by_number).labels, batch.labels);
  const std::string doubled = folder.write("d.csv", "\"say \"\"hi\"\" now\",x\nb,1\na,2\n");
  EXPECT_EQ(read_all(*open_csv(doubled, {.target = "say \"hi\" now"})).labels,
            (std::vector<std::int64_t>{1, 0}));
  const std::string last = folder.write("b.csv", "1,\"x,y\" \n2,z\n3,\"x,y\"\n");
  EXPECT_EQ(read_all(*open_csv(last)).labels, (std::vector<std::int64_t>{0, 1, 0}));
}

TEST(Csv, NumbersClassesInOrder) {
  const DataFolder folder;
  const std::string numbers = folder.write("n.csv", "0,10\n0,9\n0,-1\n0,+9\n0,9.0\n");
  EXPECT_EQ(read_all(*open_csv(numbers)).labels, (std::vector<std::int64_t>{2, 1, 0, 1, 1}));
  const std::string words = folder.write("w.csv", "0,10\n0,9\n0,b\n0,a\n");
  EXPECT_EQ(read_all(*open_csv(words)).labels, (std::vector<std::int64_t>{0, 1, 3, 2}));
}

// As the file writes them first, in the order that their values, or one spelling, give.
TEST(Csv, KeepsTheSpellingOfNamesThatAreNumbers) {
  const DataFolder folder;
  const auto names_in = [&](const std::string& rows) {
    return open_csv(folder.write("n.csv", rows), {.header = CsvOptions::Header::kNo})
        ->class_names();
  };
  const std::string numbers = "0,100000\n0,007\n0,+3.50\n0,7\n0,1e5\n";
  EXPECT_EQ(names_in(numbers), (std::vector<std::string>{"+3.50", "007", "100000"}));
  EXPECT_EQ(read_all(*open_csv(folder.write("n.csv", numbers))).labels,
            (std::vector<std::int64_t>{2, 1, 0, 1, 2}));
  EXPECT_EQ(names_in("0,7\n0,007\n0,0123\n"), (std::vector<std::string>{"7", "0123"}));
  // Among words in the order of words, a number as if written the shortest way: 7 after 123.
  EXPECT_EQ(names_in("0,007\n0,0123\n0,a\n"), (std::vector<std::string>{"0123", "007", "a"}));
}

TEST(Csv, TakesTheFirstLineForNamesWhenNoneIsANumber) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "a,b\n1,2\n3,4\n");
  EXPECT_EQ(open_csv(path)->size(), 2);
  EXPECT_EQ(open_csv(folder.write("b.csv", "0,b\n1,2\n"))->size(), 2);
  CsvOptions options;
  options.header = CsvOptions::Header::kYes;
  EXPECT_EQ(open_csv(folder.write("c.csv", "0,b\n1,2\n"), options)->size(), 1);
  options.header = CsvOptions::Header::kNo;
  options.target = "0";
  expect_data_error(
      [&] { open_csv(path, options); }, path, 2, {"line 1, column 3", "column number 1", "\"b\""});
}

// Names that look like numbers, and values that look like words.
TEST(Csv, DoesNotTakeNamesForASample) {
  const DataFolder folder;
  std::string rows;
  for (int i = 0; i < 200; ++i) {
    rows += std::to_string(i) + "," + std::to_string(i * i) + "," + (i % 2 == 0 ? "a" : "b") + "\n";
  }
  const auto opened = [&](const std::string& header, const CsvOptions& options = {}) {
    return open_csv(folder.write("a.csv", header + rows), options);
  };
  const CsvOptions yes{.header = CsvOptions::Header::kYes};
  const CsvOptions no{.header = CsvOptions::Header::kNo};
  EXPECT_EQ(opened("width,2019,kind\n")->size(), 200);
  EXPECT_EQ(opened("width,2019,kind\n")->shape().classes, 2);
  EXPECT_EQ(opened("2019,width,kind\n", {.target = "kind"})->size(), 200);
  EXPECT_EQ(opened("2019,2020,kind\n", {.target = "kind"})->shape().classes, 2);
  EXPECT_EQ(opened("2019,2020,kind\n", yes)->shape().classes, 2);
  EXPECT_EQ(opened("2019,2020,kind\n", no)->size(), 201);
  EXPECT_EQ(opened("2019,2020,a\n")->size(), 201);  // a class that is there
  for (const std::string unclear : {"2019,2020,kind\n", "0,1,2\n"}) {
    const std::string path = folder.write("a.csv", unclear + rows);
    expect_data_error([&] { open_csv(path); }, path, 0, {"line 1", "--header yes", "--header no"});
  }
  // A sample that is not what it should be is no line of names.
  for (const std::string broken : {"?,1,a\n", ",1,a\n", "NA,1,a\n", "nan,1,a\n", "1.5x,1,a\n"}) {
    const std::string path = folder.write("a.csv", broken + rows);
    expect_data_error([&] { read_all(*open_csv(path)); }, path, 0, {"line 1", "finite number"});
  }
  const CsvOptions numbers{.target = "1", .regression = true};
  EXPECT_EQ(open_csv(folder.write("n.csv", "5,price\n1,2\n3,4\n"), numbers)->size(), 2);
}

// What a message quotes is text, whatever the file holds.
TEST(Csv, QuotesBytesThatAreNoTextAsText) {
  const DataFolder folder;
  const auto message_about = [&](const std::string& cell) {
    const std::string path = folder.write("a.csv", "x,kind\n1,a\n" + cell + ",a\n");
    try {
      read_all(*open_csv(path));
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message_about("caf\xe9").find("\"caf\\xe9\""), std::string::npos)
      << message_about("caf\xe9");
  EXPECT_NE(message_about("caf\xc3\xa9").find("\"caf\xc3\xa9\""), std::string::npos);
  // 41 two-byte letters: cut between two of them, wherever that is.
  for (const std::string before : {"", "a", "ab", "abc"}) {
    std::string letters = before;
    for (int i = 0; i < 41; ++i) {
      letters += "\xc3\xa9";
    }
    const std::string message = message_about(letters);
    const std::size_t cut = message.find("...\"");
    ASSERT_NE(cut, std::string::npos) << message;
    EXPECT_EQ(message.substr(cut - 2, 2), "\xc3\xa9") << message;
    EXPECT_EQ(message.find("\\x"), std::string::npos) << message;
  }
}

TEST(Csv, KnowsItsSeparatorOrIsToldIt) {
  const DataFolder folder;
  EXPECT_EQ(open_csv(folder.write("a.tsv", "1\ta,5\n2\tb,5\n"), {.header = CsvOptions::Header::kNo})
                ->shape()
                .dense,
            (std::vector<std::int64_t>{1}));
  EXPECT_EQ(open_csv(folder.write("b.tsv", "1,2,a\n3,4,b\n"), {.separator = ','})->shape().dense,
            (std::vector<std::int64_t>{2}));
  EXPECT_EQ(open_csv(folder.write("c.csv", "1;2;a\n3;4;b\n"), {.separator = ';'})->shape().dense,
            (std::vector<std::int64_t>{2}));
}

TEST(Csv, ReadsNumbersToPredict) {
  const DataFolder folder;
  const std::string path = folder.write("a.tsv", "y\tx\n0.5\t1\n-7\t2\n");
  const auto data = open_csv(path, {.separator = '\t', .target = "y", .regression = true});
  EXPECT_EQ(data->shape().classes, 0);
  const Batch batch = read_all(*data);
  EXPECT_EQ(batch.targets, (std::vector<float>{0.5F, -7}));
  EXPECT_EQ(batch.dense, (std::vector<float>{1, 2}));
  EXPECT_TRUE(batch.labels.empty());
  EXPECT_THROW(data->label(0), ConfigError);
}

TEST(Csv, ThatIsNotWhatItShouldBeSaysWhere) {
  const DataFolder folder;
  const auto refused = [&](const std::string& text,
                           std::int64_t offset,
                           const std::vector<std::string>& words,
                           const CsvOptions& options = {}) {
    const std::string path = folder.write("bad.csv", text);
    expect_data_error([&] { read_all(*open_csv(path, options)); }, path, offset, words);
  };
  refused("a,b,c\n1,2,3\n1,2\n", 12, {"line 3, column 1", "expected 3", "found 2"});
  refused("a,b,c\n1,2,3\n1,2,3,4\n", 12, {"line 3", "expected 3", "found 4"});
  refused("a,b,c\n1,2,3\n1,\"2\",3,4\n", 12, {"line 3", "expected 3", "found 4"});
  refused("a,b\n1,x\n\nz,x\n", 9, {"line 4, column 1 (byte 9)", "\"a\"", "\"z\""});
  refused("a,b\n1,x\n,x\n", 8, {"line 3", "empty cell"});
  for (const std::string cell :
       {"nan", "inf", "-inf", "1.5x", "0x10", "1e999", "1e39", "--1", "+-1"}) {
    refused("a,b\n1,x\n" + cell + ",x\n", 8, {"finite number", cell});
  }
  refused("a;b\n1,5;x\n2;y\n", 4, {"found \"1,5\"", "sed 's/,/./g' OLD > NEW"}, {.separator = ';'});
  refused("a,b\n\"1,5\",x\n2,y\n", 4, {"write points instead (1.5)"});
  refused("a,b\n1,\"x\n2,y\n", 6, {"line 2, column 3", "closing quote"});
  refused("a,b\n1,\"x\"y\n", 9, {"line 2, column 6", "separator", "'y'"});
  refused("a,b\n1,\n", 6, {"line 2, column 3", "expected a class"});
  refused("a,b\n", 4, {"rows"});
  refused("a;b\n1;2\n", 0, {"separator"});
  refused("\n  \n", 0, {"only blanks"});
  refused("a,b\r1,2\r3,4\r", 3, {"line 1, column 4", "\\r alone", "tr '\\r' '\\n'"});
  refused("a,b\n1,\n", 6, {"empty cell"}, {.regression = true});
}

// The file is as it is: what asks for the column has to change.
TEST(Csv, NamesTheSettingThatAsksForAColumnThatIsNotThere) {
  const DataFolder folder;
  const auto refused = [&](const std::string& text,
                           const std::vector<std::string>& words,
                           const CsvOptions& options) {
    const std::string path = folder.write("a.csv", text);
    try {
      open_csv(path, options);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(path), std::string::npos) << message;
      for (const std::string& word : words) {
        EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
      }
    }
  };
  const std::string text = "size,colour,kind\n1,red,a\n2,blue,b\n";
  refused(text,
          {"target: expected a column",
           "numbers 0 to 2",
           "\"size\", \"colour\", \"kind\"",
           "found \"knid\"",
           "did you mean \"kind\"?"},
          {.target = "knid"});
  refused(text,
          {"categorical: expected a column", "found \"color\"", "did you mean \"colour\"?"},
          {.categorical = {"color"}});
  refused(text, {"target: expected", "found \"3\"", "0 to 2"}, {.target = "3"});
  refused("1,2\n", {"target: expected", "found \"2\"", "0 to 1"}, {.target = "2"});
  refused(text, {"categorical: ", "\"colour\" twice"}, {.categorical = {"colour", "1"}});
  refused(text,
          {"found \"size;colour\"", "did you mean a comma, as in size,colour?"},
          {.categorical = {"size;colour"}});
  refused("a,b,a\n1,2,3\n", {"target: expected one column", "\"a\"", "found 2"}, {.target = "a"});
  refused("a,a,b\n1,2,3\n", {"categorical: expected one column"}, {.categorical = {"a"}});
}

TEST(Libsvm, ReadsSparseRowsInAnyOrder) {
  const DataFolder folder;
  const std::string path =
      folder.write("a.svm", "+1 1:0.5 7:-2e1\n# a comment\n-1\t3:1  \r\n\n1 # none\n-1 2:0 7:+1");
  const auto data = open_libsvm(path);
  EXPECT_EQ(data->size(), 4);
  EXPECT_EQ(data->shape().kind, SampleKind::kSparse);
  EXPECT_EQ(data->shape().features, 7);
  EXPECT_EQ(data->shape().classes, 2);
  Batch batch;
  data->read(std::vector<std::int64_t>{3, 2, 0, 1}, batch);
  EXPECT_EQ(batch.offsets, (std::vector<std::int64_t>{0, 2, 2, 4, 5}));
  EXPECT_EQ(batch.indices, (std::vector<std::int64_t>{1, 6, 0, 6, 2}));
  EXPECT_EQ(batch.values, (std::vector<float>{0, 1, 0.5F, -20, 1}));
  EXPECT_EQ(batch.labels, (std::vector<std::int64_t>{0, 1, 1, 0}));
  EXPECT_EQ(open_libsvm(path, {.features = 100})->shape().features, 100);
}

TEST(Libsvm, ReadsNumbersToPredict) {
  const DataFolder folder;
  const std::string path = folder.write("a.svm", "0.5 1:1\n-7.25 2:3\n+3e2 1:2\n0.5 2:1\n");
  const auto data = open_libsvm(path, {.regression = true});
  EXPECT_EQ(data->size(), 4);
  EXPECT_EQ(data->shape().classes, 0);
  EXPECT_EQ(data->shape().features, 2);
  const Batch batch = read_all(*data);
  EXPECT_EQ(batch.targets, (std::vector<float>{0.5F, -7.25F, 300, 0.5F}));
  EXPECT_TRUE(batch.labels.empty());
  EXPECT_THROW(data->label(0), ConfigError);
  const std::string large = folder.write("b.svm", "1 1:1\n1e39 1:1\n");
  expect_data_error([&] { open_libsvm(large, {.regression = true}); },
                    large,
                    6,
                    {"line 2, column 1", "finite number", "1e39"});
}

TEST(Libsvm, ThatIsNotWhatItShouldBeSaysWhere) {
  const DataFolder folder;
  const auto refused = [&](const std::string& line,
                           std::int64_t offset,
                           const std::vector<std::string>& words,
                           std::int64_t features = 0) {
    const std::string path = folder.write("bad.svm", "1 1:1 2:2\n" + line + "\n1 1:1 9:1\n");
    expect_data_error(
        [&] { read_all(*open_libsvm(path, {.features = features})); }, path, 10 + offset, words);
  };
  refused("1 0:1 2:1", 2, {"line 2, column 3", "from 1", "\"0\"", "add 1"});
  refused("1 2:1 2:1", 6, {"above 2", "found 2"});
  refused("1 3:1 2:1", 6, {"above 3", "found 2"});
  refused("1 x:1", 2, {"whole number", "\"x\""});
  refused("1 -1:1", 2, {"whole number", "\"-1\""});
  refused("1 1.5:1", 2, {"whole number"});
  refused("1 99999999999999999999:1", 2, {"whole number"});
  refused("1 :1", 2, {"whole number"});
  refused("1 1:x", 4, {"finite number", "\"x\""});
  refused("1 1:", 4, {"finite number"});
  refused("1 1:nan", 4, {"finite number"});
  refused("1 1 2:3", 2, {"index:value", "\"1\""});
  refused("1:1 2:2", 0, {"line 2, column 1", "label", "missing"});
  refused("cat 2:2", 0, {"label", "\"cat\""});
  refused("1 2:1 6:1", 6, {"at most 5", "found 6"}, 5);
  // All of them, also what is only seen when rows are read.
  const std::string many =
      folder.write("many.svm", "1 1:1\n1 3:1 2:1 4:1\n1 a:b\n1 1:1\ncat 1:1\n");
  expect_data_error([&] { open_libsvm(many); },
                    many,
                    12,
                    {"3 errors", ":2:7: expected an index above 3", ":3:3: ", "\"a\"", ":5:1: "});
  // When it is opened, whichever part of the check finds them.
  const std::string late = folder.write("late.svm", "1 1:1\n0 2:1\n1 1:1\n0 2:x\n1 3:y\n");
  std::string told;
  LibsvmOptions half;
  half.check.part = 1;
  half.check.parts = 2;
  half.check.exchange = [&](const std::string& mine) {
    told = mine;
    return std::vector<std::string>{"", mine};
  };
  expect_data_error([&] { open_libsvm(late, half); }, late, 22, {":4:5: ", "\"x\"", ":5:5: "});
  half.check.part = 0;
  open_libsvm(late, half);  // its part is good, and so is what it hears
  EXPECT_EQ(told, "");
  // The number of features is then what the last index of each row says, and no fault of its own.
  const std::string alone = folder.write("alone.svm", "1 3:1 2:1\n");
  expect_data_error([&] { read_all(*open_libsvm(alone)); }, alone, 6, {"above 3", "found 2"});
  const std::string empty = folder.write("rows.svm", "# nothing\n");
  expect_data_error([&] { open_libsvm(empty); }, empty, 0, {"found none"});
  const std::string bare = folder.write("bare.svm", "1\n-1\n");
  expect_data_error([&] { open_libsvm(bare); }, bare, 0, {"index:value"});
}

}  // namespace
}  // namespace trireme
