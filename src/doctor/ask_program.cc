#include "doctor/ask_program.h"

#include <cerrno>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/file_descriptor.h"

namespace trireme::detail {
namespace {

// More is of no use, and a program that never stops must not fill the memory.
constexpr std::size_t kLongestAnswer = 64 << 10;

// Reads until the child closes its end, has said enough, or the deadline passes.
std::string listen(int fd, const Deadline& deadline) {
  std::string text;
  char buffer[4096];
  while (text.size() < kLongestAnswer) {
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(deadline.left().count()));
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    const ssize_t got = ready > 0 ? read(fd, buffer, sizeof(buffer)) : 0;
    if (got <= 0) {
      break;
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
  return text;
}

// Its status, or -1 where it had to be killed.
int end_of(pid_t pid, const Deadline& deadline) {
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    if (ended < 0 && errno != EINTR) {
      return -1;
    }
    if (deadline.passed()) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    usleep(1000);  // it has closed its output and is about to end
  }
}

template <class Become>
Answer ask(Milliseconds limit, Become become) {
  const Deadline deadline(limit);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return {};
  }
  FileDescriptor reader(fds[0]);
  FileDescriptor writer(fds[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return {};
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would hear the answer
    become(writer.get());
    _exit(127);
  }
  writer.reset();
  Answer answer;
  answer.text = listen(reader.get(), deadline);
  reader.reset();
  answer.code = end_of(pid, deadline);
  return answer;
}

}  // namespace

Answer ask_program(const std::vector<std::string>& command, Milliseconds limit) {
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  return ask(limit, [&](int out) {
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
  });
}

Answer ask_child(const std::function<std::string()>& question, Milliseconds limit) {
  return ask(limit, [&](int out) {
    const std::string text = question();
    const bool said = write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(said ? 0 : 1);
  });
}

}  // namespace trireme::detail
