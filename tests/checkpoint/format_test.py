"""Reads a checkpoint as docs/checkpoint_format.md describes it, with nothing of ours:
format_test.py WRITE_CHECKPOINT

The safetensors package opens the data files, xxhash checks them.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import xxhash
from safetensors import safe_open

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8}


def digest(data):
    return xxhash.xxh3_64(data).hexdigest()


def read_manifest(path):
    data = path.read_bytes()
    body, tail = data[:-35], data[-35:].decode()
    assert tail == ',\n"checksum": "%s"\n}\n' % digest(body), tail
    manifest = json.loads(data)
    assert (manifest["format"], manifest["version"]) == ("trireme checkpoint", 1)
    assert manifest["checksums"] == "xxh3-64"
    return manifest


def check_blocks(folder, manifest):
    for file in manifest["files"]:
        data = (folder / file["name"]).read_bytes()
        size = manifest["block_bytes"]
        assert len(data) == file["bytes"]
        assert file["checksums"] == [digest(data[i : i + size]) for i in range(0, len(data), size)]


def read_tensor(folder, manifest, tensor):
    dtype = DTYPES[tensor["dtype"]]
    flat = []
    for begin, end, file, offset in tensor["parts"]:
        path = folder / manifest["files"][file]["name"]
        flat.append(np.fromfile(path, dtype, end - begin, offset=offset))
    flat = np.concatenate(flat) if flat else np.empty(0, dtype)
    if "strides" not in tensor:
        return flat.reshape(tensor["shape"])
    strides = [stride * flat.itemsize for stride in tensor["strides"]]
    return np.lib.stride_tricks.as_strided(flat, tensor["shape"], strides)


def check_values(folder, manifest):
    tensors = manifest["tensors"]
    found = [(t["kind"], t["name"]) for t in tensors]
    assert found == [("weight", 'first "quoted" é'), ("optimizer.exp_avg", "second"), ("buffer", "empty"), ("buffer", "count")]
    first, second, empty, count = (read_tensor(folder, manifest, t) for t in tensors)
    assert first.dtype == np.float32
    assert np.array_equal(first, np.arange(7 * 100003, dtype=np.float32).reshape(7, 100003))
    assert np.array_equal(second, (1000.0 + np.arange(15)).reshape(5, 3).T), second
    assert empty.shape == (0, 4)
    assert count.shape == () and count == 3000


def check_data_files(folder, manifest):
    """To other programs they are safetensors files."""
    seen = 0
    for file in manifest["files"]:
        with safe_open(folder / file["name"], "np") as tensors:
            for name in tensors.keys():
                kind = name.partition("/")[0]
                assert kind in {"weight", "optimizer.exp_avg", "buffer"}, name
                seen += tensors.get_tensor(name).size
    assert seen == 7 * 100003 + 15 + 1


with tempfile.TemporaryDirectory() as temporary:
    subprocess.run([sys.argv[1], temporary], check=True)
    checkpoint = pathlib.Path(temporary) / "step-00000042"
    manifest = read_manifest(checkpoint / "manifest.json")
    assert (manifest["step"], manifest["sequence"], manifest["ranks"]) == (42, 1, 3)
    assert manifest["notes"] == {"hello": "wörld\n"}
    check_blocks(checkpoint, manifest)
    check_values(checkpoint, manifest)
    check_data_files(checkpoint, manifest)
    assert (pathlib.Path(temporary) / "latest").read_text() == "step-00000042 1\n"
    names = sorted(path.name for path in pathlib.Path(temporary).iterdir())
    assert names == [".lock", "latest", "step-00000042"], names
