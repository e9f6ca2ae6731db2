#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_image.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/communicator.h"

namespace trireme::detail {

// Puts one checkpoint together from the ranks' files, in a folder that gets its name last. Ranks
// tell each other through that folder and not through the communicator, which belongs to the
// training: "rank-00003.part" says what is in a rank's file, "rank-00003.failed" why there is none.
class Assembly {
 public:
  static std::string folder_of(const CheckpointFolder& checkpoints,
                               std::int64_t step,
                               std::int64_t sequence);
  static std::string data_path(const std::string& folder, int rank);

  Assembly(CheckpointFolder checkpoints,
           std::string folder,
           const Communicator& ranks,
           std::vector<StateTensor> tensors);

  std::string own_path() const { return data_path(folder_, rank_); }
  void set_parts(std::vector<FileImage::Part> parts) { parts_ = std::move(parts); }

  // Rank 0 has removed the folder: nobody wants this checkpoint any more.
  bool is_gone() const;

  // This rank's file is on disk.
  void deliver(SavedFile file);
  // It will never be. Does not throw.
  void report_failure(const std::string& reason) const noexcept;

  // Rank 0's. False where `give_up` said so; throws CheckpointError where a rank has failed.
  bool wait_for_all(const std::function<bool()>& give_up);
  void write_manifest(Manifest& about);
  void publish(std::int64_t step) const;

 private:
  struct Delivery {
    SavedFile file;
    std::vector<FileImage::Part> parts;
  };
  std::string path_of(int rank, const char* ending) const;
  bool receive(int rank);

  CheckpointFolder checkpoints_;
  std::string folder_;
  int rank_;
  int size_;
  std::vector<StateTensor> tensors_;
  std::vector<FileImage::Part> parts_;
  std::vector<Delivery> deliveries_;  // by rank, as they come
};

}  // namespace trireme::detail
