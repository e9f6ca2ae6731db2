"""Times PyTorch's Gloo collectives: gloo_collectives.py RANKS OUTPUT [FIRST LOCAL MEETING].

Writes {system, lines}, each line {op, bytes, ms: [one per call]} measured on rank 0, like
bench/collectives_rank.cc: float32, one thread per rank, calls back to back after a warm-up. On
several machines it is started on each, with the first of its ranks, their number, and a file that
all machines see and that is not there yet.
"""

import json
import os
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

warnings.simplefilter("ignore", FutureWarning)  # the names of 2.11 are deprecated in 2.13

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def iterations_for(size):
    return max(8, min(200, (64 << 20) // size))


def pin(rank, ranks):
    cpus = sorted(os.sched_getaffinity(0))
    if ranks <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank * len(cpus) // ranks]})


def run(local_rank, local_ranks, first, ranks, meeting, output):
    pin(local_rank, local_ranks)
    rank = first + local_rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    lines = []
    for size in SIZES:
        data = torch.ones(size // 4)
        # torch wants equal parts; the odd elements at the end are left out where it does not divide
        part = torch.ones(data.numel() // ranks)
        even = data[: part.numel() * ranks]
        calls = {
            "all_reduce": lambda root: dist.all_reduce(data),
            "reduce_scatter": lambda root: dist.reduce_scatter_tensor(part, even),
            "all_gather": lambda root: dist.all_gather_into_tensor(even, part),
            "broadcast": lambda root: dist.broadcast(data, root),
        }
        for name, call in calls.items():
            times = []
            for i in range(-3, iterations_for(size)):
                start = time.perf_counter()
                call((i + 3) % ranks)
                if i >= 0:
                    times.append((time.perf_counter() - start) * 1e3)
            data.fill_(1)
            lines.append({"op": name, "bytes": size, "ms": times})
    if rank == 0:
        with open(output, "w") as file:
            json.dump({"system": f"PyTorch {torch.__version__}, Gloo", "lines": lines}, file)
    dist.destroy_process_group()


def main():
    ranks, output = int(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        first, local_ranks, meeting = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
        mp.spawn(run, args=(local_ranks, first, ranks, meeting, output), nprocs=local_ranks)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(ranks, 0, ranks, os.path.join(folder, "meeting"), output), nprocs=ranks)


if __name__ == "__main__":
    main()
