"""Times PyTorch's Gloo collectives: gloo_collectives.py RANKS OUTPUT OPS SIZES [FIRST LOCAL MEETING].

OPS and SIZES are "all_reduce,broadcast" and "4096,65536". Writes {system, settings, lines}, each line
{op, bytes, ms: [one per call]} measured on rank 0, like bench/collectives_rank.cc: float32, one thread
per rank, calls back to back after a warm-up. On several machines it is started on each, with the
first of its ranks, their number, and a file that all machines see and that is not there yet.
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

from placement import bind

warnings.simplefilter("ignore", FutureWarning)  # the names of 2.11 are deprecated in 2.13

SETTINGS = (
    "all_reduce, all_gather and broadcast in place; reduce_scatter into a tensor of its own, for which "
    "torch has no other form"
)


def iterations_for(size):
    return max(8, min(200, (64 << 20) // size))


def run(local_rank, local_ranks, first, ranks, meeting, output, ops, sizes):
    bind(local_rank, local_ranks)
    rank = first + local_rank
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    lines = []
    for size in sizes:
        data = torch.ones(size // 4)
        # torch wants equal parts; the odd elements at the end are left out where it does not divide
        part = torch.ones(data.numel() // ranks)
        even = data[: part.numel() * ranks]
        mine = even.chunk(ranks)[rank]
        calls = {
            "all_reduce": lambda root: dist.all_reduce(data),
            "reduce_scatter": lambda root: dist.reduce_scatter_tensor(part, even),
            "all_gather": lambda root: dist.all_gather_into_tensor(even, mine),
            "broadcast": lambda root: dist.broadcast(data, root),
        }
        for name, call in calls.items():
            if name not in ops:
                continue
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
            system = f"PyTorch {torch.__version__}, Gloo"
            json.dump({"system": system, "settings": SETTINGS, "lines": lines}, file)
    dist.destroy_process_group()


def main():
    ranks, output = int(sys.argv[1]), sys.argv[2]
    ops, sizes = sys.argv[3].split(","), [int(size) for size in sys.argv[4].split(",")]
    if len(sys.argv) > 5:
        first, local_ranks, meeting = int(sys.argv[5]), int(sys.argv[6]), sys.argv[7]
        mp.spawn(run, args=(local_ranks, first, ranks, meeting, output, ops, sizes), nprocs=local_ranks)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        mp.spawn(run, args=(ranks, 0, ranks, meeting, output, ops, sizes), nprocs=ranks)


if __name__ == "__main__":
    main()
