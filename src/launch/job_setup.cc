#include "launch/job_setup.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/rendezvous/membership_socket.h"
#include "comm/rendezvous/secrets.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/drill.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/pulse.h"

extern char** environ;  // NOLINT: POSIX gives the environment only by this name

namespace trireme::detail {
namespace {

constexpr std::size_t kLongestSecret = 4096;

constexpr const char* kPlaceVariables[] = {kEnvNodeRank,
                                           kEnvNodes,
                                           kEnvRendezvous,
                                           kEnvRendezvousFd,
                                           kEnvRanksMayChange,
                                           kEnvMembership,
                                           kEnvPulse,
                                           kEnvDrill,
                                           kEnvStoreUser,
                                           kEnvStorePassword};

}  // namespace

std::string random_job_name() {
  return hex_of(random_bytes(8));
}

std::string random_token() {
  return hex_of(random_bytes(32));
}

std::string token_from_secret(const std::string& secret, const std::string& job) {
  return hex_of(hmac_sha256(secret, "ranks of " + job));
}

std::string read_secret_file(const std::string& file, const std::string& source) {
  const FileDescriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  TRIREME_CHECK(fd.valid() && fstat(fd.get(), &status) == 0,
                "{}: the file \"{}\" cannot be read: {}",
                {source, file, errno_text(errno)});
  TRIREME_CHECK((status.st_mode & (S_IRGRP | S_IROTH)) == 0,
                "{}: the file \"{}\" can be read by users other than its owner, so it is not "
                "secret: chmod 600 {}",
                {source, file, file});
  std::string secret(kLongestSecret + 1, '\0');
  const ssize_t got = read(fd.get(), secret.data(), secret.size());
  TRIREME_CHECK(
      got >= 0, "{}: the file \"{}\" cannot be read: {}", {source, file, errno_text(errno)});
  secret.resize(static_cast<std::size_t>(got));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) {
    secret.pop_back();  // an editor's end of line is no part of it
  }
  TRIREME_CHECK(!secret.empty() && secret.size() <= kLongestSecret,
                "{}: expected a secret of 1 to {} bytes in \"{}\", found {}",
                {source, kLongestSecret, file, secret.empty() ? "none" : "more"});
  return secret;
}

std::string read_secret(const std::string& token_file) {
  const std::string secret = token_file.empty() ? env_string(kEnvToken).value_or("")
                                                : read_secret_file(token_file, "--token-file");
  return secret == kNoToken ? "" : secret;
}

std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const JobIdentity& identity,
                                          int local_rank,
                                          const Placement& place) {
  const int rank = identity.first_rank + local_rank;
  std::vector<std::string> ours = {concat(kEnvRank, "=", rank),
                                   concat(kEnvSize, "=", identity.world_size),
                                   concat(kEnvLocalRank, "=", local_rank),
                                   concat(kEnvLocalSize, "=", identity.local_size),
                                   concat(kEnvJob, "=", identity.job),
                                   concat(kEnvToken, "=", identity.token),
                                   concat(kEnvReport, "=", identity.report_place)};
  // For programs that were written for torchrun.
  ours.push_back(concat("RANK=", rank));
  ours.push_back(concat("WORLD_SIZE=", identity.world_size));
  ours.push_back(concat("LOCAL_RANK=", local_rank));
  ours.push_back(concat("LOCAL_WORLD_SIZE=", identity.local_size));
  ours.push_back(concat("GROUP_RANK=", options.node_rank));
  if (identity.master_port > 0) {
    ours.push_back(concat("MASTER_ADDR=", identity.master_host));
    ours.push_back(concat("MASTER_PORT=", identity.master_port));
  }
  if (options.elastic) {
    ours.push_back(concat(kEnvEpoch, "=", identity.epoch));
    ours.push_back(concat(kEnvRedundancy, "=", options.elastic->redundancy));
    if (options.elastic->least < options.elastic->most && !options.elastic->allow_changes) {
      ours.push_back(concat(kEnvRanksMayChange, "=on"));
    }
  }
  if (!identity.rendezvous.empty()) {
    ours.push_back(concat(kEnvNodeRank, "=", options.node_rank));
    ours.push_back(concat(kEnvNodes, "=", options.nodes));
    ours.push_back(concat(kEnvRendezvous, "=", identity.rendezvous));
  }
  if (rank == 0 && identity.rank0_listener >= 0) {
    ours.push_back(concat(kEnvRendezvousFd, "=", identity.rank0_listener));
  }
  const std::vector<std::string> communication = communication_variables(options);
  ours.insert(ours.end(), communication.begin(), communication.end());
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
  const bool in_elastic_job = env_string(kEnvMembership).has_value();  // this launcher is a rank
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    // What another launcher said about the machines of another job is not true of this one.
    const bool is_of_another_job =
        (in_elastic_job && name == concat(kEnvEpoch, "=")) ||
        std::any_of(std::begin(kPlaceVariables),
                    std::end(kPlaceVariables),
                    [&](const char* place_name) { return name == concat(place_name, "="); });
    if (!is_of_another_job && std::none_of(ours.begin(), ours.end(), [&](const std::string& other) {
          return other.starts_with(name);
        })) {
      all.push_back(text);
    }
  }
  all.insert(all.end(), ours.begin(), ours.end());
  return all;
}

void raise_descriptor_limit(const LaunchOptions& options) {
  const int ranks = options.elastic ? options.elastic->most : options.ranks;
  const int machines = options.nodes;
  // Machine 0 also talks to launchers that are not admitted yet.
  const auto needed = static_cast<rlim_t>(ranks) * 3 + 32 +
                      (options.elastic ? static_cast<rlim_t>(ranks) + kMostDescriptors + 1 : 0) +
                      (machines > 1 ? static_cast<rlim_t>(machines) + 96 : 0);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return;
  }
  TRIREME_CHECK(limit.rlim_max >= needed,
                "{}{}{} open files, the limit is {}: raise it (ulimit -Hn) or start fewer",
                {ranks,
                 machines > 1 ? concat(" ranks and ", machines, " machines need ") : " ranks need ",
                 needed,
                 limit.rlim_max});
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TRIREME_CHECK(!error, "the log folder \"", folder, "\" cannot be created: ", error.message());
  TRIREME_CHECK(access(folder.c_str(), W_OK) == 0,
                "the log folder \"{}\" cannot be written: {}",
                {folder, errno_text(errno)});
}

}  // namespace trireme::detail

namespace trireme {

std::vector<std::string> communication_variables(const LaunchOptions& options) {
  std::vector<std::string> said;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) {
      said.push_back(detail::concat(name, "=", value));
    }
  };
  add(kEnvInterfaces, options.interfaces);
  add(kEnvBackend, options.backend);
  add(kEnvAlgorithm, options.algorithm);
  add(kEnvEncrypt, options.encrypt ? "on" : "");
  add(kEnvChecksums, options.checksums ? "on" : "");
  add(kEnvSumGroup, options.sum_group ? std::to_string(*options.sum_group) : "");
  return said;
}

}  // namespace trireme
