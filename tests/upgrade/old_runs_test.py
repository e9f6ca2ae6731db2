"""old_runs_test.py TRIREME: goes on with every run that an older program has written.

Wherever it runs, every checkpoint is read and whole, training goes on from it, under another number of ranks and
another stage, and arrives where the old program did, as nearly as another processor's rounding lets it. On a
processor like the one that the runs were written on, it arrives with the same bits: weights, states, averages.
"""

import array
import json
import math
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

from old_runs import FIRST, LAST, RUNS, cases, command, machine, run

TRIREME = pathlib.Path(sys.argv.pop(1)).resolve()
SAME_MACHINE = machine() == (RUNS / "machine.txt").read_text().strip()


def step_folder(run_folder, step):
    return run_folder / "checkpoints" / f"step-{step:08d}"


def weights(checkpoint):
    """All weights of a checkpoint at full precision, in any order that is the same for two of them."""
    found = {}
    for path in checkpoint.glob("rank-*.safetensors"):
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name.startswith("weight/"):
                begin, end = tensor["data_offsets"]
                assert tensor["dtype"] == "F32", tensor
                found[name] = array.array("f", data[8 + length + begin : 8 + length + end])
    return found


def distance(a, b):
    assert a.keys() == b.keys() and a
    return math.sqrt(sum((x - y) ** 2 for name in a for x, y in zip(a[name], b[name])))


class OldRuns(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for data in ("tokens.u16", "rows.csv"):
            shutil.copy(RUNS / data, self.folder / data)

    def trireme(self, *words):
        found = run([TRIREME, *words], self.folder)
        self.assertEqual(found.returncode, 0, f"{words}\n{found.stdout}{found.stderr}")
        return found.stdout

    def go_on(self, name, *more, words=None):
        """Resumes from the first checkpoint of a copy, or repeats a command there; where the run ends then."""
        copy = self.folder / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(RUNS / name, copy)
        shutil.rmtree(step_folder(copy, LAST))
        (copy / "checkpoints" / "latest").write_text(f"step-{FIRST:08d}\n")
        (copy / "model.safetensors").unlink()
        self.trireme(*(words or ["train", "--resume", name, *more]))
        return step_folder(copy, LAST)

    def test_every_byte_is_read(self):
        for name, _ in cases():
            for step in (FIRST, LAST):
                with self.subTest(name, step=step):
                    self.trireme("ckpt", "verify", step_folder(RUNS / name, step))

    def test_training_arrives_where_the_old_program_did(self):
        for name, _ in cases():
            with self.subTest(name):
                old = step_folder(RUNS / name, LAST)
                new = self.go_on(name)
                if SAME_MACHINE:
                    self.trireme("ckpt", "diff", "--no-notes", old, new)
                    same = (RUNS / name / "model.safetensors").read_bytes()
                    self.assertTrue((self.folder / name / "model.safetensors").read_bytes() == same)
                moved = distance(weights(old), weights(step_folder(RUNS / name, FIRST)))
                self.assertGreater(moved, 0)
                # States that were lost would change half of the way and more.
                self.assertLess(distance(weights(old), weights(new)), 0.05 * moved)

    def test_the_old_command_goes_on_as_the_old_program_did(self):
        for name in ("adam", "gpt"):  # defaults have changed since, such as what a gpt decays
            with self.subTest(name):
                kept = self.folder / "kept"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.go_on(name), kept)
                again = self.go_on(name, words=command(name, dict(cases())[name]))
                self.trireme("ckpt", "diff", "--no-notes", kept, again)

    def test_the_stage_and_the_ranks_do_not_matter(self):
        for name in ("adamw_half", "lamb_half", "gpt"):
            with self.subTest(name):
                kept = self.folder / "kept"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.go_on(name), kept)
                other = self.go_on(name, "-n", "3", "--zero", "1")
                found = run([TRIREME, "ckpt", "diff", "--no-notes", kept, other], self.folder).stdout
                self.assertIn("tensors are equal", found)
                for line in found.splitlines()[2:-1]:  # each rank has a random generator of its own
                    self.assertIn("random rank-", line)


if __name__ == "__main__":
    print(f"{'the same kind of' if SAME_MACHINE else 'another'} processor: {machine()}")
    unittest.main()
