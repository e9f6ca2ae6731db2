#include <memory>

#include "commands.h"
#include "machine_options.h"
#include "number_options.h"
#include "trireme/doctor/doctor.h"

namespace trireme::tools {

void add_doctor_command(CLI::App& program, Action& action) {
  auto options = std::make_shared<DoctorOptions>();
  auto worker = std::make_shared<std::string>();
  LaunchOptions& launch = options->launch;
  launch.ranks = 0;  // not said
  CLI::App* doctor = program.add_subcommand(
      "doctor",
      "Check this machine, or several and the network between them, and say what to change");
  doctor->footer(
      "On several machines, start it on each with its own --node-rank; machine 0 prints the "
      "report.\n"
      "Exit codes: 0 no problem found, 1 at least one problem, 2 wrong usage, 128 + N ended by "
      "signal N.");
  add_count(*doctor,
            "-n,--ranks",
            launch.ranks,
            "Ranks on this machine that measure each other (default: one per processor, at most "
            "8)");
  add_machine_options(*doctor, launch);
  add_optional_seconds(*doctor,
                       "--timeout",
                       launch.timeout_seconds,
                       "Seconds to wait for other machines and ranks (default: 60)");
  doctor
      ->add_option("--folder",
                   options->folder,
                   "Where runs will be written; its disk is measured (default: runs, or the "
                   "current folder)")
      ->type_name("FOLDER");
  doctor->add_option("--json", options->json_path, "Write the report as JSON; - is standard output")
      ->type_name("FILE");
  doctor->add_option("--worker", *worker, "")->group("");  // for the ranks it starts
  doctor->callback([&action, options, worker] {
    action = [options, worker] {
      return worker->empty() ? run_doctor(*options) : run_doctor_rank(*worker);
    };
  });
}

}  // namespace trireme::tools
