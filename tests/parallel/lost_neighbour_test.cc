// ZeRO-3 on two machines of two ranks each, one of which is killed somewhere in a step: every other
// one names it.

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "parallel/memory/unit_source.h"
#include "support/machines.h"
#include "support/ranks.h"
#include "support/torch.h"
#include "trireme/core/error.h"
#include "trireme/parallel/engine.h"

namespace trireme::lost_neighbour_test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 4;
constexpr int kVictim = 3;

struct NetImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  NetImpl() {
    torch::manual_seed(3);
    for (int i = 0; i < 6; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(64, 64)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) {
      x = torch::tanh(layer->forward(x));
    }
    return x;
  }
};
TORCH_MODULE(Net);

struct Board {
  std::atomic<int> steps{0};  // of rank 0
};

void train_until_told(const std::string& job, int rank, Board* board) {
  alarm(90);  // a rank that has not ended by then hangs
  at::set_num_threads(1);
  const auto world = init(testing::options_for(job, rank, kRanks));
  Net net;
  Engine engine(net, Sgd({.lr = 0.01}), {.zero = 3, .unit_bytes = 1}, world);
  const std::string message = testing::message_of<CommError>([&] {
    for (int step = 0; step < 1'000'000; ++step) {
      engine.backward(engine.forward(torch::ones({2, 64})).pow(2).mean());
      engine.step();
      if (rank == 0) {
        board->steps.fetch_add(1);
      }
    }
  });
  // Whoever is told ends at once, and is not the next to be missed.
  EXPECT_NE(message.find("rank 3 (pid"), std::string::npos) << message;
}

TEST(LostNeighbour, IsNamedByTheOthersWhereverItWasInItsStep) {
  for (int round = 0; round < 4; ++round) {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* board = new (memory) Board;
    const std::string job = testing::unique_job();
    std::vector<pid_t> pids;
    for (int rank = 0; rank < kRanks; ++rank) {
      testing::layout_machines().inside(rank / 2, [&] {
        pids.push_back(
            testing::fork_rank(rank, [&](int self) { train_until_told(job, self, board); }));
      });
    }
    while (board->steps.load() < 3 + round) {
      std::this_thread::sleep_for(1ms);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(700 * round));
    kill(pids[kVictim], SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(testing::wait_for(pids[static_cast<std::size_t>(rank)]),
                rank == kVictim ? SIGKILL : 0)
          << "rank " << rank << ", round " << round;
    }
  }
}

TEST(LostNeighbour, FoundWithoutAnOperationIsToldToTheOtherMachines) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* board = new (memory) Board;
  const std::string job = testing::unique_job();
  const auto body = [&](int rank) {
    alarm(90);
    const auto world = init(testing::options_for(job, rank, kRanks));
    const auto source = detail::make_machine_source(*world,
                                                    {{4096},
                                                     4096,
                                                     [&](std::size_t, std::byte*) {
                                                       board->steps.fetch_add(1);
                                                       pause();  // for ever
                                                     },
                                                     MemoryLedger::create()});
    world->barrier().wait();
    try {
      if (rank == kVictim) {
        source->acquire(0);
      } else if (rank == kVictim - 1) {
        while (board->steps.load() == 0) {
          std::this_thread::sleep_for(1ms);
        }
        source->acquire(0);  // which the victim fetches
      } else {
        world->barrier().wait();
      }
      ADD_FAILURE() << "rank " << rank << " has missed nobody";
    } catch (const CommError& error) {
      EXPECT_EQ(error.reason(), CommError::Reason::kPeerDied) << error.what();
      EXPECT_EQ(error.peer(), kVictim) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 3 (pid"), std::string::npos) << error.what();
    }
  };
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    testing::layout_machines().inside(rank / 2,
                                      [&] { pids.push_back(testing::fork_rank(rank, body)); });
  }
  while (board->steps.load() == 0) {
    std::this_thread::sleep_for(1ms);
  }
  std::this_thread::sleep_for(100ms);
  kill(pids[kVictim], SIGKILL);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(testing::wait_for(pids[static_cast<std::size_t>(rank)]),
              rank == kVictim ? SIGKILL : 0)
        << "rank " << rank;
  }
}

}  // namespace
}  // namespace trireme::lost_neighbour_test
