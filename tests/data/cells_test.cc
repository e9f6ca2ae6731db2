// What single cells of a CSV file say: numbers in any spelling, of any size, and what they become.

#include <cmath>
#include <limits>
#include <numeric>

#include "data/data_files.h"
#include "trireme/data/readers.h"

namespace trireme {
namespace {

using testing::DataFolder;
using testing::expect_data_error;
using Missing = CsvOptions::Missing;
using Rounded = CsvOptions::Rounded;

Batch read_all(const Dataset& data) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(data.size()));
  std::iota(samples.begin(), samples.end(), 0);
  Batch batch;
  data.read(samples, batch);
  return batch;
}

// --- missing values that are numbers

TEST(MissingNumbers, AreMissingInEverySpelling) {
  const DataFolder folder;
  const std::vector<std::string> same = {"-999", "-999.0", "-999.00", "-9.99e2", "-0.999E+3"};
  const std::vector<std::string> other = {"-999.5", "999", "-99", "-9990"};
  std::string text = "x,kind\n";
  for (const auto& cells : {same, other}) {
    for (const std::string& cell : cells) {
      text += cell + ",a\n";
    }
  }
  const std::string path = folder.write("a.csv", text);
  for (const char* const word : {"-999", "-999.00", "-9.99e+02"}) {
    CsvOptions options{.missing = Missing::kNan, .missing_values = {"NA", word}};
    const std::vector<float> found = read_all(*open_csv(path, options)).dense;
    ASSERT_EQ(found.size(), same.size() + other.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i < same.size()) {
        EXPECT_TRUE(std::isnan(found[i])) << same[i] << " for " << word;
      } else {
        EXPECT_EQ(found[i], std::stof(other[i - same.size()])) << word;
      }
    }
    options.missing = Missing::kDrop;
    EXPECT_EQ(open_csv(path, options)->size(), std::ssize(other)) << word;
    options.missing = Missing::kRefuse;
    EXPECT_THROW(open_csv(path, options), DataError) << word;
  }
  // Nothing is said of numbers by words.
  EXPECT_EQ(read_all(*open_csv(path, {.missing = Missing::kNan})).dense[1], -999);
}

TEST(MissingNumbers, OfATargetAreDroppedInEverySpelling) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,y\n1,2\n2,-9\n3,-9.0\n4,5\n");
  const auto data =
      open_csv(path, {.regression = true, .missing = Missing::kDrop, .missing_values = {"-9"}});
  EXPECT_EQ(read_all(*data).targets, (std::vector<float>{2, 5}));
}

// Names are told apart by their letters, as those of the list are.
TEST(MissingNumbers, AreWordsAmongCategoriesAndClasses) {
  const DataFolder folder;
  const std::string path = folder.write("a.csv", "x,code,kind\n1,7,7\n2,07,7\n3,8,9\n4,8,9\n");
  const auto data = open_csv(path,
                             {.header = CsvOptions::Header::kYes,
                              .categorical = {"code"},
                              .missing = Missing::kZero,
                              .missing_values = {"7"}});
  // x, 07, 8
  EXPECT_EQ(read_all(*data).dense, (std::vector<float>{1, 0, 0, 2, 1, 0, 3, 0, 1, 4, 0, 1}));
  EXPECT_EQ(data->class_names(), (std::vector<std::string>{"7", "9"}));
}

// --- very small and very large numbers

TEST(Numbers, TooSmallForADoubleAreZero) {
  const DataFolder folder;
  const std::vector<std::string> small = {
      "1e-400", "-1e-400", "+2.5E-999999999999", "0." + std::string(400, '0') + "1", "5e-324"};
  std::string text = "x,kind\n";
  for (const std::string& cell : small) {
    text += cell + ",a\n";
  }
  const auto data = open_csv(folder.write("a.csv", text));
  EXPECT_EQ(read_all(*data).dense, std::vector<float>(small.size(), 0));
  EXPECT_EQ(read_all(*open_libsvm(folder.write("a.svm", "1 1:1e-400 2:3\n2 1:1 2:1\n"))).values[0],
            0);
  // As names they are no zeros, and remain as different as they are written.
  EXPECT_EQ(
      open_csv(folder.write("b.csv", "x,kind\n1,0\n2,1e-400\n3,1e-500\n"))->class_names().size(),
      3U);
}

TEST(Numbers, TooLargeForADoubleAreRefusedByName) {
  const DataFolder folder;
  const std::vector<std::string> large = {
      "1e400", "-1e400", "1e99999999999999999999", "1" + std::string(400, '0')};
  for (const std::string& cell : large) {
    const std::string path = folder.write("a.csv", "x,kind\n" + cell + ",a\n");
    expect_data_error([&] { open_csv(path); },
                      path,
                      7,
                      {"expected a finite number in column \"x\"", cell.substr(0, 20)});
  }
}

// --- zero bytes

TEST(ZeroBytes, AreNoPartOfACell) {
  const DataFolder folder;
  using std::string_literals::operator""s;
  const auto refuse = [&](const std::string& text, const CsvOptions& options, const char* line) {
    const std::string path = folder.write("a.csv", text);
    const auto place = static_cast<std::int64_t>(text.find('\0'));
    expect_data_error(
        [&] { open_csv(path, options); }, path, place, {"expected text", "zero byte", line});
  };
  refuse("x,kind\n1,a\n2,a\0\n3,b\n"s, {}, "line 3, column 4");           // a class
  refuse("x,kind\n1,a\n2\0,a\n3,b\n"s, {}, "line 3, column 2");           // a number
  refuse("x,kind\n1,a\n2,\"a\0\"\n3,b\n"s, {}, "line 3, column 5");       // in quotes
  refuse("x\0,kind\n1,a\n2,a\n3,b\n"s, {}, "line 1, column 2");           // a name
  refuse("x,kind\n1,a\n,a\0\n3,b\n"s, {.missing = Missing::kDrop}, "3");  // a row to be dropped
  refuse("c,x,k\nr,1,a\nr\0,2,b\nr,3,a\n"s, {.categorical = {"c"}}, "line 3, column 2");
}

// --- what a run rounds its samples to

class RoundedColumns : public ::testing::Test {
 protected:
  // What is said of a column whose i-th number is `cell(i)`, of 40.
  std::string warning(Rounded type, const std::function<std::string(int)>& cell) const {
    std::string text = "t,kind\n";
    for (int i = 0; i < 40; ++i) {
      text += cell(i) + (i % 2 == 0 ? ",a\n" : ",b\n");
    }
    const std::string path = folder_.write("a.csv", text);
    ::testing::internal::CaptureStderr();
    open_csv(path, {.rounded = type});
    return ::testing::internal::GetCapturedStderr();
  }
  static void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }

  DataFolder folder_;
};

// bfloat16 has 8 bits: of 11 bits, as years have, it keeps those above the last three.
TEST_F(RoundedColumns, OfYearsAreNotToldApartByBFloat16) {
  const auto year = [](int i) { return std::to_string(2000 + i % 16); };
  EXPECT_EQ(warning(Rounded::kFloat32, year), "");
  EXPECT_EQ(warning(Rounded::kFloat16, year), "") << "2^11 is 2048";
  // All but 2000 and 2008: of 40 rows 3 + 3 have the first, and 2 + 3 the second.
  int lost = 0;
  for (int i = 0; i < 40; ++i) {
    lost += (i % 16) % 8 == 0 ? 0 : 1;
  }
  const std::string text = warning(Rounded::kBFloat16, year);
  expect_parts(text,
               {"a.csv:3:1: column \"t\" has " + std::to_string(lost) + " numbers",
                "bfloat16, in which this run computes",
                "between 2000 and 2015",
                "only every 8th whole number.",
                "--normalise standard"});
  EXPECT_EQ(text.find("too late"), std::string::npos) << text;
}

TEST_F(RoundedColumns, HaveStepsOfAnySize) {
  const auto from = [](double begin, double step) {
    return [=](int i) { return std::to_string(begin + step * i); };
  };
  // 2^8 to 2^9 in steps of 2, 2^12 to 2^13 in steps of 32, 2^7 to 2^8 in steps of 1; 1/256 below 1.
  expect_parts(warning(Rounded::kBFloat16, from(300, 1)), {"only every 2nd whole number."});
  expect_parts(warning(Rounded::kBFloat16, from(5000, 1)), {"only every 32nd whole number."});
  expect_parts(warning(Rounded::kBFloat16, from(200, 0.1)), {"only whole numbers."});
  expect_parts(warning(Rounded::kBFloat16, from(0.99, 0.0002)),
               {"only numbers that are 0.00390625 apart."});
  expect_parts(warning(Rounded::kFloat16, from(2050, 1)), {"only every 2nd whole number."});
  expect_parts(warning(Rounded::kFloat32, from(16777216, 1)), {"only every 2nd whole number."});
}

// A column that fills most of its range loses what every number in the type loses.
TEST_F(RoundedColumns, ThatReachFarAreFine) {
  for (const Rounded type : {Rounded::kBFloat16, Rounded::kFloat16}) {
    for (const double largest : {1e-2, 1.0, 7.3, 300.0, 60000.0}) {
      EXPECT_EQ(warning(type, [&](int i) { return std::to_string(largest * i / 39); }), "");
      EXPECT_EQ(warning(type, [&](int i) { return std::to_string(largest * (i - 20) / 20); }), "");
    }
    EXPECT_EQ(warning(type, [](int) { return std::string("2001"); }), "") << "all the same";
    EXPECT_EQ(warning(type, [](int i) { return std::to_string(1024 + 8 * i); }), "") << "all held";
  }
}

TEST_F(RoundedColumns, OverflowInFloat16) {
  const auto cell = [](int i) { return std::to_string(65500 + i * 1000); };
  // 65519 is the last number that is rounded to 65504.
  const std::string text = warning(Rounded::kFloat16, cell);
  expect_parts(text,
               {"a.csv:3:1: column \"t\" has 39 numbers",
                "float16, in which this run computes, makes infinite",
                "65504",
                "--normalise standard"});
  EXPECT_EQ(warning(Rounded::kFloat16, [](int i) { return std::to_string(i == 0 ? 65519 : i); }),
            "");
  expect_parts(warning(Rounded::kFloat16, [](int i) { return std::to_string(i == 0 ? 65520 : i); }),
               {"has 1 number that float16", "infinite"});
}

// What float32 has lost no normalisation brings back; it is said once.
TEST_F(RoundedColumns, LostInFloat32AlreadyAreNamedForThat) {
  const std::string text =
      warning(Rounded::kBFloat16, [](int i) { return std::to_string(1'700'000'000 + i); });
  expect_parts(text, {"float32, the type of samples", "every 128th", "too late"});
  EXPECT_EQ(text.find("bfloat16"), std::string::npos) << text;
}

TEST_F(RoundedColumns, DoNotIncludeTheTarget) {
  const std::string path = folder_.write("a.csv", "x,y\n1,2001\n2,2002\n3,2003\n");
  ::testing::internal::CaptureStderr();
  open_csv(path, {.regression = true, .rounded = Rounded::kBFloat16});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace trireme
