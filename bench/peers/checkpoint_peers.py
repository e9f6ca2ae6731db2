"""Times PyTorch's checkpoints: checkpoint_peers.py SYSTEM RANKS STATE FOLDER OUTPUT.

SYSTEM is `torch` (torch.save and torch.load, one process, the whole state) or `dcp`
(torch.distributed.checkpoint over Gloo, every tensor sharded over the ranks as FSDP does it). STATE
is a JSON array of {name, shape}: float32 tensors. Checkpoints are written into FOLDER and removed.
OUTPUT becomes a JSON array of {op, peer, ms: [...], settings}, like those of bench/checkpoint_ranks.cc:
calls that do not count, then some that do, each from when all ranks begin until all have ended.
"""

import ctypes
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from placement import bind
from step_common import leave

warnings.filterwarnings("ignore")
UNTIMED = 2
TIMED = 2
# mincore is declared nowhere in Python.
LIBC = ctypes.CDLL(None, use_errno=True)


def files_under(path):
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def is_resident(path):
    size = os.path.getsize(path)
    if size == 0:
        return False
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as memory:
        start = ctypes.c_char.from_buffer(memory)
        code = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # the mapping cannot be closed while something points into it
        if code != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    return any(page & 1 for page in pages)


def drop_from_cache(path):
    """Makes the next read of every file under `path` come from the disk; False where it would not."""
    for _ in range(20):  # pages that are busy are passed over
        for name in files_under(path):
            with open(name, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not any(is_resident(name) for name in files_under(path)):
            return True
        time.sleep(0.05)
    return False


def put_on_disk(path):
    """What a save has to end with for its file to survive a power cut."""
    for name in (path, os.path.dirname(path)):
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


class Samples:
    """Times calls; the ranks of a job begin and end together."""

    def __init__(self, world):
        self.world = world
        self.lines = []

    def meet(self):
        if self.world > 1:
            dist.barrier()

    def time(self, op, peer, settings, before, call):
        """`before` makes ready for a call; where it answers False, nothing is measured."""
        times = []
        for i in range(UNTIMED + TIMED):
            if not before():
                return
            self.meet()
            start = time.perf_counter()
            call()
            self.meet()
            if i >= UNTIMED:
                times.append(1e3 * (time.perf_counter() - start))
        self.lines.append({"op": op, "peer": peer, "ms": times, "settings": settings})

    def agree(self, value):
        votes = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(votes, value)
        return all(votes)

    def write(self, output):
        with open(output, "w") as file:
            json.dump(self.lines, file)


def is_ready():
    return True


def measure_torch(tensors, folder, samples):
    state = {entry["name"]: torch.rand(entry["shape"]) for entry in tensors}
    wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    path = os.path.join(folder, "state.pt")

    def make_room():
        if os.path.exists(path):
            os.remove(path)
        os.sync()
        return True

    def save():
        torch.save(state, path)

    def save_to_disk():
        save()
        put_on_disk(path)

    torch_save = f"PyTorch {torch.__version__}, one process, the whole state"
    samples.time("save", "torch.save, no fsync", torch_save, make_room, save)
    samples.time("save", "torch.save", torch_save, make_room, save_to_disk)

    # The tensors that torch.load makes are taken as they are: an engine would still have to copy them.
    def load():
        return torch.load(path)

    # A mapped file has been read when its values are where they are wanted.
    def load_mapped():
        loaded = torch.load(path, mmap=True)
        for name, tensor in wanted.items():
            tensor.copy_(loaded[name])

    assert all(torch.equal(tensor, state[name]) for name, tensor in load().items())
    for peer, settings, call in (
        ("torch.load", "tensors as it makes them", load),
        ("torch.load, mmap", "mmap=True, copied to where they are wanted", load_mapped),
    ):
        samples.time("load_warm", peer, settings, is_ready, call)
        samples.time("load_cold", peer, settings, lambda: drop_from_cache(folder), call)
    assert all(torch.equal(wanted[name], state[name]) for name in state)


def sharded(shape, make, rank, world, mesh):
    """As FSDP leaves a parameter: rows dealt out to the ranks in chunks."""
    rows = -(-shape[0] // world)
    mine = max(0, min(rows, shape[0] - rank * rows))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        make([mine, *shape[1:]]), mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
    )


def measure_dcp(rank, world, tensors, folder, samples):
    mesh = init_device_mesh("cpu", (world,))
    state, wanted = (
        {entry["name"]: sharded(entry["shape"], make, rank, world, mesh) for entry in tensors}
        for make in (torch.rand, torch.zeros)
    )
    path = os.path.join(folder, "state")
    # The best it can be told here: two threads, the plan of the first save again, no checksums.
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)

    def make_room():
        samples.meet()
        if rank == 0:
            shutil.rmtree(path, ignore_errors=True)
            os.sync()
        samples.meet()
        return True

    def save():
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path))

    def save_tuned():
        torch.serialization.set_crc32_options(False)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=2), planner=planner)
        torch.serialization.set_crc32_options(True)

    tuned = "FileSystemWriter(thread_count=2), enable_plan_caching=True, set_crc32_options(False)"
    defaults = f"PyTorch {torch.__version__}, FileSystemWriter as it comes"
    samples.time("save", "dcp.save, tuned", tuned, make_room, save_tuned)
    samples.time("save", "dcp.save", defaults, make_room, save)

    def load():
        dcp.load(wanted, checkpoint_id=path)

    samples.time("load_warm", "dcp.load", defaults, is_ready, load)
    # Dropped by every rank, and none reads before all have seen that it is gone.
    samples.time("load_cold", "dcp.load", defaults, lambda: samples.agree(drop_from_cache(path)), load)
    assert all(torch.equal(wanted[name].to_local(), tensor.to_local()) for name, tensor in state.items())

    pending = []
    apart = dist.new_group()  # its thread communicates while this one goes on

    def save_in_background(stager=None):
        writer = dcp.FileSystemWriter(path)
        pending.append(dcp.async_save(state, storage_writer=writer, process_group=apart, async_stager=stager))

    def finish_and_make_room():
        while pending:
            pending.pop().result()
        return make_room()

    samples.time("save_pause", "dcp.async_save", defaults, finish_and_make_room, save_in_background)
    # Copies into the memory of the save before; what it could do beside needs CUDA.
    stager = DefaultStager(StagingOptions(False, False, False, False))
    samples.time(
        "save_pause",
        "dcp.async_save, tuned",
        "one DefaultStager for all saves: it keeps its memory",
        finish_and_make_room,
        lambda: save_in_background(stager),
    )
    finish_and_make_room()
    stager.close()


def worker(rank, system, world, state, folder, output, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    bind(rank, world)
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    samples = Samples(world)
    with open(state) as file:
        tensors = json.load(file)
    if system == "torch":
        measure_torch(tensors, folder, samples)
    else:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        measure_dcp(rank, world, tensors, folder, samples)
    if rank == 0:
        samples.write(output)
    leave(world)


def main():
    system, ranks, state, folder, output = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
    world = 1 if system == "torch" else ranks
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(worker, (system, world, state, folder, output, os.path.join(place, "meeting")), nprocs=world)


if __name__ == "__main__":
    main()
