#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs memo's sessions inside one torch tensor: nothing is taken beside PyTorch's caching allocator.

  python3 examples/pytorch/session_in_tensor.py                # on the GPU if there is one
  python3 examples/pytorch/session_in_tensor.py --device cpu

PyTorch keeps the memory that it has taken, so that memory of another library is missing there, and its cache is
missing in the library.  Here the tensor `block` is the device memory of two sessions and of their trainer, and the
pinned tensor `pinned` their host memory.  The trainer is examples/36_callers_memory.c, built as a library: your own
trainer passes data_ptr() as memo_session_desc.device_memory in the same way.  del block, and PyTorch has the memory again.

Needs PyTorch, and a C compiler, or nvcc for a GPU.  Exit: 0 gradients are those of sessions with memory of their own,
1 they differ, 2 something is missing.
"""
import argparse
import ctypes
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "examples", "36_callers_memory.c")
BLOCK_BYTES = (1 << 20) + 4 * 1024 * 32 * 4 + 16 * 1024 * 4  # SESSION_BYTES + TRAINER_BYTES there
PINNED_BYTES = 4 << 20


def build(folder, is_cuda):
    library = os.path.join(folder, "callers_memory.so")
    compiler = ["nvcc", "-arch=native", "-Xcompiler", "-fPIC", "-x", "cu"] if is_cuda else [
        os.environ.get("CC", "cc"), "-std=c99", "-fPIC", "-pthread"]
    subprocess.run(compiler + ["-O2", "-shared", "-I", ROOT, SOURCE, "-o", library, "-lm"], check=True)
    return ctypes.CDLL(library)


def aligned(tensor):
    """The first address of a tensor that 4096 divides: a tensor may be a part of a segment."""
    return (tensor.data_ptr() + 4095) // 4096 * 4096


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", help="cuda or cpu")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"session_in_tensor: {error}", file=sys.stderr)
        return 2
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    is_cuda = device.startswith("cuda")
    block = torch.empty(BLOCK_BYTES + 4096, dtype=torch.uint8, device=device)
    pinned = torch.empty(PINNED_BYTES + 4096, dtype=torch.uint8, pin_memory=is_cuda)
    if is_cuda:
        torch.cuda.synchronize()  # the allocator's own stream has used these bytes before
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = build(folder, is_cuda).run_in_blocks
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"session_in_tensor: {error}", file=sys.stderr)
            return 2
        run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        status = run(aligned(block), aligned(pinned), PINNED_BYTES)
    if is_cuda:
        print(f"PyTorch counts {torch.cuda.memory_allocated() >> 10} KiB, the block alone")
    return status


if __name__ == "__main__":
    sys.exit(main())
