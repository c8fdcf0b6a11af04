#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The trainer's GPT in PyTorch, as most people would write it: the baseline of bench/device.sh C.

    python3 bench/pytorch_gpt.py --tokens 65536 --layers 8 --hidden 4096 --heads 32 --vocabulary 50304
    python3 bench/pytorch_gpt.py --alone ...    # only the step's products and attention: a ceiling
    python3 bench/pytorch_gpt.py --device cpu --tokens 4096 --layers 6 --hidden 512 --heads 8 --vocabulary 256
    python3 bench/pytorch_gpt.py --layers 32 --kv-heads 8 --mlp swiglu --mlp-columns 14336 --vocabulary 128256 \
        --policy select --offload-states    # Llama 3 8B's shape

Same model: RMSNorm before each block, RoPE, causal attention (scaled_dot_product_attention, by cuDNN where
it works), GELU or SwiGLU, an untied classifier, random tokens, one sequence.  Same states: bf16 weights, fp32
master weights and Adam moments, gradients clipped at norm 1.  Gradients are bf16, as autograd makes them; the
trainer sums its own in fp32.  On the CPU all is fp32, with --threads threads.  The classifier's loss is
computed in chunks of rows, so that logits never exist as a whole, and its gradient in the forward, so that
no product is computed twice.

--states bf16 has weights, gradients and moments in bf16 and no master weights: 8 bytes a parameter, which fits
where 16 do not.  --offload-states keeps the states in host memory: FSDP2 with CPUOffloadPolicy on one rank,
which brings each layer's weights to the device and its gradients back; the CPU updates.

What the backward has of each layer, by --policy:

    keep       all that autograd saves
    recompute  the layer's input; torch.utils.checkpoint recomputes the rest
    select     also the output of attention (selective checkpointing)
    offload    as recompute, and the inputs wait in pinned host memory (save_on_cpu)

--mlp-rows N computes the MLP N rows at a time, each checkpointed.  --compile compiles each layer.

Prints one line of Markdown: the median step after one warm-up, tokens/s, peak memory (on the CPU the
process's largest resident size).  On the CPU also the tokens for each second of processor time, which other
programs disturb less.  Out of memory is a result, not a failure.
"""
import argparse
import contextlib
import math
import os
import resource
import statistics
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less fragmentation

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, CheckpointPolicy

EPSILON = 1e-5  # of the norms, as the trainer's
POLICIES = {"keep": "everything kept", "recompute": "layers recomputed",
            "select": "layers recomputed, attention kept",
            "offload": "layers recomputed, inputs offloaded"}
ATTENTION = {getattr(torch.ops.aten, name).default for name in (
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention_for_cpu")
    if hasattr(torch.ops.aten, name)}


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--tokens", type=int, default=65536)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--hidden", type=int, default=4096)
    p.add_argument("--heads", type=int, default=32)
    p.add_argument("--kv-heads", type=int, default=0, help="0: as many as heads")
    p.add_argument("--vocabulary", type=int, default=50304)
    p.add_argument("--chunk", type=int, default=8192, help="rows of the classifier at a time")
    p.add_argument("--steps", type=int, default=4, help="the first warms up")
    p.add_argument("--policy", choices=list(POLICIES), default="recompute")
    p.add_argument("--mlp", choices=["gelu", "swiglu"], default="gelu")
    p.add_argument("--mlp-columns", type=int, default=0, help="0: four times --hidden")
    p.add_argument("--states", choices=["fp32", "bf16"], default="fp32", help="of AdamW, and master weights")
    p.add_argument("--offload-states", action="store_true", help="in host memory, by FSDP2")
    p.add_argument("--mlp-rows", type=int, default=0, help="rows of the MLP at a time; 0: all")
    p.add_argument("--compile", action="store_true", help="torch.compile each layer")
    p.add_argument("--alone", action="store_true", help="products and attention of a step only")
    p.add_argument("--device", default="cuda")
    p.add_argument("--threads", type=int, default=2, help="of the CPU")
    o = p.parse_args()
    o.kv_heads = o.kv_heads or o.heads
    o.mlp_columns = o.mlp_columns or 4 * o.hidden
    o.type = torch.bfloat16 if o.device == "cuda" else torch.float32
    return o


def synchronize(o):
    if o.device == "cuda":
        torch.cuda.synchronize()


def attention_backends(o):
    """cuDNN's attention where it works, the fastest on Hopper; then FlashAttention."""
    if o.device != "cuda":
        return contextlib.nullcontext()
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    return sdpa_kernel(order, set_priority=True)


def way(o):
    """The name of a row."""
    if o.alone:
        return "products and attention alone"
    chunks = f", MLP in chunks of {o.mlp_rows}" if o.mlp_rows else ""
    states = ", bf16 states without masters" if o.states == "bf16" else ""
    states += ", states in host memory" if o.offload_states else ""
    return ("PyTorch, " + POLICIES[o.policy] + chunks + states +
            (", compiled" if o.compile else ", eager"))


def print_row(o, what, seconds, cpu_seconds=0):
    if o.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    cpu = f" {o.tokens / cpu_seconds:.1f} |" if cpu_seconds else ""
    print(f"| {what} | {o.tokens} | {o.layers} | {seconds * 1e3:.1f} ms | {o.tokens / seconds:.1f} "
          f"| {peak:.2f} GiB |{cpu}")


# ---- the model ----

def rope_tables(o):
    pairs = o.hidden // o.heads // 2
    angles = torch.outer(torch.arange(o.tokens, dtype=torch.float64),
                         10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs))
    return tuple(t.to(o.type).to(o.device) for t in (angles.cos(), angles.sin()))


def rotate(x, tables):
    """x: (tokens, heads, head size); element j turns with element j + size / 2."""
    cos, sin = (t[:, None, :] for t in tables)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Layer(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        h, size = o.hidden, o.hidden // o.heads
        self.mlp_rows = o.mlp_rows
        self.heads, self.kv_heads, self.size = o.heads, o.kv_heads, size
        self.norm1, self.norm2 = (torch.nn.Parameter(torch.ones(h)) for _ in range(2))
        self.q = torch.nn.Linear(h, h, bias=False)
        self.k = torch.nn.Linear(h, o.kv_heads * size, bias=False)
        self.v = torch.nn.Linear(h, o.kv_heads * size, bias=False)
        self.projection = torch.nn.Linear(h, h, bias=False)
        self.up = torch.nn.Linear(h, o.mlp_columns, bias=False)
        self.gate = torch.nn.Linear(h, o.mlp_columns, bias=False) if o.mlp == "swiglu" else None
        self.down = torch.nn.Linear(o.mlp_columns, h, bias=False)

    def forward(self, x, cos, sin):
        y = F.rms_norm(x, x.shape[-1:], self.norm1, EPSILON)
        q = rotate(self.q(y).view(-1, self.heads, self.size), (cos, sin))
        k = rotate(self.k(y).view(-1, self.kv_heads, self.size), (cos, sin))
        v = self.v(y).view(-1, self.kv_heads, self.size)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        x = x + self.projection(y[0].transpose(0, 1).reshape(x.shape))
        if not self.mlp_rows:
            return x + self.mlp(x)
        return x + torch.cat([checkpoint(self.mlp, rows, use_reentrant=False)
                              for rows in x.split(self.mlp_rows)])

    def mlp(self, x):
        y = F.rms_norm(x, x.shape[-1:], self.norm2, EPSILON)
        if self.gate:
            return self.down(F.silu(self.gate(y)) * self.up(y))
        return self.down(F.gelu(self.up(y), approximate="tanh"))


def keep_attention():
    def policy(_context, op, *_args, **_options):
        return (CheckpointPolicy.MUST_SAVE if op in ATTENTION
                else CheckpointPolicy.PREFER_RECOMPUTE)
    return create_selective_checkpoint_contexts(policy)


class ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of x W^T, the mean over rows.  The forward makes the gradients of a chunk while it has
    its logits."""

    @staticmethod
    def forward(context, x, weight, targets, chunk):
        n = len(targets)
        loss = torch.zeros((), dtype=torch.float32, device=x.device)
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        for i in range(0, n, chunk):
            rows, want = x[i:i + chunk], targets[i:i + chunk, None]
            p = (rows @ weight.t()).float()
            log_sum = p.logsumexp(1, keepdim=True)
            loss += (log_sum - p.gather(1, want)).sum()
            p.sub_(log_sum).exp_().scatter_add_(1, want, torch.full_like(want, -1, dtype=p.dtype))
            d_logits = (p / n).to(x.dtype)
            torch.mm(d_logits, weight, out=d_x[i:i + chunk])
            d_weight.addmm_(d_logits.t(), rows)
        context.save_for_backward(d_x, d_weight)
        return loss / n

    @staticmethod
    def backward(context, d_loss):
        d_x, d_weight = context.saved_tensors
        return d_x.mul_(d_loss), d_weight.mul_(d_loss), None, None


class Model(torch.nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o = o
        self.embedding = torch.nn.Embedding(o.vocabulary, o.hidden)
        self.layers = torch.nn.ModuleList(Layer(o) for _ in range(o.layers))
        self.norm = torch.nn.Parameter(torch.ones(o.hidden))
        self.classifier = torch.nn.Linear(o.hidden, o.vocabulary, bias=False)

    def run_layer(self, layer, *inputs):
        if self.o.policy == "keep":
            return layer(*inputs)
        if self.o.policy == "select":
            return checkpoint(layer, *inputs, use_reentrant=False, context_fn=keep_attention)
        if self.o.policy == "offload":
            with torch.autograd.graph.save_on_cpu(pin_memory=self.o.device == "cuda"):
                return checkpoint(layer, *inputs, use_reentrant=True)
        return checkpoint(layer, *inputs, use_reentrant=False)

    def forward(self, tokens, targets, cos, sin):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.run_layer(layer, x, cos, sin)
        x = F.rms_norm(x, x.shape[-1:], self.norm, EPSILON)
        return ChunkedLoss.apply(x, self.classifier.weight, targets, self.o.chunk)


class MasterAdam:
    """AdamW on fp32 copies of bf16 parameters, or on the parameters themselves."""

    def __init__(self, parameters, has_masters):
        self.parameters = list(parameters)
        self.has_masters = has_masters and self.parameters[0].dtype != torch.float32
        self.masters = ([p.detach().float() for p in self.parameters] if self.has_masters
                        else self.parameters)
        self.adam = torch.optim.AdamW(self.masters, lr=1e-3, betas=(0.9, 0.99), eps=1e-8,
                                      weight_decay=0.01,
                                      fused=True)

    def step(self):
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if not self.has_masters:
            self.adam.step()
            self.adam.zero_grad(set_to_none=True)
            return norm
        for p, master in zip(self.parameters, self.masters):
            master.grad = p.grad.float()
            p.grad = None
        self.adam.step()
        for p, master in zip(self.parameters, self.masters):
            p.data.copy_(master)
            master.grad = None
        return norm


def offload_states(o, model):
    """FSDP2 on one rank: what the device has of the model is the layer that computes."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    backend = "cpu:gloo,cuda:nccl" if o.device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    options = {"mesh": dist.init_device_mesh(o.device, (1,)),
               "mp_policy": MixedPrecisionPolicy(param_dtype=o.type, reduce_dtype=o.type),
               "offload_policy": CPUOffloadPolicy(pin_memory=o.device == "cuda")}
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def train(o):
    torch.manual_seed(1)
    if o.device == "cpu":
        torch.set_num_threads(o.threads)
    # Offloaded fp32 states are the parameters themselves: FSDP casts what it brings.
    own_type = torch.float32 if o.offload_states and o.states == "fp32" else o.type
    torch.set_default_dtype(own_type)
    with torch.device("cpu" if o.offload_states else o.device):
        model = Model(o)
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.3f} billion parameters", file=sys.stderr)
    if o.compile:
        for layer in model.layers:
            layer.compile()
    if o.offload_states:
        offload_states(o, model)
    adam = MasterAdam(model.parameters(), o.states == "fp32")
    cos, sin = rope_tables(o)
    generator = torch.Generator().manual_seed(1)
    times, cpu_times = [], []
    for step in range(o.steps):
        text = torch.randint(o.vocabulary, (o.tokens + 1,), generator=generator).to(o.device)
        synchronize(o)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        loss = model(text[:-1], text[1:], cos, sin)
        loss.backward()
        adam.step()
        value = loss.item()  # as the trainer, which returns the loss of every step
        synchronize(o)
        times.append(time.perf_counter() - begin)
        cpu_times.append(time.process_time() - cpu_begin)
        print(f"step {step + 1} of {o.steps}: loss {value:.4f}, {times[-1]:.3f} s", file=sys.stderr)
        if not math.isfinite(value):
            sys.exit("pytorch_gpt.py: the loss is not finite")
    cpu = statistics.median(cpu_times[1:] or cpu_times) if o.device == "cpu" else 0
    print_row(o, way(o), statistics.median(times[1:] or times), cpu)


# ---- products and attention alone ----

def timed(o, run, repetitions=3):
    run()
    synchronize(o)
    begin = time.perf_counter()
    for _ in range(repetitions):
        run()
    synchronize(o)
    return (time.perf_counter() - begin) / repetitions


def alone(o):
    """Forward and backward of one layer's products and attention times layers, and the classifier's."""
    options = {"device": o.device, "dtype": o.type}
    size, h, n = o.hidden // o.heads, o.hidden, o.tokens

    def product(inputs, outputs, rows):
        """y = x W^T, dx = dy W, dW = dy^T x."""
        x, dy = torch.randn(rows, inputs, **options), torch.randn(rows, outputs, **options)
        w = torch.randn(outputs, inputs, **options)
        return [timed(o, run) for run in (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x)]

    kv = o.kv_heads * size
    layer = [product(h, h, n), product(h, kv, n), product(h, kv, n), product(h, h, n),
             product(h, 4 * h, n), product(4 * h, h, n)]
    chunk = min(o.chunk, n)
    classifier = [t * n / chunk for t in product(h, o.vocabulary, chunk)]
    forward = o.layers * sum(p[0] for p in layer)
    backward = o.layers * sum(p[1] + p[2] for p in layer)

    q = torch.randn(1, o.heads, n, size, requires_grad=True, **options)
    k, v = (torch.randn(1, o.kv_heads, n, size, requires_grad=True, **options) for _ in range(2))
    d_out = torch.randn_like(q)

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                              enable_gqa=o.heads != o.kv_heads)

    def attend_back():
        torch.autograd.grad(attend(), (q, k, v), d_out)

    with torch.no_grad():
        attention = o.layers * timed(o, attend)
    both = o.layers * timed(o, attend_back)
    print_row(o, "products and attention alone, forward and backward",
              forward + backward + sum(classifier) + both)
    print_row(o, "the same, with every layer's forward twice",
              2 * forward + backward + sum(classifier) + classifier[0] + both + attention)


def main():
    o = parse()
    if o.device == "cuda" and not torch.cuda.is_available():
        sys.exit("pytorch_gpt.py: no GPU")
    try:
        with attention_backends(o):
            (alone if o.alone else train)(o)
    except torch.OutOfMemoryError:
        print(f"| {way(o)} | {o.tokens} | {o.layers} | out of memory | | |")


if __name__ == "__main__":
    main()
