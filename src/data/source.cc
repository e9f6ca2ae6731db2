#include "trireme/data/source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "data/binary_content.h"
#include "data/csv_like.h"
#include "data/data_failure.h"
#include "data/libsvm_like.h"
#include "data/source_files.h"
#include "data/text_lines.h"
#include "trireme/core/counted.h"
#include "trireme/core/log.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::counted;
using detail::is_folder;
using detail::throw_data_error;

[[noreturn]] void throw_neither(const std::string& folder, const std::string& extension) {
  throw_data_error(
      folder,
      -1,
      "expected MNIST's four files (train-images-idx3-ubyte, train-labels-idx1-ubyte, "
      "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or with .gz), or files "
      "named *",
      extension,
      " in the folder, found neither");
}

std::string format_of(const DataSource& source, const std::string& path) {
  if (source.format != "auto") {
    return source.format;
  }
  if (is_folder(path)) {
    if (detail::holds_idx(path)) {
      return "idx";
    }
    if (path != detail::kLicenses && detail::files_in(path, ".txt").empty()) {
      throw_neither(path, ".txt");
    }
    return "text";
  }
  if (!detail::is_there(path)) {
    throw_data_error(path,
                     -1,
                     "expected a file or folder, \"fashion-mnist\" or \"licenses\", found nothing "
                     "with this name");
  }
  return detail::format_of_file(path);
}

// With a part held out where one is asked for.
Parts divided(std::shared_ptr<const Dataset> all, const DataSource& source) {
  if (source.evaluation_fraction == 0) {
    return {std::move(all), nullptr};
  }
  if (all->size() < 2) {
    throw_data_error(
        source.path,
        -1,
        "expected at least 2 samples, so that one can be held out for evaluation, found ",
        all->size(),
        ": evaluate on another file (--eval-data FILE), or not at all (--eval-fraction 0)");
  }
  return hold_out(std::move(all), source.evaluation_fraction, source.seed);
}

std::shared_ptr<Dataset> open_test_images(const Dataset& train,
                                          const std::string& images,
                                          const std::string& labels) {
  auto test = open_idx(images, labels, train.shape().classes);
  if (test->shape().dense != train.shape().dense) {
    throw_data_error(images,
                     8,
                     concat("expected images of {}x{}, like those to train on, found {}x{}",
                            {train.shape().dense[1],
                             train.shape().dense[2],
                             test->shape().dense[1],
                             test->shape().dense[2]}));
  }
  return test;
}

Parts open_idx_parts(const DataSource& source, const std::string& path) {
  const std::string folder = is_folder(path) ? path : fs::path(path).parent_path().string();
  const std::string images =
      is_folder(path) ? detail::require(path, "train-images-idx3-ubyte") : path;
  // Only beside MNIST's own training file are the test files those that belong to it.
  const bool has_test =
      !source.for_folds && fs::path(images).filename().string().starts_with("train-images-idx3");
  const auto test_images =
      has_test ? detail::plain_or_packed(folder, "t10k-images-idx3-ubyte") : std::nullopt;
  const std::shared_ptr<Dataset> train =
      open_idx(images,
               is_folder(path) ? detail::require(path, "train-labels-idx1-ubyte")
                               : detail::labels_beside(images));
  if (!source.evaluation.empty()) {
    return {train,
            open_test_images(*train, source.evaluation, detail::labels_beside(source.evaluation))};
  }
  if (test_images) {
    return {
        train,
        open_test_images(*train, *test_images, detail::require(folder, "t10k-labels-idx1-ubyte"))};
  }
  return divided(train, source);
}

std::vector<std::string> files_of_tokens(const std::string& path, const std::string& format) {
  if (!is_folder(path)) {
    return {path};
  }
  // The licenses have no extension, and links among them name the same text twice.
  const std::string extension = path == detail::kLicenses ? ""
                                : format == "tokens16"    ? ".u16"
                                : format == "tokens32"    ? ".u32"
                                                          : ".txt";
  std::vector<std::string> files = detail::files_in(path, extension);
  if (files.empty()) {
    throw_neither(path, extension);
  }
  return files;
}

std::vector<std::string> token_files(const std::string& path,
                                     const DataSource& source,
                                     const std::string& format) {
  std::vector<std::string> files = files_of_tokens(path, format);
  for (const std::string& file : files) {
    if (source.format == "auto" && format == "text") {
      detail::refuse_binary(file);
    }
  }
  return files;
}

Parts open_token_parts(const DataSource& source,
                       const std::string& path,
                       const std::string& format) {
  TokenOptions options;
  options.type = format == "text"       ? TokenType::kByte
                 : format == "tokens16" ? TokenType::kUint16
                                        : TokenType::kUint32;
  options.sequence = source.sequence;
  options.stride = source.stride;
  options.vocabulary = source.vocabulary;
  const std::vector<std::string> files = token_files(path, source, format);
  const bool other_file = !source.evaluation.empty();
  if (!other_file) {
    options.end = 1 - source.evaluation_fraction;
  }
  Parts parts;
  parts.train = open_tokens(files, options);
  if (!other_file && source.evaluation_fraction == 0) {
    return parts;
  }
  options.vocabulary = parts.train->shape().classes;
  options.stride = options.sequence;
  options.begin = other_file ? 0 : options.end;
  options.end = 1;
  parts.held_out =
      open_tokens(other_file ? token_files(source.evaluation, source, format) : files, options);
  return parts;
}

// Whoever always answers with the one class there is is always right: training would end with a
// perfect score and nothing learned.
void refuse_one_class(const Dataset& train, const std::string& path, const char* advice) {
  if (const std::vector<std::string> classes = train.class_names(); classes.size() == 1) {
    throw_data_error(
        path,
        -1,
        concat("expected at least two classes to tell apart, found one, {}, in {}: {}",
               {detail::shown(classes.front()),
                train.size() == 1 ? "the only row" : concat("all ", train.size(), " rows"),
                advice}));
  }
}

// The same of numbers, of which a single row cannot have two. What cannot be read is said where
// everything is checked.
void refuse_one_number(const Dataset& train, const std::string& path, const char* advice) {
  constexpr std::int64_t kAtOnce = 4096;  // two samples tell most files apart
  if (train.shape().classes > 0 || train.size() < 2) {
    return;
  }
  std::optional<float> first;
  Batch batch;
  std::vector<std::int64_t> samples;
  for (std::int64_t begin = 0; begin < train.size(); begin += std::ssize(samples)) {
    samples.resize(
        static_cast<std::size_t>(std::min(begin == 0 ? 2 : kAtOnce, train.size() - begin)));
    std::iota(samples.begin(), samples.end(), begin);
    try {
      train.read(samples, batch);
    } catch (const DataError&) {
      return;
    }
    for (const float target : batch.targets) {
      if (target != first.value_or(target)) {
        return;
      }
      first = target;
    }
  }
  throw_data_error(
      path,
      -1,
      concat(
          "expected at least two different numbers to predict, found one, {}, in all {} rows: {}",
          {first.value_or(0), train.size(), advice}));
}

// Numbers to predict, or names of the rows, that are taken for classes, since nobody has said what
// they are. Few of them may be either.
void warn_of_classes(const Dataset& train, const std::string& path) {
  constexpr std::size_t kFew = 20;
  const std::vector<std::string> classes = train.class_names();
  if (classes.size() < kFew) {
    return;
  }
  std::size_t numbers = 0;
  bool fractions = false;
  for (const std::string& name : classes) {
    const auto number = detail::parse_number(name);
    numbers += number ? 1 : 0;
    fractions = fractions || (number && *number != std::floor(*number));
  }
  const bool all = numbers == classes.size();
  const bool most = numbers * 2 > classes.size();
  const bool nearly_as_many = static_cast<std::int64_t>(classes.size()) * 2 > train.size();
  if (nearly_as_many || (all && fractions)) {
    log(LogLevel::kWarning,
        concat(path,
               ": the target has ",
               classes.size(),
               all    ? " different numbers in "
               : most ? " different values, most of them numbers, in "
                      : " different words in ",
               train.size(),
               " rows, and each of them is taken for a class of its own; ",
               most ? "if they are numbers to predict, add --regression"
                    : "if they are names of the rows, choose another --target"));
  }
}

// One rank speaks.
void look_at_classes(const Dataset& train,
                     const DataSource& source,
                     const std::string& path,
                     const char* advice) {
  refuse_one_class(train, path, advice);
  refuse_one_number(train, path, advice);
  if (source.csv.check.part == 0) {
    warn_of_classes(train, path);
  }
}

Parts open_csv_parts(const DataSource& source, const std::string& path) {
  CsvOptions options = source.csv;
  options.regression = source.regression;
  const std::shared_ptr<Dataset> train = open_csv(path, options);
  look_at_classes(*train, source, path, "--target COLUMN chooses what is predicted");
  if (source.evaluation.empty()) {
    return divided(train, source);
  }
  const NewDataOptions like{NewDataOptions::Targets::kYes, options.header};
  return {
      train,
      detail::open_csv_like(train->preprocessing(), source.evaluation, like, options.check).data};
}

Parts open_libsvm_parts(const DataSource& source, const std::string& path) {
  const std::shared_ptr<Dataset> train =
      open_libsvm(path, {.regression = source.regression, .check = source.csv.check});
  look_at_classes(*train, source, path, "each line begins with the label of its row");
  if (source.evaluation.empty()) {
    return divided(train, source);
  }
  return {train,
          detail::open_libsvm_like(train->preprocessing(),
                                   source.evaluation,
                                   NewDataOptions::Targets::kYes,
                                   source.csv.check)
              .data};
}

std::string predicted(const SampleShape& shape) {
  return shape.classes > 0 ? counted(shape.classes, "class", "classes") : "a number to predict";
}

std::string described(const Dataset& data, const std::string& format) {
  const SampleShape& shape = data.shape();
  switch (shape.kind) {
    case SampleKind::kTokens:
      return concat("{} of {} to predict, vocabulary {}",
                    {counted(data.size(), "sample"),
                     counted(shape.length - 1, format == "text" ? "byte" : "token"),
                     shape.classes});
    case SampleKind::kSparse:
      return concat("{} of {}, {}",
                    {counted(data.size(), "sparse row"),
                     counted(shape.features, "feature"),
                     predicted(shape)});
    case SampleKind::kDense:
      break;
  }
  const bool images = shape.dense.size() == 3;
  return concat(
      "{} of {}, {}",
      {counted(data.size(), images ? "image" : "row"),
       images ? concat(shape.dense[1], "x", shape.dense[2]) : counted(shape.dense[0], "feature"),
       predicted(shape)});
}

}  // namespace

std::string data_format(const DataSource& source) {
  return format_of(source, detail::path_named(source.path));
}

OpenedData open_data(const DataSource& source) {
  TRIREME_CHECK(!source.path.empty(),
                "data: expected a file or folder, \"fashion-mnist\" or \"licenses\" "
                "(DataSource::path, --data), found none");
  TRIREME_CHECK(source.evaluation_fraction >= 0 && source.evaluation_fraction < 1,
                "the fraction to evaluate on must be 0 or more and below 1, found ",
                source.evaluation_fraction);
  const std::string path = detail::path_named(source.path);
  OpenedData opened;
  opened.format = format_of(source, path);
  TRIREME_CHECK(
      !source.regression || opened.format == "csv" || opened.format == "libsvm",
      "regression: it applies to csv and libsvm files, found {} in the format {}: leave it out",
      {source.path, opened.format});
  TRIREME_CHECK(
      opened.format == "csv" ||
          (source.csv.header == CsvOptions::Header::kAutomatic && source.csv.separator == 0 &&
           source.csv.categorical.empty() && source.csv.missing == CsvOptions::Missing::kRefuse),
      "header, separator, categorical, missing: they apply to csv files, found {} in the format "
      "{}: leave them out",
      {source.path, opened.format});
  if (opened.format == "idx") {
    opened.parts = open_idx_parts(source, path);
  } else if (opened.format == "csv") {
    opened.parts = open_csv_parts(source, path);
  } else if (opened.format == "libsvm") {
    opened.parts = open_libsvm_parts(source, path);
  } else if (opened.format == "text" || opened.format == "tokens16" ||
             opened.format == "tokens32") {
    opened.parts = open_token_parts(source, path, opened.format);
  } else {
    throw ConfigError(concat(
        "expected the format auto, idx, text, tokens16, tokens32, csv or libsvm, found \"{}\"",
        {opened.format}));
  }
  std::error_code ignored;
  if (source.csv.check.part == 0 && !source.evaluation.empty() &&
      fs::equivalent(path, source.evaluation, ignored)) {
    log(LogLevel::kWarning,
        concat("eval_data: ",
               source.evaluation,
               " is the file that is trained on: the results say nothing about other data"));
  }
  const std::string name = fs::path(source.path).filename().string();
  opened.description = concat(
      name.empty() ? source.path : name, ": ", described(*opened.parts.train, opened.format));
  if (opened.parts.held_out) {
    opened.description += concat("; ", opened.parts.held_out->size(), " to evaluate");
  }
  return opened;
}

bool data_is_there(const std::string& path) {
  return path == "fashion-mnist" || path == "licenses" || detail::is_there(path);
}

}  // namespace trireme
