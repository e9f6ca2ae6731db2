#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "data/data_files.h"
#include "support/processes.h"
#include "trireme/core/random.h"

// `trireme train` on small data that the test makes itself. JSON's parser is in train_runs.cc: it
// takes the compiler ten seconds wherever it is used.

namespace trireme::testing {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

// Between spaces. Of a flag that is there more than once, the last: tests add theirs to those of a
// model, and the program takes each once.
Words words(const std::string& text);

void expect_parts(const std::string& text, const Words& parts);

// A discarded value where the text is no JSON.
Json parse_json(const std::string& text);
Json read_json(const std::string& path);
std::vector<Json> read_json_lines(const std::string& path);

// What training has computed, to the last digit, and nothing of how long it took.
Words history(const std::string& run);

// The rows of a CSV file of numbers, below its header.
std::vector<std::vector<double>> read_rows(const std::string& path);

class TrainRuns : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return data_.path() + "/" + name; }

  Words command(const std::string& run, const std::string& settings) const {
    Words all = words(settings);
    all.insert(all.begin(), {trireme_binary(), "train", "--run", path(run)});
    return all;
  }
  Finished train(const std::string& run, const std::string& settings) const {
    return run_program(command(run, settings));
  }
  // A run that has to succeed; returns what it computed.
  Words train_well(const std::string& run, const std::string& settings) const {
    const Finished finished = train(run, settings);
    EXPECT_EQ(finished.code, 0) << settings << "\n" << finished.out << finished.err;
    return history(path(run));
  }
  Json summary(const std::string& run) const { return read_json(path(run) + "/summary.json"); }

  // --- data, and the settings of a small model on it

  std::string gpt() const { return "--model gpt " + transformer(); }
  std::string bert() const { return "--model bert " + transformer(); }
  std::string transformer() const {
    RandomStream random(1);
    std::string text;
    for (int i = 0; i < 3000; ++i) {
      text += "abcd efgh\n"[random.below(10)];
    }
    return "--layers 1 --width 32 --heads 2 --sequence 16 --batch 12 --micro-batch 2 "
           "-n 1 --data " +
           data_.write("text.txt", text) + " ";
  }

  // Stripes, lying or standing or none, with noise; `packed`: as gzip makes it.
  std::string images(int train, int test, bool packed = false) const {
    write_images("train", train, packed);
    write_images("t10k", test, packed);
    return "--batch 12 --micro-batch 2 -n 1 --data " + data_.path() + " ";
  }
  std::string convnet(bool packed = false) const {
    return "--model convnet --stages 4,8 --hidden 16 " + images(60, 37, packed);
  }
  std::string mlp() const { return "--model mlp --hidden 16 " + images(60, 37); }

  // The same numbers as pairs, or as a table with all its zeros.
  enum class Rows { kPairs, kTable };
  std::string wide(Rows rows = Rows::kPairs) const {
    RandomStream random(3);
    std::string text;
    std::string table;
    for (int row = 0; row < 80; ++row) {
      const std::uint64_t label = random.below(2);
      text += std::to_string(label);
      std::vector<std::string> cells(40, "0");
      for (std::uint64_t feature = 1 + random.below(5); feature < 40;
           feature += 1 + random.below(9)) {
        const std::string value =
            std::to_string(label) + "." + std::to_string(random.below(90) + 10);
        text += " " + std::to_string(feature) + ":" + value;
        cells[feature] = value;
      }
      text += "\n";
      for (std::size_t feature = 1; feature < cells.size(); ++feature) {
        table += cells[feature] + ",";
      }
      table += std::to_string(label) + "\n";
    }
    return "--model wide --width 4 --batch 12 --micro-batch 2 -n 1 --data " +
           (rows == Rows::kTable ? data_.write("rows.csv", table)
                                 : data_.write("rows.libsvm", text)) +
           " ";
  }

  static int label_of(int image) { return (image * 7 + image / 5) % 3; }

  DataFolder data_;

 private:
  void write_images(const std::string& name, int images, bool packed) const {
    constexpr std::uint32_t kSide = 8;
    RandomStream random(static_cast<std::uint64_t>(images));
    std::string bytes = big_endian(0x803) + big_endian(static_cast<std::uint32_t>(images)) +
                        big_endian(kSide) + big_endian(kSide);
    std::vector<int> labels;
    for (int image = 0; image < images; ++image) {
      labels.push_back(label_of(image));
      for (std::uint32_t pixel = 0; pixel < kSide * kSide; ++pixel) {
        const std::uint32_t along = labels.back() == 0 ? pixel / kSide : pixel % kSide;
        const bool lit = labels.back() < 2 && along % 2 == 0;
        bytes += static_cast<char>(random.below(120) + (lit ? 120U : 0U));
      }
    }
    const std::string images_path = data_.write(name + "-images-idx3-ubyte", bytes);
    const std::string labels_path = data_.write(name + "-labels-idx1-ubyte", idx_labels(labels));
    if (packed) {
      EXPECT_EQ(run_program({"gzip", "-f", images_path, labels_path}).code, 0);
    }
  }
};

}  // namespace trireme::testing
