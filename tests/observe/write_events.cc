// Writes event files for tensorboard_test.py to read: write_events FOLDER CONTINUED ELASTIC. The
// second folder gets those of a run that was killed after its step 9 and went on with step 6, the
// third those of one that went on in the same file.

#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "trireme/observe/event_file.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: write_events FOLDER CONTINUED ELASTIC\n");
    return 2;
  }
  try {
    trireme::EventFile file(argv[1]);
    for (int step = 0; step < 20; ++step) {
      file.add_scalar("train/loss", step, 1.0 / (step + 1));
    }
    file.add_scalar("train/loss", 20, std::nan(""));
    std::vector<float> weights(1000);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      weights[i] = (static_cast<float>(i) - 500.0F) / 250.0F;
    }
    weights.push_back(std::nanf(""));
    file.add_histogram("weights", 5, weights);
    file.add_histogram("empty", 5, {});
    file.add_text("config", 0, "learning rate **0.1** & Größe");

    using Into = trireme::EventFile::Into;
    for (const auto& [folder, into] :
         {std::pair(argv[2], Into::kNewFile), std::pair(argv[3], Into::kNewestFile)}) {
      trireme::EventFile killed(folder);
      for (int step = 1; step < 10; ++step) {
        killed.add_scalar("train/loss", step, step);
        killed.add_histogram("weights", step, weights);
      }
      killed.flush();
      trireme::EventFile continued(folder, 6, into);
      for (int step = 6; step < 12; ++step) {
        continued.add_scalar("train/loss", step, 100 + step);
        continued.add_histogram("weights", step, weights);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
