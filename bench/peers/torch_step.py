"""torch_step.py MODE RANKS SETTING OUTPUT [FIRST LOCAL MEETING]: a training step in PyTorch.

On several machines it is started on each, with the first of its ranks, their number, and a file that
all machines see and that is not there yet.
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from step_common import bind, build, leave, loss_of, measure


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, fused=True)


def worker(local_rank, mode, first, world, setting, output, meeting):
    rank = first + local_rank
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    bind(local_rank)
    model = build(setting)
    if mode == "torch-single":
        optimizer = adamw(model.parameters())
    else:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    if mode == "torch-ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = adamw(model.parameters())
    elif mode == "torch-zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-4, fused=True
        )
    elif mode.startswith("torch-fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        reshard = mode == "torch-fsdp2"
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        optimizer = adamw(model.parameters())

    def step(text):
        optimizer.zero_grad()
        loss_of(model, text).backward()
        optimizer.step()

    measure(step, setting, rank, world, output)
    leave(world)


def main():
    mode, ranks, setting, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    world = 1 if mode == "torch-single" else ranks
    if len(sys.argv) > 5:
        first, local_ranks, meeting = int(sys.argv[5]), int(sys.argv[6]), f"file://{sys.argv[7]}"
        mp.spawn(worker, (mode, first, world, setting, output, meeting), nprocs=local_ranks)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, (mode, 0, world, setting, output, f"tcp://127.0.0.1:{port}"), nprocs=world)


if __name__ == "__main__":
    main()
