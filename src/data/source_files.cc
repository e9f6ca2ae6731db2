#include "data/source_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "data/data_failure.h"
#include "data/gzip.h"

namespace trireme::detail {

namespace fs = std::filesystem;

namespace {

// What is no text, by its name. What it holds is looked at as well (binary_content.h).
constexpr std::array<std::string_view, 26> kOtherFormats = {
    ".7z",  ".arrow",  ".bz2", ".docx", ".feather", ".h5",  ".hdf5", ".jpeg", ".jpg",
    ".npy", ".npz",    ".orc", ".pdf",  ".parquet", ".pkl", ".png",  ".pt",   ".pth",
    ".rar", ".sqlite", ".tar", ".tgz",  ".xlsx",    ".xz",  ".zip",  ".zst"};

}  // namespace

std::string path_named(const std::string& path) {
  constexpr const char* kFashionMnist = "/usr/share/datasets/fashion-mnist";
  if (path == "fashion-mnist") {
    if (!is_folder(kFashionMnist)) {
      throw_data_error(kFashionMnist,
                       -1,
                       "expected the folder of Fashion-MNIST, found none: install the package "
                       "dataset-fashion-mnist (apt install dataset-fashion-mnist), or name a "
                       "folder that holds the four files");
    }
    return kFashionMnist;
  }
  return path == "licenses" ? kLicenses : path;
}

bool is_folder(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at is no folder; opening it says why
  return fs::is_directory(path, ignored);
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> files_in(const std::string& folder, const std::string& extension) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const fs::path plain = without_gz(entry->path().string());
    const bool wanted = extension.empty() ? fs::is_regular_file(entry->symlink_status(ignored))
                                          : plain.extension() == extension &&
                                                fs::is_regular_file(entry->status(ignored));
    if (wanted) {
      files.push_back(entry->path().string());
    }
  }
  if (error) {
    throw_data_error(folder, -1, "the folder could not be read: ", error.message());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::optional<std::string> plain_or_packed(const std::string& folder, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    std::string path = (fs::path(folder) / (name + ending)).string();
    if (is_there(path)) {
      return path;
    }
  }
  return std::nullopt;
}

std::string require(const std::string& folder, const std::string& name) {
  const auto path = plain_or_packed(folder, name);
  if (!path) {
    throw_data_error(
        folder, -1, "expected ", name, " or ", name, ".gz in the folder, found neither");
  }
  return *path;
}

bool holds_idx(const std::string& folder) {
  return plain_or_packed(folder, "train-images-idx3-ubyte") ||
         plain_or_packed(folder, "train-labels-idx1-ubyte");
}

std::string format_of_file(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  const std::string extension = fs::path(without_gz(path)).extension().string();
  if (name.find("images-idx3") != std::string::npos) {
    return "idx";
  }
  if (extension == ".csv" || extension == ".tsv") {
    return "csv";
  }
  if (extension == ".svm" || extension == ".libsvm") {
    return "libsvm";
  }
  if (extension == ".u16") {
    return "tokens16";
  }
  if (extension == ".u32") {
    return "tokens32";
  }
  TRIREME_CHECK(extension != ".bin",
                path,
                ": \".bin\" says nothing about the content: give its format (tokens16, tokens32, "
                "text, csv, libsvm or idx)");
  TRIREME_CHECK(
      std::find(kOtherFormats.begin(), kOtherFormats.end(), extension) == kOtherFormats.end(),
      "{}: expected idx, text, tokens, csv or libsvm, plain or gzip, found \"{}\", which is not "
      "supported: unpack or convert it, or give the format (--format text takes its bytes as they "
      "are)",
      {path, extension});
  return "text";
}

std::string labels_beside(const std::string& images) {
  const fs::path path(images);
  std::string name = path.filename().string();
  const std::string_view from = "images-idx3";
  const std::size_t at = name.find(from);
  if (at == std::string::npos) {
    throw_data_error(images,
                     -1,
                     "expected \"images-idx3\" in the file's name (the labels' file is named the "
                     "same with \"labels-idx1\"), found ",
                     name);
  }
  const std::string labels = name.replace(at, from.size(), "labels-idx1");
  return (path.parent_path() / labels).string();
}

}  // namespace trireme::detail
