#include "server/arrival_record.h"

#include <algorithm>
#include <filesystem>
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

// Reads over the lines that say what a record is of: false where it is not of this run.
bool leads_to_acts(std::istream& in, const std::vector<std::string>& run) {
  std::vector<std::string> expected = run;
  expected.insert(expected.begin(), kFirstLine);
  expected.emplace_back(kEndOfRun);
  return std::ranges::all_of(expected, [&](const std::string& line) {
    std::string found;
    return std::getline(in, found) && found == line;
  });
}

}  // namespace

ArrivalRecord::ArrivalRecord(const std::string& folder,
                             int rank,
                             const std::vector<std::string>& run)
    : path_(record_path(folder, rank)), run_(run) {
  std::error_code error;
  fs::create_directories(folder, error);
  // Not written over yet: a run that goes on keeps the beginning.
  TRIREME_CHECK(!error, "Stale::record: {} cannot be made: {}", {folder, error.message()});
}

void ArrivalRecord::begin() {
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
  std::string kept;
  bool found = false;
  if (std::ifstream in(path_); leads_to_acts(in, run_)) {
    std::string line;
    while (!found && std::getline(in, line)) {
      kept += line + '\n';
      found = line == all_line(clock);
    }
  }
  begin();
  out_ << (found ? kept : all_line(clock) + '\n');
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

std::vector<ClockTable::Act> ArrivalRecord::read(const std::string& folder,
                                                 int rank,
                                                 const std::vector<std::string>& run,
                                                 std::int64_t from) {
  const std::string path = record_path(folder, rank);
  std::ifstream in(path);
  std::string line;
  TRIREME_CHECK(in.is_open() && std::getline(in, line) && line == kFirstLine,
                "replay: {} is not a record of arrivals: expected what a run with Order::kArrival "
                "has written, with as many ranks",
                {path});
  for (const std::string& expected : run) {
    TRIREME_CHECK(std::getline(in, line) && line == expected,
                  "replay: {} is of another run: it has \"{}\", expected \"{}\"",
                  {path, line, expected});
  }
  TRIREME_CHECK(std::getline(in, line) && line == kEndOfRun,
                "replay: {} is of another run: it has \"{}\" where this one has nothing",
                {path, line});
  std::vector<ClockTable::Act> acts;
  bool found = false;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string what;
    ClockTable::Act act;
    words >> what >> act.worker >> act.clock;
    if (what == "all") {
      found |= line == all_line(from);
      continue;
    }
    TRIREME_CHECK(words && (what == "apply" || what == "answer") && act.worker >= 0,
                  "replay: {} has the line \"{}\": expected apply or answer, a rank and a step",
                  {path, line});
    act.kind = what == "apply" ? ClockTable::Act::Kind::kApply : ClockTable::Act::Kind::kAnswer;
    if (found) {
      acts.push_back(act);
    }
  }
  TRIREME_CHECK(found,
                "replay: {} says nothing of a beginning after step {}: replay from where it began, "
                "or from where it saved",
                {path, from});
  return acts;
}

}  // namespace trireme::detail
