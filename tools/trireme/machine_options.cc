#include "machine_options.h"

#include "number_options.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"
#include "trireme/launch/elastic_limits.h"

namespace trireme::tools {
namespace {

constexpr std::int64_t kLargestNumber = 1 << 20;

// One of 0 or more.
template <class Number>
void add_whole_number(CLI::App& app,
                      const std::string& flag,
                      Number& number,
                      const std::string& help,
                      const std::string& type = "N") {
  app.add_option_function<std::string>(
         flag,
         [&number, flag](const std::string& text) {
           const auto parsed = parse_integer(text);
           if (!parsed || *parsed < 0 || *parsed > kLargestNumber) {
             throw CLI::ValidationError(
                 flag, "expected a whole number of 0 or more, found \"" + text + "\"");
           }
           number = static_cast<int>(*parsed);
         },
         help)
      ->type_name(type);
}

}  // namespace

void add_store_options(CLI::App& app, LaunchOptions& launch) {
  app.add_option(
         "--store",
         launch.store.place,
         "Of an elastic job: members of an etcd in which the machines agree who decides, so "
         "that any of them may be lost; /NAME tells jobs apart that share it")
      ->type_name("etcd://HOST:PORT,..[/NAME]");
  app.add_option("--store-ca",
                 launch.store.ca_file,
                 "Speak TLS with the store: who may have signed its certificate (PEM)")
      ->type_name("FILE");
  app.add_option("--store-cert", launch.store.cert_file, "This side's certificate (PEM)")
      ->type_name("FILE");
  app.add_option("--store-key", launch.store.key_file, "and its key (PEM)")->type_name("FILE");
  app.add_option("--store-user",
                 launch.store.user,
                 "The store's user (default: the variable TRIREME_STORE_USER)")
      ->type_name("NAME");
  app.add_option("--store-password-file",
                 launch.store.password_file,
                 "A file with that user's password, readable only by you (default: the variable "
                 "TRIREME_STORE_PASSWORD)")
      ->type_name("FILE");
}

void add_machine_options(CLI::App& app, LaunchOptions& launch) {
  add_count(app, "--nnodes", launch.nodes, "Number of machines the job runs on (default: 1)");
  add_whole_number(
      app, "--node-rank", launch.node_rank, "The number of this machine, counting from 0", "K");
  app.add_option(
         "--rendezvous",
         launch.rendezvous,
         "Where machine 0 listens for the others: one of its addresses and a free port "
         "(with --store, where that can be given: where this machine does, and not required)")
      ->type_name("HOST:PORT");
  app.add_option("--token-file",
                 launch.token_file,
                 "A file with the secret that all machines share, readable only by you (default: "
                 "the variable TRIREME_TOKEN)")
      ->type_name("FILE");
  app.add_option("--interfaces",
                 launch.interfaces,
                 "Network interfaces for the ranks' data (default: all that can reach machine 0)")
      ->type_name("A,B");
  app.add_option("--backend", launch.backend, "How ranks communicate: " + backend_names())
      ->each([](const std::string& name) { check_backend(name, "--backend"); })
      ->type_name("NAME");
  app.add_option("--algorithm",
                 launch.algorithm,
                 "Algorithm of collectives: auto, direct, ring, tree, doubling or aggregator")
      ->type_name("NAME");
  add_count(app,
            "--sum-group",
            launch.sum_group,
            "Sum groups of this many ranks first; use the number of ranks per machine for "
            "less traffic between machines (default: 1)");
  app.add_flag("--encrypt", launch.encrypt, "Encrypt what ranks send each other between machines");
  app.add_flag("--checksums",
               launch.checksums,
               "Check all that ranks send each other between machines for flipped bits");
}

void check_own_ranks(const LaunchOptions& launch) {
  const bool said = !launch.backend.empty();
  TRIREME_CHECK(
      (said ? launch.backend : env_string(kEnvBackend).value_or("")) != "mpi",
      "{}: expected auto, shm or ucx for ranks that trireme starts, found mpi: ranks that "
      "communicate through MPI are started by mpirun, mpiexec or srun (docs/cluster.md)",
      {said ? "--backend" : kEnvBackend});
}

void add_elastic_options(CLI::App& app, ElasticFlags& flags) {
  app.add_option("--elastic",
                 flags.range,
                 "Outlive lost ranks, as long as MIN are left; MAX is the most there may be")
      ->type_name("MIN:MAX");
  add_whole_number(app,
                   "--restart",
                   flags.restarts,
                   "Start ranks that are lost or fail again, up to N times in all (default: 0)");
  add_optional_seconds(app,
                       "--heartbeat",
                       flags.heartbeat,
                       "Seconds after which a rank that a signal has stopped, or a machine that "
                       "is not heard from, is lost (default: 5)");
  add_optional_seconds(app,
                       "--grace",
                       flags.grace,
                       "Seconds for a machine, other than 0, that is asked to end (SIGTERM) to "
                       "leave the job in good order (default: 30)");
  add_optional_seconds(
      app,
      "--stall",
      flags.stall,
      "Seconds without progress after which a rank of an elastic job is lost, and one of another "
      "job is named (default: 60)");
  add_whole_number(app,
                   "--redundancy",
                   flags.redundancy,
                   "Over several machines: keep the state on a second machine every N steps, so "
                   "that the loss of one is outlived; 0: never (default: 1)");
}

void apply(const ElasticFlags& flags, LaunchOptions& launch) {
  launch.stall_seconds = flags.stall.value_or(launch.stall_seconds);
  if (flags.range.empty() && !flags.restarts) {
    TRIREME_CHECK(!flags.heartbeat && !flags.grace && !flags.redundancy,
                  flags.heartbeat ? "--heartbeat"
                  : flags.grace   ? "--grace"
                                  : "--redundancy",
                  ": expected --elastic MIN:MAX or --restart N, found neither");
    return;
  }
  const bool several = launch.nodes > 1;
  ElasticOptions elastic{.least = several ? 0 : launch.ranks, .most = several ? 0 : launch.ranks};
  if (!flags.range.empty()) {
    const std::size_t colon = flags.range.find(':');
    const auto least = parse_integer(flags.range.substr(0, colon));
    const auto most =
        colon == std::string::npos ? std::nullopt : parse_integer(flags.range.substr(colon + 1));
    TRIREME_CHECK(least && most && *least >= 1 && *least <= *most,
                  "--elastic: expected MIN:MAX, numbers of ranks with 1 <= MIN <= MAX, found \"",
                  detail::printable(flags.range),
                  "\"");
    TRIREME_CHECK(*most <= kMostElasticRanks,
                  "--elastic: expected at most {} ranks, found {}",
                  {kMostElasticRanks, *most});
    elastic.least = static_cast<int>(*least);
    elastic.most = static_cast<int>(*most);
    launch.ranks = launch.ranks > 0 || several ? launch.ranks : elastic.most;
  }
  elastic.restarts = flags.restarts.value_or(elastic.restarts);
  elastic.heartbeat_seconds = flags.heartbeat.value_or(elastic.heartbeat_seconds);
  elastic.grace_seconds = flags.grace.value_or(elastic.grace_seconds);
  elastic.stall_seconds = launch.stall_seconds;
  elastic.redundancy = flags.redundancy.value_or(elastic.redundancy);
  launch.elastic = elastic;
}

}  // namespace trireme::tools
