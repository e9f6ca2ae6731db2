#!/usr/bin/env python3
"""every_rank.py on launchers that hide a rank: each of these must be found."""

import os
import subprocess
import sys

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "every_rank.py")


def report(rank, text):
    return f'printf "{text}" > "$TRIREME_TEST_REPORTS/{rank}"'


def expect(what, code, part, shell, *options):
    result = subprocess.run([sys.executable, SCRIPT, *options, "2", "sh", "-c", shell],
                            capture_output=True, text=True)
    assert result.returncode == code, f"{what}: ended with {result.returncode}: {result.stderr}"
    assert part in result.stderr, f"{what}: no \"{part}\" in: {result.stderr}"


zero, one = report(0, "passed as one of 2"), report(1, "passed as one of 2")
expect("both passed", 0, "", f"{zero}; {one}")
expect("one is silent", 1, "rank 1 of 2: no report", f"{zero}; echo '[  PASSED  ] 1 test.'")
expect("one is silent, and the launcher may fail", 1, "rank 1 of 2: no report", f"{zero}; exit 3",
       "--launcher-may-fail")
expect("one failed", 1, "rank 1 of 2: failed", f"{zero}; {report(1, 'failed')}")
expect("each was alone", 1, "rank 0 of 2: passed as one of 1", report(0, "passed as one of 1"))
expect("the launcher failed", 1, "sh ended with 3", f"{zero}; {one}; exit 3")
expect("the launcher may fail", 0, "", f"{zero}; {one}; exit 3", "--launcher-may-fail")
