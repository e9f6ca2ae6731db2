"""The peer of `trireme bench faults --peers`: PyTorch DDP that torchrun starts again after a loss.

    torchrun --nproc-per-node N --max-restarts F torch_elastic.py FOLDER STEPS EVERY SETTING

Saves a checkpoint in FOLDER every EVERY steps and resumes from the newest; rank 0 adds a line to
FOLDER/steps for each step that it has completed: its number, the number that it resumed from, its
process. SETTING is one of step_common.py.
"""

import os
import sys

import torch
import torch.distributed as dist

from step_common import SETTINGS, build, loss_of


def save(path, state):
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def main():
    folder, steps, every, setting = sys.argv[1], *map(int, sys.argv[2:5])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(build(setting), gradient_as_bucket_view=True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    path = os.path.join(folder, "checkpoint.pt")
    first = 0
    if os.path.exists(path):
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    vocabulary, sequence, _, _, _, batch = SETTINGS[setting]
    with open(os.path.join(folder, "steps"), "a") as log:
        for step in range(first, steps):
            generator = torch.Generator().manual_seed(1000 * step + rank)
            text = torch.randint(0, vocabulary, (batch, sequence + 1), generator=generator)
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, text).backward()
            optimizer.step()
            if rank == 0:
                if (step + 1) % every == 0:
                    save(
                        path,
                        {
                            "model": model.module.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "step": step + 1,
                        },
                    )
                print(step + 1, first, os.getpid(), file=log, flush=True)


main()
