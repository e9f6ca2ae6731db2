// Saves of a job of two ranks, for a test to log (support/file_log.cc): logged_saves FOLDER MARKS.
// Save number g of the job has the state of g steps of saving_worker.h. Before and after each, a
// file in MARKS says so: "saving-3", "saved-3" (number 3 is on disk); "choosing-2", "chose-2"
// (number 2 was made the newest again, as by a resume from it).

#include <cstdio>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/ranks.h"
#include "support/saving_worker.h"
#include "trireme/checkpoint/checkpoint_writer.h"

namespace trireme {
namespace {

class Job {
 public:
  Job(World& world, const std::string& folder, std::string marks)
      : world_(world),
        marks_(std::move(marks)),
        writer_(folder, std::shared_ptr<Communicator>(&world, [](Communicator*) {}), options()) {}

  void save(std::int64_t step) {
    const std::string number = std::to_string(++saves_);
    const Range range = even_range(testing::kLoggedNumel, world_.size(), world_.rank());
    std::vector<std::uint64_t> values;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      values.push_back(testing::value_after(saves_, i));
    }
    StateView state;
    state.tensors.push_back({kWeightKind, "values", Dtype::kInt64, {testing::kLoggedNumel}, {}});
    state.slices.push_back({0, range, reinterpret_cast<std::byte*>(values.data())});
    mark("saving-" + number);
    writer_.save(step, state, {});
    mark("saved-" + number);
  }

  void choose(std::int64_t step, int number) {
    mark("choosing-" + std::to_string(number));
    if (world_.rank() == 0) {
      writer_.folder().set_latest(step);
    }
    mark("chose-" + std::to_string(number));
  }

 private:
  static CheckpointOptions options() {
    CheckpointOptions options;
    options.wait = true;
    options.retention.keep_last = 2;
    return options;
  }

  // Nobody does anything meanwhile.
  void mark(const std::string& name) {
    world_.barrier().wait();
    if (world_.rank() == 0) {
      close(open((marks_ + "/" + name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    world_.barrier().wait();
  }

  World& world_;
  std::string marks_;
  CheckpointWriter writer_;
  int saves_ = 0;
};

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "logged_saves FOLDER MARKS\n");
    return 2;
  }
  mkdir(argv[2], 0700);
  trireme::testing::fork_world(2, [&](trireme::World& world) {
    trireme::Job job(world, argv[1], argv[2]);
    job.save(10);
    job.save(20);
    job.save(30);  // the first one goes
    job.save(30);  // in the place of another
    job.choose(20, 2);
    job.save(40);  // the one that was chosen goes
  });
  return ::testing::Test::HasFailure() ? 1 : 0;
}
