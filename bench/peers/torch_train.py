"""The peer of `trireme bench train`: repeats a run of Trireme with PyTorch.

The same network, initial weights, batches (by sample numbers) and learning rates, read from the run's
folder; one process, one thread, AdamW with its fused kernel. LAYOUT is "plain" or "channels_last".

    torch_train.py RUN OUTPUT LAYOUT
"""

import gzip
import json
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

DATA = "/usr/share/datasets/fashion-mnist/"


class Mlp(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        widths = [784] + hidden
        self.count = len(hidden)
        for i in range(self.count):
            setattr(self, f"layer{i}", nn.Linear(widths[i], widths[i + 1]))
        self.head = nn.Linear(widths[-1], 10)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x.flatten(1)
        for i in range(self.count):
            x = self.drop(F.relu(getattr(self, f"layer{i}")(x)))
        return self.head(x)


class Stage(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x):
        return F.relu(F.max_pool2d(self.norm(self.convolution(x)), 2))


class Convnet(nn.Module):
    def __init__(self, stages, hidden, dropout):
        super().__init__()
        channels = [1] + stages
        self.count = len(stages)
        for i in range(self.count):
            setattr(self, f"stage{i}", Stage(channels[i], channels[i + 1]))
        side = 28 >> self.count
        self.drop = nn.Dropout(dropout)
        self.hidden = nn.Linear(channels[-1] * side * side, hidden)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x):
        for i in range(self.count):
            x = getattr(self, f"stage{i}")(x)
        x = self.drop(x.flatten(1))
        return self.head(self.drop(F.relu(self.hidden(x))))


def images(which):
    with gzip.open(f"{DATA}{which}-images-idx3-ubyte.gz") as file:
        data = numpy.frombuffer(file.read(), numpy.uint8, offset=16)
    with gzip.open(f"{DATA}{which}-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(), numpy.uint8, offset=8)
    pixels = torch.from_numpy(data.copy()).view(-1, 1, 28, 28).float().div_(255)
    return pixels, torch.from_numpy(labels.copy()).long()


def main():
    run, output, layout = sys.argv[1:]
    torch.set_num_threads(1)
    config = json.load(open(f"{run}/config.json"))
    steps = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    rates = [step["lr"] for step in steps if "loss" in step]
    samples = [torch.tensor(json.loads(line)) for line in open(f"{run}/samples.jsonl")]
    x, y = images("train")
    if config["model"] == "mlp":
        model = Mlp(config["hidden"], config["dropout"])
    else:
        model = Convnet(config["stages"], config["hidden"][0], config["dropout"])
    model.load_state_dict(load_file(f"{run}/initial.safetensors"))
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config["lr"],
        betas=(config["beta1"], config["beta2"]),
        eps=config["eps"],
        weight_decay=config["weight_decay"],
        fused=True,
    )
    torch.manual_seed(config["seed"])
    losses = []
    begin = time.perf_counter()
    for rate, batch in zip(rates, samples, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    model.eval()
    x, y = images("t10k")
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in zip(x.split(256), y.split(256)))
    result = {
        "seconds": seconds,
        "accuracy": right / len(y),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "settings": f"PyTorch {torch.__version__}, eager, fused AdamW, data in memory, {layout} layout",
    }
    json.dump(result, open(output, "w"))
    print(f"PyTorch {torch.__version__}, {layout}: {len(losses)} steps in {seconds:.1f} s, accuracy {100 * right / len(y):.2f} %")


main()
