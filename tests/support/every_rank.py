#!/usr/bin/env python3
"""Runs a test program under a launcher (mpirun) and requires that every rank has passed.

    every_rank.py [--launcher-may-fail] RANKS COMMAND...

The launcher's exit code and what reaches its output do not say that: it may end the other ranks when
the first one ends, and a rank that runs no test succeeds as well. So each rank leaves a report
(support/ranks.cc) named by its number: how it ended, once it has tested a world of all ranks.
"""

import os
import subprocess
import sys
import tempfile


def main(words):
    may_fail = words[:1] == ["--launcher-may-fail"]
    words = words[1:] if may_fail else words
    if len(words) < 2 or not words[0].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    ranks, command = int(words[0]), words[1:]
    with tempfile.TemporaryDirectory(prefix="trireme-every-rank-") as folder:
        environment = dict(os.environ, TRIREME_TEST_REPORTS=folder)
        code = subprocess.run(command, env=environment).returncode
        bad = []
        for rank in range(ranks):
            try:
                with open(os.path.join(folder, str(rank))) as file:
                    report = file.read()
            except FileNotFoundError:
                report = f"no report: it was ended, or has tested no world of {ranks} ranks"
            if report != f"passed as one of {ranks}":
                bad.append(f"rank {rank} of {ranks}: {report}")
    if code != 0 and not may_fail:
        bad.append(f"{command[0]} ended with {code}")
    for line in bad:
        print(f"every_rank.py: {line}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
