#include "checkpoint/shared_folder.h"

#include <chrono>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "trireme/comm/tell.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"

namespace trireme::detail {
namespace {

// With a file of rank 0 that another machine does not see.
constexpr auto kSightPatience = std::chrono::milliseconds(500);
constexpr auto kSightPause = std::chrono::milliseconds(20);

// A name of what is unfinished: where this job is killed, the next one removes it.
std::string mark(const std::string& folder, std::int64_t number) {
  return concat(folder, "/.step-shared-", number);
}

// Nobody has asked for that name before, so that no cache of a network's file system should have it
// as absent; but a job must not be refused because one is slow.
bool sees(const std::string& path) {
  auto left = kSightPatience;
  while (access(path.c_str(), F_OK) != 0) {
    if (left <= left.zero()) {
      return false;
    }
    std::this_thread::sleep_for(kSightPause);
    left -= kSightPause;
  }
  return true;
}

}  // namespace

void check_shared_folder(Communicator& ranks, const std::string& folder) {
  const bool leads = ranks.rank() == 0;
  std::vector<std::int64_t> number = {0};
  if (leads) {
    number[0] = std::chrono::system_clock::now().time_since_epoch().count();
    const std::string path = mark(folder, number[0]);
    const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.valid()) {
      number[0] = 0;  // a full disk must not keep anybody from resuming; a save will name it
    }
  }
  ranks.broadcast(number, 0).wait();
  if (number[0] == 0) {
    return;
  }
  const std::string path = mark(folder, number[0]);
  const std::vector<std::string> blind = all_texts(ranks, sees(path) ? "" : folder);
  if (leads) {
    unlink(path.c_str());
  }
  for (std::size_t rank = 0; rank < blind.size(); ++rank) {
    TRIREME_CHECK(blind[rank].empty(),
                  "rank {} does not see what rank 0 writes to \"{}\": checkpoints need a folder "
                  "that all machines share",
                  {rank, blind[rank]});
  }
}

}  // namespace trireme::detail
