"""Exchange with PyTorch: gpt2_reference_test.py TRIREME GPT_LOGITS.

A GPT-2 written from its definition, with the names and the matrices of Hugging Face's, gets the same
logits from what we export as our gpt does, and our gpt from what it has written. Archives of
torch::save are read by torch.jit.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TRIREME, GPT_LOGITS = sys.argv[1:]
HEADS = 4
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}  # of the largest logit


def conv1d(x, weights, name):
    """Hugging Face's layer: the matrix is [in, out]."""
    return x @ weights[name + ".weight"] + weights[name + ".bias"]


def layer_norm(x, weights, name, epsilon):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    normal = (x - mean) / torch.sqrt(variance + epsilon)
    return normal * weights[name + ".weight"] + weights[name + ".bias"]


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gpt2(weights, tokens, heads=HEADS, epsilon=1e-5):
    weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
    batch, length = tokens.shape
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][:length]
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("h."))
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    for layer in range(layers):
        name = f"h.{layer}."
        width = x.shape[-1]
        qkv = conv1d(layer_norm(x, weights, name + "ln_1", epsilon), weights, name + "attn.c_attn")
        q, k, v = (
            part.view(batch, length, heads, width // heads).transpose(1, 2)
            for part in qkv.split(width, dim=2)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        attention = torch.softmax(scores.masked_fill(future, -math.inf), dim=-1)
        mixed = (attention @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + conv1d(mixed, weights, name + "attn.c_proj")
        inner = conv1d(layer_norm(x, weights, name + "ln_2", epsilon), weights, name + "mlp.c_fc")
        x = x + conv1d(gelu_new(inner), weights, name + "mlp.c_proj")
    x = layer_norm(x, weights, "ln_f", epsilon)
    return x @ weights.get("lm_head.weight", weights["wte.weight"]).T


def run(*words, code=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == code, (words, done)
    return done.stdout + done.stderr


def ckpt(*words, code=0):
    return run(TRIREME, "ckpt", *words, code=code)


def expect_logits(logits, weights, tokens, **options):
    """Ours, in both types, against those of the definition."""
    for name, tolerance in TOLERANCE.items():
        dtype = getattr(torch, name)
        expected = gpt2({key: value.to(dtype) for key, value in weights.items()}, tokens, **options)
        difference = (logits[name] - expected).abs().max().item()
        assert difference <= tolerance * expected.abs().max().item(), (name, difference)


def theirs(tied, prefix, masks):
    """Random weights, as Hugging Face calls them."""
    vocabulary, sequence, width, layers = 61, 24, 48, 3
    shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (sequence, width)}
    for layer in range(layers):
        name = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{name}{norm}.weight": (width,), f"{name}{norm}.bias": (width,)}
        for part, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes |= {f"{name}{part}.weight": (rows, columns), f"{name}{part}.bias": (columns,)}
    shapes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    weights = {prefix + name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    if not tied:
        weights["lm_head.weight"] = 0.3 * torch.randn(vocabulary, width)
    extra = {}
    if masks:
        mask = torch.tril(torch.ones(sequence, sequence, dtype=torch.bool))
        for layer in range(layers):
            extra[f"{prefix}h.{layer}.attn.bias"] = mask.view(1, 1, sequence, sequence).clone()
            extra[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return weights, extra


def check_export(folder, tokens, tied):
    """Our weights to a file, and by way of a checkpoint to a folder, of Hugging Face's."""
    weights, logits = folder / "ours.safetensors", folder / "logits.safetensors"
    run(GPT_LOGITS, "make", tied, weights, folder / "tokens.safetensors", logits)
    ckpt("export", weights, folder / "gpt2.safetensors", "--format", "gpt2")
    expect_logits(load_file(logits), load_file(folder / "gpt2.safetensors"), tokens)
    with safe_open(folder / "gpt2.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert ("lm_head.weight" in file.keys()) == (tied == "untied")

    ckpt("import", weights, folder / "checkpoints", "--step", 3)
    ckpt("export", folder / "checkpoints", folder / "pretrained", "--format", "gpt2", "--heads", HEADS)
    config = json.loads((folder / "pretrained/config.json").read_text())
    assert config["tie_word_embeddings"] == (tied == "tied"), config
    assert config["activation_function"] == "gelu_new", config
    written = load_file(folder / "pretrained/model.safetensors")
    wte = written["transformer.wte.weight"]
    assert wte.shape == (config["vocab_size"], config["n_embd"]), config
    assert written["transformer.wpe.weight"].shape[0] == config["n_positions"], config
    expect_logits(
        load_file(logits),
        written,
        tokens,
        heads=config["n_head"],
        epsilon=config["layer_norm_epsilon"],
    )


def check_import(folder, tokens, tied, prefix, masks):
    """Their weights to a checkpoint, and to our gpt."""
    weights, extra = theirs(tied == "tied", prefix, masks)
    save_file(weights | extra, folder / "theirs.safetensors")
    ckpt("import", folder / "theirs.safetensors", folder / "imported")
    ckpt("export", folder / "imported", folder / "back.safetensors")
    ckpt("export", folder / "imported", folder / "back.pt")
    for name in ("back.safetensors", "back.pt"):
        logits = folder / f"{name}.logits"
        run(GPT_LOGITS, "read", tied, folder / name, folder / "tokens.safetensors", logits)
        expect_logits(load_file(logits), weights, tokens)
    ckpt("export", folder / "imported", folder / "again.safetensors", "--format", "gpt2")
    again = load_file(folder / "again.safetensors")
    assert len(again) == len(weights)
    for name, value in weights.items():
        plain = name.removeprefix("transformer.")
        ours = plain if plain == "lm_head.weight" else "transformer." + plain
        assert torch.equal(again[ours], value), name


def check_archive(folder):
    """What torch::load reads, torch.jit reads; Python's own files are refused with a name."""
    weights = {
        "layer.weight": torch.randn(3, 4),
        "norm.running_mean": torch.randn(3),
        "norm.num_batches_tracked": torch.tensor(5),
    }
    save_file(weights, folder / "plain.safetensors")
    said = ckpt("export", folder / "plain.safetensors", folder / "plain.pt")
    assert "does not say which modules" in said, said
    module = torch.jit.load(folder / "plain.pt")
    assert dict(module.named_parameters()).keys() == {"layer.weight"}
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights.pop(name)), name
    assert not weights
    ckpt("import", folder / "plain.pt", folder / "archive")
    ckpt("diff", folder / "archive", folder / "plain.safetensors")

    torch.save({"weight": torch.ones(3)}, folder / "state.pt")
    said = ckpt("import", folder / "state.pt", folder / "state", code=2)
    assert "Python's torch.save" in said and "frame #" not in said, said
    assert not (folder / "state").exists() or not list((folder / "state").glob("step-*"))


def check_types(folder):
    """Conversions round as PyTorch's do, also below the smallest normal and above the largest number."""
    bits = torch.randint(-(2**31), 2**31, (50000,)).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), 6e-8 * torch.randn(1000), 65504 + 20 * torch.randn(1000)])
    values = values[~values.isnan()]
    save_file({"values": values, "count": torch.tensor([7])}, folder / "types.safetensors")
    for name in ("float64", "float16", "bfloat16"):
        out = folder / f"{name}.safetensors"
        ckpt("export", folder / "types.safetensors", out, "--dtype", name)
        found = load_file(out)
        assert found["count"].dtype == torch.int64
        assert torch.equal(found["values"], values.to(getattr(torch, name))), name


def main():
    torch.manual_seed(3)
    tokens = torch.randint(0, 61, (2, 24))
    cases = [("tied", "", True), ("tied", "transformer.", False), ("untied", "transformer.", True)]
    with tempfile.TemporaryDirectory() as name:
        for number, (tied, prefix, masks) in enumerate(cases):
            folder = pathlib.Path(name) / str(number)
            folder.mkdir()
            save_file({"tokens": tokens}, folder / "tokens.safetensors")
            check_export(folder, tokens, tied)
            check_import(folder, tokens, tied, prefix, masks)
        check_archive(folder)
        check_types(folder)
    print("PyTorch reads what we write, and we read what it writes")


main()
