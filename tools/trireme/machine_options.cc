#include "machine_options.h"

#include "number_options.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/environment.h"

namespace trireme::tools {
namespace {

constexpr std::int64_t kLargestNodeRank = 1 << 20;

}  // namespace

void add_machine_options(CLI::App& app, LaunchOptions& launch) {
  add_count(app, "--nnodes", launch.nodes, "Number of machines the job runs on (default: 1)");
  app.add_option_function<std::string>(
         "--node-rank",
         [&launch](const std::string& text) {
           const auto number = parse_integer(text);
           if (!number || *number < 0 || *number > kLargestNodeRank) {
             throw CLI::ValidationError(
                 "--node-rank", "expected a whole number of 0 or more, found \"" + text + "\"");
           }
           launch.node_rank = static_cast<int>(*number);
         },
         "The number of this machine, counting from 0")
      ->type_name("K");
  app.add_option("--rendezvous",
                 launch.rendezvous,
                 "Where machine 0 listens for the others: one of its addresses and a free port")
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
                 "Algorithm of collectives between machines: auto, direct, ring, tree, doubling or "
                 "aggregator")
      ->type_name("NAME");
  add_count(app,
            "--sum-group",
            launch.sum_group,
            "Sum groups of this many ranks first; use the number of ranks per machine for "
            "less traffic between machines (default: 1)");
  app.add_flag("--encrypt", launch.encrypt, "Encrypt what ranks send each other between machines");
}

}  // namespace trireme::tools
