// `trireme bench collectives --peers`: every system is measured in what was asked for, and the
// table and the JSON say how each was set up.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/processes.h"
#include "trireme/core/environment.h"

namespace trireme::bench_peers_test {
namespace {

using Json = nlohmann::json;

TEST(BenchPeers, MeasuresWhatWasAskedForAndSaysHow) {
  if (!env_string("TRIREME_TORCH_PYTHON")) {
    GTEST_SKIP() << "there is no Python with torch";
  }
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/rows.json";
  const testing::Finished done = testing::run_program({testing::trireme_binary(),
                                                       "bench",
                                                       "collectives",
                                                       "--peers",
                                                       "--rounds",
                                                       "2",
                                                       "--op",
                                                       "reduce_scatter",
                                                       "all_gather",
                                                       "--bytes",
                                                       "12KiB",
                                                       "--json",
                                                       path});
  ASSERT_EQ(done.code, 0) << done.err;
  // The second round does not begin with the system that the first one began with.
  EXPECT_NE(done.err.find("round 1 of 2: trireme"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("round 2 of 2: trireme"), std::string::npos) << done.err;
  EXPECT_NE(done.out.find("MALLOC_"), std::string::npos) << done.out;

  const Json rows = Json::parse(testing::read_file(path));
  ASSERT_EQ(rows.size(), 4);  // two operations, in owned and in ordinary memory
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("bytes"), 12 << 10);
    EXPECT_FALSE(row.at("settings").get<std::string>().empty());
    for (const std::string peer : {"gloo", "mpi"}) {
      if (done.out.find(peer + " was not measured: built without") != std::string::npos) {
        continue;
      }
      EXPECT_GT(row.at(peer + "_ms").get<double>(), 0) << peer;
      const std::string settings = row.at(peer + "_settings");
      EXPECT_NE(settings.find("in place"), std::string::npos) << settings;
      EXPECT_NE(done.out.find(peer + ": " + settings), std::string::npos) << done.out;
    }
  }
}

}  // namespace
}  // namespace trireme::bench_peers_test
