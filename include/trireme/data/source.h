#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/data/readers.h"
#include "trireme/data/views.h"

namespace trireme {

// What a person names as data: a file or folder, and how to read it.
struct DataSource {
  // A file; a folder with MNIST's four files, or with text files; or "fashion-mnist" (Debian's
  // dataset-fashion-mnist) or "licenses" (the texts in /usr/share/common-licenses).
  std::string path{};
  std::string
      evaluation{};  // a file to evaluate on; empty: MNIST's test files, else a part of `path`
  // "auto" (by name; what is taken for text may hold no bytes that no text has), "idx", "text",
  // "tokens16", "tokens32", "csv" or "libsvm".
  std::string format = "auto";
  double evaluation_fraction = 0.1;  // held out where there is no file to evaluate on; 0: none
  std::uint64_t seed = 0;            // chooses what is held out
  std::int64_t sequence = 64;        // of tokens
  std::int64_t stride = 0;           // of training samples; evaluation uses every token once
  std::int64_t vocabulary = 0;
  bool regression = false;  // targets of csv and libsvm files are numbers, not classes
  CsvOptions csv{};         // but for its `regression`, which is the one above
  bool for_folds = false;   // which are divided among themselves: MNIST's test files are not opened
};

struct OpenedData {
  Parts parts;              // held_out is empty where nothing is evaluated
  std::string format;       // what it turned out to be
  std::string description;  // "fashion-mnist: 60000 images of 28x28, 10 classes; 10000 to evaluate"
};

// Whether there is something of this name: a file, a folder, or what is known by name.
bool data_is_there(const std::string& path);

// The format that the data is in, where that is "auto" by its name. Throws DataError as open_data.
std::string data_format(const DataSource& source);

// Throws DataError or ConfigError with what was expected and what was found.
OpenedData open_data(const DataSource& source);

}  // namespace trireme
