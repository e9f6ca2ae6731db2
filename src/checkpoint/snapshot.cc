#include "checkpoint/snapshot.h"

#include <algorithm>
#include <chrono>

#include "trireme/core/seconds_since.h"

namespace trireme::detail {
namespace {

// A disk likes large writes; two pieces are the least that lets it work while the next is filled.
constexpr std::size_t kPieceBytes = 4 << 20;
constexpr std::size_t kFewestPieces = 2;

}  // namespace

void Snapshot::begin(std::size_t total, std::size_t limit, std::size_t block) {
  const std::lock_guard lock(mutex_);
  piece_bytes_ =
      limit == 0 || limit >= kFewestPieces * kPieceBytes ? std::max(block, kPieceBytes) : block;
  std::size_t pieces = (total + piece_bytes_ - 1) / piece_bytes_;
  if (limit > 0) {
    pieces = std::min(pieces, std::max(kFewestPieces, limit / piece_bytes_));
  }
  pieces = std::max<std::size_t>(pieces, 1);
  if (memory_.size_bytes() < pieces * piece_bytes_) {
    memory_ = device::Buffer();  // before there is more
    memory_ = device::Buffer(pieces * piece_bytes_);
  }
  empty_.clear();
  for (std::size_t i = pieces; i-- > 0;) {
    empty_.push_back(memory_.data() + i * piece_bytes_);
  }
  full_.clear();
  next_full_ = 0;
  ended_ = false;
}

std::byte* Snapshot::take_empty(double& waited) {
  std::unique_lock lock(mutex_);
  if (empty_.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return !empty_.empty(); });
    waited += seconds_since(begin);
  }
  std::byte* piece = empty_.back();
  empty_.pop_back();
  return piece;
}

void Snapshot::put_full(Piece piece) {
  const std::lock_guard lock(mutex_);
  full_.push_back(piece);
  changed_.notify_all();
}

void Snapshot::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

std::optional<Snapshot::Piece> Snapshot::take_full() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_full_ < full_.size() || ended_; });
  if (next_full_ == full_.size()) {
    return std::nullopt;
  }
  return full_[next_full_++];
}

void Snapshot::put_empty(std::byte* data) {
  const std::lock_guard lock(mutex_);
  empty_.push_back(data);
  changed_.notify_all();
}

}  // namespace trireme::detail
