#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launch/elastic_words.h"

namespace trireme::detail {

// What becomes of the ranks of an elastic job, counted by the launcher that decides, for those of
// the next world to be told.
class RankCounter {
 public:
  // Since the last world began.
  void lose(int ranks) { lost_ += ranks; }
  void leave(int ranks) { left_ += ranks; }
  void reach(const Reached& reached) { reached_.raise(reached); }

  // --- of a launcher that takes over from another
  void take_over();
  // In which world the launcher of a machine was last, as it has been told.
  void know(int machine, const EpochOrder& last);
  // The last leader has left, and has handed this over: so have its ranks.
  void leader_has_left(int machine, Rest rest);

  // A machine's part in the world that begins.
  struct Part {
    int members = 0;  // ranks of the last one that wait for it
    int follows = 0;  // that are started again because others were lost
  };
  Rest rest() const { return {lost_, left_}; }
  // Fills in what is told with the order.
  void count(const std::vector<Part>& parts, EpochOrder& order);

 private:
  void count_after_another_leader(const EpochOrder& order);

  RankCounts counts_{};
  Reached reached_{};
  int lost_ = 0;
  int left_ = 0;
  struct Before {
    std::optional<EpochOrder> last{};    // the newest that anybody knows
    std::vector<std::int64_t> worlds{};  // by machine
  };
  std::optional<Before> before_;  // while no world of this launcher has begun
  struct Left {
    int machine = -1;
    Rest rest;
  };
  std::optional<Left> leader_;
};

}  // namespace trireme::detail
