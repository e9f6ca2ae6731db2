#include "launch/job_setup.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <sodium.h>
#include <sys/resource.h>
#include <unistd.h>

#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"

extern char** environ;  // NOLINT: POSIX gives the environment only by this name

namespace trireme::detail {
namespace {

std::string random_hex(std::size_t bytes) {
  if (sodium_init() < 0) {
    throw InternalError("libsodium cannot find a source of random numbers");
  }
  std::vector<unsigned char> raw(bytes);
  randombytes_buf(raw.data(), raw.size());
  std::string hex(2 * bytes + 1, '\0');
  sodium_bin2hex(hex.data(), hex.size(), raw.data(), raw.size());
  hex.pop_back();
  return hex;
}

}  // namespace

JobIdentity make_job_identity(const std::string& report_place) {
  return {random_hex(8), random_hex(32), report_place};
}

std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const JobIdentity& identity,
                                          int rank,
                                          const Placement& place) {
  std::vector<std::string> ours = {concat(kEnvRank, "=", rank),
                                   concat(kEnvSize, "=", options.ranks),
                                   concat(kEnvLocalRank, "=", rank),
                                   concat(kEnvLocalSize, "=", options.ranks),
                                   concat(kEnvJob, "=", identity.job),
                                   concat(kEnvToken, "=", identity.token),
                                   concat(kEnvReport, "=", identity.report_place)};
  if (options.timeout_seconds) {
    ours.push_back(concat(kEnvTimeout, "=", *options.timeout_seconds));
  }
  if (!options.log_dir.empty()) {
    ours.push_back(concat(kEnvLogDir, "=", std::filesystem::absolute(options.log_dir).string()));
  }
  for (const char* name : {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}) {
    if (options.threads || !env_string(name)) {
      ours.push_back(concat(name, "=", options.threads.value_or(place.threads)));
    }
  }
  ours.insert(ours.end(), options.environment.begin(), options.environment.end());
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    if (std::none_of(ours.begin(), ours.end(), [&](const std::string& other) {
          return other.starts_with(name);
        })) {
      all.push_back(text);
    }
  }
  all.insert(all.end(), ours.begin(), ours.end());
  return all;
}

void raise_descriptor_limit(int ranks) {
  const auto needed = static_cast<rlim_t>(ranks) * 3 + 32;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return;
  }
  TRIREME_CHECK(limit.rlim_max >= needed,
                ranks,
                " ranks need ",
                needed,
                " open files, the limit is ",
                limit.rlim_max,
                ": raise it (ulimit -Hn) or start fewer");
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TRIREME_CHECK(!error, "the log folder \"", folder, "\" cannot be created: ", error.message());
  TRIREME_CHECK(access(folder.c_str(), W_OK) == 0,
                "the log folder \"",
                folder,
                "\" cannot be written: ",
                errno_text(errno));
}

}  // namespace trireme::detail
