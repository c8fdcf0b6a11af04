#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""pytorch_gpt.py computes what the trainer does: the same weights and text on the CPU, fp32, every row of its table.

    python3 bench/pytorch_same.py [ROW...]    a ROW is options of pytorch_gpt.py, "--policy keep --compile"; default: all

The trainer (TRAIN_GPT, default build/examples/train_gpt) saves its weights, and Adam's first moments after a step at rate 0:
0.1 of its gradients, clipped at norm 1.  Prints a line for each row, and fails if a loss differs by 2e-6 or a gradient by
1e-5 of its tensor's largest."""
import os
import random
import shlex
import subprocess
import sys
import tempfile

import torch

import pytorch_gpt

MODEL = ["--layers", "2", "--hidden", "64", "--heads", "4"]
TOKENS = 128
ROWS = ["--policy " + policy for policy in pytorch_gpt.POLICIES] + [
    "--policy select --offload-states", "--policy keep --compile", "--policy select --compile"]


def trained(folder):
    """The trainer's loss, and weights and moments of each tensor."""
    path = os.path.join(folder, "checkpoint")
    log = os.path.join(folder, "log")
    text = os.path.join(folder, "text")
    with open(text, "wb") as out:
        out.write(random.Random(5).randbytes(TOKENS + 1))
    subprocess.run([os.environ.get("TRAIN_GPT", "build/examples/train_gpt"), "--text", text, *MODEL, "--seq", str(TOKENS),
                    "--batch", "1", "--policy", "keep", "--type", "f32", "--steps", "1", "--learning-rate", "0",
                    "--save", path, "--loss-log", log], check=True, stdout=subprocess.DEVNULL)
    with open(log) as lines, open(path, "rb") as data, open(text, "rb") as tokens:
        return float(lines.read().split()[1]), data.read(), torch.tensor(list(tokens.read()))


def parameters(model):
    """In the order of the checkpoint."""
    yield model.embedding.weight
    for layer in model.layers:
        yield from (layer.norm1, layer.q.weight, layer.k.weight, layer.v.weight, layer.projection.weight,
                    layer.norm2, layer.up.weight, layer.down.weight)
    yield from (model.norm, model.classifier.weight)


def compare(row, loss, data, text):
    sys.argv[1:] = ["--device", "cpu", "--tokens", str(TOKENS), "--vocabulary", "256", *MODEL, *shlex.split(row)]
    o = pytorch_gpt.parse()
    model = pytorch_gpt.Model(o)
    moments, at = [], 512  # behind the head; each array begins at a multiple of 64
    for p in parameters(model):
        n = p.numel()
        p.data.copy_(torch.frombuffer(bytearray(data[at:at + 4 * n]), dtype=torch.float32).view(p.shape))
        at += (4 * n + 63) // 64 * 64
        moments.append(torch.frombuffer(bytearray(data[at:at + 4 * n]), dtype=torch.float32).view(p.shape))
        at += 2 * ((4 * n + 63) // 64 * 64)
    assert at == len(data)
    if o.compile:
        for layer in model.layers:
            layer.compile()
    if o.offload_states:
        pytorch_gpt.offload_states(o, model)

    own = model(text[:-1], text[1:], *pytorch_gpt.rope_tables(o))
    own.backward()
    gradients = [p.grad.full_tensor() if o.offload_states else p.grad for p in parameters(model)]
    norm = sum((g.double() ** 2).sum() for g in gradients).sqrt()
    scale = 0.1 * min(1.0, 1 / float(norm))
    off = max(float((g * scale - m).abs().max() / m.abs().max()) for g, m in zip(gradients, moments))
    print(f"{pytorch_gpt.way(o)}: loss {own.item():.7f}, the trainer's {loss:.7f}; gradients off by at most {off:.1e}", flush=True)
    return abs(own.item() - loss) < 2e-6 and off < 1e-5


def main():
    rows = sys.argv[1:] or ROWS
    with tempfile.TemporaryDirectory() as folder:
        step = trained(folder)
    same = [compare(row, *step) for row in rows]
    sys.exit(0 if all(same) else "pytorch_same.py: not the trainer's model")


if __name__ == "__main__":
    main()
