#include "doctor/report.h"

#include <gtest/gtest.h>

#include "doctor/report_json.h"

namespace trireme {
namespace {

using detail::compare_machines;
using detail::Finding;
using detail::MachineReport;
using detail::PairMatrix;
using detail::Report;
using detail::report_text;
using detail::Verdict;

Finding finding(const std::string& check,
                const std::string& value,
                Verdict verdict = Verdict::kOk,
                const std::string& advice = "") {
  return {check, value, {}, verdict, advice};
}

Report two_machines() {
  Report report;
  report.machines = {
      {"bow", {finding("swap", "none"), finding("disk", "slow", Verdict::kWarning, "buy one")}},
      {"stern", {finding("swap", "none"), finding("disk", "full", Verdict::kProblem, "tidy up")}}};
  report.machine_of = {0, 1};
  report.pairs = PairMatrix(2);
  report.pairs.latency_us[1] = report.pairs.latency_us[2] = 20;
  report.pairs.bytes_per_second[1] = 1e9;
  report.clocks = {{0, 0}, {0.5, 0.001}};
  report.between = {finding("clock", "differs", Verdict::kNote, "set it")};
  return report;
}

TEST(Report, TheVerdictIsTheWorst) {
  Report report;
  EXPECT_EQ(report.verdict(), Verdict::kOk);
  report.between = {finding("clock", "differs", Verdict::kNote)};
  EXPECT_EQ(report.verdict(), Verdict::kNote);
  report.machines = {{"bow", {finding("disk", "full", Verdict::kProblem)}}};
  EXPECT_EQ(report.verdict(), Verdict::kProblem);
}

TEST(Report, BeginsWithTheProblems) {
  const std::string text = report_text(two_machines());
  std::size_t last = 0;
  for (const char* part : {"problem  1        disk   full",
                           "-> tidy up",
                           "warning  0        disk   slow",
                           "-> buy one",
                           "note     all      clock  differs",
                           "-> set it",
                           "ok       all      swap   none",
                           "1 problem, 1 warning, 1 note\n"}) {
    const std::size_t at = text.find(part);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
    EXPECT_GE(at, last) << part << "\n" << text;
    last = at;
  }
}

TEST(Report, NeedsNoColumnForOneMachine) {
  Report report;
  report.machines = {{"bow", {finding("swap", "none")}}};
  EXPECT_NE(report_text(report).find("\n         check  found\nok       swap   none\n"),
            std::string::npos)
      << report_text(report);
}

TEST(Report, BreaksLongLines) {
  Report report;
  std::string advice = "begin";
  for (int i = 0; i < 100; ++i) {
    advice += " word";
  }
  report.machines = {{"bow", {finding("swap", "none", Verdict::kNote, advice)}}};
  std::istringstream text(report_text(report));
  for (std::string line; std::getline(text, line);) {
    EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(Report, SurvivesJson) {
  Report report = two_machines();
  report.between[0].numbers = {{"seconds", 0.5}};
  const nlohmann::json json = detail::to_json(report);
  EXPECT_EQ(json.at("verdict"), "problem");
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_TRUE(json.at("latency_us").at(0).at(0).is_null());
  EXPECT_EQ(json.at("bandwidth_bytes_per_second").at(0).at(1), 1e9);
  EXPECT_EQ(json.at("findings").at(0).at("numbers").at("seconds"), 0.5);
  const Report copy = detail::report_from(nlohmann::json::parse(json.dump()));
  EXPECT_EQ(detail::to_json(copy), json);
  EXPECT_EQ(report_text(copy), report_text(report));
}

TEST(MachineComparison, NamesWhatDiffers) {
  const auto machine = [](const std::string& name, const std::string& kernel, double processors) {
    MachineReport report{name, {finding("trireme", "1.0"), finding("kernel", kernel)}};
    report.findings.push_back({"processors", name, {{"usable", processors}}});
    report.findings.push_back(finding("load", name));  // may differ
    return report;
  };
  EXPECT_TRUE(compare_machines({machine("bow", "6.1", 4)}).empty());
  EXPECT_TRUE(compare_machines({machine("bow", "6.1", 4), machine("stern", "6.1", 4)}).empty());
  const auto findings = compare_machines(
      {machine("bow", "6.1", 4), machine("mast", "6.1", 4), machine("stern", "6.2", 8)});
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].check, "kernel");
  EXPECT_EQ(findings[0].verdict, Verdict::kNote);
  EXPECT_EQ(findings[0].value, "differs: machine 0 (bow) has 6.1, machine 2 (stern) has 6.2");
  EXPECT_EQ(findings[1].check, "processors");
  EXPECT_EQ(findings[1].numbers.at("machine"), 2);
}

TEST(MachineComparison, AnotherTriremeIsAProblem) {
  const auto findings = compare_machines(
      {{"bow", {finding("trireme", "1.0")}}, {"stern", {finding("trireme", "1.1")}}});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kProblem);
}

}  // namespace
}  // namespace trireme
