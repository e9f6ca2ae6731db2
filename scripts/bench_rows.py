"""What scripts/bench_tables writes beside the benchmarks' own tables.

    bench_rows.py machine BUILD     the head of the page: commit, machine, versions
    bench_rows.py PART JSON         the rows of the documents' own tables, from a benchmark's JSON
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys


def text_of(*command):
    """The first line that a program prints, or "none" where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else "none"


def cache_value(build, name):
    cache = pathlib.Path(build, "CMakeCache.txt")
    found = re.search(rf"^{name}:[^=]*=(.*)$", cache.read_text() if cache.exists() else "", re.MULTILINE)
    return found.group(1) if found else ""


def file_value(path, pattern):
    found = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def print_machine(build):
    commit = text_of("git", "rev-parse", "HEAD")
    if text_of("git", "status", "--porcelain") != "none":
        commit += ", with changes that are not committed"
    load = os.getloadavg()[0]
    python = ".venv/bin/python" if os.path.exists(".venv/bin/python") else "python3"
    version = "import importlib.metadata as m; print(m.version('{}'))"
    processor = file_value("/proc/cpuinfo", r"^model name.*?:(.*)$")
    memory = int(file_value("/proc/meminfo", r"^MemTotal:\s+(\d+)")) / 2**20
    rows = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "processors": f"{len(os.sched_getaffinity(0))} x {processor}",
        "memory": f"{memory:.0f} GiB",
        "kernel": text_of("uname", "-sr"),
        "load before": f"{load:.2f}" + (" **(the machine is not quiet)**" if load > 0.5 else ""),
        "compiler": text_of(cache_value(build, "CMAKE_CXX_COMPILER") or "c++", "--version"),
        "build type": cache_value(build, "CMAKE_BUILD_TYPE"),
        "PyTorch": text_of(python, "-c", version.format("torch")),
        "DeepSpeed": text_of(f"{build}/peers/deepspeed/bin/python", "-c", version.format("deepspeed")),
        "Open MPI": text_of("mpirun.openmpi", "--version"),
    }
    print("# Benchmarks\n")
    for name, value in rows.items():
        print(f"- {name}: {value}")


def print_table(header, rows):
    print()
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def number(value):
    """Three digits at most."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def print_step(rows):
    names = {
        "single": "one process",
        "ddp": "DDP",
        "zero1": "ZeRO-1",
        "zero2": "ZeRO-2",
        "zero3": "ZeRO-3 mapped",
        "zero3-copied": "ZeRO-3 copied",
    }
    for setting in dict.fromkeys(row["setting"] for row in rows):
        lines = []
        for row in rows:
            if row["setting"] != setting:
                continue
            peers = {name: peer["ms"] for name, peer in row["peers"].items() if peer["ms"]}
            ratio = f"{row['ms'] / min(peers.values()):.2f}" if peers else ""
            beside = ", ".join(f"{name} {number(ms)}" for name, ms in peers.items())
            memory = f"{row['memory_bytes'] / 1e6:.0f} of {row['formula_bytes'] / 1e6:.0f}"
            lines.append([names[row["mode"]], number(row["ms"]), beside, ratio, memory])
        print(f"\n{setting}:")
        print_table(["", "Trireme, ms", "beside it, ms", "ratio to the best", "model and formula, MB"], lines)


def print_collectives(rows):
    lines = {}
    for row in rows:
        line = lines.setdefault((row["op"], row["bytes"]), {})
        line["owned" if row["owned"] else "any"] = row["ms"]
        line |= {peer: row.get(f"{peer}_ms") for peer in ("gloo", "mpi")}
    cells = []
    for (op, size), line in lines.items():
        size = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        peers = [
            f"{number(line[peer])} ({number(line[peer] / line['owned'])}x, {number(line[peer] / line['any'])}x)"
            if line[peer]
            else "-"
            for peer in ("gloo", "mpi")
        ]
        cells.append([f"{op} {size}", number(line["owned"]), number(line["any"]), *peers])
    print("\nms; in brackets, how many times as long as Trireme's in owned memory, and in any:")
    print_table(["", "Trireme, owned", "Trireme, any", "Gloo", "Open MPI"], cells)


def print_train(rows):
    lines = []
    for row in rows:
        ours = sorted(row["seconds"])[len(row["seconds"]) // 2]
        for layout, seconds in row["peer_seconds"].items():
            theirs = sorted(seconds)[len(seconds) // 2]
            accuracy = f"{100 * row['accuracy']:.2f} %, {100 * row['peer_accuracy'][layout]:.2f} %"
            name = f"{row['model']}, {row['epochs']:g} epochs, PyTorch {layout}"
            lines.append([name, number(ours), number(theirs), f"{ours / theirs:.2f}", accuracy])
    print_table(["", "Trireme, s", "PyTorch, s", "ratio", "accuracy, ours and theirs"], lines)


def print_checkpoint(rows):
    lines = []
    for row in rows:
        if row["ms"]:
            peers = [f"{name} {number(peer['ms'])} ({peer['ratio']:.2f}x)" for name, peer in row["peers"].items()]
            lines.append([f"{row['op']}, {row['ranks']} ranks", number(row["ms"]), "; ".join(peers)])
    print_table(["", "Trireme, ms", "beside it, ms"], lines)


PRINTERS = {
    "step": print_step,
    "collectives": print_collectives,
    "train": print_train,
    "checkpoint": print_checkpoint,
}


def main():
    part, path = sys.argv[1:]
    if part == "machine":
        print_machine(path)
        return
    for name, printer in PRINTERS.items():
        # The tables of parts on machines are shown as they are.
        if part.split("_")[0] == name:
            with open(path) as file:
                printer(json.load(file))


if __name__ == "__main__":
    main()
