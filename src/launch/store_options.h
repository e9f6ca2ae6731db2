#pragma once

#include <memory>
#include <string>

#include "launch/leadership.h"
#include "trireme/launch/launcher.h"

namespace trireme::detail {

// A store as the options say it.
struct StorePlace {
  EtcdOptions etcd;
  std::string name;  // of the job there
};
// Reads the password. Throws ConfigError for what is no such place, files that are not there, and a
// password that others may read.
StorePlace parse_store(const StoreOptions& options);

// How long a leader leads without renewing that, for a job whose machines are lost after
// `heartbeat`: by then those who follow it have ended their ranks (Note [leases] in
// fleet_lease.cc).
std::int64_t lease_seconds(Milliseconds heartbeat);

// The leadership of a job that is elastic, and whose waits have this deadline. Throws ConfigError.
std::unique_ptr<Leadership> make_leadership(const LaunchOptions& options, Milliseconds timeout);

}  // namespace trireme::detail
