"""The lint of the rooms must catch what it is there for: check_rooms_test.py PROJECT_FOLDER."""

import pathlib
import subprocess
import sys
import tempfile

checker = pathlib.Path(sys.argv[1]) / "scripts" / "check_rooms.py"
ROOMS = "trireme_room(low SOURCES a.cc USES)\ntrireme_room(high SOURCES b.cc USES low)\n"


def verdict(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "CMakeLists.txt").write_text(ROOMS)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        result = subprocess.run([sys.executable, checker, root], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


def expect(code, part, files):
    found_code, text = verdict(files)
    assert found_code == code and part in text, (code, part, found_code, text)


expect(0, "rooms ok", {"src/high/b.cc": '#include "low/a.h"\n#include "trireme/low/a.h"\n'})
expect(1, "src/low/a.cc:1: low may not include high", {"src/low/a.cc": '#include "high/b.h"\n'})
expect(1, "low may not include high", {"include/trireme/low/a.h": "#include <trireme/high/b.h>\n"})
expect(1, "may not include a private one", {"include/trireme/high/b.h": '#include "low/a.h"\n'})
expect(1, "is not a room", {"src/other/c.cc": "\n"})
print("4 passed, 0 failed")
