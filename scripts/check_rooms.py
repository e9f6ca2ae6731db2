"""Fails where a file includes a room, or a folder of a room, that CMakeLists.txt does not let its own use.

check_rooms.py PROJECT_FOLDER
"""

import pathlib
import re
import sys

PICTURE = "docs/images/rooms.svg"

def declarations(cmake, kind, words):
    """What `kind`(names ...) declares, in order: its names, and the list after USES."""
    for *names, body in re.findall(rf"^{kind}\({words}([^)]*)\)", cmake, re.M):
        yield names, body.partition("USES")[2].split()


def known(where, used, declared):
    for other in used:
        if other not in declared:
            sys.exit(f"CMakeLists.txt: {where} uses {other}, which is not declared before it")
    return used


def read_rooms(cmake):
    """The rooms that a room may use, itself included, and the folders of others whose private headers it may
    include: {name: set of names and name/folder}."""
    folders = read_folders(cmake)
    rooms = {}
    for (name,), used in declarations(cmake, "trireme_room", r"(\w+)"):
        named = {other for other in used if "/" in other}
        known(name, named, folders)
        used = known(name, [other for other in used if other not in named], rooms)
        below = [{room for room in rooms[other] if "/" not in room} for other in used]
        rooms[name] = {name}.union(named, *below)
    return rooms


def read_folders(cmake):
    """The folders that a folder may use, itself included: {room/folder: set of room/folder}. Only those that are
    named: what a folder's own folders use is none of its business."""
    folders = {}
    for (room, name), used in declarations(cmake, "trireme_folder", r"(\w+)\s+(\w+)"):
        used = known(f"{room}/{name}", [f"{room}/{other}" for other in used], folders)
        folders[f"{room}/{name}"] = {f"{room}/{name}", *used}
    return folders


def objections(parts, public, include, rooms, folders):
    """Against one include: (public, room, the rest of its path)."""
    room, folder = parts[0], "/".join(parts[:2])
    include_public, to, rest = include
    if to not in rooms[room]:
        yield f"{room} may not include {to}"
    if public and not include_public:
        yield "a public header may not include a private one"
    if public or include_public:
        return
    divided = any(name.startswith(to + "/") for name in folders)
    target = f"{to}/{rest.split('/')[0]}"
    if not divided:
        return
    if target not in folders:
        yield f"{target} is not a folder that CMakeLists.txt declares"
    elif target not in (folders[folder] if to == room else rooms[room]):
        yield f"{folder if to == room else room} may not include {target}"


def violations(root, rooms, folders):
    divided = {name.split("/")[0] for name in folders}
    for base in ("include/trireme", "src"):
        public = base != "src"
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
            if not public and parts[0] in divided and "/".join(parts[:2]) not in folders:
                yield f"{where}: not in a folder of {parts[0]} that CMakeLists.txt declares"
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*[<"](trireme/)?(\w+)/([\w./]*)', line)
                if include and include[2] in rooms:
                    for objection in objections(parts, public, include.groups(), rooms, folders):
                        yield f"{where}:{number}: {objection}"


def mistakes(picture, rooms, folders):
    """Where docs/images/rooms.svg is not what CMakeLists.txt says: an arrow for what may not be used, or no way
    along the arrows to what may."""
    uses = {name: {to for to in used if "/" not in to} for name, used in rooms.items()} | folders
    drawn = set(re.findall(r'data-name="([\w/]+)"', picture))
    for name in sorted(drawn ^ set(uses)):
        yield f"{PICTURE}: {name} is {'drawn, but not' if name in drawn else 'not drawn, but'} in CMakeLists.txt"
    arrows = re.findall(r'data-from="([\w/]+)" data-to="([\w/]+)"', picture)
    for name in sorted(drawn & set(uses)):
        reached, last = {name}, set()
        while reached != last:
            last, reached = reached, reached | {b for a, b in arrows if a in reached}
        for to in sorted(uses[name] - reached):
            yield f"{PICTURE}: no arrows lead from {name} to {to}, which it may use"
        for to in sorted({b for a, b in arrows if a == name} - uses[name]):
            yield f"{PICTURE}: an arrow leads from {name} to {to}, which it may not use"


def main():
    root = pathlib.Path(sys.argv[1])
    cmake = (root / "CMakeLists.txt").read_text()
    rooms, folders = read_rooms(cmake), read_folders(cmake)
    if not rooms:
        sys.exit("CMakeLists.txt declares no room")
    found = list(violations(root, rooms, folders))
    if (root / PICTURE).exists():
        found += mistakes((root / PICTURE).read_text(), rooms, folders)
    print("\n".join(found) or f"rooms ok: {' '.join(rooms)}; folders ok: {' '.join(folders)}")
    sys.exit(bool(found))


main()
