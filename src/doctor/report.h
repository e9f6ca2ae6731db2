#pragma once

#include <string>
#include <vector>

#include "doctor/clock_difference.h"
#include "doctor/finding.h"
#include "doctor/pair_matrix.h"

namespace trireme::detail {

struct MachineReport {
  std::string name;
  std::vector<Finding> findings;
};

// Everything the doctor knows.
struct Report {
  std::vector<MachineReport> machines;
  std::vector<int> machine_of;  // of every rank; empty where the ranks did not get to measure
  PairMatrix pairs;
  std::vector<ClockDifference> clocks;
  std::vector<Finding> between;  // about the machines and ranks together

  // The worst.
  Verdict verdict() const;
};

// What differs between machines and should not.
std::vector<Finding> compare_machines(const std::vector<MachineReport>& machines);

// The report for people: problems first.
std::string report_text(const Report& report);

}  // namespace trireme::detail
