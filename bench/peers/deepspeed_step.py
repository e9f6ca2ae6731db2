"""deepspeed_step.py deepspeed-STAGE RANKS SETTING OUTPUT: a training step in DeepSpeed."""

import os
import socket
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import torch.multiprocessing as mp

from step_common import SETTINGS, bind, build, leave, loss_of, measure


def worker(rank, stage, world, setting, output, port):
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
    )
    bind(rank)
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    deepspeed.utils.logging.logger.setLevel("ERROR")
    model = build(setting)
    deepspeed.init_distributed("gloo")
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=3e-4, weight_decay=1e-2, adamw_mode=True)
    batch = SETTINGS[setting][5]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": batch,
            "train_batch_size": batch * world,
            "zero_optimization": {"stage": stage},
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 10**9,
        },
    )

    def step(text):
        engine.backward(loss_of(engine, text))
        engine.step()

    measure(step, setting, rank, world, output)
    leave(world)


def main():
    stage, ranks, setting, output = int(sys.argv[1].split("-")[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, (stage, ranks, setting, output, port), nprocs=ranks)


if __name__ == "__main__":
    main()
