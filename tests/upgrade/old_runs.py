"""Runs that an older program has written, and what this machine can say about their bits.

  old_runs.py record TRIREME   trains all cases with that program and keeps them in this folder

The runs here were written by version 0.1.0 before its optimizers had parameter groups. They are kept as they
are: a new program has to go on with them. Record others beside them, not instead of them.
"""

import hashlib
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RUNS = HERE / "runs"
FIRST, LAST = 3, 6  # the steps of the checkpoints

GPT = "--model gpt --layers 1 --width 8 --heads 2 --sequence 8 --data tokens.u16 --format tokens16"
TIED = GPT + " --size gpt2"
MLP = "--model mlp --hidden 6 --data rows.csv"
OPTIMIZERS = {
    "sgd": "sgd --momentum 0.8 --nesterov true --weight-decay 0.1",
    "adam": "adam --weight-decay 0.1 --l1 1e-3",
    "adamw": "adamw --weight-decay 0.1",
    "lamb": "lamb --weight-decay 0.1",
    "adagrad": "adagrad --weight-decay 0.1",
    "lion": "lion --weight-decay 0.1",
}


def cases():
    """name: settings. Every optimizer in float32 at stage 0 and in 16 bits, tied and averaged, at stage 3."""
    for name, settings in OPTIMIZERS.items():
        yield name, f"{MLP} -n 1 --zero 0 --optimizer {settings}"
        yield f"{name}_half", f"{TIED} -n 2 --zero 3 --precision bfloat16 --ema-decay 0.9 --optimizer {settings}"
    yield "gpt", f"{GPT} -n 1 --zero 0"  # as it comes: adamw that decays everything
    yield "gpt_overflow", f"{GPT} -n 2 --zero 0 --precision float16 --loss-scale-initial 524288 --loss-scale-window 2"


def command(name, settings):
    """What a case was trained with."""
    more = f"--batch 8 --micro-batch 2 --steps {LAST} --save-every {FIRST} --keep-last 0 --threads 1"
    return ["train", *settings.split(), *more.split(), "--tensorboard", "false", "--run", name]


def write_data(folder):
    generator = random.Random(1)
    tokens = [generator.randrange(12) for _ in range(600)]
    (folder / "tokens.u16").write_bytes(struct.pack("<600H", *tokens))
    rows = [[generator.uniform(-1, 1) for _ in range(5)] for _ in range(60)]
    lines = (",".join(f"{x:.3f}" for x in row) + f",{int(sum(row) > 0)}\n" for row in rows)
    (folder / "rows.csv").write_text("".join(lines))


def machine():
    """What results depend on besides the program: compared as a text, never parsed."""
    info = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*: (.*)$", info, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", info, re.M)
    known = sorted(flags.group(1).split()) if flags else []
    digest = hashlib.sha256(" ".join(known).encode()).hexdigest()[:16]
    return f"{model.group(1) if model else 'unknown'}, instructions {digest}"


def run(command, folder):
    return subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)


def record(trireme):
    shutil.rmtree(RUNS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_data(folder)
        for name, settings in cases():
            found = run([trireme, *command(name, settings)], folder)
            if found.returncode != 0:
                sys.exit(f"{name}: {found.stdout}{found.stderr}")
            for unused in ["logs", "best.safetensors", "train.log", ".lock", "checkpoints/.lock"]:
                path = folder / name / unused
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            for best in (folder / name / "checkpoints").glob(".best*"):
                best.unlink()
            for path in (folder / name).glob("preprocessing.json"):  # names the folder of the data
                path.write_text(path.read_text().replace(str(folder), "/data"))
            shutil.copytree(folder / name, RUNS / name)
        for data in ("tokens.u16", "rows.csv"):
            shutil.copy(folder / data, RUNS / data)
    (RUNS / "machine.txt").write_text(machine() + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "record":
        sys.exit(__doc__)
    record(pathlib.Path(sys.argv[2]).resolve())
