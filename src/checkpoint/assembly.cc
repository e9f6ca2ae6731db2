#include "checkpoint/assembly.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "checkpoint/durable.h"
#include "checkpoint/manifest_checks.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/printed.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::milliseconds(20);

std::string rank_name(int rank) {
  return printed("rank-%05d", rank);
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::string Assembly::folder_of(const CheckpointFolder& checkpoints,
                                std::int64_t step,
                                std::int64_t sequence) {
  return concat(checkpoints.path(), "/.", CheckpointFolder::name_of(step), "-", sequence);
}

std::string Assembly::data_path(const std::string& folder, int rank) {
  return folder + "/" + rank_name(rank) + ".safetensors";
}

Assembly::Assembly(CheckpointFolder checkpoints,
                   std::string folder,
                   const Communicator& ranks,
                   std::vector<StateTensor> tensors)
    : checkpoints_(std::move(checkpoints)),
      folder_(std::move(folder)),
      rank_(ranks.rank()),
      size_(ranks.size()),
      tensors_(std::move(tensors)),
      deliveries_(static_cast<std::size_t>(size_)) {}

std::string Assembly::path_of(int rank, const char* ending) const {
  return folder_ + "/" + rank_name(rank) + ending;
}

bool Assembly::is_gone() const {
  std::error_code error;
  return !fs::exists(folder_, error) && !error;
}

void Assembly::deliver(SavedFile file) {
  if (rank_ == 0) {
    deliveries_[0] = {std::move(file), parts_};
    return;
  }
  Json json = {{"bytes", file.size_bytes}, {"checksums", file.checksums}};
  Json parts = Json::array();
  for (const FileImage::Part& part : parts_) {
    parts.push_back({part.tensor, part.range.begin, part.range.end, part.offset});
  }
  json["parts"] = std::move(parts);
  // Rank 0 may give the folder its name as soon as it sees this; the names in it are its to sync.
  write_whole(path_of(rank_, ".part"), json.dump());
}

void Assembly::report_failure(const std::string& reason) const noexcept {
  try {
    unlink(own_path().c_str());  // of no use now, and the reason may need its room
    if (rank_ != 0) {
      write_whole(path_of(rank_, ".failed"), reason);
    }
  } catch (const std::exception&) {
    // No room even for this: the others hear of it when they next wait for each other.
  }
}

bool Assembly::receive(int rank) {
  const std::string failed = path_of(rank, ".failed");
  std::error_code error;
  if (fs::exists(failed, error)) {
    throw CheckpointError(
        data_path(folder_, rank), -1, concat("rank ", rank, ": ", text_of(failed)));
  }
  const std::string path = path_of(rank, ".part");
  if (!fs::exists(path, error)) {
    return false;
  }
  const std::string text = text_of(path);
  if (json_too_deep_at(text)) {
    throw CheckpointError(
        path, -1, concat("\"", path, "\": expected what rank ", rank, " wrote, found nested JSON"));
  }
  try {
    const Json json = Json::parse(text);
    Delivery& delivery = deliveries_[static_cast<std::size_t>(rank)];
    delivery.file.size_bytes = json.at("bytes").get<std::uint64_t>();
    delivery.file.checksums = json.at("checksums").get<std::vector<std::uint64_t>>();
    for (const Json& part : json.at("parts")) {
      delivery.parts.push_back({part.at(0).get<std::size_t>(),
                                {part.at(1).get<std::int64_t>(), part.at(2).get<std::int64_t>()},
                                part.at(3).get<std::uint64_t>()});
    }
  } catch (const Json::exception& problem) {
    throw CheckpointError(path, -1, concat("\"", path, "\": ", problem.what()));
  }
  return true;
}

bool Assembly::wait_for_all(const std::function<bool()>& give_up) {
  auto pause = kFirstPause;
  for (int rank = 1; rank < size_;) {
    if (receive(rank)) {
      ++rank;
      continue;
    }
    // A later one may have failed already.
    for (int other = rank + 1; other < size_; ++other) {
      std::error_code error;
      if (fs::exists(path_of(other, ".failed"), error)) {
        receive(other);
      }
    }
    if (give_up()) {
      return false;
    }
    if (is_gone()) {
      throw CheckpointError(folder_,
                            -1,
                            concat("the folder \"",
                                   folder_,
                                   "\" was removed while a checkpoint was being written there"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
  return true;
}

void Assembly::write_manifest(Manifest& about) {
  for (const StateTensor& tensor : tensors_) {
    about.tensors.push_back({tensor, {}});
  }
  for (int rank = 0; rank < size_; ++rank) {
    Delivery& delivery = deliveries_[static_cast<std::size_t>(rank)];
    delivery.file.name = fs::path(data_path(folder_, rank)).filename().string();
    for (const FileImage::Part& part : delivery.parts) {
      TRIREME_ASSERT(part.tensor < about.tensors.size(), "tensor ", part.tensor);
      about.tensors[part.tensor].parts.push_back({part.range, about.files.size(), part.offset});
    }
    about.files.push_back(std::move(delivery.file));
  }
  for (SavedTensor& saved : about.tensors) {
    std::sort(saved.parts.begin(), saved.parts.end(), [](const SavedPart& a, const SavedPart& b) {
      return a.range.begin < b.range.begin;
    });
  }
  const std::string path = folder_ + "/" + Manifest::kFileName;
  check_manifest(about, path);
  for (int rank = 1; rank < size_; ++rank) {
    unlink(path_of(rank, ".part").c_str());
  }
  write_durably(path, about.to_json());
}

void Assembly::publish(std::int64_t step) const {
  checkpoints_.publish(folder_, step);
  checkpoints_.set_latest(step);
}

}  // namespace trireme::detail
