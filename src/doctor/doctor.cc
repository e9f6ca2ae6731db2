#include "trireme/doctor/doctor.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "doctor/disk_speed.h"
#include "doctor/gpu_check.h"
#include "doctor/machine_check.h"
#include "doctor/rank_files.h"
#include "doctor/reachability.h"
#include "doctor/report_json.h"
#include "trireme/core/deadline.h"
#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/json_depth.h"
#include "trireme/core/output_file.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using detail::Finding;
using detail::Report;
using detail::Verdict;
using Json = nlohmann::json;

constexpr int kMostRanks = 8;           // unless more are asked for: pairs grow with the square
constexpr double kTimeoutSeconds = 60;  // to start the command on the other machines by hand

class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (fs::temp_directory_path() / "trireme-doctor-XXXXXX").string();
    TRIREME_CHECK(
        mkdtemp(path_.data()) != nullptr,
        "a temporary folder {} cannot be created: {}: set TMPDIR to a folder that can be written",
        {path_, detail::errno_text(errno)});
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

std::optional<Json> read_json(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Json json = json_too_deep_at(text) ? Json() : Json::parse(text, nullptr, false);
  return json.is_object() ? std::optional<Json>(std::move(json)) : std::nullopt;
}

// 0: not set. A list ("4,2") begins with what counts here; what is no number is for OpenMP to
// refuse.
int omp_threads() {
  const std::string text = env_string("OMP_NUM_THREADS").value_or("");
  const auto number = parse_integer(text.substr(0, text.find(',')));
  return number && *number > 0 && *number < 1 << 20 ? static_cast<int>(*number) : 0;
}

detail::MachineReport examine_machine(const detail::MachineFacts& facts,
                                      const LaunchOptions& launch,
                                      const std::string& folder) {
  detail::Purpose purpose;
  purpose.ranks = launch.ranks;
  purpose.machines = launch.nodes;
  purpose.backend = launch.backend;
  purpose.interfaces = split(launch.interfaces);
  purpose.omp_threads = omp_threads();
  detail::MachineReport machine{facts.host, {}};
  machine.findings = detail::check_versions(detail::find_versions(), facts.kernel, purpose);
  for (Finding& finding : detail::check_machine(facts, purpose)) {
    machine.findings.push_back(std::move(finding));
  }
  machine.findings.push_back(detail::check_gpus(device::examine_gpus()));
  machine.findings.push_back(detail::judge_disk(detail::measure_disk(folder)));
  return machine;
}

std::string advice_for(const std::string& kind, bool several) {
  if (kind == "refused") {
    return several ? "use the same Trireme, the same program and the same token on every machine"
                   : "something else answers under this job's name: run it again";
  }
  if (kind == "rendezvous") {
    return several ? "is machine 0 started, and its address right? is the port open, are the ports "
                     "above it (ip_local_port_range) open between the machines? is the token the "
                     "same?"
                   : "ranks did not start in time: see load and memory above";
  }
  return "see what the ranks say above";
}

// Why the ranks did not get to the end. Where several say why, one that does not merely miss
// another is the cause.
Finding failure_finding(const std::string& folder, const LaunchOptions& launch, int code) {
  std::optional<Json> cause;
  for (int rank = 0; rank < launch.ranks; ++rank) {
    const auto failure = read_json(detail::failure_file(folder, rank));
    if (failure && (!cause || (cause->at("kind") == "peer" && failure->at("kind") != "peer"))) {
      cause = failure;
    }
  }
  const bool several = launch.nodes > 1;
  if (cause) {
    const std::string kind = cause->at("kind");
    const bool meeting = kind == "rendezvous" || kind == "refused";
    return detail::problem(
        meeting ? "rendezvous" : "ranks", cause->at("message"), advice_for(kind, several));
  }
  if (code == kExitRendezvousTimedOut || (several && code == kExitUsage)) {
    return detail::problem(
        "rendezvous", "the machines did not meet", advice_for("rendezvous", several));
  }
  return detail::problem("ranks",
                         concat("they did not get as far as measuring (exit code ", code, ")"),
                         advice_for("other", several));
}

// Where the report as JSON goes. Opened first: what cannot be written is said before minutes of
// work.
class JsonOutput {
 public:
  explicit JsonOutput(const std::string& path) : replaces_table_(is_standard_output(path)) {
    if (!path.empty()) {
      file_ = std::make_unique<OutputFile>(path, "--json");
    }
  }

  bool replaces_table() const { return replaces_table_; }

  void write(const Report& report) {
    if (file_) {
      file_->write(detail::to_json(report).dump(1, ' ', false, Json::error_handler_t::replace) +
                   "\n");
      file_->finish();
    }
  }

 private:
  bool replaces_table_;
  std::unique_ptr<OutputFile> file_;
};

// Starts the ranks, and completes the report with what they found. Returns the exit code of a job
// that was stopped by a signal, else 0.
int measure_with_ranks(const ScratchFolder& scratch, LaunchOptions launch, Report& report) {
  launch.command = {"/proc/self/exe", "doctor", "--worker", scratch.path()};
  int code = 0;
  try {
    code = trireme::launch(launch);
  } catch (const ConfigError& error) {
    report.between.push_back(detail::problem(
        launch.nodes > 1 ? "rendezvous" : "ranks", error.what(), "change it and start again"));
    return 0;
  }
  if (code > 128) {
    return code;
  }
  const auto found = read_json(detail::report_file(scratch.path()));
  if (code != 0 || !found) {
    report.between.push_back(failure_finding(scratch.path(), launch, code));
    return 0;
  }
  report = detail::report_from(*found);
  for (auto&& findings : {detail::compare_machines(report.machines),
                          detail::judge_pairs(report.pairs, report.machine_of),
                          detail::judge_clocks(report.clocks)}) {
    report.between.insert(report.between.end(), findings.begin(), findings.end());
  }
  return 0;
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  LaunchOptions launch = options.launch;
  TRIREME_CHECK(launch.nodes >= 1 && launch.node_rank >= 0 && launch.node_rank < launch.nodes,
                "--node-rank: expected a machine from 0 to {} (--nnodes is {}), found {}",
                {launch.nodes - 1, launch.nodes, launch.node_rank});
  TRIREME_CHECK(launch.nodes == 1 || !launch.rendezvous.empty(),
                "--nnodes {}: expected --rendezvous HOST:PORT, where machine 0 listens, found none",
                {launch.nodes});
  std::optional<detail::MeetingPlace> place;
  if (!launch.rendezvous.empty()) {  // also where one machine needs none
    place = detail::parse_meeting_place(launch.rendezvous);
  }
  JsonOutput json(options.json_path);
  const detail::MachineFacts facts = detail::read_machine();
  if (launch.ranks <= 0) {
    launch.ranks = std::min(kMostRanks, detail::usable_processors(facts));
  }
  launch.timeout_seconds = launch.timeout_seconds.value_or(kTimeoutSeconds);
  std::string folder = options.folder;
  if (folder.empty()) {
    folder = fs::is_directory("runs") ? "runs" : ".";
  }

  Report report;
  report.machines.push_back(examine_machine(facts, launch, folder));
  const ScratchFolder scratch;
  {
    const Json machine{{"name", report.machines[0].name},
                       {"findings", detail::to_json(report.machines[0].findings)}};
    std::ofstream(detail::machine_file(scratch.path()))
        << machine.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  bool reachable = true;
  if (place && launch.node_rank > 0) {
    const Deadline deadline(
        Milliseconds(static_cast<std::int64_t>(*launch.timeout_seconds * 1000)));
    const detail::Attempt attempt = detail::wait_for_listener(*place, deadline);
    reachable = attempt.reach == detail::Reach::kConnected;
    if (!reachable) {
      report.between.push_back(detail::judge_attempt(*place, attempt));
    }
  }
  if (reachable) {
    if (const int code = measure_with_ranks(scratch, launch, report); code != 0) {
      return code;
    }
  }

  json.write(report);
  if (!json.replaces_table()) {
    if (launch.node_rank == 0 || report.machine_of.empty()) {
      std::fputs(detail::report_text(report).c_str(), stdout);
    } else {
      std::printf("The report is printed on machine 0 (%s).\n", report.machines[0].name.c_str());
    }
  }
  return report.verdict() == Verdict::kProblem ? 1 : kExitOk;
}

}  // namespace trireme
