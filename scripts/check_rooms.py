"""Fails where a file includes a room that CMakeLists.txt does not let its own room use.

check_rooms.py PROJECT_FOLDER
"""

import pathlib
import re
import sys


def read_rooms(cmake):
    """The rooms a room may use, itself included: {name: set of names}."""
    rooms = {}
    for name, body in re.findall(r"^trireme_room\((\w+)([^)]*)\)", cmake, re.M):
        used = body.partition("USES")[2].split()
        for other in used:
            if other not in rooms:
                sys.exit(f"CMakeLists.txt: {name} uses {other}, which is not declared before it")
        rooms[name] = {name}.union(used, *(rooms[other] for other in used))
    return rooms


def violations(root, rooms):
    for base in ("include/trireme", "src"):
        for path in sorted((root / base).rglob("*")):
            if path.suffix not in {".h", ".cc"}:
                continue
            parts = path.relative_to(root / base).parts
            where = path.relative_to(root)
            if len(parts) == 1:
                continue  # the umbrella header may name every room
            if parts[0] not in rooms:
                yield f"{where}: {parts[0]} is not a room that CMakeLists.txt declares"
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*[<"](trireme/)?(\w+)/', line)
                if not include or include[2] not in rooms:
                    continue
                if include[2] not in rooms[parts[0]]:
                    yield f"{where}:{number}: {parts[0]} may not include {include[2]}"
                if base == "include/trireme" and not include[1]:
                    yield f"{where}:{number}: a public header may not include a private one"


def main():
    root = pathlib.Path(sys.argv[1])
    rooms = read_rooms((root / "CMakeLists.txt").read_text())
    if not rooms:
        sys.exit("CMakeLists.txt declares no room")
    found = list(violations(root, rooms))
    print("\n".join(found) or f"rooms ok: {' '.join(rooms)}")
    sys.exit(bool(found))


main()
