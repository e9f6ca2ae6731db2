"""torch_reference.py FOLDER: the same GPT trained by PyTorch DDP on two ranks.

Writes FOLDER/weights (the initial parameters, float32, in order) and FOLDER/losses (one line per
step: the losses of rank 0 and rank 1).
"""

import os
import pathlib
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench" / "peers"))
from step_common import Gpt, loss_of  # noqa: E402

STEPS = 50
VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS, BATCH = 61, 16, 48, 3, 4, 2


def text_of(step, rank):
    """As torch_reference_test.cc has it."""
    column = torch.arange(SEQUENCE + 1).view(1, -1)
    row = torch.arange(BATCH).view(-1, 1)
    return (column * 3 + row * 23 + step * 5 + rank * 11) % VOCABULARY


def worker(rank, folder, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = Gpt(VOCABULARY, SEQUENCE, WIDTH, LAYERS, HEADS)
    if rank == 0:
        with open(f"{folder}/weights", "wb") as file:
            for parameter in model.parameters():
                file.write(parameter.detach().numpy().tobytes())
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, text_of(step, rank))
        loss.backward()
        optimizer.step()
        both = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(both, loss.detach().reshape(1))
        losses.append([value.item() for value in both])
    if rank == 0:
        with open(f"{folder}/losses", "w") as file:
            file.writelines(f"{a!r} {b!r}\n" for a, b in losses)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen = probe.getsockname()[1]
    mp.spawn(worker, (sys.argv[1], chosen), nprocs=2)
