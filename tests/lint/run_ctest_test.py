"""What scripts/run_ctest.py must not let pass: run_ctest_test.py PROJECT_FOLDER."""

import pathlib
import subprocess
import shutil
import sys
import tempfile

PROJECT = pathlib.Path(sys.argv[1])
SKIPS = """
# a comment
in.order/* of.no/Matter | echo full | grep -q full | the moon is full
not.here/Suite.Case | [ 1 -eq 2 ] | never
*:?there?is?no?bread* | true | the baker is ill
"""
SKIP = "echo 'not run: Suite.Case: there is no cheese'; exit 77"


def verdict(tests, *arguments):
    """Runs tests, shell commands by name, under a copy of the script with its own tests/skips.txt."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "scripts").mkdir()
        (root / "tests").mkdir()
        (root / "tests" / "skips.txt").write_text(SKIPS)
        shutil.copy(PROJECT / "scripts" / "run_ctest.py", root / "scripts")
        lines = []
        for name, command in tests.items():
            lines.append(f'add_test({name} sh -c "{command}")')
            lines.append(f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)")
        (root / "CTestTestfile.cmake").write_text("\n".join(lines))
        script = root / "scripts" / "run_ctest.py"
        command = [sys.executable, script, "--test-dir", root, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


def expect(passes, part, tests, *arguments):
    code, text = verdict(tests, *arguments)
    assert (code == 0) == passes and part in text, (passes, part, code, text)


expect(True, "100% tests passed", {"a": "true"})
expect(False, "1 tests failed", {"a": "true", "b": "false"})
expect(False, "FAILED: no line", {"a": "true", "b": SKIP})
expect(False, "b/Suite.Case: there is no cheese", {"b": SKIP})
expect(True, "in order: the moon is full", {"a": "true", "in.order": SKIP})
expect(False, "FAILED: no line", {"not.here": SKIP})  # on the list, but not on this machine
expect(False, "FAILED: no line", {"of.no": SKIP})  # on the list, but another part of it
expect(True, "the baker is ill", {"b": SKIP.replace("cheese", "bread today")})
expect(False, "it says no reason", {"b": "exit 77"})
expect(False, "1 tests failed", {"in.order": SKIP, "b": "false"})  # a skip hides no failure
expect(False, "No tests were found", {"a": "true"}, "-R", "nothing")

# Fails once, then passes; fails every third time; fails always.
ONCE = "test -e once || { touch once; false; }"
THIRD = "echo x >>thirds; test $(( $(wc -l <thirds) % 3 )) -ne 1"
expect(False, "1 tests failed", {"a": "true", "b": ONCE})
expect(True, "Unstable: 1 that failed", {"a": "true", "b": ONCE}, "--again")
expect(False, "Again, alone, 3 times each: b", {"a": "true", "b": THIRD}, "--again")
expect(False, "Again, alone", {"a": "true", "b": "false"}, "--again")
expect(False, "Again, alone", {"b": ONCE, "c": "false"}, "--again")
expect(False, "4 tests failed", {name: f"test -e {name} || {{ touch {name}; false; }}" for name in "abcd"}, "--again")
expect(False, "FAILED: no line", {"b": ONCE, "c": SKIP}, "--again")
print("18 passed, 0 failed")
