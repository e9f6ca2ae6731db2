"""deepspeed_step.py deepspeed-STAGE RANKS SETTING OUTPUT: a training step in DeepSpeed."""

import os
import pathlib
import socket
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.multiprocessing as mp

from placement import bind
from step_common import SETTINGS, build, leave, loss_of, measure


def zero_options(stage, model, setting):
    """What suits a model of this size: the defaults are for billions of parameters."""
    numel = sum(parameter.numel() for parameter in model.parameters())
    block = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    options = {"stage": stage, "reduce_bucket_size": block, "overlap_comm": True}
    if stage == 3:
        width = SETTINGS[setting][2]
        options |= {
            "stage3_prefetch_bucket_size": block,
            "stage3_param_persistence_threshold": 10 * width,
            "stage3_max_live_parameters": numel,
            "stage3_max_reuse_distance": numel,
        }
    elif stage > 0:
        # The norm is for clipping, which nobody does here.
        options |= {"allgather_bucket_size": numel, "compute_grad_norm": False}
    return options


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
    bind(rank, world)
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    deepspeed.utils.logging.logger.setLevel("ERROR")
    model = build(setting)
    deepspeed.init_distributed("gloo")
    zero = zero_options(stage, model, setting)
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=3e-4, weight_decay=1e-2, adamw_mode=True)
    batch = SETTINGS[setting][5]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": batch,
            "train_batch_size": batch * world,
            "zero_optimization": zero,
            "zero_force_ds_cpu_optimizer": False,
            # Newer versions clip to 1 unless told otherwise; the other systems here do not clip.
            "gradient_clipping": 0.0,
            "steps_per_print": 10**9,
        },
    )

    def step(text):
        engine.backward(loss_of(engine, text))
        engine.step()

    system = f"DeepSpeed {deepspeed.__version__}, PyTorch {torch.__version__}, Gloo"
    options = ", ".join(f"{name}={value}" for name, value in zero.items())
    measure(step, setting, rank, world, output, system, f"{options}, DeepSpeedCPUAdam")
    leave(world)


def keep_extensions():
    """What DeepSpeed compiles stays beside it. A run that was ended while it compiled leaves a lock behind,
    for which every later one would wait."""
    folder = pathlib.Path(sys.prefix) / "extensions"
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    for lock in folder.glob("**/lock"):
        lock.unlink()


def main():
    keep_extensions()
    stage, ranks, setting, output = int(sys.argv[1].split("-")[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(worker, (stage, ranks, setting, output, port), nprocs=ranks)


if __name__ == "__main__":
    main()
