// A program for tests to start as ranks: map_worker FILE adds up 60 partitions, each of which takes
// a while, and writes the number of each into FILE when it is computed. Rank 0 prints the sum.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "support/torch.h"
#include "trireme/comm/elastic.h"
#include "trireme/train/map_reduce.h"

namespace {

constexpr std::int64_t kPartitions = 60;

int add_up(const std::string& file, const std::shared_ptr<trireme::World>& world) {
  trireme::Vault sum_vault(world);
  trireme::Vault text_vault(world);
  const auto note = [&](std::int64_t partition) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dprintf(fd, "%ld\n", static_cast<long>(partition));
    close(fd);
  };
  const auto sums = trireme::map_sum(
      *world,
      kPartitions,
      [&](std::int64_t partition) {
        note(partition);
        return std::vector<torch::Tensor>{
            torch::full({5}, 1.0F / static_cast<float>(partition + 3))};
      },
      &sum_vault);
  const auto text = trireme::map_reduce(
      *world,
      kPartitions,
      [&](std::int64_t partition) {
        note(100 + partition);
        return std::to_string(partition);
      },
      std::string("of"),
      [](std::string& all, const std::string& next) { all += " " + next; },
      &text_vault);
  if (world->rank() == 0) {
    std::printf("sum %a, text %s.\n", sums[0][4].item<double>(), text.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int, char** argv) {
  torch::set_num_threads(1);
  return trireme::run_elastic(
      [&](const std::shared_ptr<trireme::World>& world) { return add_up(argv[1], world); });
}
