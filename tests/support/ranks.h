#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "trireme/comm/world.h"

// Ranks for tests: as processes, which is how they really run, or as threads, where the thread
// sanitizer sees both sides.

namespace trireme::testing {

class Machines;

// Where the ranks of a test are, by the variable TRIREME_TEST_LAYOUT:
//   (not set)    on this machine, in shared memory
//   ucx          on this machine, through UCX
//   machines:M   on M machines (support/machines.h), as many on each as possible
//   external     wherever mpirun or trireme run have started this program: only worlds of that
//                size are tested
// and sums add up groups of TRIREME_SUM_GROUP ranks first. Where a layout cannot be had here, every
// test is skipped, with "layout cannot be had" and the reason.
bool in_external_layout();
// How the reason begins why a test is skipped there that has no world of this size.
inline constexpr const char* kOtherSize = "for a world of ";
// The layout is the first one, where everything is tested; the others take what they may get wrong.
bool in_shared_memory();
// The machines of the layout machines:M.
Machines& layout_machines();
int sum_group();

// A job name that no other test uses.
std::string unique_job();

// Options that place a rank in a job of its own, with a short deadline.
InitOptions options_for(const std::string& job, int rank, int size);

// Runs body(rank) in `size` forked processes and waits. A rank fails when a gtest expectation in
// it fails or when it throws; the test then fails with what it printed. Returns the wait statuses.
std::vector<int> fork_ranks(int size, const std::function<void(int rank)>& body);

// The same with a world of all of them; `adjust` may change the options.
void fork_world(int size,
                const std::function<void(World& world)>& body,
                const std::function<void(InitOptions& options)>& adjust = {});

// Runs body(world) in `size` threads of this process.
void spawn_world(int size,
                 const std::function<void(World& world)>& body,
                 const std::function<void(InitOptions& options)>& adjust = {});

// Starts body(rank) in a process of its own; for tests that kill it. Reap it with wait_for.
pid_t fork_rank(int rank, const std::function<void(int rank)>& body);
int wait_for(pid_t pid);

// The message of the E that `body` throws; fails the test when it throws nothing else.
template <class E>
std::string message_of(const std::function<void()>& body);

}  // namespace trireme::testing

#include <gtest/gtest.h>

template <class E>
std::string trireme::testing::message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (dynamic_cast<const E*>(&error) == nullptr) {
      ADD_FAILURE() << "another exception: " << error.what();
    }
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}
