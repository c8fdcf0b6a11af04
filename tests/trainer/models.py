#!/usr/bin/env python3
"""models.py - tiny models of each family, and what PyTorch and transformers compute with them.

  models.py make FOLDER         FOLDER/NAME/config.json and model.safetensors of each tests/data/models/NAME.json,
                                FOLDER/tokens.u16, FOLDER/one.u16; plain Python
  models.py same A B            whether two folders have the same tensors, bit by bit; plain Python
  models.py write               tests/data/models/NAME.txt: loss, gradients and ten steps of AdamW; needs PyTorch and
                                transformers in the versions below
  models.py check               whether `write` would write the same, up to rounding
  models.py trained PROGRAM     whether transformers has the losses of what train_gpt has trained and written

pip install torch==2.8.0 transformers==4.56.2 safetensors==0.6.2 numpy==2.3.3

A weight is a function of its tensor's name and its index alone, so that tests make the same weights without these packages.
A gradient is written as its norm and its sums with four patterns of signs.
"""
import glob
import json
import math
import os
import struct
import sys

DATA = os.path.join(os.path.dirname(__file__), "..", "data", "models")
VERSIONS = {"torch": "2.8.0", "transformers": "4.56.2"}
BATCH, LENGTH, STEPS, SIGNS = 2, 24, 10, 4
RATE, BETAS, EPSILON, DECAY = 0.01, (0.9, 0.99), 1e-8, 0.1
MASK = (1 << 64) - 1


def mix(z):
    """The finalizer of splitmix64."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(name):
    """FNV-1a."""
    h = 14695981039346656037
    for byte in name.encode():
        h = ((h ^ byte) * 1099511628211) & MASK
    return h


def weight(name, i):
    """In [-1/4, 1/4), beside 1 for the weight of a norm; a multiple of 2^-25."""
    u = ((mix(key(name) ^ i) >> 40) - (1 << 23)) / (1 << 25)
    return (1.0 if "norm" in name else 0.0) + u


def token(sequence, i, vocabulary):
    return mix(1000 * sequence + i) % vocabulary


def sign(k, i):
    return 1.0 if mix(mix(k) ^ i) >> 63 else -1.0


def tensors_of(c):
    """Names and shapes."""
    hidden, wide, vocabulary = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    size = c.get("head_dim") or hidden // c["num_attention_heads"]
    q, kv = size * c["num_attention_heads"], size * c["num_key_value_heads"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for n in range(c["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        yield layer + "input_layernorm.weight", (hidden,)
        for name, columns in (("q", q), ("k", kv), ("v", kv)):
            yield layer + f"self_attn.{name}_proj.weight", (columns, hidden)
            if c["model_type"] == "qwen2":
                yield layer + f"self_attn.{name}_proj.bias", (columns,)
            if c["model_type"] == "qwen3" and name != "v":
                yield layer + f"self_attn.{name}_norm.weight", (size,)
        yield layer + "self_attn.o_proj.weight", (hidden, q)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (wide, hidden)
        yield layer + "mlp.up_proj.weight", (wide, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, wide)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)


def make(folder):
    os.makedirs(folder, exist_ok=True)
    for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
        with open(path) as file:
            config = json.load(file)
        to = os.path.join(folder, os.path.basename(path)[:-5])
        os.makedirs(to, exist_ok=True)
        with open(os.path.join(to, "config.json"), "w") as file:
            json.dump(config, file)
        header, data = {}, b""
        for name, shape in tensors_of(config):
            n = math.prod(shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
            data += struct.pack(f"<{n}f", *(weight(name, i) for i in range(n)))
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(to, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
    for name, n in (("tokens.u16", 2000), ("one.u16", LENGTH + 1)):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(struct.pack(f"<{n}H", *(token(0, i, 67) for i in range(n))))


def read(folder):
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        text = file.read()
    n = struct.unpack("<Q", text[:8])[0]
    header, data = json.loads(text[8 : 8 + n]), text[8 + n :]
    return {
        name: (t["dtype"], tuple(t["shape"]), data[slice(*t["data_offsets"])])
        for name, t in header.items()
        if name != "__metadata__"
    }


def same(a, b):
    a, b = read(a), read(b)
    different = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    print("\n".join(different) or f"{len(a)} tensors, all the same")
    return 1 if different else 0


# ---- with PyTorch and transformers ----


def load(folder):
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager"
    )


def loss_of(model, rows):
    import torch

    rows = torch.tensor(rows)
    logits = model(rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def compute(folder, name):
    """Lines: loss N; tensor NAME ROWS COLUMNS NORM SUMS; step LOSS."""
    import torch
    import transformers

    model = load(os.path.join(folder, name))
    vocabulary = model.config.vocab_size
    rows = [[token(b, i, vocabulary) for i in range(LENGTH + 1)] for b in range(BATCH)]
    decayed = [p for n, p in model.named_parameters() if p.dim() == 2]
    others = [p for n, p in model.named_parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}],
        lr=RATE, betas=BETAS, eps=EPSILON,
    )
    lines = [f"# models.py write: torch {torch.__version__}, transformers {transformers.__version__}, float32, eager"]
    lines.append(f"batch {BATCH} {LENGTH} {RATE} {BETAS[0]} {BETAS[1]} {EPSILON} {DECAY}")
    for step in range(STEPS):
        loss = loss_of(model, rows)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            for tensor, p in model.named_parameters():
                g = p.grad.double().flatten()
                columns = p.shape[1] if p.dim() == 2 else 0
                sums = [sum(x * sign(k, i) for i, x in enumerate(g.tolist())) for k in range(SIGNS)]
                numbers = " ".join(f"{x:.9g}" for x in [g.norm().item(), *sums])
                lines.append(f"tensor {tensor} {p.shape[0]} {columns} {numbers}")
        lines.append(f"step {loss.item():.9g}")
        optimizer.step()
    return lines


def near(a, b):
    """The same words, and numbers that differ by rounding."""
    a, b = a.split(), b.split()
    if a[0] != b[0] or len(a) != len(b):
        return False
    if a[0] == "#":
        return True
    norm = float(a[4]) if a[0] == "tensor" else 1
    return all(x == y or abs(float(x) - float(y)) < 1e-5 * norm for x, y in zip(a, b))


def reference(is_check):
    import tempfile

    import torch
    import transformers

    for module in (torch, transformers):
        if module.__version__.split("+")[0] != VERSIONS[module.__name__]:
            print(f"models.py: {module.__name__} {module.__version__}; {VERSIONS[module.__name__]} would work", file=sys.stderr)
            return 2
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
            name = os.path.basename(path)[:-5]
            lines = compute(folder, name)
            if not is_check:
                with open(path[:-5] + ".txt", "w") as file:
                    file.write("\n".join(lines) + "\n")
                continue
            with open(path[:-5] + ".txt") as file:
                kept = file.read().splitlines()
            different = [x for x, y in zip(kept, lines) if not near(x, y)]
            bad += len(different) + abs(len(kept) - len(lines))
            print(f"{name}: {len(lines)} lines, {len(different)} differ", *different, sep="\n  ")
    return 1 if bad else 0


def trained(program):
    """Ten steps on one sequence; the model that is written has its next loss in transformers, and in the program again."""
    import subprocess
    import tempfile

    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        tokens, log = os.path.join(folder, "one.u16"), os.path.join(folder, "log")
        for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
            name = os.path.basename(path)[:-5]
            model, written = os.path.join(folder, name), os.path.join(folder, name + ".written")
            few = ["--tokens", tokens, "--seq", str(LENGTH), "--batch", "1", "--tile", "8"]
            for type_, bound in ("f32", 1e-6), ("bf16", 1e-2):
                first = [program, "--model", model, *few, "--type", type_, "--steps", "10", "--write-model", written]
                again = [program, "--model", written, *few, "--type", type_, "--steps", "1", "--learning-rate", "0"]
                subprocess.run(first, check=True, stdout=subprocess.DEVNULL)
                subprocess.run([*again, "--loss-log", log], check=True, stdout=subprocess.DEVNULL)
                with open(log) as file:
                    of_program = float(file.read().split()[1])
                of_transformers = loss_of(load(written), [[token(0, i, 67) for i in range(LENGTH + 1)]]).item()
                is_bad = not abs(of_program / of_transformers - 1) < bound
                bad += is_bad
                print(f"{name} {type_}: loss {of_program:.7g}, transformers {of_transformers:.7g}{', too far' if is_bad else ''}")
    return 1 if bad else 0


def main(arguments):
    match arguments:
        case ["make", folder]:
            return make(folder)
        case ["same", a, b]:
            return same(a, b)
        case ["write"]:
            return reference(False)
        case ["check"]:
            return reference(True)
        case ["trained", program]:
            return trained(program)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
