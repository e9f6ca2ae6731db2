"""torch_gpu_step.py MODE SETTING STEPS OUTPUT: a training step in PyTorch on a GPU.

MODE is torch-eager or torch-compile; SETTING one of bench/gpu_steps.cc.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from step_common import Block


class Gpt(nn.Module):
    def __init__(self, vocabulary=50257, sequence=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, text):
        tokens = text[:, :-1]
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        scores = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def forward(self, images, labels):
        return F.cross_entropy(self.layers(images), labels)


def main():
    mode, setting, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    torch.manual_seed(0)
    if setting == "gpt2":
        model = Gpt().cuda().bfloat16()
        data = [torch.randint(0, 50257, (32, 1025)).cuda()]
    else:
        model = Mlp().cuda()
        data = [torch.rand(64, 784).cuda(), torch.randint(0, 10, (64,)).cuda()]
    run = torch.compile(model) if mode == "torch-compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    times = []
    for i in range(-5 if mode == "torch-eager" else -15, steps, 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            loss = run(*data)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()
        if i >= 0:
            times.append(1e3 * (time.perf_counter() - start) / 5)
    with open(output, "w") as file:
        json.dump(
            {
                "ms": times,
                "memory_bytes": torch.cuda.max_memory_allocated(),
                "system": f"PyTorch {torch.__version__}, {mode}, fused AdamW",
            },
            file,
        )


main()
