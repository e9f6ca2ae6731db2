#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "parity/case.h"

// Every mode on worlds of one size, beside what one process has left on a board.

namespace trireme::testing {

struct Mode {
  const char* name;
  int zero;
  Placement placement;
};
inline constexpr Mode kModes[] = {
    {"DDP", 0, Placement::kAutomatic},
    {"ZeRO-1", 1, Placement::kAutomatic},
    {"ZeRO-2", 2, Placement::kAutomatic},
    {"ZeRO-3 mapped", 3, Placement::kMapped},
    {"ZeRO-3 copied", 3, Placement::kCopied},
};

// The options of a case in a mode, in a world: mapped only where there is one machine.
EngineOptions options_in(const Case& item, const Mode& mode, const World& world);

// Results that processes leave for each other.
class Board {
 public:
  explicit Board(std::size_t count);
  void put(std::size_t i, const Result& result) const;
  Result get(std::size_t i) const;

 private:
  static constexpr std::size_t kBytes = 1 << 18;
  char* data_;
};

// "3 of 444 words differ, the first is 7"; words of 4 bytes.
std::string first_difference(const Result& a, const Result& b);

// Trains every case, in a process of its own: LibTorch allows no autograd in a process forked after
// it. Returns whether that went well.
bool train_all(const std::vector<Case>& cases,
               const Board& board,
               const std::function<Result(const Case& item)>& train,
               int threads = 1);

// One group of processes goes through all cases and modes and expects the board's bits.
void compare_everywhere(const std::vector<Case>& cases,
                        const Board& board,
                        int world_size,
                        int threads = 1);

}  // namespace trireme::testing
