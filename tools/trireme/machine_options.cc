#include "machine_options.h"

#include "number_options.h"
#include "trireme/core/environment.h"

namespace trireme::tools {
namespace {

constexpr std::int64_t kLargestNodeRank = 1 << 20;

}  // namespace

void add_machine_options(CLI::App& app, LaunchOptions& launch) {
  add_count(app, "--nnodes", launch.nodes, "How many machines the job runs on (default: 1)");
  app.add_option_function<std::string>(
         "--node-rank",
         [&launch](const std::string& text) {
           const auto number = parse_integer(text);
           if (!number || *number < 0 || *number > kLargestNodeRank) {
             throw CLI::ValidationError(
                 "--node-rank", "expected a whole number from 0 on, found \"" + text + "\"");
           }
           launch.node_rank = static_cast<int>(*number);
         },
         "Which of them this is, from 0 on")
      ->type_name("K");
  app.add_option("--rendezvous",
                 launch.rendezvous,
                 "Where machine 0 listens for the others: an address of it and a free port")
      ->type_name("HOST:PORT");
  app.add_option("--token-file",
                 launch.token_file,
                 "A file with the secret that all machines share; only you may read it (default: "
                 "the variable TRIREME_TOKEN)")
      ->type_name("FILE");
  app.add_option("--interfaces",
                 launch.interfaces,
                 "Network interfaces for the ranks (default: all that reach machine 0)")
      ->type_name("A,B");
  app.add_option("--backend", launch.backend, "How ranks talk: auto, shm, ucx or mpi")
      ->type_name("NAME");
  app.add_option(
         "--algorithm",
         launch.algorithm,
         "Of collectives between machines: auto, direct, ring, tree, doubling or aggregator")
      ->type_name("NAME");
  add_optional_count(app,
                     "--sum-group",
                     launch.sum_group,
                     "Ranks whose numbers are added up first, as a group: the ranks of a machine, "
                     "for less traffic between machines (default: 1)");
}

}  // namespace trireme::tools
