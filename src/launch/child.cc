#include "launch/child.h"

#include <cerrno>
#include <sstream>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

struct Pipe {
  FileDescriptor reader;
  FileDescriptor writer;
};

Pipe make_pipe() {
  int fds[2];
  TRIREME_CHECK(pipe2(fds, O_CLOEXEC) == 0,
                "a pipe could not be created: {}; raise the limit on open files (ulimit -n)",
                {errno_text(errno)});
  return {FileDescriptor(fds[0]), FileDescriptor(fds[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

struct Prepared {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t launcher;
};

// Runs in the child between fork and exec: only calls that are safe there.
[[noreturn]] void become(
    const ChildOptions& options, const Prepared& prepared, int out, int err, int failures) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(failures, &error, sizeof(error));
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.launcher) {
    _exit(127);  // the launcher died before the line above
  }
  if (!options.placement.cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : options.placement.cpus) {
      if (cpu < CPU_SETSIZE) {
        CPU_SET(cpu, &set);
      }
    }
    sched_setaffinity(0, sizeof(set), &set);  // a wish: a processor may just have gone offline
  }
  if (!options.inherits_input) {
    const int null = open("/dev/null", O_RDONLY);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) {
      give_up();
    }
    close(null);
  }
  if ((!options.inherits_output && dup2(out, STDOUT_FILENO) < 0) || dup2(err, STDERR_FILENO) < 0) {
    give_up();
  }
  for (const int fd : options.kept_fds) {
    fcntl(fd, F_SETFD, 0);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(options.program.c_str(), prepared.arguments.data(), prepared.environment.data());
  give_up();
  _exit(127);
}

bool is_executable_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& program) {
  TRIREME_CHECK(!program.empty(), "the name of the program to run is empty");
  if (program.find('/') != std::string::npos) {
    TRIREME_CHECK(
        access(program.c_str(), F_OK) == 0, "the program \"", program, "\" does not exist");
    TRIREME_CHECK(
        is_executable_file(program), "\"", program, "\" is not a file that may be executed");
    return program;
  }
  std::istringstream folders(env_string("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string path = concat(folder.empty() ? "." : folder, "/", program);
    if (is_executable_file(path)) {
      return path;
    }
  }
  const std::string here = "./" + program;
  throw ConfigError(
      concat("the program \"{}\" was not found in PATH{}",
             {program,
              is_executable_file(here) ? concat("; did you mean ", here, "?")
              : access(here.c_str(), F_OK) == 0
                  ? concat("; ", here, " is no program: it is not a file that may be executed")
                  : ""}));
}

Child start_child(const ChildOptions& options) {
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe failures = make_pipe();
  const Prepared prepared{pointers(options.arguments), pointers(options.environment), getpid()};
  const pid_t pid = fork();
  TRIREME_CHECK(pid >= 0,
                "a process could not be started: ",
                errno_text(errno),
                "; check the limits on processes (ulimit -u) and memory");
  if (pid == 0) {
    become(options, prepared, output.writer.get(), errors.writer.get(), failures.writer.get());
  }
  setpgid(pid, pid);  // here too, so that it holds from now on whoever runs first
  failures.writer.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got =
        read(failures.reader.get(), &error, sizeof(error));  // ends at exec, which closes the pipe
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof(error))) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {  // nobody else knows of it
    }
  }
  TRIREME_CHECK(got != static_cast<ssize_t>(sizeof(error)),
                "the program \"{}\" could not be started: {}",
                {options.program, errno_text(error)});
  for (const FileDescriptor* fd : {&output.reader, &errors.reader}) {
    fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }
  if (options.inherits_output) {
    output.reader.reset();
  }
  return {pid, std::move(output.reader), std::move(errors.reader)};
}

}  // namespace trireme::detail
