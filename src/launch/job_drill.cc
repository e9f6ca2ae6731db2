#include "launch/job_drill.h"

#include <algorithm>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/printable.h"

namespace trireme::detail {

JobDrill::JobDrill(const DrillOptions& drill,
                   const LaunchOptions& launch,
                   std::function<std::string(int)> scale,
                   std::function<void(const std::string&)> say)
    : watch_(DrillPlan::parse(drill.plan, drill.seed), launch.node_rank) {
  if (launch.node_rank == 0) {
    book_.emplace(drill, launch.nodes > 1, std::move(scale), std::move(say));
  }
}

void JobDrill::turn(const std::vector<RankProcess>& ranks,
                    const std::vector<JobEvent>& failures,
                    Fleet* fleet) {
  for (const DrillNews& news : watch_.turn(ranks, failures)) {
    if (book_) {
      enter(news, fleet);
    } else {
      fleet->send(0, LauncherWord::kDrill, pack_news(news));
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
  DrillOrder order = happened_;
  order.heard = news.number;
  if (news.machine == 0) {
    watch_.obey(order);
  } else {
    fleet->send(news.machine, LauncherWord::kDrill, pack_drill_order(order));
    watch_.obey(happened_);
  }
}

void JobDrill::tell_all(Fleet& fleet) const {
  if (book_) {
    fleet.broadcast(LauncherWord::kDrill, pack_drill_order(happened_));
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
  if (launch.node_rank == 0) {
    return own;
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
