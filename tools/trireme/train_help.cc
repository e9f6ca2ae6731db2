#include "train_help.h"

#include <iostream>

#include "trireme/launch/launcher.h"
#include "trireme/settings/settings_table.h"

namespace trireme::tools {

// Our own, by groups and with all words: CLI11's would be one long list.
std::string train_help() {
  return "Train a built-in model, on one machine or more.\n"
         "\n"
         "Usage: trireme train [-n N] [SETTINGS] [--config FILE] [--resume [RUN|STEP|never]] "
         "[--print-config]\n"
         "\n"
         "  --config FILE       read settings from a JSON file, which may use DeepSpeed's names; "
         "flags take\n"
         "                      precedence\n"
         "  --resume            resume from the newest checkpoint of --run. Without this flag, a "
         "run whose\n"
         "                      folder has a checkpoint resumes as well; with it, a folder that "
         "has none is\n"
         "                      refused. Settings that are not given are taken from the run\n"
         "  --resume RUN        the same, with this run folder. A cross-validation resumes with "
         "its "
         "first\n"
         "                      unfinished fold\n"
         "  --resume STEP       resume from the checkpoint of this step\n"
         "  --resume never      refuse a folder that already holds a run\n"
         "  --print-config      print the settings that have an effect as JSON, and exit\n"
         "  --nnodes M --node-rank K --rendezvous HOST:PORT\n"
         "                      run one command on each of M machines, identical except for "
         "--node-rank;\n"
         "                      --run is a folder they share. --interfaces, --backend, "
         "--algorithm,\n"
         "                      --sum-group, --encrypt, --checksums and --token-file work as for "
         "trireme run "
         "(docs/cluster.md)\n"
         "  --elastic MIN:MAX   outlive lost ranks, as long as MIN are left; --restart N starts "
         "lost "
         "ones\n"
         "                      again, N times in all; --heartbeat S: a rank that a signal has "
         "stopped\n"
         "                      for S seconds, or a machine that is not heard from, is lost; "
         "--stall S: so\n"
         "                      is a rank that makes no progress for so long; --grace S: time for "
         "a\n"
         "                      machine to leave; --redundancy K: every K steps a second machine "
         "keeps\n"
         "                      the state, too (docs/elastic.md)\n"
         "  --store etcd://HOST:PORT,...[/NAME]\n"
         "                      of an elastic job: the machines agree in an etcd who decides, so "
         "that any\n"
         "                      of them may be lost; --rendezvous is not needed. --store-ca, "
         "--store-cert,\n"
         "                      --store-key, --store-user and --store-password-file as for "
         "trireme run\n"
         "  --drill FAULTS      inject faults into an elastic job, as in "
         "\"kill:p=0.02;stop:2s;leave\",\n"
         "                      over several machines also \"kill-launcher;stop-launcher:2s\" "
         "(docs/elastic.md);\n"
         "                      --drill-seed S chooses which. trireme drill RUN shows what became "
         "of them\n"
         "  --supervise N       start the job again when its launcher dies or it ends by a fault, "
         "at "
         "most\n"
         "                      N times within an hour (docs/operations.md)\n"
         "\n"
         "SETTINGS, as flags or as members of a JSON object:\n" +
         settings_help() +
         "\nExit codes: 0 trained, 2 wrong usage, 3 a rank failed, 4 ranks did not meet in time;\n"
         "130, 143 or 129 ended by Ctrl-C, SIGTERM or SIGHUP (the run folder is valid).\n";
}

int print_text(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout.good() ? kExitOk : kExitRankFailed;  // which main() says
}

}  // namespace trireme::tools
