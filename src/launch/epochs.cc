#include "launch/epochs.h"

#include <algorithm>

#include <signal.h>
#include <sys/wait.h>

#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

// Worlds may end because a rank was slow for once, not again and again.
constexpr int kMostVainEpochs = 3;
// A turn comes at least every half second, unless this process was stopped, or the whole machine.
constexpr std::chrono::seconds kLongestTurn{3};

// Trying again would find the same mistake.
bool means_usage(int status) {
  return WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage;
}

// It ends because of another: by itself, or because nobody in it catches an error.
bool blames_another(const JobEvent& failure) {
  const bool by_itself = WIFEXITED(failure.number) || WTERMSIG(failure.number) == SIGABRT;
  return by_itself && failure.blamed >= 0 && failure.blamed != failure.rank;
}

Milliseconds milliseconds(double seconds) {
  return Milliseconds(static_cast<std::int64_t>(std::min(seconds, 3e8) * 1000));
}

}  // namespace

Epochs::Epochs(const ElasticOptions& options,
               LocalRanks& ranks,
               std::function<void(const std::string&)> say)
    : options_(options), ranks_(ranks), say_(std::move(say)), restarts_left_(options.restarts) {}

int Epochs::running() const {
  return static_cast<int>(std::count_if(ranks_.ranks().begin(),
                                        ranks_.ranks().end(),
                                        [](const RankProcess& rank) { return rank.is_member(); }));
}

bool Epochs::someone_has_finished() const {
  return std::any_of(ranks_.ranks().begin(), ranks_.ranks().end(), [](const RankProcess& rank) {
    return rank.rank >= 0 && rank.ended && rank.status == 0;
  });
}

bool Epochs::outlives(const std::vector<JobEvent>& failures) {
  if (std::any_of(failures.begin(), failures.end(), [](const JobEvent& failure) {
        return means_usage(failure.number);
      })) {
    return false;
  }
  // Causes first: others end because of them.
  std::vector<JobEvent> sorted = failures;
  std::stable_partition(sorted.begin(), sorted.end(), [](const JobEvent& failure) {
    return !blames_another(failure);
  });
  return std::all_of(
      sorted.begin(), sorted.end(), [this](const JobEvent& failure) { return outlives(failure); });
}

// Note [what a job outlives]
// A rank that was killed: the others go on without it, or with a new one in its place. A rank that
// ended itself had a reason, which the others may have just as well: only a restart that was asked
// for tries again. Programs that do not ask for the next epoch end when they lose a rank; they are
// started again, since it is not they who were lost. When a rank has come to its end, the job has:
// ranks end together, so one that is killed after that takes nothing along.
bool Epochs::outlives(const JobEvent& failure) {
  const auto& all = ranks_.ranks();
  const auto process = std::find_if(all.begin(), all.end(), [&](const RankProcess& rank) {
    return rank.child.pid == failure.pid;
  });
  const auto place = static_cast<std::size_t>(process - all.begin());
  const bool follows = blames_another(failure) && losses_ > 0;
  const bool killed = WIFSIGNALED(failure.number) && !follows;
  const int left = running() + static_cast<int>(started_again_.size());
  const std::string what =
      concat("rank {} of {} (pid {}) {}",
             {failure.rank, ranks_.world_size(), failure.pid, how_it_ended(failure.number)});
  if (killed && someone_has_finished()) {
    say_(concat(what, " when others had finished: nothing is lost"));
    return true;
  }
  if (follows) {
    started_again_.insert(place);
  } else if (restarts_left_ > 0) {
    --restarts_left_;
    started_again_.insert(place);
    say_(concat("{}: starting it again ({} left)", {what, counted(restarts_left_, "restart")}));
  } else if (killed && left >= (ends_ ? 1 : options_.least) && left > 0) {
    say_(concat("{}: going on with {}", {what, counted(left, "rank")}));
  } else {
    say_(killed ? concat("{} left, where --elastic wants {}: the job ends",
                         {counted(left, "rank"), options_.least})
                : "no restart is left for a rank that ends by itself: the job ends");
    return false;
  }
  losses_ += follows ? 0 : 1;
  end_epoch();
  patience_.emplace(milliseconds(options_.stall_seconds));
  return true;
}

void Epochs::end_epoch() {
  forming_ = true;
  ranks_.end_epoch();
}

std::string Epochs::turn() {
  ranks_.hear_requests();
  if (ranks_.take_kept()) {
    vain_epochs_ = 0;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - std::exchange(last_turn_, now) > kLongestTurn) {
    // Nobody else has run, either: they get the time that they were promised.
    ranks_.forget_stops();
    if (patience_) {
      patience_.emplace(milliseconds(options_.stall_seconds));
    }
  }
  end_stopped();
  const auto& all = ranks_.ranks();
  const bool asked =
      std::any_of(all.begin(), all.end(), [](const RankProcess& rank) { return rank.asks; });
  if (asked && !patience_) {  // whatever has ended the epoch has begun to
    end_epoch();
    patience_.emplace(milliseconds(options_.stall_seconds));
  }
  if (!forming_) {
    return {};
  }
  const bool ready = std::all_of(all.begin(), all.end(), [](const RankProcess& rank) {
    return !rank.is_member() || rank.asks;
  });
  if (ready) {
    vain_epochs_ = losses_ > 0 || wanted_ ? 0 : vain_epochs_ + 1;
    if (vain_epochs_ > kMostVainEpochs) {
      return "the ranks lose each other again and again, although none of them has ended: look at "
             "their logs, and whether a wait of theirs takes longer than --timeout";
    }
    if (const std::string why = why_too_few(); !why.empty()) {
      return why;
    }
    try {
      begin();
    } catch (const ConfigError& error) {
      return concat("the job cannot go on after the loss of ranks: ", error.what());
    }
  } else if (patience_ && patience_->passed()) {
    end_stalled();
  }
  return {};
}

std::vector<std::size_t> Epochs::members_of_next() const {
  const auto& all = ranks_.ranks();
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < all.size(); ++place) {
    if (all[place].is_member() || started_again_.contains(place)) {
      places.push_back(place);
    }
  }
  if (wanted_ && !places.empty()) {
    for (std::size_t place = 0; static_cast<int>(places.size()) < *wanted_; ++place) {
      const bool taken = std::find(places.begin(), places.end(), place) != places.end();
      if (!taken && (place >= all.size() || all[place].ended)) {
        places.push_back(place);
      }
    }
    places.resize(static_cast<std::size_t>(*wanted_));
  }
  return places;
}

void Epochs::end_in_good_order() {
  ends_ = true;
  restarts_left_ = 0;
  started_again_.clear();
  wanted_.reset();
}

// Where the others have come to their ends, one that is started again would be alone.
std::string Epochs::why_too_few() const {
  const int next = static_cast<int>(members_of_next().size());
  const bool complete = started_again_.empty() && someone_has_finished();
  if (next == 0 || next >= options_.least || ends_ || complete) {
    return {};
  }
  return concat("{} left, where --elastic wants {}: the others have ended",
                {counted(next, "rank"), options_.least});
}

void Epochs::begin() {
  const std::vector<std::size_t> places = members_of_next();
  wanted_.reset();
  started_again_.clear();
  losses_ = 0;
  forming_ = false;
  patience_.reset();
  if (!places.empty()) {  // else all have come to their end
    ranks_.begin_epoch(places);
  }
}

std::string Epochs::scale(int ranks) {
  const int before = running();
  if (ranks < options_.least || ranks > options_.most) {
    return concat("no: expected {} to {} ranks, as --elastic says, found {}",
                  {options_.least, options_.most, ranks});
  }
  if (forming_ || before == 0) {
    return "no: the ranks are just meeting anew: try again";
  }
  if (!ranks_.keeps_memory()) {
    return "no: expected ranks that keep their state between steps (ElasticState, trireme train "
           "without --folds), found nothing kept: try again after the first step";
  }
  if (ranks == before) {
    return concat("no: it has ", counted(before, "rank"), " already");
  }
  wanted_ = ranks;
  end_epoch();
  const std::string text =
      concat("going from {} to {} after the step at hand", {before, counted(ranks, "rank")});
  say_(concat("trireme scale: ", text));
  return text;
}

void Epochs::end(const RankProcess& rank, const std::string& why) {
  if (ended_.insert(rank.child.pid).second) {
    say_(concat("rank {} of {} (pid {}) {}: ending it",
                {rank.rank, ranks_.world_size(), rank.child.pid, why}));
  }
  rank.send_signal(SIGKILL);
}

void Epochs::end_stopped() {
  const auto now = std::chrono::steady_clock::now();
  for (const RankProcess& rank : ranks_.ranks()) {
    if (!rank.ended && rank.stopped &&
        now - *rank.stopped > milliseconds(options_.heartbeat_seconds)) {
      end(rank, concat("has been stopped for ", options_.heartbeat_seconds, " s"));
    }
  }
}

void Epochs::end_stalled() {
  for (const RankProcess& rank : ranks_.ranks()) {
    if (rank.is_member() && !rank.asks) {
      end(rank,
          concat("has not noticed for ", options_.stall_seconds, " s that its world has ended"));
    }
  }
  patience_.emplace(milliseconds(options_.stall_seconds));
}

}  // namespace trireme::detail
