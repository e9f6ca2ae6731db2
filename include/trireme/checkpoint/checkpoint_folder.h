#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

// Which of a folder's checkpoints stay when a newer one is complete.
struct Retention {
  std::int64_t keep_last = 0;   // this many of the newest; 0: all
  std::int64_t keep_every = 0;  // and those whose step is a multiple of this; 0: none besides
};

// A folder of checkpoints, one folder for each step:
//   step-00000100/    complete: a checkpoint gets this name only when all of it is on disk
//   latest            the name of the newest one
//   .step-...         being written, or left behind by a run that was killed
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string path_of(std::int64_t step) const;
  // By step, damaged ones included. Empty if the folder is missing.
  std::vector<std::int64_t> steps() const;
  // The one written last, or the one that training was last resumed from, if nothing was written
  // since.
  std::optional<std::int64_t> newest() const;
  bool contains(std::int64_t step) const;
  // The largest sequence number of all of them; 0 if there are none.
  std::int64_t last_sequence() const;

  // Makes `latest` name this one, in one move.
  void set_latest(std::int64_t step) const;
  // Puts a complete checkpoint under its name, in one move; one that had the name is removed.
  void publish(const std::string& finished, std::int64_t step) const;
  // Those that prune() removes.
  std::vector<std::int64_t> superfluous(const Retention& retention, std::int64_t kept) const;
  // Each is gone in one move. `kept` stays, whatever the retention says. Returns what it removed.
  std::vector<std::int64_t> prune(const Retention& retention, std::int64_t kept) const;
  void remove(std::int64_t step) const;
  // The names of what is being written, or was left behind by runs that were killed.
  std::vector<std::string> unfinished() const;
  // Where a file system cannot exchange names, the checkpoint that is replaced is aside for a
  // moment; gives those back their names that were when a job was killed. Only while holding the
  // lock.
  void put_back_replaced() const;
  // Removes what killed runs left behind, and the weights that `trireme train` kept for checkpoints
  // that are gone; after put_back_replaced(). Only while holding the lock of the folder.
  void remove_unfinished() const;

  static std::string name_of(std::int64_t step);
  static std::optional<std::int64_t> step_of(const std::string& name);

 private:
  std::optional<std::string> set_aside(std::int64_t step, const char* prefix) const;
  void remove_all(const std::vector<std::int64_t>& steps) const;
  std::vector<std::string> names_after(const std::string& prefix) const;

  std::string path_;
};

// Who may write into a folder of checkpoints: one job at a time. Held until it is destroyed or the
// process ends, however it ends.
class FolderLock {
 public:
  // Throws ConfigError that names the holder.
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

  // Throws the same if another job holds it now, and changes nothing in the folder.
  static void check_free(const std::string& folder);

 private:
  int file_ = -1;
};

}  // namespace trireme
