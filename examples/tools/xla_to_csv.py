#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns XLA's buffer assignment into a CSV of buffers, so that the heap of a compiled step can be planned and compared.

In JAX, or any other client of XLA:

  XLA_FLAGS="--xla_dump_to=dump --xla_dump_hlo_as_text" python3 step.py

Afterwards, with the module of the step:

  python3 examples/tools/xla_to_csv.py dump/module_0008.jit_step.cpu_after_optimizations-buffer-assignment.txt -o step.csv
  build/examples/plan_trace step.csv --svg step.svg

The buffers are those of the heap of temporaries (preallocated-temp), with their lives from the file -live-range.txt beside.
A value lives from its instruction to its last reader, both included.  If XLA computes a value in place of an operand, the two
are one buffer.  The first line names the size of XLA's heap.  With --offsets XLA's own offsets are written too, which
plan_trace then only checks.  Exit: 0 written, 2 bad input, with one line that says why.
"""
import argparse
import re
import sys

ALLOCATION = re.compile(r"allocation \d+: size (\d+), (.*):\s*$")
VALUE = re.compile(r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)")
LIFE = re.compile(r"    (\S+):(\d+)-(\d+)\s*$")


class Refused(Exception):  # with a reason for the user, in one line
    pass


def read_heap(path):
    """Bytes of the heaps of temporaries, and (name, size, offset) of each value; a second heap follows the first."""
    heap, base, values, is_temp = 0, 0, [], False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            allocation, value = ALLOCATION.match(line), VALUE.match(line)
            if allocation:
                is_temp = "preallocated-temp" in allocation[2]
                base, heap = heap, heap + int(allocation[1]) * is_temp
            elif value and is_temp:
                values.append((value[1], int(value[2]), base + int(value[3])))
    if not values:
        raise Refused(f"{path}: no preallocated-temp allocation; a *buffer-assignment.txt of a dump would work")
    end = max(offset + size for _, size, offset in values)
    if end < heap:
        raise Refused(f"{path}: the values end at {end}, the heap at {heap}: the file is cut; dump it again")
    return heap, values


def read_lives(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        found = (LIFE.match(line) for line in file)
        lives = {life[1]: (int(life[2]), int(life[3])) for life in found if life}
    if not lives:
        raise Refused(f"{path}: no BufferLiveRange")
    for name, (begin, end) in lives.items():
        if end < begin:
            raise Refused(f"{path}: {name} ends at {end}, before it begins at {begin}; dump it again")
    return lives


def join(values, lives):
    """Buffers as [name, begin, end, size, offset]: values at one offset, each ending where the next begins, are one."""
    buffers, open_at = [], {}
    for name, size, offset in values:
        life = lives.get(name if name.endswith("}") else name + "{}")
        if life is None:
            raise Refused(f"{name}: no live range")
        buffers.append([name, *life, size, offset])
    joined = []
    for buffer in sorted(buffers, key=lambda b: (b[4], b[1], b[2])):
        last = open_at.get(buffer[4])
        if last and buffer[1] <= last[2]:
            last[2], last[3] = max(last[2], buffer[2]), max(last[3], buffer[3])
        else:
            open_at[buffer[4]] = buffer
            joined.append(buffer)
    return sorted(joined, key=lambda b: (b[1], b[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("assignment", help="a *buffer-assignment.txt of a dump")
    parser.add_argument("--live-range", help="its *live-range.txt (default: beside it)")
    parser.add_argument("--align", type=int, default=64, help="alignment of XLA's offsets in bytes (default 64; GPUs 256)")
    parser.add_argument("--offsets", action="store_true", help="writes XLA's offsets too, to be checked")
    parser.add_argument("-o", "--output", default="-", help="file (default: standard output)")
    options = parser.parse_args()
    try:
        if options.align < 1 or options.align & (options.align - 1):
            raise Refused(f"--align {options.align}: not a power of two")
        heap, values = read_heap(options.assignment)
        beside = options.live_range or options.assignment.replace("-buffer-assignment", "-live-range")
        buffers = join(values, read_lives(beside))
        lines = [f"# XLA's heap: {heap} bytes", "id,lower,upper,size,alignment" + ",offset" * options.offsets]
        for name, begin, end, size, offset in buffers:
            lines.append(f'"{name}",{begin},{end + 1},{size},{options.align}' + f",{offset}" * options.offsets)
        text = "\n".join(lines) + "\n"
        if options.output == "-":
            sys.stdout.write(text)
        else:
            with open(options.output, "w", encoding="utf-8") as file:
                file.write(text)
    except (Refused, OSError) as reason:
        print(f"xla_to_csv: {reason}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
