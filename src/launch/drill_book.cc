#include "launch/drill_book.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::ordered_json;

double drill_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

bool changes_membership(DrillKind kind) {
  return kind == DrillKind::kLeave || kind == DrillKind::kJoin;
}

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

}  // namespace

DrillBook::DrillBook(const DrillOptions& options,
                     bool several_machines,
                     std::function<std::string(int)> scale,
                     std::function<void(const std::string&)> say)
    : options_(options),
      several_machines_(several_machines),
      scale_(std::move(scale)),
      say_(std::move(say)),
      began_(drill_clock()) {
  write();
  TRIREME_CHECK(can_write_,
                "--drill: expected a folder for {}, found that it cannot be written: {}",
                {options_.file, errno_text(errno)});
  say_(
      concat("drill with seed {}: what happens is recorded in {}", {options_.seed, options_.file}));
}

void DrillBook::turn() {
  if (std::exchange(changed_, false)) {
    write();
  }
}

std::string DrillBook::launcher_of(int machine) const {
  return several_machines_ ? concat("launcher of machine ", machine) : "launcher";
}

void DrillBook::take(const DrillNews& news) {
  switch (news.kind) {
    case DrillNews::Kind::kFault:
      begin(news);
      return;
    case DrillNews::Kind::kKept:
      take_step(news);
      return;
    case DrillNews::Kind::kEnded:
    case DrillNews::Kind::kBlames:
      break;
  }
  for (Fault& fault : faults_) {
    if (!fault.is_open) {
      continue;
    }
    if (news.kind == DrillNews::Kind::kEnded && news.pid == fault.what.pid &&
        news.machine == fault.what.machine) {
      fault.reached = std::max(fault.reached, news.step);
      notice(fault,
             news.nanoseconds,
             launcher_of(news.machine),
             concat("rank ", news.rank, " ", news.text));
    } else if (news.kind == DrillNews::Kind::kBlames &&
               (news.peer == fault.what.rank || (news.peer == fault.what.peer && news.peer >= 0))) {
      notice(fault, news.nanoseconds, concat("rank ", news.rank), concat("lost rank ", news.peer));
    }
  }
}

void DrillBook::begin(const DrillNews& news) {
  changed_ = true;
  Fault fault;
  fault.what = news;
  const bool of_kept =
      news.phase == PulsePhase::kCheckpoint || news.phase == PulsePhase::kTaken;  // steps so far
  fault.step = news.step + (of_kept ? 0 : 1);
  fault.reached = fault.step;
  fault.epoch = epoch_;
  if (changes_membership(news.fault)) {
    const std::string answer = scale_(news.fault == DrillKind::kJoin ? 1 : -1);
    fault.is_open = !answer.starts_with("no: ");
    fault.outcome = fault.is_open ? "" : concat("not possible: ", answer.substr(4));
    if (fault.is_open) {
      notice(fault, drill_clock(), launcher_of(0), answer);
    }
  } else if (is_of_links(news.fault) && news.peer < 0) {
    fault.is_open = false;
    fault.outcome = "not possible: all ranks are on one machine";
  }
  const std::string whom =
      changes_membership(news.fault) ? "" : concat(" of rank ", news.rank, " of ", news.ranks);
  say_(concat("drill: {}{}{} in step {}{}{}",
              {drill_name(news.fault),
               whom,
               news.peer >= 0 ? concat(" to rank ", news.peer) : "",
               fault.step,
               fault.outcome.empty() ? "" : ", ",
               fault.outcome}));
  faults_.push_back(std::move(fault));
}

void DrillBook::notice(Fault& fault,
                       std::int64_t when,
                       const std::string& who,
                       const std::string& how) {
  const bool is_known = std::any_of(fault.noticed.begin(),
                                    fault.noticed.end(),
                                    [&](const Notice& each) { return each.who == who; });
  if (!is_known) {
    // By the clocks of two machines it may have been seen before it happened.
    const auto after = std::max<std::int64_t>(0, when - fault.what.nanoseconds);
    fault.noticed.push_back({who, drill_seconds(after), how});
    changed_ = true;
  }
}

void DrillBook::take_step(const DrillNews& kept) {
  for (Fault& fault : faults_) {
    // Ranks come and leave after the step at hand, which is kept by those that were there, and
    // saves and messages fail beside the steps.
    const bool sits = can_be_sat_out(fault.what.fault);
    if (fault.is_open && sits && fault.noticed.empty() && kept.step < fault.step) {
      fault.epoch = kept.epoch;  // a step before it, which rank 0 tells of only now
      continue;
    }
    const bool counts = sits || kept.epoch > fault.epoch;
    if (fault.is_open && kept.nanoseconds > fault.what.nanoseconds && counts) {
      close(fault, kept);
    }
  }
  epoch_ = kept.epoch;
  kept_ = kept.step;
}

void DrillBook::close(Fault& fault, const DrillNews& kept) {
  fault.is_open = false;
  fault.recovered = drill_seconds(kept.nanoseconds - fault.what.nanoseconds);
  const bool lost = !changes_membership(fault.what.fault) && kept.epoch > fault.epoch;
  // The one at hand, which it began, and those before it that nobody had kept.
  fault.reached = std::max(fault.reached, kept_ + 1);
  fault.again = lost ? std::max<std::int64_t>(0, fault.reached - kept.step + 1) : 0;
  fault.outcome = "recovered";
  changed_ = true;
}

void DrillBook::finish(int code) {
  code_ = code;
  for (Fault& fault : faults_) {
    if (fault.is_open) {
      fault.is_open = false;
      fault.outcome = code == kExitOk ? "the job ended well before another step"
                                      : concat("the job ended with exit code ", code);
    }
  }
  write();
}

void DrillBook::write() const {
  Json all = {{"format", 1},
              {"trireme", TRIREME_VERSION},
              {"drill", options_.plan},
              {"seed", options_.seed},
              {"seconds", drill_seconds(drill_clock() - began_)},
              {"exit_code", code_ ? Json(*code_) : Json()},
              {"faults", Json::array()}};
  for (const Fault& fault : faults_) {
    Json noticed = Json::array();
    for (const Notice& each : fault.noticed) {
      noticed.push_back({{"who", each.who}, {"after_seconds", each.seconds}, {"how", each.how}});
    }
    all["faults"].push_back(
        {{"kind", drill_name(fault.what.fault)},
         {"rank", changes_membership(fault.what.fault) ? Json() : Json(fault.what.rank)},
         {"ranks", fault.what.ranks},
         {"peer", fault.what.peer >= 0 ? Json(fault.what.peer) : Json()},
         {"machine", fault.what.machine},
         {"step", fault.step},
         {"when", part_of_step(fault.what.phase)},
         {"at_seconds", drill_seconds(fault.what.nanoseconds - began_)},
         {"noticed", std::move(noticed)},
         {"next_step_seconds", fault.recovered ? Json(*fault.recovered) : Json()},
         {"steps_again", fault.again},
         {"outcome", fault.outcome.empty() ? "not recovered from yet" : fault.outcome}});
  }
  const std::string text = all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const std::string next = options_.file + ".next";
  try {
    const FileDescriptor file(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    can_write_ = file.valid();
    if (file.valid()) {
      write_all(file.get(), next, text.data(), text.size());
      can_write_ = rename(next.c_str(), options_.file.c_str()) == 0;
    }
  } catch (const Error& error) {
    say_(error.what());
    can_write_ = false;
  }
}

}  // namespace trireme::detail
