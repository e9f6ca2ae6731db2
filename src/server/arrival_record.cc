#include "server/arrival_record.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFirstLine = "trireme arrivals 1";
constexpr const char* kEndOfRun = "--";

std::string record_path(const std::string& folder, int rank) {
  return concat(folder, "/rank-", rank, ".txt");
}

std::string all_line(std::int64_t clock) {
  return concat("all ", clock);
}

// The next line; false where there is none, or it has no end: who wrote it was killed.
bool next_line(std::istream& in, std::string& line) {
  return std::getline(in, line) && !in.eof();
}

// How many bytes a record has up to this line, and with it. Nothing where it is of another run, or
// does not come so far.
std::optional<std::uintmax_t> bytes_up_to(const std::string& line,
                                          const std::string& path,
                                          const std::vector<std::string>& run) {
  std::vector<std::string> expected = run;
  expected.insert(expected.begin(), kFirstLine);
  expected.emplace_back(kEndOfRun);
  std::ifstream in(path);
  std::uintmax_t bytes = 0;
  std::string found;
  for (const std::string& each : expected) {
    if (!next_line(in, found) || found != each) {
      return std::nullopt;
    }
    bytes += found.size() + 1;
  }
  while (next_line(in, found)) {
    bytes += found.size() + 1;
    if (found == line) {
      return bytes;
    }
  }
  return std::nullopt;
}

}  // namespace

ArrivalRecord::ArrivalRecord(const std::string& folder,
                             int rank,
                             const std::vector<std::string>& run)
    : path_(record_path(folder, rank)), run_(run) {
  out_.imbue(std::locale::classic());
}

void ArrivalRecord::begin() {
  const std::string folder = fs::path(path_).parent_path().string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(concat("Stale::record: {} cannot be made: {}", {folder, error.message()}));
  }
  out_.open(path_, std::ios::trunc);
  out_ << kFirstLine << '\n';
  for (const std::string& line : run_) {
    out_ << line << '\n';
  }
  out_ << kEndOfRun << '\n';
}

void ArrivalRecord::add(const ClockTable::Act& act) {
  if (!out_.is_open()) {
    begin();
    out_ << all_line(0) << '\n';
  }
  out_ << (act.kind == ClockTable::Act::Kind::kApply ? "apply " : "answer ") << act.worker << ' '
       << act.clock << '\n';
}

void ArrivalRecord::leaves(int worker) {
  if (!out_.is_open()) {
    begin();
    out_ << all_line(0) << '\n';
  }
  out_ << "leave " << worker << '\n';
}

void ArrivalRecord::all_at(std::int64_t clock) {
  if (!out_.is_open()) {
    go_on_from(clock);
  } else {
    out_ << all_line(clock) << '\n';
  }
  flush();
}

void ArrivalRecord::go_on_from(std::int64_t clock) {
  if (out_.is_open()) {
    flush();
    out_.close();
  }
  const auto kept = bytes_up_to(all_line(clock), path_, run_);
  if (!kept) {
    begin();
    out_ << all_line(clock) << '\n';
    return;
  }
  std::error_code error;
  fs::resize_file(path_, *kept, error);
  if (error) {
    throw Error(concat("{} cannot be cut off after step {}: {}", {path_, clock, error.message()}));
  }
  out_.open(path_, std::ios::app);
}

void ArrivalRecord::flush() {
  if (!out_.is_open()) {
    return;
  }
  out_.flush();
  if (!out_.good()) {
    throw Error(concat("{} cannot be written: look at the disk, or record nothing", {path_}));
  }
}

Arrivals Arrivals::read(const std::string& folder,
                        int rank,
                        const std::vector<std::string>& run,
                        std::int64_t from,
                        int workers) {
  const std::string path = record_path(folder, rank);
  std::ifstream in(path);
  std::string line;
  TRIREME_CHECK(in.is_open() && next_line(in, line) && line == kFirstLine,
                "replay: {} is not a record of arrivals: expected what a run with Order::kArrival "
                "has written, with as many ranks",
                {path});
  for (const std::string& expected : run) {
    TRIREME_CHECK(next_line(in, line) && line == expected,
                  "replay: {} is of another run: it has \"{}\", expected \"{}\"",
                  {path, line, expected});
  }
  TRIREME_CHECK(next_line(in, line) && line == kEndOfRun,
                "replay: {} is of another run: it has \"{}\" where this one has nothing",
                {path, line});
  Arrivals arrivals;
  std::vector<std::int64_t> answered(static_cast<std::size_t>(workers), 0);
  std::vector<bool> left(answered.size(), false);  // with less data than others
  while (next_line(in, line)) {
    std::istringstream words(line);
    words.imbue(std::locale::classic());
    std::string what;
    words >> what;
    if (what == "all") {
      std::int64_t clock = 0;
      TRIREME_CHECK(words >> clock && line == all_line(clock),
                    "replay: {} has the line \"{}\": expected all and a step",
                    {path, line});
      if (!arrivals.first) {
        arrivals.first = clock;
        answered.assign(answered.size(), clock);
      }
      arrivals.begins |= clock == from;
      if (arrivals.begins) {
        arrivals.beginnings.push_back(clock);
      }
      continue;
    }
    ClockTable::Act act;
    words >> act.worker;
    if (what == "leave" && words && act.worker >= 0 && act.worker < workers) {
      left[static_cast<std::size_t>(act.worker)] = true;
      continue;
    }
    words >> act.clock;
    TRIREME_CHECK(
        words && words.peek() == std::istringstream::traits_type::eof() &&
            (what == "apply" || what == "answer") && act.worker >= 0 && act.worker < workers,
        "replay: {} has the line \"{}\": expected apply or answer, one of {} ranks that compute, "
        "and a step",
        {path, line, workers});
    act.kind = what == "apply" ? ClockTable::Act::Kind::kApply : ClockTable::Act::Kind::kAnswer;
    if (act.kind == ClockTable::Act::Kind::kAnswer) {
      answered[static_cast<std::size_t>(act.worker)] = act.clock + 1;
    }
    if (arrivals.begins) {
      arrivals.acts.push_back(act);
    }
  }
  arrivals.steps = *std::ranges::max_element(answered);
  for (std::size_t worker = 0; worker < answered.size(); ++worker) {
    if (!left[worker]) {
      arrivals.steps = std::min(arrivals.steps, answered[worker]);
    }
  }
  return arrivals;
}

bool Arrivals::end_with(std::int64_t last) {
  const auto stays = [&](const ClockTable::Act& act) { return act.clock < last; };
  const auto cut = std::ranges::find_if_not(acts, stays);
  // An answer to the last step is asked for nothing any more.
  const bool whole = std::none_of(cut, acts.end(), [&](const ClockTable::Act& act) {
    return act.kind == ClockTable::Act::Kind::kApply ? stays(act) : act.clock + 1 < last;
  });
  std::erase_if(acts, [&](const ClockTable::Act& act) { return !stays(act); });
  std::erase_if(beginnings, [&](std::int64_t step) { return step > last; });
  return whole;
}

}  // namespace trireme::detail
