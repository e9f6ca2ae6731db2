"""The lint of the rooms must catch what it is there for: check_rooms_test.py PROJECT_FOLDER."""

import pathlib
import subprocess
import sys
import tempfile

checker = pathlib.Path(sys.argv[1]) / "scripts" / "check_rooms.py"
ROOMS = "trireme_room(low SOURCES a.cc USES)\ntrireme_room(high SOURCES b.cc USES low)\n"
FOLDERS = """trireme_folder(low ground SOURCES a.cc USES)
trireme_folder(low first SOURCES b.cc USES ground)
trireme_folder(low second USES first)
trireme_room(low USES)
trireme_room(near USES low low/first)
trireme_room(far USES near)
"""
passed = 0


def verdict(declared, files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "CMakeLists.txt").write_text(declared)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        result = subprocess.run([sys.executable, checker, root], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


def expect(code, part, files, declared=ROOMS):
    global passed
    found_code, text = verdict(declared, files)
    assert found_code == code and part in text, (code, part, found_code, text)
    passed += 1


expect(0, "rooms ok", {"src/high/b.cc": '#include "low/a.h"\n#include "trireme/low/a.h"\n'})
expect(1, "src/low/a.cc:1: low may not include high", {"src/low/a.cc": '#include "high/b.h"\n'})
expect(1, "low may not include high", {"include/trireme/low/a.h": "#include <trireme/high/b.h>\n"})
expect(1, "may not include a private one", {"include/trireme/high/b.h": '#include "low/a.h"\n'})
expect(1, "is not a room", {"src/other/c.cc": "\n"})


def expect_in_folders(code, part, files):
    expect(code, part, files, FOLDERS)


expect_in_folders(0, "folders ok: low/ground", {
    "src/low/first/b.cc": '#include "low/ground/a.h"\n#include "low/first/b.h"\n#include "trireme/low/c.h"\n',
    "src/near/n.cc": '#include "low/first/b.h"\n',
    "src/far/f.cc": '#include "trireme/low/c.h"\n'})
# Upwards, and past a folder that is used: a circle cannot be declared, and what is used is named.
expect_in_folders(1, "src/low/ground/a.h:2: low/ground may not include low/first",
                  {"src/low/ground/a.h": '\n#include "low/first/b.h"\n'})
expect_in_folders(1, "low/second may not include low/ground", {"src/low/second/c.cc": '#include "low/ground/a.h"\n'})
# Of another room: the folders that are named, and no others, nor those that a room in between may use.
expect_in_folders(1, "near may not include low/ground", {"src/near/n.cc": '#include "low/ground/a.h"\n'})
expect_in_folders(1, "far may not include low/first", {"src/far/f.cc": '#include "low/first/b.h"\n'})
expect_in_folders(1, "src/low/x.cc: not in a folder of low", {"src/low/x.cc": "\n"})
expect_in_folders(1, "low/third is not a folder", {"src/low/first/b.cc": '#include "low/third/d.h"\n'})
for circle in ("trireme_folder(low a USES b)\ntrireme_folder(low b USES a)\ntrireme_room(low USES)\n",
               "trireme_room(low USES low/a)\n"):
    expect(1, "which is not declared before it", {}, circle)


def expect_picture(code, part, arrows, names=("low", "high")):
    boxes = "".join(f'<g data-name="{name}"/>' for name in names)
    lines = "".join(f'<path data-from="{a}" data-to="{b}"/>' for a, b in arrows)
    expect(code, part, {"docs/images/rooms.svg": boxes + lines})


expect_picture(0, "rooms ok", [("high", "low")])
expect_picture(1, "no arrows lead from high to low", [])
expect_picture(1, "an arrow leads from low to high", [("high", "low"), ("low", "high")])
expect_picture(1, "low is not drawn", [], ["high"])
expect_picture(1, "attic is drawn, but not in CMakeLists.txt", [("high", "low")], ["low", "high", "attic"])
print(f"{passed} passed, 0 failed")
