#include "launch/drill_book.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include <fcntl.h>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/file_write.h"

namespace trireme::detail {
namespace {

const char* part_of_step(PulsePhase phase) {
  switch (phase) {
    case PulsePhase::kBackward:
      return "before backward";
    case PulsePhase::kUpdate:
      return "before the update";
    case PulsePhase::kVault:
      return "before the state is kept";
    case PulsePhase::kKept:
      return "before all know that the state is kept";
    case PulsePhase::kAgreed:
      return "after the state is kept";
    case PulsePhase::kTaken:
      return "as a new world takes over the state";
    case PulsePhase::kCollective:
      return "in a message";
    default:
      return "in a save";
  }
}

// A process ends, or a world does: what counts is the first step of the next one. Of a fault that
// the ranks may also sit out, the next step.
bool can_be_sat_out(DrillKind kind) {
  return kind == DrillKind::kKill || kind == DrillKind::kStop || kind == DrillKind::kDelay;
}

// Whether losing this rank is what the fault does.
bool is_hit(const DrillEntry& fault, int rank) {
  if (fault.what.struck >= 0) {
    return rank >= fault.first_rank && rank < fault.first_rank + fault.ranks;
  }
  return rank == fault.what.rank || (rank == fault.what.peer && rank >= 0);
}

}  // namespace

DrillBook::DrillBook(const DrillOptions& options, Place place, Hands hands)
    : options_(options),
      plan_(DrillPlan::parse(options.plan, options.seed)),
      place_(std::move(place)),
      hands_(std::move(hands)),
      began_(place_.began.value_or(drill_clock())),
      epoch_(place_.first_epoch) {
  const bool goes_on = go_on();
  write();
  TRIREME_CHECK(can_write_,
                "--drill: expected a folder for {}, found that it cannot be written: {}",
                {options_.file, errno_text(errno)});
  hands_.say(goes_on ? concat("drill with seed {}: going on with the record in {}, which has {}",
                              {options_.seed, options_.file, counted(entries_.size(), "fault")})
                     : concat("drill with seed {}: what happens is recorded in {}",
                              {options_.seed, options_.file}));
}

// With what another launcher of this job has written.
bool DrillBook::go_on() {
  std::ifstream file(options_.file, std::ios::binary);
  if (place_.job.empty() || !file) {
    return false;
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto record = read_drill_record(text, began_);
  if (!record || record->job != place_.job) {
    return false;
  }
  if (!place_.began) {
    began_ -= record->age;
    record = read_drill_record(text, began_);
  }
  entries_ = std::move(record->entries);
  for (DrillEntry& entry : entries_) {
    entry.epoch = place_.first_epoch - 1;
    entry.gone = entry.epoch;  // or its world is
    // Where it was this one, started again and chosen again, nobody else who led has seen it go.
    if (entry.is_open && entry.what.fault == DrillKind::kKillLauncher &&
        entry.what.struck == place_.machine && entry.noticed.empty()) {
      notice(
          entry, drill_clock(), launcher_of(place_.machine), "was started again, and leads again");
    }
  }
  return true;
}

void DrillBook::turn() {
  if (std::exchange(changed_, false)) {
    write();
  }
}

std::string DrillBook::launcher_of(int machine) const {
  return place_.machine >= 0 ? concat("launcher of machine ", machine) : "launcher";
}

void DrillBook::take(const DrillNews& news) {
  switch (news.kind) {
    case DrillNews::Kind::kFault:
      begin(news);
      return;
    case DrillNews::Kind::kKept:
      take_step(news);
      return;
    default:
      break;
  }
  for (DrillEntry& fault : entries_) {
    if (!fault.is_open) {
      continue;
    }
    const bool is_struck = fault.what.struck >= 0 && news.struck == fault.what.struck;
    const bool is_loss =
        news.kind == DrillNews::Kind::kBlames || news.kind == DrillNews::Kind::kGone;
    if (is_loss && has_gone_on(fault, news.nanoseconds)) {
      continue;
    }
    if (news.kind == DrillNews::Kind::kEnded && news.pid == fault.what.pid &&
        news.machine == fault.what.machine && fault.what.struck < 0) {
      fault.reached = std::max(fault.reached, news.step);
      notice(fault,
             news.nanoseconds,
             launcher_of(news.machine),
             concat("rank ", news.rank, " ", news.text));
    } else if (news.kind == DrillNews::Kind::kBlames && is_hit(fault, news.peer)) {
      notice(fault, news.nanoseconds, concat("rank ", news.rank), concat("lost rank ", news.peer));
    } else if (news.kind == DrillNews::Kind::kGone && is_struck) {
      fault.gone = std::max(news.epoch, fault.gone.value_or(news.epoch));
      notice(fault, news.nanoseconds, launcher_of(place_.machine), news.text);
    } else if (news.kind == DrillNews::Kind::kWoke && is_struck) {
      fault.woke = news.nanoseconds;
    }
  }
}

// Whether a launcher that was stopped had gone on by then, so that what was lost on its machine is
// not for this fault. Where it was killed next, the word that it had woken may have gone with it.
bool DrillBook::has_gone_on(DrillEntry& fault, std::int64_t when) const {
  if (fault.what.fault != DrillKind::kStopLauncher || !fault.noticed.empty()) {
    return false;
  }
  const auto planned = std::ranges::find(plan_.faults, fault.what.fault, &DrillFault::kind);
  const bool hit_again = std::ranges::any_of(entries_, [&](const DrillEntry& other) {
    return other.is_open && other.what.struck == fault.what.struck &&
           other.what.nanoseconds > fault.what.nanoseconds;
  });
  if (!fault.woke && hit_again && planned != plan_.faults.end()) {
    fault.woke = fault.what.nanoseconds + std::llround(planned->seconds * 1e9);
  }
  return fault.woke && when >= *fault.woke;
}

void DrillBook::begin(const DrillNews& news) {
  changed_ = true;
  DrillEntry entry;
  entry.what = news;
  entry.when = part_of_step(news.phase);
  const bool of_kept =
      news.phase == PulsePhase::kCheckpoint || news.phase == PulsePhase::kTaken;  // steps so far
  entry.step = news.step + (of_kept ? 0 : 1);
  entry.reached = entry.step;
  entry.epoch = epoch_;
  std::string objection;
  if (changes_membership(news.fault)) {
    const std::string answer = hands_.scale(news.fault == DrillKind::kJoin ? 1 : -1);
    if (answer.starts_with("no: ")) {
      objection = answer.substr(4);
    } else {
      notice(entry, drill_clock(), launcher_of(std::max(0, place_.machine)), answer);
    }
  } else if (is_of_links(news.fault) && news.peer < 0) {
    objection = "all ranks are on one machine";
  } else if (is_of_launchers(news.fault)) {
    objection = begin_launchers_fault(entry);
  }
  entry.is_open = objection.empty();
  entry.outcome = objection.empty() ? "" : concat("not possible: ", objection);
  const std::string whom = news.struck >= 0 ? concat(" of machine ", news.struck)
                           : changes_membership(news.fault)
                               ? ""
                               : concat(" of rank {} of {}", {news.rank, news.ranks});
  hands_.say(concat("drill: {}{}{} in step {}{}{}",
                    {drill_name(news.fault),
                     whom,
                     news.peer >= 0 ? concat(" to rank ", news.peer) : "",
                     entry.step,
                     entry.outcome.empty() ? "" : ", ",
                     entry.outcome}));
  entries_.push_back(std::move(entry));
}

// Why it is not possible; empty: it is to be carried out, once it is written down.
std::string DrillBook::begin_launchers_fault(DrillEntry& entry) {
  const auto planned =
      std::find_if(plan_.faults.begin(), plan_.faults.end(), [&](const DrillFault& fault) {
        return fault.kind == entry.what.fault;
      });
  if (planned == plan_.faults.end() || entry.what.struck < 0) {
    return "this drill has none of that kind";
  }
  const std::string objection = hands_.objection(entry.what.struck, *planned);
  if (objection.empty()) {
    const Hands::Part part = hands_.part_of_world(entry.what.struck);
    entry.epoch = part.epoch;
    entry.first_rank = part.first_rank;
    entry.ranks = part.ranks;
    strike_ = entry.what;
  }
  return objection;
}

void DrillBook::notice(DrillEntry& fault,
                       std::int64_t when,
                       const std::string& who,
                       const std::string& how) {
  const bool is_known =
      std::any_of(fault.noticed.begin(), fault.noticed.end(), [&](const DrillEntry::Notice& each) {
        return each.who == who;
      });
  if (!is_known) {
    // By the clocks of two machines it may have been seen before it happened.
    const auto after = std::max<std::int64_t>(0, when - fault.what.nanoseconds);
    fault.noticed.push_back({who, static_cast<double>(after) * 1e-9, how});
    changed_ = true;
  }
}

void DrillBook::take_step(const DrillNews& kept) {
  for (DrillEntry& fault : entries_) {
    // Ranks come and leave after the step at hand, which is kept by those that were there, and
    // saves and messages fail beside the steps.
    const bool sits = can_be_sat_out(fault.what.fault);
    if (fault.is_open && sits && fault.noticed.empty() && kept.step < fault.step) {
      fault.epoch = kept.epoch;  // a step before it, which rank 0 tells of only now
      continue;
    }
    const bool woke = fault.woke && kept.nanoseconds > *fault.woke;
    const bool in_next =
        fault.what.struck < 0 ? kept.epoch > fault.epoch : fault.gone && kept.epoch > *fault.gone;
    const bool counts = sits || woke || in_next;
    if (fault.is_open && kept.nanoseconds > fault.what.nanoseconds && counts) {
      close(fault, kept);
    }
  }
  epoch_ = kept.epoch;
  kept_ = kept.step;
}

void DrillBook::close(DrillEntry& fault, const DrillNews& kept) {
  fault.is_open = false;
  fault.recovered = static_cast<double>(kept.nanoseconds - fault.what.nanoseconds) * 1e-9;
  const bool over = fault.woke && fault.noticed.empty();  // another may have ended the world since
  const bool lost = !changes_membership(fault.what.fault) && kept.epoch > fault.epoch && !over;
  // The one at hand, which it began, and those before it that nobody had kept.
  fault.reached = std::max(fault.reached, kept_ + 1);
  fault.again = lost ? std::max<std::int64_t>(0, fault.reached - kept.step + 1) : 0;
  fault.outcome = "recovered";
  changed_ = true;
}

void DrillBook::finish(int code) {
  code_ = code;
  for (DrillEntry& fault : entries_) {
    if (fault.is_open) {
      fault.is_open = false;
      fault.outcome = code == kExitOk ? "the job ended well before another step"
                                      : concat("the job ended with exit code ", code);
    }
  }
  write();
}

void DrillBook::reach(std::int64_t steps) {
  for (DrillEntry& fault : entries_) {
    if (fault.is_open) {
      fault.reached = std::max(fault.reached, steps);
    }
  }
}

void DrillBook::write() const {
  const std::string text = drill_record_text(
      {options_.plan, options_.seed, place_.job, drill_clock() - began_, code_, entries_}, began_);
  const std::string next = options_.file + ".next";
  try {
    const FileDescriptor file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    can_write_ = file.valid();
    if (file.valid()) {
      write_all(file.get(), next, text.data(), text.size());
      can_write_ = rename(next.c_str(), options_.file.c_str()) == 0;
    }
  } catch (const Error& error) {
    hands_.say(error.what());
    can_write_ = false;
  }
}

}  // namespace trireme::detail
