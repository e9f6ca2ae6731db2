#include "checkpoint_ranks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

#include "checkpoint_state.h"
#include "page_cache.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/file_write.h"

namespace trireme::bench {
namespace {

constexpr std::size_t kPieceBytes = 4 << 20;
// Calls in a round, as in bench/peers/checkpoint_peers.py.
constexpr int kUntimed = 2;
constexpr int kTimed = 2;

bool all_agree(World& world, bool value) {
  std::vector<std::int32_t> votes = {value ? 1 : 0};
  world.all_reduce(votes, ReduceOp::kMin).wait();
  return votes[0] == 1;
}

// Ready for a save: those before are removed, and nothing of that is left for the disk to do.
bool make_room(World& world, const CheckpointWriter& writer) {
  if (world.rank() == 0) {
    for (const std::int64_t step : writer.folder().steps()) {
      writer.folder().remove(step);
    }
    sync();
  }
  world.barrier().wait();
  return true;
}

bool is_ready() {
  return true;
}

void save_pieces(const std::string& path, const RankState& state) {
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  TRIREME_CHECK(file.valid(), "\"", path, "\" cannot be created: ", detail::errno_text(errno));
  for (std::size_t at = 0; at < state.size_bytes(); at += kPieceBytes) {
    write_all(file.get(), path, state.data() + at, std::min(kPieceBytes, state.size_bytes() - at));
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const FileDescriptor handle(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  TRIREME_CHECK(fsync(file.get()) == 0 && fsync(handle.get()) == 0,
                "\"",
                path,
                "\" cannot be written to disk: ",
                detail::errno_text(errno));
}

void load_pieces(const std::string& path, const RankState& state) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  TRIREME_CHECK(file.valid(), "\"", path, "\" cannot be read: ", detail::errno_text(errno));
  for (std::size_t at = 0; at < state.size_bytes();) {
    const ssize_t got =
        read(file.get(), state.data() + at, std::min(kPieceBytes, state.size_bytes() - at));
    TRIREME_CHECK(got > 0, "\"", path, "\" cannot be read: ", detail::errno_text(errno));
    at += static_cast<std::size_t>(got);
  }
}

}  // namespace

void RankSamples::time(const char* op,
                       const char* peer,
                       const std::function<bool()>& before,
                       const std::function<void()>& call) {
  std::vector<double> ms;
  for (int i = 0; i < kUntimed + kTimed; ++i) {
    if (!before()) {
      return;
    }
    world_.barrier().wait();
    const auto start = Clock::now();
    call();
    world_.barrier().wait();
    if (i >= kUntimed) {
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
  }
  add(op, peer, std::move(ms));
}

void RankSamples::add(const char* op, const char* peer, std::vector<double> ms) {
  lines_.push_back({{"op", op}, {"peer", peer}, {"ms", std::move(ms)}});
}

void RankSamples::write(const std::string& output) const {
  if (world_.rank() == 0) {
    std::ofstream(output) << lines_;
  }
}

int run_save_and_load(const CheckpointRankOptions& options) {
  const auto world = init();
  const RankState state(gpt_state(options.bytes), world->size(), world->rank());
  RankSamples samples(*world);
  const device::Buffer copy(state.size_bytes());
  samples.time("save_pause", "plain copy", is_ready, [&] {
    std::memcpy(copy.data(), state.data(), state.size_bytes());
  });

  std::int64_t step = 0;
  std::string checkpoint;
  {
    CheckpointOptions save_options;
    save_options.wait = true;
    CheckpointWriter writer(options.folder, world, save_options);
    samples.time(
        "save",
        "",
        [&] { return make_room(*world, writer); },
        [&] { writer.save(++step, state.view(), {}); });
    checkpoint = writer.folder().path_of(step);
  }

  std::memset(state.data(), 0, state.size_bytes());
  const auto load = [&] { CheckpointReader(checkpoint).load(state.view()); };
  samples.time("load_warm", "", is_ready, load);
  TRIREME_ASSERT(std::memcmp(copy.data(), state.data(), state.size_bytes()) == 0,
                 "what was loaded is not what was saved");
  // By every rank, and none reads before all have seen that it is gone.
  const auto drop = [&] { return all_agree(*world, drop_from_page_cache(checkpoint)); };
  samples.time("load_cold", "", drop, load);

  CheckpointWriter writer(options.folder, world, {});
  samples.time(
      "save_pause",
      "",
      [&] {
        writer.finish();
        return make_room(*world, writer);
      },
      [&] { writer.save(++step, state.view(), {}); });
  writer.finish();
  samples.write(options.output);
  return 0;
}

int run_plain_file(const CheckpointRankOptions& options) {
  const auto world = init();
  const RankState state(gpt_state(options.bytes), world->size(), world->rank());
  RankSamples samples(*world);
  std::filesystem::create_directories(options.folder);
  const std::string path = options.folder + "/plain";
  const auto make_room_for_file = [&] {
    std::filesystem::remove(path);
    sync();
    return true;
  };
  samples.time("save", "plain write", make_room_for_file, [&] { save_pieces(path, state); });
  const auto load = [&] { load_pieces(path, state); };
  samples.time("load_warm", "plain read", is_ready, load);
  samples.time(
      "load_cold", "plain read", [&] { return drop_from_page_cache(options.folder); }, load);
  samples.write(options.output);
  return 0;
}

}  // namespace trireme::bench
