#!/usr/bin/env python3
"""models.py - tiny models of each family, and what PyTorch and transformers compute with them.

  models.py make FOLDER         FOLDER/NAME/config.json and model.safetensors of each tests/data/models/NAME.json, FOLDER/NAME.adapter
                                as peft writes it, FOLDER/tokens.u16, FOLDER/one.u16; plain Python
  models.py same A B            whether two folders have the same tensors, bit by bit; plain Python
  models.py write               tests/data/models/NAME.txt: loss, gradients and ten steps of AdamW; needs PyTorch and
                                transformers in the versions below
  models.py check               whether `write` would write the same, up to rounding, and PyTorch has the numbers of NAME.lora.txt
  models.py plain               tests/data/models/NAME.lora.txt: the same of adapters, in double precision, by the plain Python below.
                                First this must have the loss and the gradients of NAME.txt
  models.py trained PROGRAM     whether transformers, and peft of adapters, have the losses of what train_gpt has trained and written

pip install torch==2.8.0 transformers==4.56.2 safetensors==0.6.2 numpy==2.3.3 peft==0.17.1

A weight is a function of its tensor's name and its index alone, so that tests make the same weights without these packages.
A gradient is written as its norm and its sums with four patterns of signs.
"""
import glob
import json
import math
import operator
import os
import struct
import sys

DATA = os.path.join(os.path.dirname(__file__), "..", "data", "models")
VERSIONS = {"torch": "2.8.0", "transformers": "4.56.2"}
BATCH, LENGTH, STEPS, SIGNS = 2, 24, 10, 4
RATE, BETAS, EPSILON, DECAY = 0.01, (0.9, 0.99), 1e-8, 0.1
RANK, ALPHA = 4, 8
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
            if c["model_type"].startswith("qwen3") and name != "v":
                yield layer + f"self_attn.{name}_norm.weight", (size,)
        yield layer + "self_attn.o_proj.weight", (hidden, q)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        mlps, columns = [layer + "mlp."], wide
        if "num_experts" in c:
            yield layer + "mlp.gate.weight", (c["num_experts"], hidden)
            mlps, columns = [f"{layer}mlp.experts.{e}." for e in range(c["num_experts"])], c["moe_intermediate_size"]
        for mlp in mlps:
            yield mlp + "gate_proj.weight", (columns, hidden)
            yield mlp + "up_proj.weight", (columns, hidden)
            yield mlp + "down_proj.weight", (hidden, columns)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)


def adapters_of(c):
    """The matrices that have adapters, with the names and shapes of A and B."""
    for name, shape in tensors_of(c):
        if name.endswith("_proj.weight") and ".experts." not in name:
            prefix = "base_model.model." + name[: -len("weight")]
            yield name, (prefix + "lora_A.weight", (RANK, shape[1])), (prefix + "lora_B.weight", (shape[0], RANK))


def adapter_config(model, config):
    """As peft 0.17 writes it."""
    empty = dict.fromkeys(
        ["auto_mapping", "corda_config", "eva_config", "exclude_modules", "layer_replication", "layers_pattern"]
        + ["layers_to_transform", "megatron_config", "modules_to_save", "revision", "target_parameters", "trainable_token_indices"]
    )
    no = dict.fromkeys(["fan_in_fan_out", "lora_bias", "use_dora", "use_qalora", "use_rslora"], False)
    modules = ["q_proj", "up_proj", "o_proj", "k_proj", "gate_proj", "down_proj", "v_proj"]  # a set in peft: in any order
    if "num_experts" in config:
        modules = ["v_proj", "q_proj", "k_proj", "o_proj"]
    return {
        **{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": model, "r": RANK, "lora_alpha": ALPHA},
        **{"target_modules": modules, "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "init_lora_weights": True},
        **{"megatron_core": "megatron.core", "qalora_group_size": 16, "rank_pattern": {}, "alpha_pattern": {}, "loftq_config": {}},
        **empty,
        **no,
    }


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, shape in tensors:
        n = math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *(weight(name, i) for i in range(n)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def make(folder):
    os.makedirs(folder, exist_ok=True)
    for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
        with open(path) as file:
            config = json.load(file)
        to = os.path.join(folder, os.path.basename(path)[:-5])
        os.makedirs(to, exist_ok=True)
        with open(os.path.join(to, "config.json"), "w") as file:
            json.dump(config, file)
        write_tensors(os.path.join(to, "model.safetensors"), tensors_of(config))
        os.makedirs(to + ".adapter", exist_ok=True)
        with open(os.path.join(to + ".adapter", "adapter_config.json"), "w") as file:
            json.dump(adapter_config(to, config), file)
        adapters = [tensor for _, *pair in adapters_of(config) for tensor in pair]
        write_tensors(os.path.join(to + ".adapter", "adapter_model.safetensors"), adapters)
    for name, n in (("tokens.u16", 2000), ("one.u16", LENGTH + 1)):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(struct.pack(f"<{n}H", *(token(0, i, 67) for i in range(n))))


def read(folder):
    name = "model.safetensors" if os.path.exists(os.path.join(folder, "config.json")) else "adapter_model.safetensors"
    with open(os.path.join(folder, name), "rb") as file:
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


# ---- in plain Python: lists of rows, double precision, formulas by hand ----


def matrix(name, shape):
    rows, columns = (1, shape[0]) if len(shape) == 1 else shape
    values = [[weight(name, i * columns + j) for j in range(columns)] for i in range(rows)]
    return values[0] if len(shape) == 1 else values


def dot(a, b):
    return sum(map(operator.mul, a, b))


def times_transposed(a, b):
    return [[dot(x, y) for y in b] for x in a]


def turned(a):
    return [list(column) for column in zip(*a)]


def add_to(a, b, factor=1.0):
    for x, y in zip(a, b):
        for j, value in enumerate(y):
            x[j] += factor * value


class Plain:
    """A model, its adapters if there are any, and the gradients of all."""

    def __init__(self, config, has_adapters):
        self.c, self.scale = config, ALPHA / RANK
        self.w = {name: matrix(name, shape) for name, shape in tensors_of(config)}
        self.pairs, self.gaps, self.least_rows = {}, [], math.inf  # of routes: how near to others; of experts
        for name, a, b in adapters_of(config) if has_adapters else ():
            self.pairs[name] = a[0], b[0]
            self.w[a[0]], self.w[b[0]] = matrix(*a), matrix(*b)
        self.size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.frequencies = [self.frequency(j) for j in range(self.size // 2)]

    def frequency(self, j):
        c, law = self.c, self.c.get("rope_scaling") or {}
        plain, kind = c.get("rope_theta", 10000) ** (-2 * j / self.size), law.get("rope_type") or law.get("type")
        if kind == "linear":
            return plain / law["factor"]
        if kind == "llama3":
            turns = law["original_max_position_embeddings"] * plain / (2 * math.pi)
            low, high = law["low_freq_factor"], law["high_freq_factor"]
            part = min(max((turns - low) / (high - low), 0), 1)
            return part * plain + (1 - part) * plain / law["factor"]
        return plain

    # Each function keeps what its backward needs in a closure; self.back has them in order.

    def linear(self, name, x):
        y = times_transposed(x, self.w[name])
        low = None
        if name in self.pairs:
            a, b = self.pairs[name]
            low = times_transposed(x, self.w[a])
            add_to(y, times_transposed(low, self.w[b]), self.scale)

        def back(dy):
            dx = times_transposed(dy, turned(self.w[name]))
            self.add(name, times_transposed(turned(dy), turned(x)))
            if low:
                d_low = [[self.scale * v for v in row] for row in times_transposed(dy, turned(self.w[b]))]
                self.add(b, [[self.scale * v for v in row] for row in times_transposed(turned(dy), turned(low))])
                self.add(a, times_transposed(turned(d_low), turned(x)))
                add_to(dx, times_transposed(d_low, turned(self.w[a])))
            return dx

        return y, back

    def add(self, name, gradient):
        if name not in self.g:
            self.g[name] = gradient
        elif isinstance(gradient[0], list):
            add_to(self.g[name], gradient)
        else:
            self.g[name] = list(map(operator.add, self.g[name], gradient))

    def norm(self, name, x):
        w, n = self.w[name], len(x[0])
        roots = [(dot(row, row) / n + self.c["rms_norm_eps"]) ** -0.5 for row in x]
        y = [[v * r * k for v, k in zip(row, w)] for row, r in zip(x, roots)]

        def back(dy):
            self.add(name, [sum(d[j] * row[j] * r for d, row, r in zip(dy, x, roots)) for j in range(n)])
            dx = []
            for d, row, r in zip(dy, x, roots):
                along = sum(map(operator.mul, map(operator.mul, d, w), row)) * r**3 / n
                dx.append([v * k * r - u * along for v, k, u in zip(d, w, row)])
            return dx

        return y, back

    def rope(self, heads, length, direction):
        """Rows of heads, one token after another."""
        n, half, result = len(heads) // (BATCH * length), self.size // 2, []
        for i, row in enumerate(heads):
            position = i // n % length
            turns = [position * f * direction for f in self.frequencies]
            one = [row[j] * math.cos(t) - row[j + half] * math.sin(t) for j, t in enumerate(turns)]
            result.append(one + [row[j + half] * math.cos(t) + row[j] * math.sin(t) for j, t in enumerate(turns)])
        return result

    def part(self, layer, kind, x, length):
        """q, k or v: heads, one token after another."""
        name = f"model.layers.{layer}.self_attn.{kind}_"
        y, linear_back = self.linear(name + "proj.weight", x)
        bias = self.w.get(name + "proj.bias")
        if bias:
            y = [list(map(operator.add, row, bias)) for row in y]
        n = len(y[0]) // self.size
        heads = [row[h * self.size : (h + 1) * self.size] for row in y for h in range(n)]
        norm_back = None
        if name + "norm.weight" in self.w:
            heads, norm_back = self.norm(name + "norm.weight", heads)
        if kind != "v":
            heads = self.rope(heads, length, 1)

        def back(d):
            if kind != "v":
                d = self.rope(d, length, -1)
            if norm_back:
                d = norm_back(d)
            d = [sum(d[i : i + n], []) for i in range(0, len(d), n)]
            if bias:
                self.add(name + "proj.bias", [sum(column) for column in zip(*d)])
            return linear_back(d)

        return heads, back

    def attention(self, layer, x, length):
        parts = [self.part(layer, kind, x, length) for kind in "qkv"]
        (q, q_back), (k, k_back), (v, v_back) = parts
        n, m, root = len(q) // len(x), len(k) // len(x), self.size**-0.5
        out, all_p = [], []
        for i, query in enumerate(q):
            token, head = i // n, i % n // (n // m)
            first = token // length * length
            keys = [t * m + head for t in range(first, token + 1)]
            scores = [dot(query, k[j]) * root for j in keys]
            most = max(scores)
            p = [math.exp(s - most) for s in scores]
            total = sum(p)
            p = [u / total for u in p]
            all_p.append((keys, p))
            out.append([sum(u * v[j][e] for u, j in zip(p, keys)) for e in range(self.size)])
        y, o_back = self.linear(
            f"model.layers.{layer}.self_attn.o_proj.weight", [sum(out[i : i + n], []) for i in range(0, len(out), n)]
        )

        def back(dy):
            d = o_back(dy)
            d_out = [row[h * self.size : (h + 1) * self.size] for row in d for h in range(n)]
            dq, dk, dv = ([[0.0] * self.size for _ in part] for part in (q, k, v))
            for i, (keys, p) in enumerate(all_p):
                dp = [dot(d_out[i], v[j]) for j in keys]
                along = dot(dp, p)
                for u, w, j in zip(p, dp, keys):
                    ds = u * (w - along) * root
                    for e in range(self.size):
                        dv[j][e] += u * d_out[i][e]
                        dq[i][e] += ds * k[j][e]
                        dk[j][e] += ds * q[i][e]
            dx = q_back(dq)
            add_to(dx, k_back(dk))
            add_to(dx, v_back(dv))
            return dx

        return y, back

    def mlp(self, layer, x):
        if "num_experts" in self.c:
            return self.experts(layer, x)
        return self.one_mlp(f"model.layers.{layer}.mlp.", x)

    def experts(self, layer, x):
        """Of each expert, with the rows that the router sends to it."""
        prefix, n = f"model.layers.{layer}.mlp.", self.c["num_experts_per_tok"]
        logits, router_back = self.linear(prefix + "gate.weight", x)
        y, calls, routes = [[0.0] * len(x[0]) for _ in x], [], []
        for row in logits:
            order = sorted(range(len(row)), key=lambda e: -row[e])
            self.gaps.append(row[order[n - 1]] - row[order[n]])
            all_p = [math.exp(v - row[order[0]]) for v in row]
            total = sum(all_p[e] for e in order[:n]) if self.c["norm_topk_prob"] else sum(all_p)
            routes.append((order[:n], [p / total for p in all_p]))
        for e in range(self.c["num_experts"]):
            rows = [i for i, (chosen, _) in enumerate(routes) if e in chosen]
            self.least_rows = min(self.least_rows, len(rows))
            if rows:
                out, back = self.one_mlp(f"{prefix}experts.{e}.", [x[i] for i in rows])
                calls.append((e, rows, out, back))
                for i, row in zip(rows, out):
                    add_to([y[i]], [row], routes[i][1][e])

        def back(dy):
            dx, d_shares = [[0.0] * len(x[0]) for _ in x], [{} for _ in x]
            for e, rows, out, mlp_back in calls:
                for i, row in zip(rows, out):
                    d_shares[i][e] = dot(dy[i], row)
                for i, d in zip(rows, mlp_back([[routes[i][1][e] * v for v in dy[i]] for i in rows])):
                    add_to([dx[i]], [d])
            d_logits = []
            for d, (chosen, p) in zip(d_shares, routes):
                along = sum(d[e] * p[e] for e in chosen)
                others = not self.c["norm_topk_prob"]
                d_logits.append([p[e] * (d.get(e, 0.0) - along) if e in d or others else 0.0 for e in range(len(p))])
            add_to(dx, router_back(d_logits))
            return dx

        return y, back

    def one_mlp(self, prefix, x):
        gate, gate_back = self.linear(prefix + "gate_proj.weight", x)
        up, up_back = self.linear(prefix + "up_proj.weight", x)
        s = [[1 / (1 + math.exp(-v)) for v in row] for row in gate]
        active = [[a * b * c for a, b, c in zip(*rows)] for rows in zip(gate, s, up)]
        y, down_back = self.linear(prefix + "down_proj.weight", active)

        def back(dy):
            d = down_back(dy)
            dx = up_back([[a * b * c for a, b, c in zip(*rows)] for rows in zip(d, gate, s)])
            slopes = [[a * u * b * (1 + g * (1 - b)) for a, u, g, b in zip(*rows)] for rows in zip(d, up, gate, s)]
            add_to(dx, gate_back(slopes))
            return dx

        return y, back

    def loss(self, rows):
        """Of sequences of equal length; self.g has the gradients of all."""
        self.g, length, backs = {}, len(rows[0]) - 1, []
        tokens = [t for row in rows for t in row[:-1]]
        targets = [t for row in rows for t in row[1:]]
        table = self.w["model.embed_tokens.weight"]
        x = [list(table[t]) for t in tokens]
        for layer in range(self.c["num_hidden_layers"]):
            for name, block in ("input_layernorm", self.attention), ("post_attention_layernorm", self.mlp):
                normed, norm_back = self.norm(f"model.layers.{layer}.{name}.weight", x)
                y, back = block(layer, normed, *([length] if block == self.attention else []))
                x = [list(map(operator.add, a, b)) for a, b in zip(x, y)]
                backs.append((norm_back, back))
        normed, norm_back = self.norm("model.norm.weight", x)
        head = "model.embed_tokens.weight" if self.c["tie_word_embeddings"] else "lm_head.weight"
        logits, head_back = self.linear(head, normed)
        loss, n = 0.0, len(tokens)
        for row, target in zip(logits, targets):
            most = max(row)
            total = sum(math.exp(v - most) for v in row)
            loss += (math.log(total) + most - row[target]) / n
            row[:] = [math.exp(v - most) / total / n for v in row]
            row[target] -= 1 / n

        dx = norm_back(head_back(logits))
        for norm_back, back in reversed(backs):
            add_to(dx, norm_back(back(dx)))
        gradient = [[0.0] * len(table[0]) for _ in table]
        for t, d in zip(tokens, dx):
            add_to([gradient[t]], [d])
        self.add("model.embed_tokens.weight", gradient)
        return loss


def tensor_line(name, gradient):
    columns = len(gradient[0]) if isinstance(gradient[0], list) else 0
    flat = [v for row in gradient for v in row] if columns else gradient
    sums = [sum(x * sign(k, i) for i, x in enumerate(flat)) for k in range(SIGNS)]
    numbers = " ".join(f"{x:.9g}" for x in [math.sqrt(dot(flat, flat)), *sums])
    return f"tensor {name} {len(gradient)} {columns} {numbers}"


def adapter_lines():
    return [f"batch {BATCH} {LENGTH} {RATE} {BETAS[0]} {BETAS[1]} {EPSILON} {DECAY}", f"lora {RANK} {ALPHA}"]


def rows_of(vocabulary):
    return [[token(b, i, vocabulary) for i in range(LENGTH + 1)] for b in range(BATCH)]


def plain_steps(model, names):
    """The lines of a file behind its first ones: these tensors train."""
    lines, state = [], {}
    for step in range(STEPS):
        loss = model.loss(rows_of(model.c["vocab_size"]))
        if step == 0:
            lines += [tensor_line(name, model.g[name]) for name in names]
        lines.append(f"step {loss:.9g}")
        for name in names:
            is_matrix = isinstance(model.w[name][0], list)
            rows, gradients = (model.w[name], model.g[name]) if is_matrix else ([model.w[name]], [model.g[name]])
            for i, row in enumerate(rows):
                for j, g in enumerate(gradients[i]):
                    m, v = state.get((name, i, j), (0.0, 0.0))
                    m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
                    state[name, i, j] = m, v
                    mean, square = m / (1 - BETAS[0] ** (step + 1)), v / (1 - BETAS[1] ** (step + 1))
                    row[j] -= RATE * mean / (math.sqrt(square) + EPSILON) + (RATE * DECAY * row[j] if is_matrix else 0)
    if model.gaps:
        print(f"  an expert had {model.least_rows} rows or more; the first that was not chosen lacked {min(model.gaps):.2g}")
    return lines


def plain_adapters(config):
    """The lines of NAME.lora.txt, beside the first."""
    model = Plain(config, True)
    return adapter_lines() + plain_steps(model, sorted(name for pair in model.pairs.values() for name in pair))


def plain():
    bad = 0
    for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
        with open(path) as file:
            config = json.load(file)
        model = Plain(config, False)
        loss = model.loss(rows_of(config["vocab_size"]))
        with open(path[:-5] + ".txt") as file:
            kept = [line for line in file.read().splitlines() if line.startswith("tensor ")]
            file.seek(0)
            kept.append(next(line for line in file if line.startswith("step ")))
        lines = [tensor_line(line.split()[1], model.g[line.split()[1]]) for line in kept[:-1]] + [f"step {loss:.9g}"]
        different = [x for x, y in zip(kept, lines) if not near(x, y)]
        bad += len(different)
        print(f"{os.path.basename(path)[:-5]}: {len(lines)} lines of the file, {len(different)} differ", *different, sep="\n  ")
        with open(path[:-5] + ".lora.txt", "w") as file:
            file.write("\n".join(["# models.py plain: adapters, float64, plain Python", *plain_adapters(config)]) + "\n")
    return 1 if bad else 0


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


def compute_adapters(folder, name):
    """As peft computes them: y = base(x) + lora_B(lora_A(x)) * scaling."""
    import torch

    class Adapted(torch.nn.Module):
        def __init__(self, base, a, b):
            super().__init__()
            self.base, self.a, self.b = base, torch.nn.Parameter(a), torch.nn.Parameter(b)

        def forward(self, x):
            return self.base(x) + torch.nn.functional.linear(torch.nn.functional.linear(x, self.a), self.b) * (ALPHA / RANK)

    model = load(os.path.join(folder, name)).requires_grad_(False)
    with open(os.path.join(folder, name, "config.json")) as file:
        config = json.load(file)
    adapters = {}
    for base, a, b in adapters_of(config):
        parent, _, child = base[: -len(".weight")].rpartition(".")
        adapted = Adapted(getattr(model.get_submodule(parent), child), *(torch.tensor(matrix(*t)) for t in (a, b)))
        setattr(model.get_submodule(parent), child, adapted)
        adapters[a[0]], adapters[b[0]] = adapted.a, adapted.b
    names = sorted(adapters)
    optimizer = torch.optim.AdamW([adapters[n] for n in names], lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    lines = adapter_lines()
    for step in range(STEPS):
        loss = loss_of(model, rows_of(config["vocab_size"]))
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            lines += [tensor_line(n, adapters[n].grad.double().tolist()) for n in names]
        lines.append(f"step {loss.item():.9g}")
        optimizer.step()
    return lines


def near(a, b):
    """The same words, and numbers that differ by rounding."""
    a, b = a.split(), b.split()
    if a[0] == "#" and b[0] == "#":
        return True
    if a[0] != b[0] or len(a) != len(b):
        return False
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
            for end, lines in (".txt", lines), (".lora.txt", ["#", *compute_adapters(folder, name)]):
                with open(path[:-5] + end) as file:
                    kept = file.read().splitlines()
                different = [x for x, y in zip(kept, lines) if not near(x, y)]
                bad += len(different) + abs(len(kept) - len(lines))
                print(f"{name}{end}: {len(lines)} lines, {len(different)} differ", *different, sep="\n  ")
    return 1 if bad else 0


def trained(program):
    """Ten steps on one sequence; the model that is written has its next loss in transformers, and in the program again."""
    import shutil
    import subprocess
    import tempfile

    import peft

    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        tokens, log = os.path.join(folder, "one.u16"), os.path.join(folder, "log")
        for path in sorted(glob.glob(os.path.join(DATA, "*.json"))):
            name = os.path.basename(path)[:-5]
            model, written = os.path.join(folder, name), os.path.join(folder, name + ".written")
            few = ["--tokens", tokens, "--seq", str(LENGTH), "--batch", "1", "--tile", "8"]
            cases = [("f32", 1e-6, "whole"), ("bf16", 1e-2, "whole"), ("f32", 1e-6, "adapters")]
            for type_, bound, kind in cases:
                new = ["--lora", "4", "--lora-targets", "q,v" if "moe" in name else "q,v,up"] if kind == "adapters" else []
                of_written = ["--model", model, "--adapter", written] if new else ["--model", written]
                first = [program, "--model", model, *new, *few, "--type", type_, "--steps", "10", "--write-model", written]
                again = [program, *of_written, *few, "--type", type_, "--steps", "1", "--learning-rate", "0"]
                if new:
                    shutil.rmtree(written)
                subprocess.run(first, check=True, stdout=subprocess.DEVNULL)
                subprocess.run([*again, "--loss-log", log], check=True, stdout=subprocess.DEVNULL)
                with open(log) as file:
                    of_program = float(file.read().split()[1])
                loaded = peft.PeftModel.from_pretrained(load(model), written) if new else load(written)
                of_others = loss_of(loaded, [[token(0, i, 67) for i in range(LENGTH + 1)]]).item()
                is_bad = not abs(of_program / of_others - 1) < bound
                bad += is_bad
                print(f"{name} {kind} {type_}: loss {of_program:.7g}, elsewhere {of_others:.7g}{', too far' if is_bad else ''}")
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
        case ["plain"]:
            return plain()
        case ["trained", program]:
            return trained(program)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
