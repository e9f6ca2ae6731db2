#include "launch/drill_watch.h"

#include <algorithm>

#include <signal.h>

namespace trireme::detail {

std::vector<DrillNews> DrillWatch::turn(const std::vector<RankProcess>& ranks,
                                        const std::vector<JobEvent>& failures) {
  std::vector<DrillNews> news;
  // Steps first: those before a fault are none that it was recovered from.
  hear_of_steps(news);
  hear_of_faults(news);
  hear_of_ranks(ranks, failures, news);
  let_go_on(ranks);
  for (DrillNews& each : news) {
    each.machine = machine_;
  }
  return news;
}

void DrillWatch::obey(const DrillOrder& order) {
  DrillPage& page = memory_.page();
  raise_to(page.last_step, order.step);
  raise_to(page.last_save, order.save);
  raise_to(page.last_epoch, order.epoch);
  if (order.heard > page.heard.load()) {
    page.heard.store(order.heard);
  }
}

DrillOrder DrillWatch::happened() const {
  const DrillPage& page = memory_.page();
  DrillOrder order;
  order.step = page.last_step.load();
  order.save = page.last_save.load();
  order.epoch = page.last_epoch.load();
  return order;
}

void DrillWatch::hear_of_steps(std::vector<DrillNews>& news) {
  const DrillPage& page = memory_.page();
  const std::uint64_t until = page.committed.load(std::memory_order_acquire);
  for (; kept_ < until; ++kept_) {
    const DrillPage::Commit& commit = page.commits[kept_ % DrillPage::kCommits];
    DrillNews each;
    each.kind = DrillNews::Kind::kKept;
    each.step = commit.steps;
    each.epoch = commit.epoch;
    each.nanoseconds = commit.nanoseconds;
    news.push_back(each);
  }
}

void DrillWatch::hear_of_faults(std::vector<DrillNews>& news) {
  for (;; ++heard_) {
    const std::uint32_t number = heard_ + 1;
    const DrillPage::Record& record = memory_.page().records[number % DrillPage::kRecords];
    if (record.number.load(std::memory_order_acquire) != number) {
      return;
    }
    DrillNews each;
    each.fault = record.kind;
    each.phase = record.phase;
    each.step = record.step;
    each.rank = record.rank;
    each.ranks = record.ranks;
    each.pid = record.pid;
    each.peer = record.peer;
    each.struck = record.machine;
    each.epoch = record.epoch;
    each.nanoseconds = record.nanoseconds;
    each.number = number;
    news.push_back(each);
    for (const DrillFault& planned : plan_.faults) {
      if (planned.kind == DrillKind::kStop && record.kind == DrillKind::kStop) {
        stopped_.push_back(
            {record.pid, record.nanoseconds + static_cast<std::int64_t>(planned.seconds * 1e9)});
      }
    }
  }
}

void DrillWatch::hear_of_ranks(const std::vector<RankProcess>& ranks,
                               const std::vector<JobEvent>& failures,
                               std::vector<DrillNews>& news) {
  for (const RankProcess& rank : ranks) {
    DrillNews each;
    each.nanoseconds = drill_clock();
    each.rank = rank.rank;
    each.pid = rank.child.pid;
    if (!rank.report) {
      std::erase_if(blames_, [&](const auto& blame) { return blame.first == each.pid; });
    } else if (rank.report->blamed >= 0 && blames_.insert({each.pid, rank.report->blamed}).second) {
      each.kind = DrillNews::Kind::kBlames;
      each.peer = rank.report->blamed;
      news.push_back(each);
    }
    for (const JobEvent& failure : failures) {
      if (failure.pid == each.pid) {
        each.kind = DrillNews::Kind::kEnded;
        each.rank = failure.rank;
        each.step = rank.pulse.page().step.load();
        each.text = how_it_ended(failure.number);
        news.push_back(each);
      }
    }
  }
}

void DrillWatch::let_go_on(const std::vector<RankProcess>& ranks) {
  const std::int64_t now = drill_clock();
  for (const Stopped& stopped : stopped_) {
    for (const RankProcess& rank : ranks) {
      if (now >= stopped.until && !rank.ended && rank.child.pid == stopped.pid) {
        rank.send_signal(SIGCONT);
      }
    }
  }
  std::erase_if(stopped_, [&](const Stopped& stopped) { return now >= stopped.until; });
}

}  // namespace trireme::detail
