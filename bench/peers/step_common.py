"""What the peers of `trireme bench step` have in common: the model, the settings, the clock."""

import gc
import json
import os
import time

import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")

# As bench/step_settings.h: vocabulary, sequence, width, layers, heads, batch. The last: of bench/sync_rank.cc.
SETTINGS = [(512, 64, 512, 8, 8, 1), (512, 128, 256, 4, 8, 4), (64, 16, 64, 2, 2, 1)]
WARM_UP, TIMED = (int(n) for n in os.environ.get("TRIREME_PEER_STEPS", "5 12").split())


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, sequence, width, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(model, text):
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def build(setting):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Gpt(*SETTINGS[setting][:5])


def tensor_bytes():
    """All tensors alive, each storage once."""
    gc.collect()
    seen = {}
    for thing in gc.get_objects():
        try:
            if isinstance(thing, torch.Tensor):
                if hasattr(thing, "to_local"):
                    thing = thing.to_local()
                for tensor in (thing, thing.grad if thing.is_leaf else None):
                    if tensor is not None and hasattr(tensor, "to_local"):
                        tensor = tensor.to_local()
                    if tensor is not None and tensor.layout == torch.strided:
                        storage = tensor.untyped_storage()
                        seen[storage.data_ptr()] = storage.nbytes()
        except Exception:  # proxies and half-built objects
            continue
    return sum(seen.values())


def proportional_bytes():
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def leave(world):
    """Ends at once: Gloo sometimes aborts when one process tears down before the other."""
    if world > 1:
        torch.distributed.barrier()
    os._exit(0)


def measure(step, setting, rank, world, output, system, settings):
    """Times `step(text)` and writes what rank 0 saw, and how the system was set up."""
    vocabulary, sequence, _, _, _, batch = SETTINGS[setting]
    generator = torch.Generator().manual_seed(rank)
    times = []
    for i in range(WARM_UP + TIMED):
        text = torch.randint(0, vocabulary, (batch, sequence + 1), generator=generator)
        start = time.perf_counter()
        step(text)
        if i >= WARM_UP:
            times.append(1e3 * (time.perf_counter() - start))
    share = torch.tensor([proportional_bytes()], dtype=torch.int64)
    held = torch.tensor([tensor_bytes()], dtype=torch.int64)
    if world > 1:
        torch.distributed.all_reduce(share)
        torch.distributed.all_reduce(held, torch.distributed.ReduceOp.MAX)
    if rank == 0:
        with open(output, "w") as file:
            json.dump(
                {
                    "ms": times,
                    "held_bytes": int(held.item()),
                    "pss_bytes": int(share.item()) // world,
                    "system": system,
                    "settings": settings,
                },
                file,
            )
