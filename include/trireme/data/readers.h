#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

// One function per format; gzip files (by their names, .gz) are unpacked into memory. Each throws
// DataError (file, offset, expected, found) for a file that is empty, truncated or of another
// format.

namespace trireme {

// MNIST's format: unsigned bytes, images (magic 0x00000803) beside labels (0x00000801), each plain
// or gzip. Plain files are mapped; compressed ones are unpacked into memory. Values are byte / 255.
// `classes`: 0 for the largest label of the file plus one. `labels` may be empty where `classes` is
// given: all labels are 0 then.
std::shared_ptr<Dataset> open_idx(const std::string& images,
                                  const std::string& labels,
                                  std::int64_t classes = 0);

enum class TokenType { kByte, kUint16, kUint32 };

struct TokenOptions {
  TokenType type = TokenType::kByte;  // little-endian
  std::int64_t sequence = 64;         // tokens predicted in a sample; a sample has one more
  std::int64_t stride = 0;            // from the start of a sample to that of the next; 0: sequence
  std::int64_t vocabulary = 0;  // 0: 256 for bytes, else the largest token of the file plus one
  // Which part of the file, as fractions of its tokens (hold-out for evaluation).
  double begin = 0;
  double end = 1;
};

// Text (bytes as tokens) or a file of token numbers. Several files are read as one, one after
// another. A sample never needs more than mapped pages. With a vocabulary that is given, all tokens
// of the part are compared with it when the files are opened.
std::shared_ptr<Dataset> open_tokens(const std::vector<std::string>& files,
                                     const TokenOptions& options);

// A file is checked whole when it is opened. Ranks that open one file together may share this out:
// each checks a part, and all hear of what any of them has found.
struct SharedCheck {
  int part = 0;
  int parts = 1;
  int threads = 0;  // that check; 0: one for each processor that this process may use
  // This part's text for all parts' texts, in order: an all-gather. Empty: nothing is wrong there.
  std::function<std::vector<std::string>(const std::string& mine)> exchange{};
  // Files that were found good before (Preprocessing::checked); one that is still the same is not
  // checked again.
  std::vector<std::string> known{};
};

struct CsvOptions {
  char separator = 0;  // 0: a tab where the file's name ends with .tsv, a comma otherwise
  // The first line has names. kAutomatic: when none of its cells is a number, or one in a column of
  // values is a word. A first line whose values are all numbers is a sample; where its class is the
  // only one in the file that occurs once, it may well be names, and is refused.
  enum class Header { kAutomatic, kYes, kNo } header = Header::kAutomatic;
  std::string target{};     // column by name or by number from 0; empty: the last
  bool regression = false;  // the target is a number, not a class
  // Columns of words, by name or by number from 0. Each becomes one feature per category, 1 for the
  // sample's own and 0 for the others; categories are in the order that classes have.
  std::vector<std::string> categorical{};
  // A category that the training file has not: refused, or all of the column's features 0.
  enum class Unseen { kRefuse, kIgnore } unseen = Unseen::kRefuse;
  // A value that is not there: refused; NaN, for `imputed` (views.h) to fill; 0; or the whole row
  // is left out. A missing category is none of them: all features 0. A target cannot be filled in:
  // it is refused unless its row is left out.
  enum class Missing { kRefuse, kNan, kZero, kDrop } missing = Missing::kRefuse;
  // What is missing besides an empty cell, in small or capital letters; in columns of numbers also
  // other spellings of those that are numbers (-999.0 for -999). A class may be called so.
  std::vector<std::string> missing_values = {"NA", "N/A", "NaN", "null", "?"};
  // What values are rounded to as they stand in the file. Of columns that lose much by that the log
  // warns, as it does of those that lose by becoming float32. Nothing is rounded here.
  enum class Rounded { kFloat32, kBFloat16, kFloat16 } rounded = Rounded::kFloat32;
  SharedCheck check{};
};

// Numbers in columns; classes may be any words and are numbered in sorted order (numerically where
// all are numbers; "1", "+1" and "1.0" are one class). Quoted cells ("a,b", but no line breaks in
// them) and CRLF are understood. All cells are checked when the file is opened; the DataError lists
// the first 20 bad ones and counts the rest.
std::shared_ptr<Dataset> open_csv(const std::string& file, const CsvOptions& options = {});

struct LibsvmOptions {
  std::int64_t features = 0;  // 0: the largest index of the file
  bool regression = false;    // labels are numbers to predict, not classes
  SharedCheck check{};
};

// "label index:value index:value ..." with indices from 1, rising. Labels are numbered in rising
// order (-1, +1 become 0, 1). All pairs are checked when the file is opened, as the cells of a CSV
// file are.
std::shared_ptr<Dataset> open_libsvm(const std::string& file, const LibsvmOptions& options = {});

}  // namespace trireme
