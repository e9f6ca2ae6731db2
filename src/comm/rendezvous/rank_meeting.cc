#include "comm/rendezvous/rank_meeting.h"

#include "comm/rendezvous/packing.h"
#include "trireme/comm/launch_protocol.h"
#include "trireme/core/index.h"
#include "trireme/core/log.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

constexpr int kNobodyLost = -1;

}  // namespace

std::string word_of_rank0(const std::string& text) {
  return Packer().number(kNobodyLost).text(text).take();
}

std::string word_of_loss(int lost_rank, CommError::Reason reason, const std::string& text) {
  return Packer().number(lost_rank).text(text).number(static_cast<int>(reason)).take();
}

std::string heard_from_rank0(const std::string& word, int rank) {
  Unpacker fields(word);
  const int lost_rank = fields.number_in(kNobodyLost, kAny);
  std::string text = fields.text();
  if (lost_rank != kNobodyLost) {
    const int reason = fields.number_in(0, static_cast<int>(CommError::Reason::kStopped));
    throw CommError(static_cast<CommError::Reason>(reason),
                    lost_rank,
                    concat("rank {}: {} (found by rank 0) during the rendezvous",
                           {rank, printable(text, 2048)}));
  }
  return text;
}

Pass pass_of(const Identity& identity, const std::string& job) {
  return {"rank", job, identity.epoch, identity.token == kNoToken ? "" : identity.token};
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

CommError RankHost::failure_of(const Gathering& gathering) const {
  if (gathering.superseded) {
    return {CommError::Reason::kRefused, -1, *gathering.superseded};
  }
  if (!gathering.deadline.passed()) {
    // Nobody can come any more, and somebody was refused.
    return {CommError::Reason::kRefused,
            -1,
            gathering.remarks.empty() ? "a rank is lost" : gathering.remarks.front().text};
  }
  return {CommError::Reason::kRendezvousTimeout,
          gathering.first_missing(),
          concat("rendezvous timed out after {} s: {} of {} ranks {}, missing: {}; {}{}",
                 {gathering.deadline.elapsed_seconds(),
                  gathering.count(),
                  options_.self.size,
                  options_.reached,
                  gathering.missing(),
                  options_.hint,
                  gathering.remarks_text()})};
}

void RankHost::give_up(Gathering& gathering) {
  const CommError failure = failure_of(gathering);
  const int lost = gathering.superseded ? 0 : gathering.first_missing();
  for (const Guest& guest : gathering.guests) {
    if (guest.link) {
      guest.link->send_by(Deadline(kTimeToTell),
                          word_of_loss(lost, failure.reason(), failure.what()));
    }
  }
  throw CommError(failure);
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
