#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/readers.h"
#include "trireme/data/views.h"

namespace trireme {

struct TableColumn {
  std::string name{};  // empty without a header
  bool categorical = false;
  std::vector<std::string> categories{};  // of the training file, in the order of their features
};

// How what a file holds becomes what a model sees, and what the model's output means. Found from
// the training data, kept with the run, and applied to any other file: nothing about that file's
// own values changes it.
struct Preprocessing {
  std::string format{};  // "csv", "idx" or "libsvm"; empty: there is no such thing (tokens)
  SampleShape shape{};
  std::vector<std::string> classes{};  // what they are called; empty: by their numbers
  // Of a CSV file.
  char separator = 0;                  // 0: by the file's name
  std::vector<TableColumn> columns{};  // the target, too
  std::int64_t target = 0;
  CsvOptions::Missing missing = CsvOptions::Missing::kRefuse;
  std::vector<std::string> missing_values{};
  CsvOptions::Unseen unseen = CsvOptions::Unseen::kRefuse;
  // Per feature; empty: nothing is done.
  std::vector<double> fill{};         // for missing values
  FeatureStatistics normalisation{};  // afterwards
  // The file as it was when it was checked whole: its path, size, times and how it was read. Empty
  // where that may have changed unseen.
  std::vector<std::string> checked{};
};

struct NewDataOptions {
  enum class Targets { kAutomatic, kYes, kNo } targets = Targets::kAutomatic;
  CsvOptions::Header header = CsvOptions::Header::kAutomatic;
};

// Samples to predict.
struct NewData {
  std::shared_ptr<const Dataset> data;  // as the model sees it; labels are 0 without targets
  bool has_targets = true;
  std::vector<std::int64_t> dropped{};  // rows (from 0) of the file that are left out
  std::vector<std::string> notes{};     // what was assumed about the file
};

// Opens a file (of images also a folder, or "fashion-mnist") and treats it as the training data was
// treated. Its targets may be missing: the target's column of a CSV file, the labels before
// libsvm's pairs, the file of labels beside images. Throws DataError with what was expected and
// found.
NewData open_new_data(const Preprocessing& training,
                      const std::string& path,
                      const NewDataOptions& options = {});

// The files that are read of data with this name, as far as they are there: that file, and those
// that belong to it by their names (labels beside images, MNIST's files of a folder).
std::vector<std::string> files_of_new_data(const std::string& path);

}  // namespace trireme
