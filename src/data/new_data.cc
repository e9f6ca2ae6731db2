#include <filesystem>

#include "data/csv_like.h"
#include "data/data_failure.h"
#include "data/libsvm_like.h"
#include "data/source_files.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using Targets = NewDataOptions::Targets;

// The labels that belong to these images; empty where there are none.
std::string labels_of(const std::string& images, Targets targets) {
  const bool named = fs::path(images).filename().string().find("images-idx3") != std::string::npos;
  if (targets == Targets::kNo || (!named && targets == Targets::kAutomatic)) {
    return {};
  }
  const std::string labels = detail::labels_beside(images);
  return targets == Targets::kAutomatic && !detail::is_there(labels) ? std::string() : labels;
}

bool is_name_of_data(const std::string& path) {
  return (path == "fashion-mnist" || path == "licenses") && !detail::is_there(path);
}

NewData open_images(const Preprocessing& training, const std::string& name, Targets targets) {
  const std::string path = detail::path_named(name);
  NewData opened;
  std::string images = path;
  if (detail::is_folder(path)) {
    const auto test = detail::plain_or_packed(path, "t10k-images-idx3-ubyte");
    images = test ? *test : detail::require(path, "train-images-idx3-ubyte");
    opened.notes.push_back("the images are those of " + images);
  }
  const std::string labels = labels_of(images, targets);
  opened.has_targets = !labels.empty();
  if (labels.empty() && targets == Targets::kAutomatic) {
    opened.notes.push_back("there is no file of labels beside " + images);
  }
  opened.data = open_idx(images, labels, training.shape.classes);
  if (opened.data->shape().dense != training.shape.dense) {
    const auto& found = opened.data->shape().dense;
    detail::throw_data_error(
        images,
        8,
        detail::concat(
            "expected images of {}x{}, as those the model was trained on, found {}x{}",
            {training.shape.dense.at(1), training.shape.dense.at(2), found[1], found[2]}));
  }
  return opened;
}

}  // namespace

std::vector<std::string> files_of_new_data(const std::string& path) {
  std::vector<std::string> files;
  if (path != "fashion-mnist" && !detail::is_folder(path)) {
    files.push_back(path);
    const std::string name = fs::path(path).filename().string();
    if (name.find("images-idx3") != std::string::npos) {
      files.push_back(detail::labels_beside(path));
    }
  } else {
    const std::string folder = detail::path_named(path);
    for (const char* part : {"t10k", "train"}) {
      for (const char* what : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
        if (const auto file = detail::plain_or_packed(folder, concat(part, what))) {
          files.push_back(*file);
        }
      }
    }
  }
  std::erase_if(files, [](const std::string& file) { return !detail::is_there(file); });
  return files;
}

NewData open_new_data(const Preprocessing& training,
                      const std::string& path,
                      const NewDataOptions& options) {
  TRIREME_CHECK(training.format == "csv" || options.header == CsvOptions::Header::kAutomatic,
                "header: it is about csv files, and the model was trained on {}: leave it out",
                {training.format});
  TRIREME_CHECK(training.format == "idx" || !is_name_of_data(path),
                "data: expected a file like the {} that the model was trained on, found \"{}\", "
                "which is the name of a data set of {}",
                {training.format == "csv" ? "table" : "libsvm file",
                 path,
                 path == "licenses" ? "texts" : "images"});
  NewData opened;
  if (training.format == "csv") {
    opened = detail::open_csv_like(training, path, options);
  } else if (training.format == "libsvm") {
    opened = detail::open_libsvm_like(training, path, options.targets);
  } else if (training.format == "idx") {
    opened = open_images(training, path, options.targets);
  } else {
    throw ConfigError("expected how csv, idx or libsvm files are read, found \"" + training.format +
                      "\"");
  }
  if (!training.fill.empty()) {
    opened.data = imputed(opened.data, training.fill);
  }
  if (!training.normalisation.mean.empty()) {
    opened.data = standardised(opened.data, training.normalisation);
  }
  if (training.shape.kind == SampleKind::kSparse &&
      opened.data->shape().kind == SampleKind::kDense) {
    opened.data = sparse_rows(opened.data);
  }
  return opened;
}

}  // namespace trireme
