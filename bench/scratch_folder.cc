#include "scratch_folder.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::bench {
namespace {

namespace fs = std::filesystem;

// What a process that was told to end may still write, and that has not inherited the pipe.
constexpr int kTries = 100;
constexpr std::chrono::milliseconds kPause{100};

void close_all_but_input() {
  std::vector<int> open;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", ignored)) {
    const auto fd = parse_integer(entry.path().filename().string());
    if (fd && *fd != STDIN_FILENO) {
      open.push_back(static_cast<int>(*fd));
    }
  }
  for (const int fd : open) {
    close(fd);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(const fs::path& parent, const char* choice) {
  std::error_code ignored;  // mkdtemp says it, too
  for (fs::path part = parent; !part.empty() && !fs::exists(part); part = part.parent_path()) {
    made_.push_back(fs::absolute(part, ignored));
  }
  fs::create_directories(parent, ignored);
  std::string pattern = (parent / "trireme-bench-XXXXXX").string();
  TRIREME_CHECK(mkdtemp(pattern.data()) != nullptr,
                "no folder can be created in ",
                parent,
                ": ",
                detail::errno_text(errno),
                "; choose another place with ",
                choice);
  path_ = pattern;
  start_keeper();
}

ScratchFolder::~ScratchFolder() {
  remove();
}

void ScratchFolder::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  for (const fs::path& part : made_) {  // those that are empty, the innermost first
    fs::remove(part, ignored);
  }
}

// No child of this process, whose launcher looks after those, and of no group that Ctrl-C ends.
// Where it cannot be started, the folder goes away with this object alone.
void ScratchFolder::start_keeper() {
  int ends[2];
  if (pipe(ends) != 0) {
    return;
  }
  FileDescriptor listens(ends[0]);
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  keeper_ = FileDescriptor(ends[1]);
  const std::string folder = fs::absolute(path_).string();
  const pid_t pid = fork();
  if (pid > 0) {
    waitpid(pid, nullptr, 0);
    return;
  }
  if (pid < 0) {
    return;
  }
  if (setsid() < 0 || fork() != 0) {
    _exit(0);
  }
  prctl(PR_SET_NAME, "trireme-tidies");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    std::signal(number, SIG_IGN);
  }
  dup2(listens.get(), STDIN_FILENO);
  close_all_but_input();  // the pipe's other end, too
  [[maybe_unused]] const int moved = chdir("/");
  char nothing = 0;
  while (read(STDIN_FILENO, &nothing, 1) < 0 && errno == EINTR) {
  }
  path_ = folder;
  for (int i = 0; i < kTries && fs::exists(path_); ++i) {
    remove();
    std::this_thread::sleep_for(kPause);
  }
  _exit(0);
}

}  // namespace trireme::bench
