#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Audits a training step of PyTorch on the CPU: does the backward get the bytes of the forward?

  python3 examples/pytorch/memo_audit.py            # a model with dropout, compiled in a memory budget
  python3 examples/pytorch/memo_audit.py --case checkpoint

Each case trains one step of a small model, and prints what differs: "Tensor 14 of layer 3 differs
after recomputation", "changed between forward and backward", "was never unpacked".  Cases:

  compile      torch.compile with activation_memory_budget below 1 (pytorch#190758)
  checkpoint   torch.utils.checkpoint without the state of the random numbers
  change       a saved activation that is changed in place, unseen by autograd
  clean        torch.utils.checkpoint as it should be

Your own step:

  audit = memo_audit.Audit(layers=model.blocks)
  model = torch.compile(model, backend=audit.backend())     # if it is compiled
  with audit:
      model(x).sum().backward()
  print("\\n".join(audit.findings))

Tensors that autograd saves are numbered in each layer from 0, and apart from them the results of
operations that may be recomputed; a compiled graph is a layer.  memo_hooks.h hashes; a C compiler builds it.  Exit: 0 nothing differs,
1 findings, 2 no PyTorch, compiler or memo.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = "#define MEMO_IMPLEMENTATION\n#define MEMO_HOOKS_IMPLEMENTATION\n#include \"extras/memo_hooks.h\"\n"
WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("line", ctypes.c_int64), ("message", ctypes.c_char * 496)]


class Desc(ctypes.Structure):
    _fields_ = [("device", ctypes.c_void_p), ("compute_stream", ctypes.c_void_p), ("computes_on_host", ctypes.c_int32),
                ("is_checked", ctypes.c_int32), ("device_bytes", ctypes.c_int64), ("host_bytes", ctypes.c_int64),
                ("least_bytes", ctypes.c_int64), ("write", WRITE), ("user", ctypes.c_void_p),
                ("owner_reads_on", ctypes.c_int32)]


def build():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "libmemo_hooks.so")
        subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-I", ROOT,
                        "-o", path, "-lpthread", "-lm"], input=SOURCE.encode(), check=True)
        return ctypes.CDLL(path)


class Hooks:
    """memo_hooks, checked; say receives the findings, those of pack and unpack as those of the log."""

    def __init__(self, library, say):
        self.library, self.say, self.error, self.handle = library, say, Error(), ctypes.c_void_p()
        self.write = WRITE(lambda user, message: say(message.decode()))
        desc = Desc(is_checked=1, write=self.write)
        self.call("create", ctypes.byref(desc), ctypes.byref(self.handle), on=())

    def call(self, name, *arguments, on=None):
        on = (self.handle,) if on is None else on
        if getattr(self.library, "memo_hooks_" + name)(*on, *arguments, ctypes.byref(self.error)):
            message = self.error.message.decode()
            if not message.startswith("Tensor "):  # a finding, which the log has
                raise RuntimeError(message)

    def pack(self, tensor):
        """tensor must be contiguous, and live until it is unpacked."""
        token = ctypes.c_int64()
        address, n_bytes = ctypes.c_void_p(tensor.data_ptr()), tensor.numel() * tensor.element_size()
        self.call("pack", address, ctypes.c_int64(n_bytes), ctypes.byref(token))
        return token

    def unpack(self, token):
        self.call("unpack", ctypes.byref(token), ctypes.c_int64(1), ctypes.byref(ctypes.c_void_p()))

    def compare(self, token, tensor):
        self.call("compare", token, ctypes.c_void_p(tensor.data_ptr()))


def is_hashed(value):
    import torch
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided


class Audit:
    """layers: modules whose forwards begin in this order.  Their operations are watched, too."""

    def __init__(self, layers=()):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(mode, function, types, arguments=(), options=None):
                output = function(*arguments, **(options or {}))
                for tensor in torch.utils._pytree.tree_leaves(output):
                    self.operation(str(function), tensor)
                return output

        self.torch, self.findings, self.what, self.n_compared, library = torch, [], None, 0, build()
        # What autograd saves; and what is computed twice, of which only a difference matters.
        self.saved = Hooks(library, self.find)
        self.again = Hooks(library, lambda line: None if "never" in line else self.find(line))
        self.hooks = [torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)]
        if layers:
            self.hooks.append(Operations())
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda module, inputs, number=number: self.layer_begins(number))
            layer.register_forward_hook(lambda module, inputs, output: self.layer_ends(), always_call=True)

    def find(self, line):
        self.findings.append(line + (f": {self.what}" if self.what else ""))

    def is_backward(self):
        return self.torch._C._current_graph_task_id() != -1

    def set_layer(self, layer):
        for hooks in self.saved, self.again:
            hooks.call("set_layer", ctypes.c_int32(layer))

    def __enter__(self):
        self.n_layers, self.layer, self.graphs, self.outputs = 0, None, {}, {}
        self.saved.call("begin")
        self.again.call("begin")
        for hooks in self.hooks:
            hooks.__enter__()
        return self

    def __exit__(self, *reason):
        for hooks in reversed(self.hooks):
            hooks.__exit__(*reason)
        if reason[0] is None:
            self.saved.call("end")
            self.again.call("end")

    # Autograd gets back the tensor itself.
    def pack(self, tensor):
        if self.is_backward() or not is_hashed(tensor) or not tensor.is_contiguous():
            return tensor, None
        return tensor, self.saved.pack(tensor)

    def unpack(self, packed):
        tensor, token = packed
        if token is not None:
            self.saved.unpack(token)
        return tensor

    # A layer in the forward, and again when a checkpoint recomputes it, up to what the backward needs.
    def layer_begins(self, number):
        self.layer = number
        if not self.is_backward():
            self.outputs[number] = []
            self.set_layer(number)

    def layer_ends(self):
        self.layer = None
        if not self.is_backward():
            self.set_layer(-1)

    def operation(self, name, tensor):
        if self.layer is None or not is_hashed(tensor) or "empty" in name:  # not yet written
            return
        outputs, tensor = self.outputs[self.layer], tensor.detach().contiguous()
        if not self.is_backward():
            outputs.append((name, self.again.pack(tensor)))
        elif outputs and outputs[0][0] == name:
            self.compare(outputs.pop(0)[1], tensor, name)

    def compare(self, token, tensor, name):
        self.what = name
        self.n_compared += 1
        self.again.compare(token, tensor)
        self.what = None

    # A graph's values that the partitioner of torch.compile lets its backward compute again.
    def backend(self):
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table
        from torch.fx.node import _side_effectful_functions

        def graph_begins(graph):
            self.set_layer(self.n_layers)
            self.n_layers += 1
            self.graphs.setdefault(graph, []).append({})

        def value(graph, name, tensor):
            if is_hashed(tensor):
                self.graphs[graph][-1][name] = self.again.pack(tensor.contiguous())

        def value_again(graph, name, tensor):
            token = self.graphs[graph][-1].get(name) if self.graphs.get(graph) else None
            if token is not None:
                self.compare(token, tensor.contiguous(), name)

        def graph_ends(graph):
            self.graphs[graph].pop()

        def partition(joint, inputs, **options):
            forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
            key = f"graph {id(forward)}"
            names = [{node.name for node in half.graph.nodes if node.op == "call_function"} for half in (forward, backward)]
            for half, begin, see, end in (forward, graph_begins, value, None), (backward, None, value_again, graph_ends):
                nodes = list(half.graph.nodes)
                for node in nodes:
                    if node.op == "call_function" and node.name in names[0] & names[1]:
                        with half.graph.inserting_after(node):
                            half.graph.call_function(see, (key, node.name, node))
                first = next(node for node in nodes if node.op != "placeholder")
                with half.graph.inserting_before(first if begin else nodes[-1]):
                    half.graph.call_function(begin or end, (key,))
                half.recompile()
            return forward, backward

        _side_effectful_functions.update((graph_begins, value, value_again, graph_ends))
        return aot_autograd(fw_compiler=lambda module, inputs: make_boxed_func(module.forward), partition_fn=partition,
                            decompositions=select_decomp_table)


def demonstrate(case, budget, dropout):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout)) for _ in range(4))
    audit = Audit(layers=() if case == "compile" else blocks)
    runs = list(blocks)
    if case == "compile":
        import torch._functorch.config as config
        config.activation_memory_budget = budget
        runs = [torch.compile(block, backend=audit.backend()) for block in blocks]
    elif case in ("checkpoint", "clean"):
        def checkpointed(block):
            return lambda x: checkpoint(block, x, use_reentrant=False, preserve_rng_state=case == "clean")
        runs = [checkpointed(block) for block in blocks]
    with audit:
        x = torch.randn(16, 64, requires_grad=True)
        for k, run in enumerate(runs):
            before, x = x, run(x)
            if case == "change" and k == 2:
                before.data[0, 0] += 1  # layer 2 has saved it
        x.sum().backward()
    return audit.findings, audit.n_compared


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=("compile", "checkpoint", "change", "clean"), default="compile")
    parser.add_argument("--budget", type=float, default=0.0, help="activation_memory_budget of compile (default 0)")
    parser.add_argument("--dropout", type=float, default=0.5, help="of each block (default 0.5)")
    options = parser.parse_args()
    try:
        import torch
        findings, n_compared = demonstrate(options.case, options.budget, options.dropout)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        print(f"memo_audit: {error}", file=sys.stderr)
        return 2
    for line in findings:
        print(line)
    print(f"{options.case}, PyTorch {torch.__version__}: {len(findings)} findings; {n_compared} tensors were recomputed")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
