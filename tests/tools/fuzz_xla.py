#!/usr/bin/env python3
"""fuzz_xla.py - changes a dump of XLA a little: xla_to_csv.py refuses it with one line, or writes buffers that have the lives,
sizes and offsets of all values.  Arguments: tests/support/fuzz.py.  FUZZ_TOOL: another program, for fuzz_planted.py.

A text is the file of buffers, a line `----`, and the file of live ranges."""
import contextlib
import csv
import importlib.util
import io
import os
import re
import sys

sys.path.insert(0, "tests/support")
import fuzz  # noqa: E402

spec = importlib.util.spec_from_file_location("xla_to_csv", os.environ.get("FUZZ_TOOL", "examples/tools/xla_to_csv.py"))
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def values_of(dump):
    """(name, size, offset) of the temporaries, in own words; a heap begins where the one before ends."""
    base, heap, values = 0, 0, []
    is_temp = False
    for line in dump.split("\n"):
        words = line.split()
        if re.match(r"allocation \d+: size \d+, .*:\s*$", line):
            is_temp, base = "preallocated-temp" in line.split(", ", 1)[1], heap
            heap += int(words[3].rstrip(",")) if is_temp else 0
        found = re.match(r" value: <\d+ (\S+) @\d+> \(size=(\d+),offset=(\d+)\)", line)
        if found and is_temp:
            values.append((found[1], int(found[2]), base + int(found[3])))
    return heap, values


def run_tool(*arguments):
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["xla_to_csv", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = tool.main()
    sys.argv = before
    return status, out.getvalue(), err.getvalue()


def target(text):
    dump, _, lives_text = text.replace("\r", "\n").partition("\n----\n")
    paths = [os.path.join(fuzz.folder, "m-buffer-assignment.txt"), os.path.join(fuzz.folder, "m-live-range.txt")]
    for path, part in zip(paths, (dump, lives_text)):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(part)
    status, out, err = run_tool(paths[0], "--offsets")
    if status:
        assert status == 2 and err.startswith("xla_to_csv: ") and err.count("\n") == 1 and not out, (status, out, err)
        return
    assert not err, err

    # Each value lies in one buffer at its offset, for its life; each buffer is as small as that allows, and those at one offset
    # live one after the other.
    heap, values = values_of(dump)
    lives = {}
    for line in lives_text.split("\n"):
        found = re.match(r"    (\S+):(\d+)-(\d+)\s*$", line)
        if found:
            lives[found[1]] = (int(found[2]), int(found[3]))
    first, *rest = out.split("\n")
    assert first == "# XLA's heap: %d bytes" % heap, (first, heap)
    rows = list(csv.DictReader(rest))
    assert values and rows and max(offset + size for _, size, offset in values) >= heap
    wanted = []
    for name, size, offset in values:
        begin, end = lives[name if name.endswith("}") else name + "{}"]
        wanted.append((offset, begin, end + 1, size))
    for row in rows:
        lower, upper, size, offset = (int(row[key]) for key in ("lower", "upper", "size", "offset"))
        inside = [w for w in wanted if w[0] == offset and lower <= w[1] and w[2] <= upper]
        assert row["alignment"] == "64" and lower < upper and inside, row
        assert min(w[1] for w in inside) == lower and max(w[2] for w in inside) == upper, row
        assert max(w[3] for w in inside) == size, row
    for a, b in ((a, b) for k, a in enumerate(rows) for b in rows[k + 1:] if a["offset"] == b["offset"]):
        assert int(a["upper"]) <= int(b["lower"]) or int(b["upper"]) <= int(a["lower"]), (a, b)
    for w in wanted:
        assert sum(int(row["offset"]) == w[0] and int(row["lower"]) <= w[1] and w[2] <= int(row["upper"]) and
                   w[3] <= int(row["size"]) for row in rows) == 1, w


if __name__ == "__main__":
    fuzz.run(target, tool, sys.argv[1:])
