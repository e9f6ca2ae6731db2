#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

// What may be left of files when the power fails: of everything that was not put on disk by fsync,
// any part, in any order.

namespace trireme::testing {

// What was done to files (support/file_log.cc). They have numbers, since a name may be another
// file's later; the folder that was logged is number 0.
struct FileOp {
  enum class Kind { kCreate, kLink, kRemove, kRename, kWrite, kTruncate, kSync };
  Kind kind = Kind::kCreate;
  int file = 0;
  bool is_folder = false;
  int folder = 0;    // the name's
  std::string name;  // kSync: the last one that the file had
  int new_folder = 0;
  std::string new_name;
  int other = -1;  // kRename: the file that gets the old name
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::string data;
};

// The log of what was done below `root`, which was empty before.
std::vector<FileOp> read_file_log(const std::string& log, const std::string& root);

// Files and folders, as operations leave them.
class Disk {
 public:
  // Knows what these make, without a name yet: which names survive is another matter.
  explicit Disk(const std::vector<FileOp>& ops);
  void apply(const FileOp& op);
  // Every file's path and bytes; a folder's path ends with a slash.
  std::map<std::string, std::string> tree() const;
  // Makes `folder`, which is not there, what this is.
  static void write(const std::map<std::string, std::string>& tree, const std::string& folder);
  // What `write` would have made a folder from.
  static std::map<std::string, std::string> read(const std::string& folder);

 private:
  struct File {
    bool is_folder = false;
    std::string bytes;
    std::map<std::string, int> entries;
  };
  void collect(int folder,
               const std::string& path,
               std::map<std::string, std::string>& found) const;

  std::map<int, File> files_;
};

// Calls `look` with what may be found after a power cut behind the first `done` operations, for
// every `done`, until it returns false. Operations on names survive whole or not at all, each by
// itself; what was written survives page by page. Of few that are not on disk all choices are
// tried; of many each one alone, all but each one, the first ones, and some by chance.
void each_power_cut(
    const std::vector<FileOp>& ops,
    const std::function<bool(std::size_t done, const std::map<std::string, std::string>& tree)>&
        look);

}  // namespace trireme::testing
