#pragma once

#include <optional>
#include <string>
#include <vector>

// Which files a name stands for.

namespace trireme::detail {

inline constexpr const char* kLicenses = "/usr/share/common-licenses";

// The path itself, or the folder of "fashion-mnist" or "licenses".
std::string path_named(const std::string& path);

bool is_folder(const std::string& path);
bool is_there(const std::string& path);

// The files of a folder with this extension, plain or gzip, sorted; without one, all its files but
// no links (which name files of the same folder again).
std::vector<std::string> files_in(const std::string& folder, const std::string& extension);

// `folder`/`name`, or the same with ".gz"; require() throws DataError where neither is there.
std::optional<std::string> plain_or_packed(const std::string& folder, const std::string& name);
std::string require(const std::string& folder, const std::string& name);

// MNIST's training files.
bool holds_idx(const std::string& folder);
// The file of labels that belongs to one of images, by its name.
std::string labels_beside(const std::string& images);

// The format that a file's name tells; "text" where it tells none. Throws ConfigError for names of
// what is not read.
std::string format_of_file(const std::string& path);

}  // namespace trireme::detail
