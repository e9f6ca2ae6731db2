#include "launch/store_options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <thread>

#include <unistd.h>

#include "comm/rendezvous/net_socket.h"
#include "comm/rendezvous/secrets.h"
#include "launch/job_setup.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/comm/world.h"
#include "trireme/core/environment.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

constexpr char kScheme[] = "etcd://";
constexpr Milliseconds kLookPause{200};
// The longest that one member of the store is waited for.
constexpr Milliseconds kMostPatience{2000};
// What is known of a job outlives its last launcher for as long as a launcher waits for others, and
// this much.
constexpr std::int64_t kMoreMemory = 60;

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= 100 &&
         std::all_of(text.begin(), text.end(), [](unsigned char letter) {
           return std::isalnum(letter) != 0 || letter == '-' || letter == '_' || letter == '.';
         });
}

std::string drill_text(const DrillOptions& drill) {
  return concat("\"{}\" with seed {}", {drill.plan, drill.seed});
}

void check_file(const char* flag, const std::string& file) {
  TRIREME_CHECK(file.empty() || access(file.c_str(), R_OK) == 0,
                "{}: expected a file that can be read, found \"{}\": {}",
                {flag, file, errno_text(errno)});
}

}  // namespace

StorePlace parse_store(const StoreOptions& options) {
  const std::string scheme = kScheme;
  const std::string expected = concat(
      "--store: expected etcd://HOST:PORT,HOST:PORT or etcd://HOST:PORT/NAME, NAME of letters, "
      "digits, \"-\", \"_\" and \".\", found \"",
      options.place,
      "\"");
  TRIREME_CHECK(options.place.starts_with(scheme), expected);
  std::string members = options.place.substr(scheme.size());
  StorePlace store;
  store.name = "job";
  if (const std::size_t slash = members.find('/'); slash != std::string::npos) {
    store.name = members.substr(slash + 1);
    members.resize(slash);
  }
  TRIREME_CHECK(is_name(store.name), expected);
  std::istringstream list(members);
  for (std::string member; std::getline(list, member, ',');) {
    store.etcd.members.push_back(parse_meeting_place(member, "--store").text());
  }
  TRIREME_CHECK(!store.etcd.members.empty(), expected);
  check_file("--store-ca", options.ca_file);
  check_file("--store-cert", options.cert_file);
  check_file("--store-key", options.key_file);
  TRIREME_CHECK(options.cert_file.empty() == options.key_file.empty(),
                "--store-cert, --store-key: expected both or none, found one");
  store.etcd.tls = {options.ca_file, options.cert_file, options.key_file};
  store.etcd.user = options.user.empty() ? env_string(kEnvStoreUser).value_or("") : options.user;
  store.etcd.password = options.password_file.empty()
                            ? env_string(kEnvStorePassword).value_or("")
                            : read_secret_file(options.password_file, "--store-password-file");
  TRIREME_CHECK(store.etcd.user.empty() == store.etcd.password.empty(),
                "--store: expected a user (--store-user, {}) and a password "
                "(--store-password-file, {}), or neither, found only the {}",
                {kEnvStoreUser, kEnvStorePassword, store.etcd.user.empty() ? "password" : "user"});
  return store;
}

std::int64_t lease_seconds(Milliseconds heartbeat) {
  // Of these it has seven eighths, and of those it has spent a sixth when it renews the lease: what
  // is left then is more than a heartbeat. etcd knows whole seconds, and nothing below 2.
  return std::max<std::int64_t>(2, (heartbeat.count() * 3 / 2 + 999) / 1000);
}

namespace {

EtcdClient open_store(StorePlace& place, Milliseconds patience) {
  auto http = load_http_client(place.etcd.tls);
  return {std::move(place.etcd), std::move(http), std::min(patience, kMostPatience)};
}

}  // namespace

std::unique_ptr<Leadership> make_leadership(const LaunchOptions& options, Milliseconds timeout) {
  StorePlace place = parse_store(options.store);
  const ElasticOptions& elastic = *options.elastic;
  const std::int64_t seconds = lease_seconds(milliseconds_of(elastic.heartbeat_seconds));
  std::string what = options.store.identity;
  if (what.empty()) {
    what = std::filesystem::path(options.command.front()).filename().string();
    for (std::size_t i = 1; i < options.command.size(); ++i) {
      what += '\0' + options.command[i];
    }
  }
  JobRecord alike;
  alike.version = TRIREME_VERSION;
  alike.settings = {
      {"--nnodes", std::to_string(options.nodes)},
      {"--elastic", concat(elastic.least, ":", elastic.most)},
      {"--restart", std::to_string(elastic.restarts)},
      {"--heartbeat", concat(elastic.heartbeat_seconds)},
      {"--redundancy", std::to_string(elastic.redundancy)},
      {"--drill and --drill-seed", options.drill ? drill_text(*options.drill) : "none"},
      {"the program, its arguments or settings (a digest)", hex_digest(what)}};
  return std::make_unique<Leadership>(
      Leadership::Options{
          place.name,
          alike,
          seconds,
          std::chrono::duration_cast<std::chrono::seconds>(timeout).count() + kMoreMemory,
          kLookPause},
      open_store(place, Milliseconds(seconds * 1000 / 4)));
}

}  // namespace trireme::detail

namespace trireme {

bool has_begun(const LaunchOptions& options) {
  detail::StorePlace place = detail::parse_store(options.store);
  detail::EtcdClient client = detail::open_store(place, detail::kMostPatience);
  const Deadline deadline(options.timeout_seconds
                              ? detail::milliseconds_of(*options.timeout_seconds)
                              : kDefaultTimeout);
  for (;;) {
    try {
      const auto job = detail::find_job(client, place.name);
      return job && !job->ranks.empty();
    } catch (const detail::StoreTrouble& trouble) {
      if (trouble.is_lasting()) {
        throw ConfigError(detail::concat("--store: ", trouble.what()));
      }
      if (deadline.passed()) {
        throw StoreDoesNotAnswer(
            detail::concat("--store: {}; tried for {} s. Check that etcd runs there, and that this "
                           "machine can reach it (firewall)",
                           {trouble.what(), std::lround(deadline.elapsed_seconds())}));
      }
    }
    std::this_thread::sleep_for(detail::kLookPause);
  }
}

}  // namespace trireme
