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

from placement import bind
from step_common import build, leave, loss_of, measure

# Views spare copies; the graph is the same in every step, so that DDP need not look for it.
DDP = {"gradient_as_bucket_view": True, "static_graph": True}
# It could also overlap with DDP, but refuses to over Gloo.
ZERO = {"parameters_as_bucket_view": True, "fused": True}


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, fused=True)


def data_parallel(model):
    model = torch.nn.parallel.DistributedDataParallel(model, **DDP)
    return model, adamw(model.parameters()), f"DistributedDataParallel({words(DDP)}), fused AdamW"


def with_hook(model, name):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model, optimizer, settings = data_parallel(model)
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return model, optimizer, f"{settings}, fp16_compress_hook"
    options = {"matrix_approximation_rank": 4, "start_powerSGD_iter": 2}

    def in_turn(state, bucket):
        # It issues its second and third all-reduce when the one before is done. Those of two buckets then have
        # another order on each rank, which Gloo answers with lost connections.
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        future.wait()
        return future

    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, **options), in_turn)
    return model, optimizer, f"{settings}, powerSGD_hook({words(options)}), one bucket after another"


def post_local_sgd(model):
    """Weights are averaged every so many steps, and gradients never leave their rank."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    every = int(os.environ["TRIREME_PEER_EVERY"])
    model, optimizer, settings = data_parallel(model)
    # Without `post_local_gradient_allreduce` it needs no group of neighbours, which would be this rank alone.
    options = {"start_localSGD_iter": 0, "post_local_gradient_allreduce": False}
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=None, **options)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=PeriodicModelAverager(period=every))
    return model, optimizer, f"{settings}, post_localSGD_hook({words(options)}), PeriodicModelAverager(period={every})"


def zero_redundancy(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = torch.nn.parallel.DistributedDataParallel(model, **DDP)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=3e-4, **ZERO
    )
    return model, optimizer, f"DistributedDataParallel({words(DDP)}), ZeroRedundancyOptimizer({words(ZERO)})"


def fully_sharded(model, world, reshard, prefetch):
    """One unit per block; the root's own parameters are needed again at once, and stay.

    With `prefetch` a block is gathered while the one before it computes; over Gloo that has to be asked
    for twice.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    settings = f"fully_shard of each block (reshard_after_forward={reshard}) and of the root (False), fused AdamW"
    if prefetch:
        model._set_unshard_async_op(True)
        units = [model, *model.blocks]
        for unit, after in zip(units, units[1:]):
            unit.set_modules_to_forward_prefetch([after])
        settings += ", set_modules_to_forward_prefetch of the next block, gathered asynchronously"
    return model, adamw(model.parameters()), settings


def words(options):
    return ", ".join(f"{name}={value}" for name, value in options.items())


def worker(local_rank, local_ranks, mode, first, world, setting, output, meeting):
    rank = first + local_rank
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    bind(local_rank, local_ranks)
    model = build(setting)
    system = f"PyTorch {torch.__version__}"
    if mode == "torch-single":
        optimizer, settings = adamw(model.parameters()), "eager, fused AdamW"
    else:
        system += ", Gloo"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    if mode == "torch-ddp":
        model, optimizer, settings = data_parallel(model)
    elif mode == "torch-post-local-sgd":
        model, optimizer, settings = post_local_sgd(model)
    elif mode.startswith("torch-ddp-"):
        model, optimizer, settings = with_hook(model, mode.removeprefix("torch-ddp-"))
    elif mode == "torch-zero":
        model, optimizer, settings = zero_redundancy(model)
    elif mode.startswith("torch-fsdp2"):
        reshard, prefetch = mode != "torch-fsdp2-no-reshard", mode == "torch-fsdp2-prefetch"
        model, optimizer, settings = fully_sharded(model, world, reshard, prefetch)

    def step(text):
        optimizer.zero_grad()
        loss_of(model, text).backward()
        optimizer.step()

    measure(step, setting, rank, world, output, system, settings)
    leave(world)


def main():
    mode, ranks, setting, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    world = 1 if mode == "torch-single" else ranks
    if len(sys.argv) > 5:
        first, local_ranks, meeting = int(sys.argv[5]), int(sys.argv[6]), f"file://{sys.argv[7]}"
        mp.spawn(worker, (local_ranks, mode, first, world, setting, output, meeting), nprocs=local_ranks)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, (world, mode, 0, world, setting, output, f"tcp://127.0.0.1:{port}"), nprocs=world)


if __name__ == "__main__":
    main()
