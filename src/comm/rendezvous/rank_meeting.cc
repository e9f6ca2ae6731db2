#include "comm/rendezvous/rank_meeting.h"

#include "trireme/core/error.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"

namespace trireme::detail {

Pass pass_of(const Identity& identity, const std::string& job) {
  return {"rank", job, identity.epoch, identity.token};
}

std::string RankHost::self() const {
  return concat("rank 0 of ", options_.self.size, " (pid ", options_.self.pid, ")");
}

HostPolicy::Judgement RankHost::judge(const Message& said, const Gathering& gathering) const {
  const auto member = unpack_member(said.bytes);
  if (!member) {
    return {0, "a process that knows the token", "it does not say who it is as ranks do"};
  }
  Judgement judgement{member->rank,
                      concat(member->full_name(), " on ", member->host),
                      objection(options_.self, *member)};
  if (!judgement.objection && options_.needs_life && said.fds.size() != 1) {
    judgement.objection = "it sent no handle of its process";
  }
  if (!judgement.objection && gathering.guests[index(member->rank)].link) {
    const auto holder = unpack_member(gathering.guests[index(member->rank)].said.bytes);
    judgement.objection = concat("rank {} is already taken by pid {} on {}: start every rank once",
                                 {member->rank, holder->pid, holder->host});
  }
  return judgement;
}

std::string RankHost::why_no_proof(bool /*has_token*/) const {
  return "it does not know the token of this job (TRIREME_TOKEN)";
}

void RankHost::warn(const std::string& text) const {
  log(LogLevel::kWarning, text);
}

void RankHost::give_up(Gathering& gathering) {
  if (gathering.superseded) {
    throw CommError(CommError::Reason::kRefused, -1, *gathering.superseded);
  }
  if (!gathering.deadline.passed()) {
    // Nobody can come any more, and somebody was refused.
    throw CommError(CommError::Reason::kRefused,
                    -1,
                    gathering.remarks.empty() ? "a rank is lost" : gathering.remarks.front());
  }
  throw CommError(CommError::Reason::kRendezvousTimeout,
                  gathering.first_missing(),
                  concat("rendezvous timed out after {} s: {} of {} ranks {}, missing: {}; {}{}",
                         {gathering.deadline.elapsed_seconds(),
                          gathering.count(),
                          options_.self.size,
                          options_.reached,
                          gathering.missing(),
                          options_.hint,
                          gathering.remarks_text()}));
}

void RankJoiner::refused(const std::string& text, bool genuine) const {
  throw CommError(
      CommError::Reason::kRefused,
      0,
      genuine ? text
              : text +
                    "; give the same TRIREME_JOB and TRIREME_TOKEN, and the same version of "
                    "Trireme, to every rank");
}

void RankJoiner::timed_out(const std::string& trouble) {
  throw CommError(
      CommError::Reason::kRendezvousTimeout,
      0,
      concat("rendezvous timed out after {} s: {} found no rank 0 at {} ({}); {}",
             {deadline_.elapsed_seconds(), self_.full_name(), place(), trouble, hint()}));
}

}  // namespace trireme::detail
