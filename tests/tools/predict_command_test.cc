// `trireme predict`: runs of `trireme train` on small data, and files to predict.

#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/train_runs.h"
#include "trireme/checkpoint/safetensors.h"

namespace trireme::predict_command_test {
namespace {

namespace fs = std::filesystem;
using testing::Finished;
using testing::Json;
using testing::read_file;
using testing::read_json;
using testing::run_program;
using testing::Words;

struct Person {
  double age;  // NaN: missing
  std::string city;
  double income;
  std::string kind;
};

// People with two kinds that depend on all columns, and holes.
std::vector<Person> people(int count, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<Person> all;
  for (int i = 0; i < count; ++i) {
    Person person;
    person.age = random.below(6) == 0 ? std::nan("") : 20 + static_cast<double>(random.below(50));
    person.city = std::vector<std::string>{"Rome", "Oslo", "New York, NY"}[random.below(3)];
    person.income = 10000 + 37 * static_cast<double>(random.below(1000));
    const double age = std::isnan(person.age) ? 45 : person.age;
    person.kind = age + (person.city == "Oslo" ? 20 : 0) + person.income / 2000 > 70 ? "yes" : "no";
    all.push_back(person);
  }
  return all;
}

std::string text_of(double value) {
  return std::isnan(value) ? "NA" : std::to_string(static_cast<int>(value));
}

std::string csv_of(const std::vector<Person>& all, bool kinds = true) {
  std::string text = kinds ? "age,city,income,kind\n" : "age,city,income\n";
  for (const Person& person : all) {
    text += text_of(person.age) + ",\"" + person.city + "\"," + text_of(person.income) +
            (kinds ? "," + person.kind : "") + "\n";
  }
  return text;
}

// The cells of a CSV file without quotes.
std::vector<Words> rows_of(const std::string& text) {
  std::vector<Words> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) {
      rows.back().push_back(cell);
    }
  }
  return rows;
}

class PredictCommand : public testing::TrainRuns {
 protected:
  Finished predict(const std::string& run, const std::string& options) const {
    Words words = testing::words(options);
    words.insert(words.begin(), {trireme_binary(), "predict", path(run)});
    return run_program(words);
  }
  std::vector<Words> predicted(const std::string& run, const std::string& options) const {
    const Finished finished = predict(run, options);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return rows_of(finished.out);
  }
  void expect_refusal(const std::string& run,
                      const std::string& options,
                      const Words& parts) const {
    const Finished finished = predict(run, options);
    EXPECT_EQ(finished.code, 2) << options << finished.err;
    EXPECT_EQ(finished.out, "") << options;
    testing::expect_parts(finished.err, parts);
  }
  std::string people_settings() const {
    return "--model mlp --hidden 5 --epochs 20 --batch 12 --micro-batch 2 -n 2 --categorical city "
           "--missing mean "
           "--normalise standard --eval-fraction 0 --data " +
           path("people.csv");
  }
  static std::string trireme_binary() { return testing::trireme_binary(); }
};

// A value of a tensor of a run's weights.
class Weights {
 public:
  explicit Weights(const std::string& path) : file_(path) {}
  // weight x + bias
  std::vector<double> apply(const std::string& layer, const std::vector<double>& x) const {
    const float* weight = values(layer + ".weight");
    const float* bias = values(layer + ".bias");
    const std::size_t outputs = static_cast<std::size_t>(file_.tensor(layer + ".bias").numel());
    std::vector<double> y;
    for (std::size_t i = 0; i < outputs; ++i) {
      double sum = bias[i];
      for (std::size_t j = 0; j < x.size(); ++j) {
        sum += static_cast<double>(weight[i * x.size() + j]) * x[j];
      }
      y.push_back(sum);
    }
    return y;
  }

 private:
  const float* values(const std::string& name) const {
    return reinterpret_cast<const float*>(file_.tensor(name).bytes());
  }
  SafetensorsFile file_;
};

// What the model should see of a person: the run's means, categories and deviations, computed here.
class Treatment {
 public:
  explicit Treatment(const std::vector<Person>& training) {
    double count = 0;
    for (const Person& person : training) {
      age_ += std::isnan(person.age) ? 0 : person.age;
      count += std::isnan(person.age) ? 0 : 1;
    }
    age_ /= count;
    const auto n = static_cast<double>(training.size());
    mean_.assign(5, 0);
    deviation_.assign(5, 0);
    for (const Person& person : training) {
      for (std::size_t i = 0; i < 5; ++i) {
        mean_[i] += raw(person)[i] / n;
      }
    }
    for (const Person& person : training) {
      for (std::size_t i = 0; i < 5; ++i) {
        deviation_[i] += std::pow(raw(person)[i] - mean_[i], 2) / n;
      }
    }
  }
  std::vector<double> features(const Person& person) const {
    std::vector<double> x = raw(person);
    for (std::size_t i = 0; i < 5; ++i) {
      x[i] = (x[i] - mean_[i]) / std::sqrt(deviation_[i]);
    }
    return x;
  }

 private:
  std::vector<double> raw(const Person& person) const {
    return {std::isnan(person.age) ? age_ : person.age,
            person.city == "New York, NY" ? 1.0 : 0.0,
            person.city == "Oslo" ? 1.0 : 0.0,
            person.city == "Rome" ? 1.0 : 0.0,
            person.income};
  }
  double age_ = 0;
  std::vector<double> mean_;
  std::vector<double> deviation_;
};

TEST_F(PredictCommand, GivesTheProbabilitiesOfTheFormula) {
  const std::vector<Person> training = people(120, 1);
  data_.write("people.csv", csv_of(training));
  train_well("run", people_settings());
  // Other people, whose own means are far away.
  std::vector<Person> others = people(30, 2);
  for (Person& person : others) {
    person.income += 30000;
  }
  const std::string file = data_.write("others.csv", csv_of(others));
  const std::vector<Words> rows = predicted("run", "--data " + file);
  ASSERT_EQ(rows.size(), others.size() + 1);
  EXPECT_EQ(rows[0], (Words{"row", "target", "prediction", "probability_no", "probability_yes"}));
  const Weights weights(path("run") + "/model.safetensors");
  const Treatment treatment(training);
  for (std::size_t i = 0; i < others.size(); ++i) {
    std::vector<double> hidden = weights.apply("layer0", treatment.features(others[i]));
    for (double& value : hidden) {
      value = std::max(0.0, value);
    }
    const std::vector<double> scores = weights.apply("head", hidden);
    const double yes = 1 / (1 + std::exp(scores[0] - scores[1]));
    EXPECT_EQ(rows[i + 1][0], std::to_string(i));
    EXPECT_EQ(rows[i + 1][1], others[i].kind);
    EXPECT_NEAR(std::stod(rows[i + 1][3]), 1 - yes, 1e-5);
    EXPECT_NEAR(std::stod(rows[i + 1][4]), yes, 1e-5);
    if (std::abs(yes - 0.5) > 1e-3) {
      EXPECT_EQ(rows[i + 1][2], yes > 0.5 ? "yes" : "no");
    }
  }
  // Without targets, and with targets that are not looked at: the same.
  for (const auto& [text, options] : std::map<std::string, std::string>{
           {csv_of(others, false), ""}, {csv_of(others), " --targets no"}}) {
    const std::vector<Words> bare =
        predicted("run", "--data " + data_.write("bare.csv", text) + options);
    ASSERT_EQ(bare.size(), rows.size());
    EXPECT_EQ(bare[0], (Words{"row", "prediction", "probability_no", "probability_yes"}));
    for (std::size_t i = 1; i < rows.size(); ++i) {
      Words same = rows[i];
      same.erase(same.begin() + 1);
      EXPECT_EQ(bare[i], same);
    }
  }
  // One at a time: nothing of the rest of the file matters.
  for (const std::size_t i : {0U, 7U, 29U}) {
    const std::vector<Words> alone =
        predicted("run", "--data " + data_.write("one.csv", csv_of({others[i]})));
    EXPECT_NEAR(std::stod(alone.at(1).at(4)), std::stod(rows[i + 1][4]), 1e-6);
  }
}

TEST_F(PredictCommand, TrainsTheSameWithAnyNumberOfRanks) {
  data_.write("people.csv", csv_of(people(120, 1)));
  const Words one = train_well("one", people_settings() + " -n 1");
  EXPECT_EQ(train_well("three", people_settings() + " -n 3"), one);
  const auto kept = [&](const char* run) { return read_file(path(run) + "/preprocessing.json"); };
  EXPECT_EQ(kept("one").substr(0, kept("one").find("checked")),
            kept("three").substr(0, kept("three").find("checked")));
  EXPECT_EQ(read_json(path("one") + "/preprocessing.json").at("mean"),
            read_json(path("three") + "/preprocessing.json").at("mean"));
}

TEST_F(PredictCommand, AgreesWithTheRunsOwnEvaluation) {
  data_.write("people.csv", csv_of(people(120, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(40, 3)));
  train_well("run", people_settings() + " --eval-data " + file);
  const Finished finished =
      predict("run", "--data " + file + " --format json --output " + path("out.json"));
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, "");
  const Json out = read_json(path("out.json"));
  ASSERT_FALSE(out.is_discarded()) << read_file(path("out.json"));
  EXPECT_EQ(out.at("metrics"), summary("run").at("metrics"));
  EXPECT_EQ(out.at("classes"), Json({"no", "yes"}));
  const auto evaluated = testing::read_rows(path("run") + "/evaluation.csv");
  ASSERT_EQ(out.at("predictions").size(), evaluated.size());
  for (std::size_t i = 0; i < evaluated.size(); ++i) {
    const Json& each = out.at("predictions")[i];
    EXPECT_EQ(each.at("row"), i);
    EXPECT_EQ(each.at("target"), evaluated[i][1] == 0 ? "no" : "yes");
    EXPECT_EQ(each.at("prediction"), evaluated[i][2] == 0 ? "no" : "yes");
    const auto label = static_cast<std::size_t>(evaluated[i][1]);
    EXPECT_NEAR(-std::log(each.at("probabilities").at(label).get<double>()), evaluated[i][3], 1e-4);
  }
  testing::expect_parts(finished.err, {"40 samples", "accuracy"});
  // A failure leaves what was there.
  const std::string bad = data_.write("bad.csv", "age,city,income,kind\n1,Rome,x,yes\n");
  expect_refusal(
      "run", "--data " + bad + " --output " + path("out.json"), {bad, "line 2", "\"x\""});
  EXPECT_EQ(read_json(path("out.json")), out);
  for (const auto& entry : fs::directory_iterator(data_.path())) {
    EXPECT_EQ(entry.path().string().find("partial"), std::string::npos) << entry.path();
  }
}

TEST_F(PredictCommand, LeavesOutRowsWithHolesWhereTheRunDid) {
  data_.write("people.csv", csv_of(people(120, 1)));
  train_well("run", people_settings() + " --missing drop");
  const std::vector<Person> others = people(30, 2);
  Words wanted;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (!std::isnan(others[i].age)) {
      wanted.push_back(std::to_string(i));
    }
  }
  ASSERT_LT(wanted.size(), others.size());
  Words found;
  for (const Words& row : predicted("run", "--data " + data_.write("others.csv", csv_of(others)))) {
    found.push_back(row[0]);
  }
  found.erase(found.begin());
  EXPECT_EQ(found, wanted);
}

TEST_F(PredictCommand, PredictsNumbers) {
  std::string rows = "x;y\n";
  for (int i = 0; i < 100; ++i) {
    rows += std::to_string(i) + ";" + std::to_string(3 * i + 1) + "\n";
  }
  const std::string file = data_.write("line.csv", rows);
  train_well("run",
             "--model mlp --hidden 8 --epochs 5 --batch 10 -n 1 --normalise standard --regression "
             "--separator ; --eval-data " +
                 file + " --data " + file);
  const std::vector<Words> found = predicted("run", "--data " + file);
  EXPECT_EQ(found[0], (Words{"row", "target", "prediction"}));
  const auto evaluated = testing::read_rows(path("run") + "/evaluation.csv");
  ASSERT_EQ(found.size(), evaluated.size() + 1);
  for (std::size_t i = 0; i < evaluated.size(); ++i) {
    EXPECT_EQ(std::stod(found[i + 1][1]), 3.0 * static_cast<double>(i) + 1);
    EXPECT_FLOAT_EQ(std::stof(found[i + 1][2]), static_cast<float>(evaluated[i][2]));
  }
}

TEST_F(PredictCommand, TakesImagesAndSparseRows) {
  train_well("images", convnet() + "--epochs 2 --normalise standard");
  const auto evaluated = testing::read_rows(path("images") + "/evaluation.csv");
  const auto compare = [&](const std::vector<Words>& rows, std::size_t prediction) {
    ASSERT_EQ(rows.size(), evaluated.size() + 1);
    EXPECT_EQ(rows[0].back(), "probability_2");
    for (std::size_t i = 0; i < evaluated.size(); ++i) {
      EXPECT_EQ(std::stod(rows[i + 1][prediction]), evaluated[i][2]);
    }
  };
  compare(predicted("images", "--data " + data_.path()), 2);
  compare(predicted("images", "--data " + path("t10k-images-idx3-ubyte")), 2);
  fs::remove(path("t10k-labels-idx1-ubyte"));
  compare(predicted("images", "--data " + path("t10k-images-idx3-ubyte")), 1);

  train_well("sparse", wide() + "--epochs 2 --eval-data " + path("rows.libsvm"));
  const auto rows = predicted("sparse", "--data " + path("rows.libsvm"));
  const auto sparse = testing::read_rows(path("sparse") + "/evaluation.csv");
  ASSERT_EQ(rows.size(), sparse.size() + 1);
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    EXPECT_EQ(std::stod(rows[i + 1][2]), sparse[i][2]);
  }
  // A table of the same numbers: its zeros are left out when it is trained on and here.
  const std::string table = wide(Rows::kTable);
  train_well("table", table + "--epochs 2 --eval-data " + path("rows.csv"));
  EXPECT_EQ(predicted("table", "--data " + path("rows.csv")), rows);
}

TEST_F(PredictCommand, FindsTheWeights) {
  data_.write("people.csv", csv_of(people(120, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  train_well("run", people_settings() + " --save-every 20 --eval-data " + file);
  const auto last = predicted("run", "--data " + file);
  EXPECT_EQ(predicted("run", "--data " + file + " --weights checkpoint"), last);
  predicted("run", "--data " + file + " --weights best");
  expect_refusal(
      "run", "--data " + file + " --weights average", {"average.safetensors", "--ema-decay"});
  fs::remove(path("run") + "/model.safetensors");
  const Finished unfinished = predict("run", "--data " + file);
  EXPECT_EQ(rows_of(unfinished.out), last);
  testing::expect_parts(unfinished.err, {"no model.safetensors", "checkpoints"});
  // Written again from the same data where it is missing.
  fs::remove(path("run") + "/preprocessing.json");
  expect_refusal("run", "--data " + file, {"preprocessing.json", "--resume"});
  ASSERT_EQ(run_program({trireme_binary(), "train", "--resume", path("run")}).code, 0);
  EXPECT_EQ(predicted("run", "--data " + file), last);
}

TEST_F(PredictCommand, RefusesWhatItCannotPredict) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  train_well("gpt", gpt() + "--steps 1");
  expect_refusal("gpt", "--data " + file, {"gpt", "trireme sample"});
  train_well("folds", people_settings() + " --folds 2 --epochs 1");
  expect_refusal("folds", "--data " + file, {"fold-1"});
  predicted("folds/fold-1", "--data " + file);
  fs::remove(path("folds/fold-1/preprocessing.json"));
  expect_refusal("folds/fold-1", "--data " + file, {"preprocessing.json", "Train again"});
  data_.write("folds/fold-2/preprocessing.json", "{\"version\": 1}");
  expect_refusal("folds/fold-2", "--data " + file, {"preprocessing.json"});
  expect_refusal("none", "--data " + file, {"config.json"});
  expect_refusal("gpt", "", {"--data"});
  train_well("run", people_settings() + " --epochs 1");
  expect_refusal(
      "run", "--data " + path("no.csv"), {"--data: expected a file or folder", "no.csv"});
  EXPECT_EQ(predict("run", "--data " + path("no.csv")).code, 2) << "as trireme train";
  for (const std::string name : {"fashion-mnist", "licenses"}) {
    expect_refusal("run",
                   "--data " + name,
                   {"--data: expected a file like the table", '"' + name + '"', "of a data set"});
  }
  expect_refusal("run",
                 "--data " + data_.write("new.csv", "age,city,income\n30,Paris,20000\n"),
                 {"\"Paris\"", "\"Oslo\"", "--unseen ignore"});
  expect_refusal("run",
                 "--data " + data_.write("new.csv", "age,town,income\n30,Oslo,20000\n"),
                 {"\"city\"", "\"town\""});
  expect_refusal("run", "--format xml --data " + file, {"--format"});
}

// What is advised about a file works.
TEST_F(PredictCommand, SaysWhatToDoAboutAHeader) {
  const std::string rows = "1,a\n2,b\n3,a\n4,b\n5,a\n6,b\n7,a\n8,b\n";
  const std::string named = data_.write("named.csv", "x,kind\n" + rows);
  train_well("table",
             "--model mlp --hidden 2 --batch 2 -n 1 --steps 1 --eval-fraction 0 --data " + named);
  const auto predict = [&](const std::string& run, const std::string& file, const char* header) {
    return run_program(
        {testing::trireme_binary(), "predict", path(run), "--data", file, "--header", header});
  };
  const Finished has_one = predict("table", named, "no");
  EXPECT_NE(has_one.code, 0);
  testing::expect_parts(has_one.err, {"because of --header no", "leave that out"});
  const Finished has_none = predict("table", data_.write("plain.csv", rows), "yes");
  EXPECT_NE(has_none.code, 0);
  testing::expect_parts(has_none.err, {"say so: --header no"});
  train_well("images", mlp() + "--steps 1");
  testing::expect_parts(predict("images", data_.path(), "no").err,
                        {"--header: it is about csv files"});
}

TEST_F(PredictCommand, SaysWhatToDoAboutCategoriesThatItHasNotSeen) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string rows = "age,city,income\n30,Paris,20000\n40,Oslo,30000\n";
  const std::string file = data_.write("new.csv", rows);
  train_well("run", people_settings() + " --epochs 2");
  const std::string advice =
      "trireme train --config " + path("run") + "/config.json --unseen ignore --run NEW";
  expect_refusal(
      "run", "--data " + file, {"\"Paris\"", "misspelt", "empty the cells of the others", advice});
  const std::string emptied = "age,city,income\n30,,20000\n40,Oslo,30000\n";
  const auto by_hole = predicted("run", "--data " + data_.write("emptied.csv", emptied));
  Words command = testing::words(advice);
  command.front() = trireme_binary();
  command.back() = path("again");
  const Finished again = run_program(command);
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(predicted("again", "--data " + file), by_hole)
      << "the same training, and an unknown category is one that is missing";
  // A model that takes no holes: nothing is said about empty cells.
  std::vector<Person> whole = people(60, 1);
  for (Person& person : whole) {
    person.age = std::isnan(person.age) ? 45 : person.age;
  }
  data_.write("people.csv", csv_of(whole));
  train_well("strict", people_settings() + " --missing refuse --epochs 1");
  expect_refusal("strict", "--data " + file, {"\"Paris\"", "take the rows of the others out"});
  expect_refusal("strict",
                 "--data " + data_.path() + "/emptied.csv",
                 {"an empty cell", "fill them in", "--missing mean --run NEW"});
  expect_refusal("strict",
                 "--data " + data_.write("word.csv", "age,city,income\nold,Oslo,1\n"),
                 {"\"old\"", "numbers in this column"});
  expect_refusal("strict",
                 "--data " + data_.write("blank.csv", "age,city,income,kind\n30,Oslo,1,\n"),
                 {"trireme predict --targets no predicts them as well"});
  const std::string again_said = predict("strict", "--data " + path("blank.csv")).err;
  EXPECT_EQ(again_said.find("--targets no"), again_said.rfind("--targets no")) << again_said;
  expect_refusal("strict",
                 "--data " + data_.write("class.csv", "age,city,income,kind\n30,Oslo,1,new\n"),
                 {"expected a class", "\"new\"", "--targets no predicts without"});
  expect_refusal("strict",
                 "--data " + data_.write("two.csv", "age,city\n30,Oslo\n"),
                 {"4 columns", "found 2", "\"income\" is missing"});
  predicted("strict", "--targets no --data " + path("blank.csv"));
}

// --- where it is written

TEST_F(PredictCommand, WritesThroughLinksAndPipes) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  train_well("run", people_settings() + " --epochs 1");
  const std::string wanted = predict("run", "--data " + file).out;
  ASSERT_NE(wanted, "");
  const auto write_to = [&](const std::string& output) {
    const Finished finished = predict("run", "--data " + file + " --output " + output);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  // A link stays one, whether what it leads to is there or not.
  fs::create_directory(path("folder"));
  data_.write("folder/old.csv", "old");
  for (const std::string name : {"old.csv", "new.csv"}) {
    const std::string link = path("link-" + name);
    fs::create_symlink("folder/" + name, link);
    write_to(link);
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(read_file(path("folder/" + name)), wanted);
  }
  // So does a pipe.
  const std::string pipe = path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_to(pipe);
  EXPECT_TRUE(fs::is_fifo(pipe));
  std::string found(1 << 16, ' ');  // what a pipe holds without a reader
  const ssize_t bytes = ::read(reader, found.data(), found.size());
  ::close(reader);
  ASSERT_GE(bytes, 0);
  EXPECT_EQ(found.substr(0, static_cast<std::size_t>(bytes)), wanted);
  // What /dev/stdout leads to. (The link itself is not risked here.)
  EXPECT_EQ(write_to("/proc/self/fd/1"), wanted);
  EXPECT_EQ(write_to("-"), wanted);
  EXPECT_FALSE(fs::exists("-"));
}

// What it is to read, by whatever name.
TEST_F(PredictCommand, DoesNotReplaceItsData) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  const std::string before = read_file(file);
  train_well("run", people_settings() + " --epochs 1");
  fs::create_symlink("test.csv", path("link.csv"));
  fs::create_hard_link(file, path("other.csv"));
  for (const std::string& output :
       {file, data_.path() + "/./test.csv", path("link.csv"), path("other.csv")}) {
    expect_refusal("run",
                   "--data " + file + " --output " + output,
                   {"--output: expected a file of its own", '"' + output + '"', '"' + file + '"'});
    EXPECT_EQ(read_file(file), before);
  }
  EXPECT_TRUE(fs::is_symlink(path("link.csv")));
  // In a folder, what is read of it.
  train_well("images", mlp() + "--steps 1");
  for (const std::string name : {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}) {
    const std::string content = read_file(path(name));
    for (const std::string& data : {data_.path(), path("t10k-images-idx3-ubyte")}) {
      expect_refusal("images", "--data " + data + " --output " + path(name), {"--output", name});
    }
    EXPECT_EQ(read_file(path(name)), content);
  }
  data_.write("predictions.csv", "old");
  predicted("images", "--data " + data_.path() + " --output " + path("predictions.csv"));
  EXPECT_TRUE(read_file(path("predictions.csv")).starts_with("row,"));
}

TEST_F(PredictCommand, GivesNothingWhereScoresAreNotNumbers) {
  std::string rows = "x,kind\n";
  for (int i = 0; i < 40; ++i) {
    rows += "0.0" + std::to_string(10 + i) + (i % 2 == 0 ? ",b\n" : ",a\n");
  }
  const std::string training = data_.write("rows.csv", rows);
  train_well("run",
             "--model mlp --hidden 8 --epochs 1 --batch 10 -n 1 --normalise standard "
             "--eval-fraction 0 --data " +
                 training);
  const std::string file = data_.write("new.csv", "x\n0.05\n3e38\n-3e38\n0.02\n");
  const Finished finished = predict("run", "--data " + file);
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::string text = "\n" + finished.out;
  testing::expect_parts(text, {"\n1,,,\n", "\n2,,,\n"});
  EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  EXPECT_FALSE(rows_of(finished.out).at(1).at(1).empty());
  EXPECT_FALSE(rows_of(finished.out).at(4).at(1).empty());
  testing::expect_parts(finished.err,
                        {"2 rows without a prediction, the first is row 1", "scores"});
  const Json out = testing::parse_json(predict("run", "--format json --data " + file).out);
  ASSERT_FALSE(out.is_discarded());
  const Json& each = out.at("predictions").at(1);
  EXPECT_TRUE(each.at("prediction").is_null());
  EXPECT_EQ(each.at("probabilities"), Json::array({nullptr, nullptr}));
  EXPECT_TRUE(out.at("predictions").at(0).at("prediction").is_string());
}

TEST_F(PredictCommand, AdviceAboutAFolderWithABlankCanBeTyped) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  train_well("run", people_settings() + " --epochs 1 --save-every 1");
  const std::string run = path("my run");
  fs::rename(path("run"), run);
  const std::string config = "trireme train --config '" + run + "/config.json' ";
  const auto refused = [&](const Words& parts) {
    const Finished finished = run_program({trireme_binary(), "predict", run, "--data", file});
    EXPECT_EQ(finished.code, 2) << finished.err;
    testing::expect_parts(finished.err, parts);
  };
  data_.write("test.csv", "age,city,income\n30,Paris,20000\n");
  refused({config + "--unseen ignore --run NEW"});
  fs::rename(run + "/preprocessing.json", path("kept.json"));
  refused({config + "--run NEW", "trireme train --resume '" + run + "'"});
  fs::rename(path("kept.json"), run + "/preprocessing.json");
  fs::remove(run + "/model.safetensors");
  fs::remove_all(run + "/checkpoints");
  refused({"to train it again: " + config + "--run NEW"});
  const Finished unfit = run_program({trireme_binary(), "sample", run});
  EXPECT_EQ(unfit.code, 2) << unfit.err;
  testing::expect_parts(unfit.err, {"use trireme predict '" + run + "' --data FILE"});
  Words other = command("other", gpt() + "--steps 1 --weights-from");
  other.push_back(run);
  const Finished without = run_program(other);
  EXPECT_EQ(without.code, 2) << without.err;
  testing::expect_parts(without.err, {config + "--run NEW"});
}

TEST_F(PredictCommand, FindsOutFirstWhetherItCanWrite) {
  data_.write("people.csv", csv_of(people(60, 1)));
  train_well("run", people_settings() + " --epochs 1");
  // The data is not there, either.
  const std::string options = "--data " + path("none.csv") + " --output ";
  expect_refusal("run", options + path("none/out.csv"), {"--output", "none/out.csv"});
  EXPECT_EQ(predict("run", options + path("none/out.csv")).code, 2);
  expect_refusal("run", options + data_.path(), {"--output", data_.path(), "directory"});
}

TEST_F(PredictCommand, KeepsNamesThatAreNotUtf8Apart) {
  std::string rows = "x,kind\n";
  for (int i = 0; i < 40; ++i) {
    rows += std::to_string(i) + (i % 2 == 0 ? ",caf\xe8" : ",caf\xe9") + "\n";
  }
  const std::string file = data_.write("rows.csv", rows);
  train_well("run", "--model mlp --epochs 1 --batch 10 -n 1 --eval-fraction 0 --data " + file);
  const Finished finished = predict("run", "--format json --data " + file);
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json out = testing::parse_json(finished.out);
  ASSERT_FALSE(out.is_discarded()) << finished.out;
  const Json first = Json::array({99, 97, 102, 0xe8});
  const Json second = Json::array({99, 97, 102, 0xe9});
  EXPECT_EQ(out.at("classes"), Json::array({first, second}));
  EXPECT_EQ(out.at("predictions").at(0).at("target"), first);
  EXPECT_EQ(out.at("predictions").at(1).at("target"), second);
}

TEST_F(PredictCommand, SaysThatTheRunHadAnotherPrecision) {
  data_.write("people.csv", csv_of(people(60, 1)));
  const std::string file = data_.write("test.csv", csv_of(people(20, 3)));
  train_well("run", people_settings() + " --epochs 1 --precision bfloat16");
  const Finished finished = predict("run", "--data " + file);
  EXPECT_EQ(finished.code, 0) << finished.err;
  testing::expect_parts(finished.err, {"trained in bfloat16", "computed in float32"});
}

// --- bad files, found by all ranks together before anything is trained

TEST_F(PredictCommand, BadCellsStopTrainingBeforeItBegins) {
  std::string rows = "x,kind\n";
  Words wanted;
  for (int i = 0; i < 300; ++i) {
    rows += (i % 10 == 5 ? "bad" : std::to_string(i)) + (i % 2 == 0 ? ",a\n" : ",b\n");
    if (i % 10 == 5 && wanted.size() < 20) {
      wanted.push_back(":" + std::to_string(i + 2) + ":1: expected a finite number");
    }
  }
  data_.write("rows.csv", rows);
  wanted.insert(wanted.end(), {"30 errors", "and 10 more"});
  for (const char* ranks : {"1", "3"}) {
    const Finished finished = train(std::string("run") + ranks,
                                    std::string("--model mlp --epochs 3 --batch 12 -n ") + ranks +
                                        " --data " + path("rows.csv"));
    EXPECT_NE(finished.code, 0);
    testing::expect_parts(finished.err, wanted);
    EXPECT_FALSE(fs::exists(path(std::string("run") + ranks) + "/metrics.jsonl"));
  }
}

}  // namespace
}  // namespace trireme::predict_command_test
