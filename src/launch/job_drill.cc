#include "launch/job_drill.h"

#include <algorithm>

#include "launch/launcher_fault.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme::detail {
namespace {

DrillPlan plan_for(const DrillOptions& drill, const LaunchOptions& launch) {
  DrillPlan plan = DrillPlan::parse(drill.plan, drill.seed);
  plan.machines = launch.nodes;
  plan.first_machine = launch.store.place.empty() ? 1 : 0;  // without one, machine 0 decides
  return plan;
}

}  // namespace

JobDrill::JobDrill(const DrillOptions& drill, const LaunchOptions& launch, DrillBook::Hands hands)
    : drill_(drill),
      hands_(std::move(hands)),
      has_store_(!launch.store.place.empty()),
      machine_(launch.node_rank),
      watch_(plan_for(drill, launch), launch.node_rank) {}

void JobDrill::begin(const Fleet* fleet) {
  book_.reset();
  if (fleet != nullptr && fleet->roster().machine != fleet->roster().leader) {
    lost_.reset();
    return;
  }
  const DrillOrder here = watch_.happened();
  happened_.step = std::max(happened_.step, here.step);
  happened_.save = std::max(happened_.save, here.save);
  happened_.epoch = std::max(happened_.epoch, here.epoch);
  DrillBook::Place place;
  place.machine = fleet == nullptr ? -1 : machine_;
  place.job = has_store_ ? fleet->roster().job : "";
  place.first_epoch = has_store_ ? hands_.part_of_world(machine_).epoch + 1 : 0;
  place.began = began_;
  book_.emplace(drill_, place, hands_);
  began_ = book_->began();
  book_->reach(watch_.begun());
  if (lost_) {
    machine_lost(lost_->machine, lost_->how);
  }
}

void JobDrill::turn(const std::vector<RankProcess>& ranks,
                    const std::vector<JobEvent>& failures,
                    Fleet* fleet) {
  if (fleet != nullptr && fleet->lease_is_over()) {
    book_.reset();  // another may go on with it by now
  }
  for (const DrillNews& news : watch_.turn(ranks, failures)) {
    if (book_) {
      enter(news, fleet);
    } else if (fleet != nullptr) {
      fleet->send(fleet->roster().leader, LauncherWord::kDrill, pack_news(news));
    }
  }
  if (book_) {
    book_->turn();
  }
}

void JobDrill::take(const Fleet::Mail& mail, Fleet& fleet) {
  DrillNews news;
  DrillOrder order;
  if (book_ && unpack_news(mail.message.body, &news)) {
    news.machine = mail.machine;
    enter(news, &fleet);
  } else if (!book_ && unpack_drill_order(mail.message.body, &order)) {
    watch_.obey(order);
    happened_ = watch_.happened();
    began_ = drill_clock() - order.age;
    struck_ = order.strike ? order.strike : struck_;
  }
}

void JobDrill::enter(const DrillNews& news, Fleet* fleet) {
  book_->take(news);
  if (news.kind != DrillNews::Kind::kFault) {
    return;
  }
  if (news.fault == DrillKind::kCorrupt) {
    happened_.epoch = std::max(happened_.epoch, news.epoch);
  } else {
    std::int64_t& last = news.fault == DrillKind::kDiskFull ? happened_.save : happened_.step;
    last = std::max(last, news.step);
  }
  const DrillOrder all = order();
  DrillOrder heard = all;
  heard.heard = news.number;
  watch_.obey(news.machine == machine_ ? heard : all);
  if (fleet != nullptr) {
    fleet->broadcast(LauncherWord::kDrill, pack_drill_order(all));
    if (news.machine != machine_) {
      fleet->send(news.machine, LauncherWord::kDrill, pack_drill_order(heard));
    }
  }
  if (const auto fault = book_->take_strike()) {
    strike(*fault, fleet);
  }
}

// Once it is in the file: the launcher may be the one that keeps the book.
void JobDrill::strike(const DrillNews& fault, Fleet* fleet) {
  book_->turn();
  if (fault.struck == machine_) {
    struck_ = fault.fault;
    return;
  }
  DrillOrder told = order();
  told.strike = fault.fault;
  fleet->send(fault.struck, LauncherWord::kDrill, pack_drill_order(told));
}

DrillOrder JobDrill::order() const {
  DrillOrder order = happened_;
  order.age = drill_clock() - *began_;
  return order;
}

void JobDrill::begin_world(Fleet* fleet) {
  if (!book_) {
    return;
  }
  book_->reach(watch_.begun());
  if (fleet != nullptr) {
    fleet->broadcast(LauncherWord::kDrill, pack_drill_order(order()));
  }
}

void JobDrill::machine_lost(int machine, const std::string& how) {
  if (!book_) {
    lost_ = {machine, drill_clock(), how};
    return;
  }
  DrillNews news;
  news.kind = DrillNews::Kind::kGone;
  news.struck = machine;
  news.text = how;
  news.epoch = hands_.part_of_world(machine).epoch;
  news.nanoseconds = lost_ ? lost_->nanoseconds : drill_clock();
  lost_.reset();
  book_->take(news);
}

void JobDrill::suffer(Fleet* fleet) {
  if (!struck_) {
    return;
  }
  const DrillKind kind = *std::exchange(struck_, std::nullopt);
  for (const DrillFault& fault : watch_.plan().faults) {
    if (fault.kind == kind) {
      inflict_on_launcher(fault);
    }
  }
  // Here only one that was stopped: others may have gone on without it.
  DrillNews woke;
  woke.kind = DrillNews::Kind::kWoke;
  woke.struck = woke.machine = machine_;
  woke.nanoseconds = drill_clock();
  if (fleet == nullptr || fleet->lease_is_over()) {
    return;
  }
  if (book_) {
    book_->take(woke);
  } else {
    fleet->send(fleet->roster().leader, LauncherWord::kDrill, pack_news(woke));
  }
}

void JobDrill::hand_over() {
  if (book_) {
    book_->turn();
    book_.reset();
  }
}

void JobDrill::finish(const std::vector<RankProcess>& ranks, int code) {
  if (!book_) {
    return;
  }
  for (const DrillNews& news : watch_.turn(ranks, {})) {
    book_->take(news);
  }
  book_->finish(code);
}

std::string JobDrill::text_of(const std::optional<DrillOptions>& options) {
  return options ? concat(options->seed, " ", options->plan) : "";
}

std::optional<DrillOptions> JobDrill::plan_of(const LaunchOptions& launch,
                                              const std::string& text) {
  const std::optional<DrillOptions>& own = launch.drill;
  if (launch.node_rank == 0 || !launch.store.place.empty()) {
    return own;  // of a store all machines have the same
  }
  TRIREME_CHECK(!own || text_of(own) == text,
                "--drill: expected what machine 0 was started with ({}), found seed {}: give the "
                "same on every machine, or on machine 0 only",
                {text.empty() ? "no drill" : concat("seed ", printable(text)), text_of(own)});
  const std::size_t space = text.find(' ');
  const auto seed = parse_integer(text.substr(0, space));
  if (text.empty() || space == std::string::npos || !seed) {
    return std::nullopt;
  }
  return DrillOptions{text.substr(space + 1), static_cast<std::uint64_t>(*seed), ""};
}

}  // namespace trireme::detail
