// CSV files as tables: checked whole when they are opened, with categories and missing values, and
// other files read as the training file was.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data/data_files.h"
#include "data/file_identity.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

using testing::DataFolder;
using testing::expect_data_error;
using Missing = CsvOptions::Missing;
using Unseen = CsvOptions::Unseen;
using Targets = NewDataOptions::Targets;

Batch read_all(const Dataset& data) {
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < data.size(); ++i) {
    samples.push_back(i);
  }
  Batch batch;
  data.read(samples, batch);
  return batch;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// --- the whole file

// Rows "i,2i,class", of which some have a bad cell in the second column; their lines.
struct Rows {
  std::string text = "first,second,kind\n";
  std::vector<std::int64_t> bad;

  Rows(std::int64_t count, std::int64_t every) {
    for (std::int64_t i = 0; i < count; ++i) {
      const bool wrong = every > 0 && i % every == every / 2;
      text += std::to_string(i) + "," + (wrong ? "x" + std::to_string(i) : std::to_string(2 * i)) +
              "," + (i % 3 == 0 ? "a" : "b") + "\n";
      if (wrong) {
        bad.push_back(i + 2);
      }
    }
  }
  // Where the bad cell of a line begins, from 1.
  static std::size_t column_in(std::int64_t line) { return std::to_string(line - 2).size() + 2; }
};

TEST(Table, ListsEveryBadPlaceWhenItIsOpened) {
  const DataFolder folder;
  const Rows rows(5000, 100);
  const std::string path = folder.write("a.csv", rows.text);
  ASSERT_EQ(rows.bad.size(), 50U);
  const std::string message = message_of([&] { open_csv(path); });
  EXPECT_NE(message.find(path + ": 50 errors"), std::string::npos) << message;
  std::size_t shown = 0;
  for (const std::int64_t line : rows.bad) {
    const std::string wanted = path + ":" + std::to_string(line) + ":" +
                               std::to_string(Rows::column_in(line)) +
                               ": expected a finite number in column \"second\", found \"x" +
                               std::to_string(line - 2) + "\"";
    shown += message.find(wanted) != std::string::npos ? 1U : 0U;
  }
  EXPECT_EQ(shown, 20U) << message;
  EXPECT_NE(message.find("and 30 more"), std::string::npos) << message;
}

TEST(Table, FindsEveryKindOfFaultInOnePass) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv",
                                        "x,y,kind\n"
                                        "1,2,a\n"
                                        "1,a\n"          // 3: a cell short
                                        "1,\"2,a\n"      // 4: a quote that does not end
                                        "bad,worse,a\n"  // 5: two
                                        ",2,b\n"         // 6: missing
                                        "1,2,\n");       // 7: no class
  const std::string message = message_of([&] { open_csv(path); });
  for (const char* part : {":3:1: expected 3 cells",
                           ":4:3: expected a closing quote",
                           ":5:1: expected a finite number in column \"x\", found \"bad\"",
                           ":5:5: expected a finite number in column \"y\", found \"worse\"",
                           ":6:1: expected a finite number in column \"x\", found an empty cell",
                           ":7:5: expected a class in column \"kind\", found none",
                           "6 errors",
                           "--missing mean"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

// What is advised must not make wrong numbers of right ones.
TEST(Table, KnowsThousandsFromDecimalCommas) {
  const DataFolder folder;
  const auto message = [&](const std::string& cells) {
    return message_of([&] { open_csv(folder.write("a.csv", "x,kind\n" + cells)); });
  };
  const auto thousands = message("\"1,000\",a\n\"-12,345.5\",b\n\"1,234,567\",b\n");
  EXPECT_NE(thousands.find("separate thousands, take them out"), std::string::npos) << thousands;
  EXPECT_EQ(thousands.find("(1.5)"), std::string::npos) << thousands;
  const auto decimal = message("\"1,5\",a\n\"1000,125\",b\n\"1,2345\",b\n");
  EXPECT_NE(decimal.find("write points instead (1.5)"), std::string::npos) << decimal;
  EXPECT_EQ(decimal.find("thousands"), std::string::npos) << decimal;
}

TEST(Table, SaysHowToNameAWordForAMissingValue) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,y,kind\n1,2,a\n-,3,b\n2,3,b\n");
  CsvOptions options{.missing = Missing::kNan};
  const std::string message = message_of([&] { open_csv(path, options); });
  for (const char* part : {"found \"-\"", "--missing-values 'NA,N/A,NaN,null,?,-'", "replaces"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
  options.missing_values.emplace_back("-");
  EXPECT_EQ(open_csv(path, options)->size(), 3);
}

TEST(Table, SaysOnceThatEveryLineEndsWithASeparator) {
  const DataFolder folder;
  const std::string rows = "1,2,a,\n2,3,b,\n3,4,b,\n";
  for (const std::string& text : {"x,y,kind,\n" + rows, rows}) {
    for (const Missing missing : {Missing::kRefuse, Missing::kDrop}) {
      const std::string message =
          message_of([&] { open_csv(folder.write("a.csv", text), {.missing = missing}); });
      for (const char* part : {"every line ends with a ','", "the target", "is empty"}) {
        EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
      }
      EXPECT_EQ(message.find("errors"), std::string::npos) << message;
    }
  }
  // One row that has something there is enough.
  const std::string one = message_of([&] { open_csv(folder.write("b.csv", "1,2,a\n2,3,\n")); });
  EXPECT_EQ(one.find("every line"), std::string::npos) << one;
}

TEST(Table, IsTheSameForAnyNumberOfThreads) {
  const DataFolder folder;
  const std::string good = folder.write("good.csv", Rows(300'000, 0).text);  // several MB
  const std::string bad = folder.write("bad.csv", Rows(300'000, 20'000).text);
  const auto with = [](int threads) {
    CsvOptions options;
    options.check.threads = threads;
    return options;
  };
  const auto one = open_csv(good, with(1));
  const Batch whole = read_all(*one);
  for (std::int64_t i = 0; i < one->size(); i += 997) {
    EXPECT_EQ(whole.dense[static_cast<std::size_t>(2 * i + 1)], static_cast<float>(2 * i));
    EXPECT_EQ(whole.labels[static_cast<std::size_t>(i)], i % 3 == 0 ? 0 : 1);
  }
  const std::string message = message_of([&] { open_csv(bad, with(1)); });
  EXPECT_NE(message.find("15 errors"), std::string::npos) << message;
  for (const int threads : {2, 3, 8}) {
    const Batch other = read_all(*open_csv(good, with(threads)));
    EXPECT_EQ(other.dense, whole.dense) << threads;
    EXPECT_EQ(other.labels, whole.labels) << threads;
    EXPECT_EQ(message_of([&] { open_csv(bad, with(threads)); }), message) << threads;
  }
}

// What ranks do: each gives its text and gets those of all.
class Exchange {
 public:
  explicit Exchange(int parts) : texts_(static_cast<std::size_t>(parts)) {}
  std::vector<std::string> operator()(int part, const std::string& text) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<std::size_t>(part)] = text;
    ++arrived_;
    all_.notify_all();
    all_.wait(lock, [&] { return arrived_ == texts_.size(); });
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_;
  std::vector<std::string> texts_;
  std::size_t arrived_ = 0;
};

TEST(Table, IsCheckedByRanksTogether) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", Rows(3000, 100).text);
  const std::string alone = message_of([&] { open_csv(path); });
  for (const int parts : {2, 3, 7}) {
    Exchange exchange(parts);
    std::vector<std::string> messages(static_cast<std::size_t>(parts));
    std::vector<std::thread> ranks;
    for (int part = 0; part < parts; ++part) {
      ranks.emplace_back([&, part] {
        CsvOptions options;
        options.check.part = part;
        options.check.parts = parts;
        options.check.exchange = [&, part](const std::string& text) {
          return exchange(part, text);
        };
        messages[static_cast<std::size_t>(part)] = message_of([&] { open_csv(path, options); });
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    for (const std::string& message : messages) {
      EXPECT_EQ(message, alone) << parts;
    }
  }
}

TEST(Table, IsNotCheckedAgainUntilItChanges) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,kind\n1,a\n2,b\n3,a\n4,b\n");
  EXPECT_TRUE(open_csv(path)->preprocessing().checked.empty()) << "it has just been written";
  const std::string other = folder.write("b.csv", "x,kind\n1,a\n?,b\n3,a\n4,b\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));
  const std::vector<std::string> checked = open_csv(path)->preprocessing().checked;
  ASSERT_EQ(checked.size(), 1U);
  CsvOptions options;
  options.check.known = checked;
  EXPECT_EQ(open_csv(path, options)->size(), 4);
  // What the other one would be known by: it is believed, and its cell is found when it is read.
  const std::string mine = detail::file_identity(path);
  ASSERT_TRUE(checked[0].starts_with(mine));
  options.check.known = {detail::file_identity(other) + checked[0].substr(mine.size())};
  const auto believed = open_csv(other, options);
  EXPECT_THROW(read_all(*believed), DataError);
  // Read in another way it is not.
  CsvOptions otherwise = options;
  otherwise.header = CsvOptions::Header::kYes;
  EXPECT_THROW(open_csv(other, otherwise), DataError);
  // Nor once it was written to, with the size and the time of modification it had.
  struct stat before {};
  ASSERT_EQ(stat(other.c_str(), &before), 0);
  folder.write("b.csv", "x,kind\n1,a\n2,b\n!,a\n4,b\n");
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, other.c_str(), times, 0), 0);
  expect_data_error([&] { open_csv(other, options); }, other, 15, {"\"!\""});
}

// float32 has 24 bits: at 1.7e9, which has 31, it holds every 128th number.
TEST(Table, WarnsOfNumbersThatFloatDoesNotTellApart) {
  const DataFolder folder;
  const auto warned = [&](const std::function<std::string(std::int64_t)>& cells) {
    std::string text = "t,u,kind\n";
    for (std::int64_t i = 0; i < 40; ++i) {
      text += cells(i) + (i % 2 == 0 ? ",a\n" : ",b\n");
    }
    const std::string path = folder.write("a.csv", text);
    ::testing::internal::CaptureStderr();
    open_csv(path);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string text = warned([](std::int64_t i) {
    return std::to_string(1'700'000'000 + i) + "," + std::to_string(1'700'000'000 + i * 1'000'000);
  });
  // The first one, 13281250 * 128, is held.
  for (const char* part : {"a.csv:3:1: column \"t\" has 39 numbers",
                           "between 1700000000 and 1700000039",
                           "only every 128th whole number."}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(text.find("column \"u\""), std::string::npos) << "far from each other: " << text;
  // Held as they are, or all the same.
  EXPECT_EQ(warned([](std::int64_t i) { return std::to_string(16'777'216 + 2 * i) + ",16777217"; }),
            "");
}

// --- categories

TEST(Table, MakesAFeatureOfEachCategory) {
  const DataFolder folder;
  const std::string text = "size,colour,kind\n1,red,a\n2,blue,b\n3,red,a\n4,green,b\n";
  const std::string path = folder.write("a.csv", text);
  for (const char* column : {"colour", "1"}) {
    CsvOptions options;
    options.header = CsvOptions::Header::kYes;
    options.categorical = {column};
    const auto data = open_csv(path, options);
    EXPECT_EQ(data->shape().dense, (std::vector<std::int64_t>{4}));
    EXPECT_EQ(read_all(*data).dense,  // size, blue, green, red
              (std::vector<float>{1, 0, 0, 1, 2, 1, 0, 0, 3, 0, 0, 1, 4, 0, 1, 0}));
  }
  // Numbers that are names, in the order of numbers; the target in the first column.
  const std::string numbers = folder.write("b.csv", "a,10,1\nb,9,2\na,+9.0,3\nb,10,4\n");
  const auto data = open_csv(numbers, {.target = "0", .categorical = {"1"}});
  EXPECT_EQ(read_all(*data).dense, (std::vector<float>{0, 1, 1, 1, 0, 2, 1, 0, 3, 0, 1, 4}));
  EXPECT_THROW(open_csv(path, {.categorical = {"shape"}}), ConfigError);
  EXPECT_THROW(open_csv(path, {.categorical = {"kind"}}), ConfigError);
}

TEST(Table, WithCategoriesKnowsItsHeader) {
  const DataFolder folder;
  // A word in the column of numbers is a name; one in a column of words tells nothing.
  EXPECT_EQ(open_csv(folder.write("a.csv", "red,1,a\nblue,2,b\nred,3,b\nblue,4,a\n"),
                     {.categorical = {"0"}})
                ->size(),
            4);
  EXPECT_EQ(
      open_csv(folder.write("b.csv", "c,x,k\nred,1,a\nblue,2,b\nred,3,a\n"), {.categorical = {"0"}})
          ->size(),
      3);
  const std::string words = folder.write("c.csv", "red,a\nblue,b\nred,b\nblue,a\n");
  expect_data_error(
      [&] { open_csv(words, {.categorical = {"0"}}); }, words, 0, {"--header yes", "--header no"});
  EXPECT_EQ(open_csv(words, {.header = CsvOptions::Header::kNo, .categorical = {"0"}})->size(), 4);
}

// Rows of so many cells, each what `cell(row, column)` makes of it.
std::string rows_of(int rows, int columns, const std::function<std::string(int, int)>& cell) {
  std::string text;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      text += cell(row, column) + (column + 1 < columns ? "," : "\n");
    }
  }
  return text;
}

// Names that are numbers are not taken for a sample in silence.
TEST(Table, AsksWhetherWholeNumbersAreNames) {
  const DataFolder folder;
  const auto fractions = [](int row, int column) {
    return std::to_string(0.125 * ((row * 7 + column * 5) % 31) - 2);
  };
  const auto small = [](int row, int column) { return std::to_string((row * 7 + column) % 10); };
  const auto years = [&](int row, int column) {
    return column < 3 ? fractions(row, column) : std::to_string(2019 + row % 4);
  };
  const std::vector<std::pair<std::string, CsvOptions>> unclear = {
      {"2017,2018,2019,2020\n" + rows_of(40, 4, fractions), {.regression = true}},
      {"0,1,2,3\n" + rows_of(40, 4, fractions), {.regression = true}},
      {",0,1,2\n" + rows_of(40, 4, fractions),
       {.regression = true, .missing = CsvOptions::Missing::kZero}},
      {"2017,2018,2019,2020\n" + rows_of(40, 4, small), {.regression = true}},
      {"7,8,9,2021\n" + rows_of(40, 4, years), {}},
      {"7,8,9,2021\n" + rows_of(40, 4, years), {.target = "3"}},
  };
  for (const auto& [text, options] : unclear) {
    const std::string path = folder.write("a.csv", text);
    expect_data_error([&, how = options] { open_csv(path, how); },
                      path,
                      0,
                      {"may be either", "whole numbers", "--header yes", "--header no"});
    CsvOptions told = options;
    told.header = CsvOptions::Header::kYes;
    EXPECT_EQ(open_csv(path, told)->size(), 40) << text;
    told.header = CsvOptions::Header::kNo;
    EXPECT_EQ(open_csv(path, told)->size(), 41) << text;
  }
  // What is more likely a sample is one.
  const auto mixed = [&](int row, int column) {
    return row % 8 == 3 ? small(row, column) : fractions(row, column);
  };
  const std::vector<std::pair<std::string, CsvOptions>> samples = {
      {"3,1,2,7\n" + rows_of(40, 4, small), {.regression = true}},      // as all others
      {"13,14,15,12\n" + rows_of(40, 4, small), {.regression = true}},  // not far away
      {"2017,2018,5,2020\n" + rows_of(40, 4, small), {.regression = true}},
      {"3,1,2,7\n" + rows_of(40, 4, mixed), {.regression = true}},       // others are whole, too
      {"3,1,1,7\n" + rows_of(40, 4, fractions), {.regression = true}},   // names differ
      {"3,1,-2,7\n" + rows_of(40, 4, fractions), {.regression = true}},  // and have no signs
      {"3,1.5,2,7\n" + rows_of(40, 4, fractions), {.regression = true}},
      {"3,1,2,7\n" + rows_of(9, 4, fractions), {.regression = true}},  // nine say little
      {"7,8,9,b\n7,8,9,a\n" + rows_of(40,
                                      4,
                                      [&](int row, int column) {
                                        return column < 3     ? fractions(row, column)
                                               : row % 2 == 0 ? std::string("a")
                                                              : std::string("b");
                                      }),
       {}},
  };
  for (const auto& [text, options] : samples) {
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_EQ(open_csv(folder.write("b.csv", text), options)->size(), lines) << text;
  }
}

// --- missing values

TEST(Table, TreatsMissingValuesAsItIsTold) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv",
                                        "x,colour,kind\n"
                                        "1,red,a\n"
                                        ",blue,b\n"
                                        "3,na,a\n"
                                        "?,red,c\n"
                                        "5,blue,b\n");
  CsvOptions options{.categorical = {"colour"}};
  const std::string refused = message_of([&] { open_csv(path, options); });
  for (const char* part : {"3 errors", ":3:1:", ":4:3: expected a category", ":5:1:"}) {
    EXPECT_NE(refused.find(part), std::string::npos) << refused;
  }
  options.missing = Missing::kZero;  // x, blue, red
  EXPECT_EQ(read_all(*open_csv(path, options)).dense,
            (std::vector<float>{1, 0, 1, 0, 1, 0, 3, 0, 0, 0, 0, 1, 5, 1, 0}));
  options.missing = Missing::kNan;
  const Batch kept = read_all(*open_csv(path, options));
  EXPECT_TRUE(std::isnan(kept.dense[3]) && std::isnan(kept.dense[9]));
  EXPECT_EQ(kept.dense[6], 3);
  options.missing = Missing::kDrop;
  const auto dropped = open_csv(path, options);
  EXPECT_EQ(read_all(*dropped).dense, (std::vector<float>{1, 0, 1, 5, 1, 0}));
  EXPECT_EQ(dropped->class_names(), (std::vector<std::string>{"a", "b"}))
      << "a class of dropped rows alone is none";
  // What is missing is a setting.
  options.missing = Missing::kZero;
  options.missing_values = {"na"};
  const std::string left = message_of([&] { open_csv(path, options); });
  EXPECT_NE(left.find("found \"?\""), std::string::npos) << left;
}

TEST(Table, NeedsATargetInEveryRow) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,y\n1,2\n2,\n3,NA\n4,5\n");
  for (const Missing missing : {Missing::kRefuse, Missing::kZero, Missing::kNan}) {
    const std::string message =
        message_of([&] { open_csv(path, {.regression = true, .missing = missing}); });
    for (const char* part : {"2 errors", ":3:3:", ":4:3:", "--missing drop"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  const auto data = open_csv(path, {.regression = true, .missing = Missing::kDrop});
  EXPECT_EQ(read_all(*data).targets, (std::vector<float>{2, 5}));
  // A class may be called what stands for nothing elsewhere.
  const auto regions = open_csv(folder.write("b.csv", "x,region\n1,NA\n2,EU\n3,NA\n"));
  EXPECT_EQ(regions->class_names(), (std::vector<std::string>{"EU", "NA"}));
}

TEST(Table, FillsWithTheMeansOfWhatIsThere) {
  const DataFolder folder;
  std::string text = "x,y,kind\n";
  double sum = 0;
  double there = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool missing = i % 7 < 3;  // the first, too
    text += (missing ? "" : std::to_string(1000 + i)) + "," + std::to_string(i) + ",a\n";
    sum += missing ? 0 : 1000 + i;
    there += missing ? 0 : 1;
  }
  CsvOptions options;
  options.missing = Missing::kNan;
  const std::shared_ptr<Dataset> data = open_csv(folder.write("a.csv", text), options);
  std::vector<double> means;
  for (const std::int64_t chunks : {1, 5, 64}) {
    std::vector<FeatureSums> sums;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      sums.push_back(feature_sums(*data, chunk, chunks));
    }
    means = statistics_of(*data, sums).mean;
    EXPECT_NEAR(means[0], sum / there, 1e-9);
    EXPECT_NEAR(means[1], 499.5, 1e-9);
  }
  const auto filled = imputed(data, means);
  const Batch batch = read_all(*filled);
  for (int i = 0; i < 1000; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    EXPECT_FLOAT_EQ(batch.dense[at],
                    i % 7 < 3 ? static_cast<float>(sum / there) : static_cast<float>(1000 + i));
  }
  EXPECT_EQ(filled->preprocessing().fill, means);
  EXPECT_EQ(filled->fingerprint(0), data->fingerprint(0));
}

// A table as pairs: what is not zero, of numbers, of categories and of what was filled in.
TEST(Table, WithoutItsZerosIsSparse) {
  const DataFolder folder;
  std::string text = "x,colour,y,kind\n";
  Batch expected;
  expected.offsets = {0};
  for (int i = 0; i < 60; ++i) {
    const int x = i % 4 - 1;
    const bool missing = i % 5 == 0;
    text += std::to_string(x) + (i % 3 == 0 ? ",blue," : ",red,") +
            (missing      ? ""
             : i % 2 == 0 ? "0"
                          : "-0.0") +
            (i % 2 == 0 ? ",a\n" : ",b\n");
    const std::pair<std::int64_t, float> features[] = {
        {0, static_cast<float>(x)}, {i % 3 == 0 ? 1 : 2, 1.0F}, {3, missing ? 2.5F : 0.0F}};
    for (const auto& [index, value] : features) {
      if (value != 0) {
        expected.indices.push_back(index);
        expected.values.push_back(value);
      }
    }
    expected.offsets.push_back(static_cast<std::int64_t>(expected.indices.size()));
    expected.labels.push_back(i % 2);
  }
  CsvOptions options;
  options.missing = Missing::kNan;
  options.categorical = {"colour"};
  const std::string file = folder.write("a.csv", text);
  const auto data = sparse_rows(imputed(open_csv(file, options), {9, 9, 9, 2.5}));
  const Preprocessing training = data->preprocessing();
  for (const auto& rows :
       {std::shared_ptr<const Dataset>(data), open_new_data(training, file).data}) {
    EXPECT_EQ(rows->shape().kind, SampleKind::kSparse);
    EXPECT_EQ(rows->shape().features, 4);
    EXPECT_EQ(rows->shape().classes, 2);
    const Batch batch = read_all(*rows);
    EXPECT_EQ(batch.offsets, expected.offsets);
    EXPECT_EQ(batch.indices, expected.indices);
    EXPECT_EQ(batch.values, expected.values);
    EXPECT_EQ(batch.labels, expected.labels);
    EXPECT_TRUE(batch.dense.empty());
  }
  EXPECT_THROW(sparse_rows(data), ConfigError);
}

// --- other files

class NewFile : public ::testing::Test {
 protected:
  NewFile() {
    CsvOptions options;
    options.categorical = {"colour"};
    options.target = "kind";
    training_ =
        open_csv(folder_.write("train.csv", "size,kind,colour\n1,b,red\n2,a,blue\n3,b,red\n"),
                 options)
            ->preprocessing();
  }
  NewData open(const std::string& text, const NewDataOptions& options = {}) const {
    return open_new_data(training_, folder_.write("new.csv", text), options);
  }
  std::string refusal(const std::string& text, const NewDataOptions& options = {}) const {
    return message_of([&] { open(text, options); });
  }
  void expect_refusal(const std::string& text,
                      const std::vector<std::string>& parts,
                      const NewDataOptions& options = {}) const {
    const std::string message = refusal(text, options);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }

  DataFolder folder_;
  Preprocessing training_;
};

TEST_F(NewFile, MayHaveTargetsAndNamesOrNot) {
  const std::vector<float> features = {5, 1, 0, 6, 0, 1};  // size, blue, red
  for (const bool names : {true, false}) {
    const std::string with = std::string(names ? "size,kind,colour\n" : "") + "5,b,blue\n6,a,red\n";
    const NewData whole = open(with);
    EXPECT_TRUE(whole.has_targets);
    EXPECT_EQ(read_all(*whole.data).dense, features);
    EXPECT_EQ(read_all(*whole.data).labels, (std::vector<std::int64_t>{1, 0}));
    const std::string without = std::string(names ? "size,colour\n" : "") + "5,blue\n6,red\n";
    const NewData bare = open(without);
    EXPECT_FALSE(bare.has_targets);
    EXPECT_EQ(read_all(*bare.data).dense, features);
    ASSERT_EQ(bare.notes.size(), 1U);
    EXPECT_NE(bare.notes[0].find("the target \"kind\""), std::string::npos) << bare.notes[0];
    const NewData ignored =
        open(std::string(names ? "size,kind,colour\n" : "") + "5,,blue\n6,new,red\n",
             {.targets = Targets::kNo});
    EXPECT_FALSE(ignored.has_targets);
    EXPECT_EQ(read_all(*ignored.data).dense, features);
    EXPECT_THROW(open(without, {.targets = Targets::kYes}), DataError);
  }
}

TEST_F(NewFile, ThatIsAnotherOneIsRefused) {
  expect_refusal("size\n5\n", {"3 columns", "found 1"});
  expect_refusal("size,kind,colour,more\n5,b,blue,1\n", {"3 columns", "found 4"});
  expect_refusal("colour\nred\n", {"3 columns", "found 1", "\"size\" is missing"});
  expect_refusal("size\n5\n", {"\"kind\" and \"colour\" are missing"}, {.targets = Targets::kYes});
  EXPECT_EQ(refusal("5,b,blue,1\n").find("missing"), std::string::npos);
  // The target is there, and another column is missing.
  expect_refusal("kind,colour\nb,blue\n", {"\"size\"", "\"kind\"", "only the target"});
  expect_refusal("colour,kind,size\nred,b,1\n", {"other names", "\"size\"", "in another place"});
  expect_refusal("size,kind,hue\n1,b,red\n", {"other names", "\"colour\"", "\"hue\""});
  expect_refusal("size,colour\n5,blue\n6,violet\n",
                 {"line 3, column 3", "\"blue\", \"red\"", "\"violet\"", "--unseen ignore"});
  expect_refusal("size,kind,colour\n5,new,blue\n", {"\"a\", \"b\"", "\"new\""});
  expect_refusal("size,colour\n,blue\n", {"empty cell", "--missing"});
}

TEST_F(NewFile, IsTreatedAsTheTrainingFileWas) {
  training_.unseen = Unseen::kIgnore;
  training_.missing = Missing::kNan;
  training_.fill = {2, 0.5, 0.5};
  training_.normalisation = {{2, 0, 0.5}, {4, 1, 0.25}};
  const NewData opened = open("size,colour\n10,violet\n,red\n");
  EXPECT_EQ(read_all(*opened.data).dense, (std::vector<float>{2, 0, -2, 0, 0, 2}));
  training_.missing = Missing::kDrop;
  training_.fill.clear();
  const NewData fewer = open("size,colour\n?,red\n10,red\n6,\n2,blue\n");
  EXPECT_EQ(fewer.dropped, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(fewer.data->size(), 2);
}

TEST(NewTable, KnowsNamesThatAreNumbers) {
  const DataFolder folder;
  const Preprocessing training =
      open_csv(folder.write("train.csv", "0,1,2,label\n5,6,7,a\n8,9,9,b\n5,6,8,a\n"),
               {.header = CsvOptions::Header::kYes})
          ->preprocessing();
  const auto opened = [&](const std::string& text, const NewDataOptions& how = {}) {
    return open_new_data(training, folder.write("new.csv", text), how).data;
  };
  EXPECT_EQ(opened("0,1,2\n3,4,5\n")->size(), 1);
  EXPECT_EQ(opened("3,4,5\n0,1,2\n")->size(), 2);
  EXPECT_EQ(opened("0,0,1\n3,4,5\n")->size(), 2);  // no names: one of them twice
  for (const std::string text : {"2,1,0\n3,4,5\n", "2,1,0,label\n3,4,5,a\n"}) {
    const std::string message = message_of([&] { opened(text); });
    for (const char* part : {"other names", "expected \"0\"", "found \"2\"", "--header no"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
    }
  }
  const auto samples = opened("2,1,0\n3,4,5\n", {.header = CsvOptions::Header::kNo});
  EXPECT_EQ(read_all(*samples).dense, (std::vector<float>{2, 1, 0, 3, 4, 5}));
}

TEST(NewTable, DoesNotTakeARowOfMissingValuesForNames) {
  const DataFolder folder;
  CsvOptions options{.missing = Missing::kZero};
  const auto data = open_csv(folder.write("train.csv", "NA,?,a\n1,2,b\n3,4,a\n4,5,b\n"), options);
  EXPECT_EQ(data->size(), 4);
  const auto opened = [&](const std::string& text) {
    return read_all(*open_new_data(data->preprocessing(), folder.write("new.csv", text)).data)
        .dense;
  };
  EXPECT_EQ(opened("NA,?\n1,2\n"), (std::vector<float>{0, 0, 1, 2}));
  EXPECT_EQ(opened(",\n1,2\n"), (std::vector<float>{0, 0, 1, 2}));
  EXPECT_EQ(opened("x,?\n1,2\n"), (std::vector<float>{1, 2}));
  // Words of one's own.
  options.missing_values = {"absent"};
  EXPECT_EQ(open_csv(folder.write("own.csv", "absent,2,a\n1,2,b\n3,4,a\n4,5,b\n"), options)->size(),
            4);
}

TEST(NewRows, OfSparseFeaturesMayLackTheirLabels) {
  const DataFolder folder;
  const Preprocessing training =
      open_libsvm(folder.write("train.svm", "-1 1:1 5:1\n3 2:1\n"))->preprocessing();
  const NewData with = open_new_data(training, folder.write("a.svm", "3 1:2\n-1 5:1\n"));
  EXPECT_TRUE(with.has_targets);
  EXPECT_EQ(read_all(*with.data).labels, (std::vector<std::int64_t>{1, 0}));
  const NewData without = open_new_data(training, folder.write("b.svm", "1:2\n# none\n2:3 5:1\n"));
  EXPECT_FALSE(without.has_targets);
  EXPECT_EQ(read_all(*without.data).indices, (std::vector<std::int64_t>{0, 1, 4}));
  EXPECT_EQ(without.data->shape(), with.data->shape());
  // Labels that are not looked at may be any, on some lines or on all.
  const NewData ignored = open_new_data(
      training, folder.write("d.svm", "7 1:2\nword 2:3 5:1\n1:4\n"), {.targets = Targets::kNo});
  EXPECT_FALSE(ignored.has_targets);
  EXPECT_TRUE(ignored.notes.empty()) << "it has labels";
  EXPECT_EQ(read_all(*ignored.data).indices, (std::vector<std::int64_t>{0, 1, 4, 0}));
  const std::string wrong = folder.write("e.svm", "1 2 1:2\n");
  expect_data_error([&] { open_new_data(training, wrong, {.targets = Targets::kNo}); },
                    wrong,
                    2,
                    {"index:value", "\"2\""});
  const std::string beyond = folder.write("c.svm", "6:1\n");
  expect_data_error([&] { open_new_data(training, beyond); }, beyond, 0, {"at most 5"});
}

TEST(NewImages, MayLackTheirLabels) {
  const DataFolder folder;
  Preprocessing training;
  training.format = "idx";
  training.shape.dense = {1, 3, 5};
  training.shape.classes = 4;
  const std::string images = folder.write("new-images-idx3-ubyte", testing::idx_images(4, 3, 5));
  EXPECT_FALSE(open_new_data(training, images).has_targets);
  folder.write("new-labels-idx1-ubyte", testing::idx_labels({3, 0, 1, 2}));
  const NewData with = open_new_data(training, images);
  EXPECT_TRUE(with.has_targets);
  EXPECT_EQ(with.data->label(0), 3);
  EXPECT_FALSE(open_new_data(training, images, {.targets = Targets::kNo}).has_targets);
  const std::string other = folder.write("other", testing::idx_images(4, 5, 3));
  expect_data_error([&] { open_new_data(training, other); }, other, 8, {"3x5", "5x3"});
}

}  // namespace
}  // namespace trireme
