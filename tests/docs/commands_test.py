"""The commands that README and the documents show, run as they are written: commands_test.py TRIREME SOURCE.

Every document has a folder of its own, in which its commands run in their order, on small data and for
a few steps. Several machines are several commands on this one. What cannot be run here is on a list,
with the reason; a command that is neither run nor listed is a failure, and so is a line of the list that
no document has any more.
"""

import os
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

TRIREME, SOURCE = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
PROGRAMS = ("trireme", "mpirun", "srun", "torchrun", "podman", "make", "cmake")
MOST_STEPS = 60
PATIENCE = 600  # seconds for one command; `timeout` ends what it has started, too

NOT_RUN = {
    "make demo": "installs packages; another test runs what it calls",
    "make build": "this test is part of such a build",
    "cmake --build build/release --target": "this test is part of such a build",
    "trireme run -n 3 --log-dir logs -- build/release/tests/worker loop &": "a failure, shown by fault tests",
    "torchrun --nnodes 2": "two hosts; torchrun on one has a test of its own",
    "trireme bench faults -n 6 --faults 500 --zero 3": "the line before it, at another stage",
    "trireme bench faults -n 5 --faults 1000 --every 10 --zero 1": "the same",
    "trireme scale 4711 2": "of a job that runs; the tests of elastic jobs do it",
    "trireme train --elastic 2:6 --nnodes 3": "three machines; the tests of elastic jobs over machines do it",
    "podman ": "no container engine here",
}

# What is shown to find something: the document has its output, and the exit code says that it did.
EXIT_CODES = {"trireme ckpt diff ": (0, 1), "trireme ckpt verify broken": (1,), "trireme doctor ": (0, 1)}
# What "..." stands for: the flags of the line before.
SMALL_FAULTS = "--layers 1 --width 32 --heads 2 --sequence 16 --batch 4 --micro-batch 2"


def commands_of(text):
    """Commands in fenced blocks, without prompts, comments and line breaks."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M):
        variables = ""  # of the block's own, which its later lines use
        for line in block.replace("\\\n", " ").split("\n"):
            line = re.sub(r"\s+#\s.*", "", line.strip().removeprefix("$ ")).strip()
            line = line.removeprefix("ExecStart=/usr/local/bin/")  # of a unit for systemd
            words = line.split()
            if re.match(r"\w+=\"", line):
                variables = line + "; "
            elif line.startswith("$") and variables:
                yield variables + " ".join(words)
            elif words and words[0].rpartition("/")[2] in PROGRAMS and not line.startswith("trireme run:"):
                yield " ".join(words)


def listed(command):
    return next((start for start in NOT_RUN if command.startswith(start)), None)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_data(folder):
    generator = random.Random(1)
    (folder / "book.txt").write_text("".join(generator.choice("abcd efgh\n") for _ in range(40000)))
    for name in ("people.csv", "new.csv"):
        rows = [f"{generator.choice(['', '33', '47'])},{generator.choice(['Rome', 'Oslo'])},{i},{generator.choice('ab')}" for i in range(90)]
        (folder / name).write_text("\n".join(["age,city,income,kind", *rows]) + "\n")
    images = folder / "images"
    images.mkdir()
    for name, count in (("train", 160), ("t10k", 40)):
        pixels = bytes(generator.randrange(256) for _ in range(count * 28 * 28))
        (images / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, count, 28, 28) + pixels)
        labels = bytes(i % 10 for i in range(count))
        (images / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
    # What README.md has in the CMakeLists.txt of somebody's project, and the folder that Trireme was built in.
    cmake = re.search(r"^```cmake\n(.*?)^```", (SOURCE / "README.md").read_text(), re.S | re.M)[1]
    (folder / "app.cc").write_text("int main() {}\n")
    (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.21)\nproject(app CXX)\nadd_executable(app app.cc)\n" + cmake)
    (folder / "build").mkdir()
    (folder / "build" / "release").symlink_to(TRIREME.parent.parent)
    (folder / "home").mkdir()
    app = folder / "app"
    app.write_text("#!/bin/sh\necho \"rank $TRIREME_RANK of $TRIREME_WORLD_SIZE\"\n")
    app.chmod(0o755)


def shortened(command, folder):
    """The same command on small data and for a few steps."""
    placed = "/tmp/" in command  # before there is that of the folder
    command = command.replace("/shared/", f"{folder}/shared/").replace(" -n 4", " -n 2")
    if command.startswith("trireme bench faults"):
        command = re.sub(r" -n \d+ --faults \d+", " -n 2 --faults 2", command).replace("...", "")
        return f"{command.split(' --layers')[0]} {SMALL_FAULTS}"
    if command.startswith("trireme bench collectives"):
        return f"{command} --rounds 1 --bytes 4096 --op all_reduce"
    if command.startswith("trireme ckpt verify broken"):
        shutil.copytree(sorted((folder / "runs/tiny/checkpoints").glob("step-*"))[-1], folder / "broken")
        data = folder / "broken" / "rank-00000.safetensors"
        saved = data.read_bytes()
        data.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
        return command
    if "--model NAME" in command or placed:
        return command.replace("/tmp/", f"{folder}/").replace("--model NAME", "--model mlp --data images")
    if " train " in command:
        steps = re.search(r"--steps (\d+)", command)
        if steps and int(steps[1]) > MOST_STEPS:
            command = command.replace(steps[0], "--steps 6")
            command = re.sub(r"--save-every \d+", "--save-every 2", command)
        elif not steps and "--resume" not in command:
            command += " --steps 6"
            command = re.sub(r"--save-every \d+", "--save-every 2", command)
        if "--model mlp" in command or "--model convnet" in command:
            command += "" if "--batch " in command else " --batch 16"
            command += "" if "--data" in command else " --data images"
        command = command.replace(" ...", " --data book.txt")
    newest = sorted((folder / "runs").glob("*_gpt*"))
    return command.replace("runs/...", str(newest[-1]) if newest else "runs/none")


def as_processes(command):
    """One command, or one for each machine."""
    if command.startswith("srun"):
        command = re.sub(r"^srun \S+", "mpirun --allow-run-as-root --oversubscribe -n 2", command)
    if command.startswith("mpirun -H"):
        command = re.sub(r"-H \S+", "--allow-run-as-root -H localhost:2,localhost:2", command)
        command = command.replace("node-a:29500", f"127.0.0.1:{free_port()}")
    if "--nnodes 2" not in command:
        return [command]
    here = re.sub(r"--rendezvous \S+", f"--rendezvous 127.0.0.1:{free_port()}", command)
    return [re.sub(r"--node-rank \d", f"--node-rank {machine}", here) for machine in (0, 1)]


def run(command, folder, environment):
    processes = [
        subprocess.Popen(
            ["timeout", str(PATIENCE), "bash", "-c", each],
            cwd=folder,
            env=environment,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for each in as_processes(shortened(command, folder))
    ]
    allowed = next((codes for start, codes in EXIT_CODES.items() if command.startswith(start)), (0,))
    failed = False
    for process in processes:
        output, _ = process.communicate()
        if process.returncode not in allowed:
            failed = True
            print(f"  exit code {process.returncode} of {process.args[-1]}\n{output}")
    return not failed


def main():
    failures, found, count = 0, set(), 0
    for document in [SOURCE / "README.md", SOURCE / "README.zh-CN.md", *sorted((SOURCE / "docs").glob("*.md"))]:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-docs-"))
        write_data(folder)
        # Without GPUs: what the documents show is about the CPU, also where there is a GPU that training would take.
        environment = dict(
            os.environ,
            PATH=f"{TRIREME.parent}:{os.environ['PATH']}",
            HOME=str(folder / "home"),
            TRIREME_TOKEN="0123456789abcdef",
            CUDA_VISIBLE_DEVICES="-1",
        )
        for command in commands_of(document.read_text()):
            start = listed(command)
            if start:
                found.add(start)
                continue
            print(f"{document.name}: {command}", flush=True)
            count += 1
            failures += not run(command, folder, environment)
        shutil.rmtree(folder)
    for stale in sorted(set(NOT_RUN) - found):
        failures += 1
        print(f"no document has \"{stale}\" any more: take it off the list")
    print(f"{count} commands, {failures} failures")
    return 1 if failures or count < 20 else 0


sys.exit(main())
