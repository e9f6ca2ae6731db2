// A program for tests to start as ranks: forms_worker STEPS keeps a state that has another form in
// every second step, as that of replicas has, and rank 0 prints how many pieces of memory the
// launcher then holds. In its middle rank 1 is lost, once: what was kept last is gone on from.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "trireme/checkpoint/vault.h"
#include "trireme/comm/elastic.h"
#include "trireme/comm/kept_memory.h"
#include "trireme/comm/world.h"

namespace {

int train(std::int64_t steps, const std::shared_ptr<trireme::World>& world) {
  std::vector<float> values(1000, 0);
  const auto view = [&](std::int64_t step) {
    const std::int64_t numel = step % 2 == 0 ? 1000 : 500;
    trireme::StateView state;
    state.tensors = {{trireme::kWeightKind,
                      step % 2 == 0 ? "whole" : "half",
                      trireme::Dtype::kFloat32,
                      {numel * world->size()},
                      {}}};
    state.slices = {{0,
                     {numel * world->rank(), numel * (world->rank() + 1)},
                     reinterpret_cast<std::byte*>(values.data())}};
    return state;
  };
  trireme::Vault vault(world);
  std::int64_t step = 0;
  if (const auto newest = vault.newest()) {
    step = newest->step;
    vault.load(view(step));
    if (values[0] != static_cast<float>(step)) {
      std::fprintf(stderr, "found %g in version %lld\n", values[0], static_cast<long long>(step));
      return 1;
    }
  }
  while (step < steps) {
    ++step;
    values.assign(values.size(), static_cast<float>(step));
    vault.save(step, view(step), {{"step", std::to_string(step)}});
    if (step == steps / 2 && world->epoch() == 0 && world->rank() == 1) {
      std::raise(SIGKILL);
    }
  }
  world->barrier().wait();
  if (world->rank() == 0) {
    // The launcher reads what each rank has told it when it comes to that.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::printf("kept %zu\n", trireme::kept_memory().size());
  }
  world->barrier().wait();
  return 0;
}

}  // namespace

int main(int, char** argv) {
  return trireme::run_elastic([&](const std::shared_ptr<trireme::World>& world) {
    return train(std::atoll(argv[1]), world);
  });
}
