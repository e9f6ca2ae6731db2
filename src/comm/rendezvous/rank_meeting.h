#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/rendezvous/host.h"
#include "comm/rendezvous/joiner.h"
#include "comm/rendezvous/member.h"
#include "trireme/core/error.h"

// What ranks decide when they meet, whatever connects them: rank 0 is the host.

namespace trireme::detail {

// Rank 0 knows who is missing: its word is better than that of a rank which it has admitted, and
// which waits for it this much longer.
inline constexpr Milliseconds kGraceForRank0{2000};
inline constexpr Milliseconds kTimeToTell{1000};  // the others that a rank is lost

// What rank 0 says to those it has admitted: something, or that a rank is lost.
std::string word_of_rank0(const std::string& text);
std::string word_of_loss(int lost_rank, CommError::Reason reason, const std::string& text);
// What it has said to this rank. Throws CommError where a rank is lost.
std::string heard_from_rank0(const std::string& word, int rank);

// That a rank 0 of a later attempt waits for the place of one that is left over from an earlier,
// which ends as soon as another rank of the later attempt comes to it.
inline constexpr Milliseconds kTimeToGiveWay{2000};
inline Deadline patience_with_earlier(const Identity& identity) {
  return Deadline(identity.epoch > 0 ? kTimeToGiveWay : Milliseconds(0));
}

// Of a rank: which meeting it comes for.
Pass pass_of(const Identity& identity, const std::string& job);

class RankHost : public HostPolicy {
 public:
  // `needs_life`: a rank brings a handle of its process. `where`: what the ranks came to, for
  // messages. `hint`: what to check when some are missing.
  struct Options {
    Member self;
    bool needs_life = false;
    std::string reached;
    std::string hint;
    std::function<void(Milliseconds patience)> look = [](Milliseconds) {};
  };
  explicit RankHost(Options options) : options_(std::move(options)) {}

  std::string self() const override;
  std::string role() const override { return "rank 0"; }
  std::string stranger() const override { return "a process"; }
  Judgement judge(const Message& said, const Gathering& gathering) const override;
  std::string why_no_proof(bool has_token) const override;
  void warn(const std::string& text) const override;
  void look(Gathering&) override { options_.look(Milliseconds(0)); }
  // Those who are here are told why, and name the same rank.
  [[noreturn]] void give_up(Gathering& gathering) override;

 private:
  CommError failure_of(const Gathering& gathering) const;

  Options options_;
};

class RankJoiner : public JoinerPolicy {
 public:
  RankJoiner(Member self, const Deadline& deadline) : self_(std::move(self)), deadline_(deadline) {}

  std::string self() const override { return self_.full_name(); }
  std::string host() const override { return "rank 0"; }
  Message introduction() const override { return {pack_member(self_), {}}; }
  void look(const std::string& /*trouble*/) override {}
  [[noreturn]] void refused(const std::string& text, bool genuine) const override;
  [[noreturn]] void timed_out(const std::string& trouble) override;

 protected:
  // What to check where rank 0 was not found.
  virtual std::string hint() const = 0;

 private:
  const Member self_;
  const Deadline& deadline_;
};

}  // namespace trireme::detail
