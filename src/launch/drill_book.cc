#include "launch/drill_book.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <signal.h>

#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/version.h"

namespace trireme::detail {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t drill_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

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
    default:
      return "in a save";
  }
}

}  // namespace

DrillBook::DrillBook(const DrillOptions& options,
                     std::function<std::string(int)> scale,
                     std::function<void(const std::string&)> say)
    : options_(options),
      plan_(DrillPlan::parse(options.plan, options.seed)),
      memory_(plan_),
      scale_(std::move(scale)),
      say_(std::move(say)),
      began_(drill_clock()) {
  write();
  TRIREME_CHECK(can_write_,
                "--drill: expected a folder for {}, found that it cannot be written: {}",
                {options_.file, errno_text(errno)});
  say_(concat("drill with seed {}: what happens is recorded in {}", {plan_.seed, options_.file}));
}

void DrillBook::turn(const std::vector<RankProcess>& ranks, const std::vector<JobEvent>& failures) {
  // Steps first: those before a fault are none that it was recovered from.
  hear_of_commits();
  hear_of_faults();
  let_go_on(ranks);
  take_notice(ranks, failures);
  if (std::exchange(changed_, false)) {
    write();
  }
}

void DrillBook::hear_of_faults() {
  const DrillPage& page = memory_.page();
  for (;; ++heard_) {
    const std::uint32_t number = heard_ + 1;
    const DrillPage::Record& record = page.records[number % DrillPage::kRecords];
    if (record.number.load(std::memory_order_acquire) != number) {
      return;
    }
    Fault fault;
    fault.kind = record.kind;
    fault.phase = record.phase;
    fault.step = record.step + (record.kind == DrillKind::kDiskFull ? 0 : 1);
    fault.reached = fault.step;
    fault.rank = record.rank;
    fault.ranks = record.ranks;
    fault.pid = record.pid;
    fault.nanoseconds = record.nanoseconds;
    fault.epoch = epoch_;
    begin(std::move(fault));
    memory_.page().heard.store(number);
  }
}

void DrillBook::begin(Fault fault) {
  changed_ = true;
  if (changes_membership(fault.kind)) {
    const std::string answer = scale_(fault.kind == DrillKind::kJoin ? 1 : -1);
    fault.is_open = !answer.starts_with("no: ");
    fault.outcome = fault.is_open ? "" : concat("not possible: ", answer.substr(4));
    if (fault.is_open) {
      notice(fault, "launcher", answer);
    }
  } else if (fault.kind == DrillKind::kStop) {
    for (const DrillFault& planned : plan_.faults) {
      if (planned.kind == DrillKind::kStop) {
        fault.go_on = fault.nanoseconds + static_cast<std::int64_t>(planned.seconds * 1e9);
      }
    }
  }
  const std::string whom =
      changes_membership(fault.kind) ? "" : concat(" of rank ", fault.rank, " of ", fault.ranks);
  say_(concat("drill: {}{} in step {}{}{}",
              {drill_name(fault.kind),
               whom,
               fault.step,
               fault.outcome.empty() ? "" : ", ",
               fault.outcome}));
  faults_.push_back(std::move(fault));
}

void DrillBook::let_go_on(const std::vector<RankProcess>& ranks) {
  const std::int64_t now = drill_clock();
  for (Fault& fault : faults_) {
    if (!fault.go_on || now < *fault.go_on) {
      continue;
    }
    fault.go_on.reset();
    for (const RankProcess& rank : ranks) {
      if (!rank.ended && rank.child.pid == fault.pid) {
        rank.send_signal(SIGCONT);
      }
    }
  }
}

void DrillBook::take_notice(const std::vector<RankProcess>& ranks,
                            const std::vector<JobEvent>& failures) {
  for (Fault& fault : faults_) {
    if (!fault.is_open) {
      continue;
    }
    for (const JobEvent& failure : failures) {
      if (failure.pid == fault.pid) {
        fault.go_on.reset();
        notice(fault, "launcher", concat("rank ", failure.rank, " ", how_it_ended(failure.number)));
      }
    }
    for (const RankProcess& rank : ranks) {
      if (rank.child.pid == fault.pid) {
        fault.reached = std::max(fault.reached, rank.pulse.page().step.load());
      } else if (rank.report && rank.report->blamed == fault.rank) {
        notice(fault, concat("rank ", rank.rank), concat("lost rank ", fault.rank));
      }
    }
  }
}

void DrillBook::notice(Fault& fault, const std::string& who, const std::string& how) {
  const bool is_known = std::any_of(fault.noticed.begin(),
                                    fault.noticed.end(),
                                    [&](const Notice& each) { return each.who == who; });
  if (!is_known) {
    fault.noticed.push_back({who, drill_seconds(drill_clock() - fault.nanoseconds), how});
    changed_ = true;
  }
}

void DrillBook::hear_of_commits() {
  const DrillPage& page = memory_.page();
  const std::uint64_t until = page.committed.load(std::memory_order_acquire);
  for (; commits_ < until; ++commits_) {
    const DrillPage::Commit& commit = page.commits[commits_ % DrillPage::kCommits];
    epoch_ = commit.epoch;
    for (Fault& fault : faults_) {
      const bool is_after = commit.nanoseconds > fault.nanoseconds;
      // Ranks come and leave after the step at hand, which is kept by those that were there, and a
      // save fails beside the steps: what counts is the first step of the next world.
      const bool counts = fault.kind == DrillKind::kKill || fault.kind == DrillKind::kStop ||
                          commit.epoch > fault.epoch;
      if (fault.is_open && is_after && counts) {
        close(fault, commit);
      }
    }
  }
}

void DrillBook::close(Fault& fault, const DrillPage::Commit& commit) {
  fault.is_open = false;
  fault.recovered = drill_seconds(commit.nanoseconds - fault.nanoseconds);
  const bool lost = !changes_membership(fault.kind) && commit.epoch > fault.epoch;
  // The one at hand, which it began, and those before it that nobody had kept.
  fault.again = lost ? std::max<std::int64_t>(0, fault.reached - commit.steps + 1) : 0;
  fault.outcome = "recovered";
  changed_ = true;
}

void DrillBook::finish(int code) {
  hear_of_commits();
  hear_of_faults();
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
              {"seed", plan_.seed},
              {"seconds", drill_seconds(drill_clock() - began_)},
              {"exit_code", code_ ? Json(*code_) : Json()},
              {"faults", Json::array()}};
  for (const Fault& fault : faults_) {
    Json noticed = Json::array();
    for (const Notice& each : fault.noticed) {
      noticed.push_back({{"who", each.who}, {"after_seconds", each.seconds}, {"how", each.how}});
    }
    all["faults"].push_back(
        {{"kind", drill_name(fault.kind)},
         {"rank", changes_membership(fault.kind) ? Json() : Json(fault.rank)},
         {"ranks", fault.ranks},
         {"step", fault.step},
         {"when", part_of_step(fault.phase)},
         {"at_seconds", drill_seconds(fault.nanoseconds - began_)},
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
