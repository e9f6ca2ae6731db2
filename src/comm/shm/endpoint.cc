#include "comm/shm/endpoint.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <utility>

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/host/segment.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/index.h"

// Note [doorbells]
// A rank that waits polls the words it waits for. When that takes long it raises its `sleeping`
// count, looks once more, and sleeps on its own `bell`. Whoever publishes something (a slot, a
// phase, a fragment) does so with sequentially consistent order, then looks at the `sleeping`
// counts and rings. Either the sleeper's last look sees the publication, or the publisher sees the
// sleeper: no wake-up is lost. In collectives only the rank that completes the set rings, since
// the others would wake sleepers for nothing; two ranks that finish together may both ring, which
// is harmless.

namespace trireme::detail {
namespace {

// A process that ends through exit() without destroying its World has still left in good order.
struct ExitNotices {
  std::mutex mutex;
  std::set<std::pair<pid_t, RankBlock*>> blocks;  // guarded by mutex
};

ExitNotices& exit_notices() {
  static auto* notices = new ExitNotices;  // never destroyed: it is used while statics are
  return *notices;
}

void mark_left_at_exit() {
  ExitNotices& notices = exit_notices();
  const std::lock_guard lock(notices.mutex);
  for (const auto& [pid, block] : notices.blocks) {
    if (pid == getpid()) {  // a forked child must not speak for its parent
      block->left.store(1);
    }
  }
}

void announce_at_exit(RankBlock* block) {
  static const int registered = std::atexit(mark_left_at_exit);
  static_cast<void>(registered);
  ExitNotices& notices = exit_notices();
  const std::lock_guard lock(notices.mutex);
  notices.blocks.emplace(getpid(), block);
}

void withdraw_at_exit(RankBlock* block) {
  ExitNotices& notices = exit_notices();
  const std::lock_guard lock(notices.mutex);
  notices.blocks.erase({getpid(), block});
}

// The process's state fragment in /proc: R, S, T (stopped), t (traced), Z, ...
char process_state(int pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

}  // namespace

Endpoint::Endpoint(Membership membership) : owner_(getpid()), membership_(std::move(membership)) {
  const std::size_t bytes =
      Control::bytes(membership_.size, membership_.stage_bytes, membership_.lane_bytes);
  memory_ = device::Segment::map(membership_.control, bytes);
  membership_.control.reset();
  control_ =
      Control(memory_->data(), membership_.size, membership_.stage_bytes, membership_.lane_bytes);
  announce_at_exit(&self());
}

Endpoint::~Endpoint() {
  leave();
}

void Endpoint::leave() {
  if (in_forked_child() || has_left(rank())) {
    return;  // a forked child does not speak for its parent
  }
  withdraw_at_exit(&self());
  self().left.store(1);
  ring_all();
}

void Endpoint::ring(int peer) const {
  RankBlock& block = control_.rank(peer);
  if (block.sleeping.load(std::memory_order_seq_cst) == 0) {
    return;
  }
  block.bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &block.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Endpoint::ring_all() const {
  for (int peer = 0; peer < size(); ++peer) {
    ring(peer);
  }
}

void Endpoint::ring_if_all_issued(std::uint32_t sequence) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (control_.slot(peer, sequence).sequence.load(std::memory_order_seq_cst) != sequence) {
      return;
    }
  }
  ring_all();
}

void Endpoint::ring_if_all_at(std::uint32_t phase) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (!reached(control_.rank(peer).phase.load(std::memory_order_seq_cst), phase)) {
      return;
    }
  }
  ring_all();
}

void Endpoint::sleep_on_bell(std::uint32_t seen, int milliseconds) const {
  const timespec limit{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  syscall(SYS_futex, &self().bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

bool Endpoint::has_ended(int peer) const {
  pollfd entry{membership_.lives[index(peer)].get(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

bool Endpoint::are_undisturbed(const std::vector<int>& peers) const {
  std::vector<pollfd> entries;
  entries.reserve(peers.size());
  for (const int peer : peers) {
    entries.push_back({membership_.lives[index(peer)].get(), POLLIN, 0});
  }
  const bool alive = poll(entries.data(), entries.size(), 0) == 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return alive && control_.header().abort.state.load(std::memory_order_seq_cst) == 0 &&
         std::none_of(peers.begin(), peers.end(), [&](int peer) { return has_left(peer); });
}

CommError Endpoint::unreadable(int peer, int error) const {
  return {CommError::Reason::kAborted,
          peer,
          concat("the memory that {} contributes could not be read (process_vm_readv: {}): it must "
                 "be readable memory, and stay until wait() has returned; {}=off does without",
                 {name(peer), errno_text(error), kEnvKernelCopy})};
}

std::string Endpoint::plain_name(int peer) const {
  return concat("rank ", world_rank(peer), " (pid ", membership_.pids[index(peer)], ")");
}

std::string Endpoint::name(int peer) const {
  std::string text = plain_name(peer);
  text.pop_back();
  if (has_left(peer)) {
    return text + ", left the world)";
  }
  if (has_ended(peer)) {
    return text + ", ended)";
  }
  switch (process_state(membership_.pids[index(peer)])) {
    case 'T':
      return text + ", stopped by a signal)";
    case 't':
      return text + ", held by a debugger)";
    default:
      return text + ")";
  }
}

void Endpoint::add_buffer(std::uint32_t id,
                          std::shared_ptr<device::Mapping> mapping,
                          std::vector<std::size_t> begins) {
  const std::lock_guard lock(buffers_mutex_);
  buffers_[id] = {std::move(mapping), std::move(begins)};
}

void Endpoint::remove_buffer(std::uint32_t id) {
  const std::lock_guard lock(buffers_mutex_);
  buffers_.erase(id);
}

bool Endpoint::locate(const std::byte* data,
                      std::size_t bytes,
                      std::uint32_t* id,
                      std::uint64_t* offset) const {
  const std::lock_guard lock(buffers_mutex_);
  for (const auto& [number, buffer] : buffers_) {
    // Addresses of unrelated memory are compared as numbers.
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const auto first = reinterpret_cast<std::uintptr_t>(buffer.mapping->data());
    const std::uintptr_t begin = first + buffer.begins[index(rank())];
    if (at >= begin && at + bytes <= first + buffer.begins[index(rank()) + 1]) {
      *id = number;
      *offset = at - begin;
      return true;
    }
  }
  return false;
}

std::byte* Endpoint::resolve(int peer, std::uint32_t id, std::uint64_t offset) const {
  const std::lock_guard lock(buffers_mutex_);
  const auto found = buffers_.find(id);
  TRIREME_CHECK(found != buffers_.end(),
                "rank {} has dropped shared buffer #{}, which {} still uses: keep a SharedBuffer "
                "until every operation on it is finished",
                {rank(), id, name(peer)});
  return found->second.mapping->data() + found->second.begins[index(peer)] + offset;
}

}  // namespace trireme::detail
