"""ctest, where no test passes without having run: run_ctest.py [--again] CTEST-ARGUMENT...

To ctest a test that skips itself is in order, and so is a choice of tests that fits none. Here each skip
must have a line in tests/skips.txt whose condition holds on this machine. What was skipped, and why, is
listed at the end.

With --again, up to MOST_AGAIN tests that failed beside others run again, alone, AGAIN times each. Those
that pass every time are listed as unstable and do not fail the whole: they are defects all the same, of
the test or of what it tests, that a machine under load brought out.
"""

import fnmatch
import functools
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
AGAIN = 3
MOST_AGAIN = 3
PREFIX = "not run: "  # of a line for each test of a program, by tests/support/main.cc


def read_excuses(path):
    """[(patterns, condition, why)]"""
    excuses = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                patterns, rest = line.split(" | ", 1)
                condition, why = rest.rsplit(" | ", 1)
            except ValueError:
                sys.exit(f'{path}:{number}: expected "TEST... | COMMAND | WHY", found "{line}"')
            excuses.append((patterns.split(), condition, why))
    return excuses


@functools.cache
def holds(condition):
    result = subprocess.run(["bash", "-c", condition], cwd=ROOT, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return result.returncode == 0


def skipped_in(report):
    """(ctest's name, gtest's name, reason) of each that did not run."""
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None and case.get("status") not in ("notrun", "disabled"):
            continue
        said = [line[len(PREFIX) :] for line in case.findtext("system-out", "").splitlines() if line.startswith(PREFIX)]
        nothing = "" if skipped is None else skipped.get("message", "")
        for line in said or [f"all of them: it says no reason ({nothing or case.get('status')})"]:
            test, _, reason = line.partition(": ")
            yield case.get("name"), test, reason


def failed_in(report):
    return [case.get("name") for case in ElementTree.parse(report).iter("testcase") if case.get("status") == "fail"]


def pass_alone(names, arguments):
    """Whether each of these passes every time that it is run with nothing beside it."""
    pattern = "|".join(re.escape(name) for name in names)
    print(f"\nAgain, alone, {AGAIN} times each: {', '.join(names)}", flush=True)
    # The last choice by name is the one that ctest takes.
    alone = ["--tests-regex", f"^({pattern})$", "--parallel", "1", "--repeat", f"until-fail:{AGAIN}"]
    return subprocess.run(["ctest", "--no-tests=error", *arguments, *alone]).returncode == 0


def excuse_for(name, reason, excuses):
    for patterns, condition, why in excuses:
        fits = (fnmatch.fnmatchcase(text, pattern) for text in (name, f"{name}: {reason}") for pattern in patterns)
        if any(fits) and holds(condition):
            return why
    return None


def main():
    excuses = read_excuses(ROOT / "tests" / "skips.txt")
    arguments = [argument for argument in sys.argv[1:] if argument != "--again"]
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = ["ctest", "--no-tests=error", "--output-junit", str(report), *arguments]
        code = subprocess.run(command).returncode
        if not report.exists():
            sys.exit(code or "ctest has written no report")
        skipped = list(skipped_in(report))
        failed = failed_in(report)
    unstable = []
    if "--again" in sys.argv and 0 < len(failed) <= MOST_AGAIN and pass_alone(failed, arguments):
        unstable, code = failed, 0
    unexcused = 0
    if skipped:
        print(f"\nNot run: {len(skipped)}")
    for test, part, reason in skipped:
        why = excuse_for(f"{test}/{part}", reason, excuses)
        unexcused += why is None
        print(f"  {test}/{part}: {reason.strip()}")
        print(f"    in order: {why}" if why else "    FAILED: no line of tests/skips.txt says that this is in order here")
    if unstable:
        print(f"\nUnstable: {len(unstable)} that failed beside other tests and passed {AGAIN} times alone: to be mended")
    for test in unstable:
        print(f"  {test}")
    sys.exit(code or (1 if unexcused else 0))


main()
