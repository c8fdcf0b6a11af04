#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_proof.py - checks a proof that no plan of these buffers is smaller, and a plan that meets it.

    check_proof.py PROBLEM.csv PROOF [PLAN.csv]

PROBLEM has the columns id,lower,upper,size; alignment, offset (fixed) and gaps ("3-5 8-9") are optional.  PROOF is what
`plan_trace PROBLEM.csv --proof PROOF` writes.  PLAN is what `--csv PLAN.csv` writes: offsets for the rows of PROBLEM.  For a
trace, the file of --csv is the problem and the plan.

The proof is one line.
    moment T alignment A   The buffers that live at T and have at least alignment A begin at multiples of A.  So each of them but
                           the highest takes its size rounded up to A.  The sum, less the largest rounding, is the peak or more.
    fixed ROW              This row has a fixed offset, and ends at the peak or above.
Shares no code with the planner, and reads each file once.  Exit status: 0 proven; 1 not proven; 2 a file cannot be read.
"""
import csv
import sys


class Refused(Exception):
    """What is wrong with the proof or the plan."""


def up(value, alignment):
    return -(-value // alignment) * alignment


def number(row, name, otherwise=None):
    text = (row.get(name) or "").strip()
    return otherwise if text == "" and otherwise is not None else int(text)


def read_rows(path):
    """The rows of a CSV as dictionaries; lines that begin with # before the heading are comments."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = [line for line in file if line.strip()]
    while lines and lines[0].lstrip().startswith("#"):
        lines.pop(0)
    return list(csv.DictReader(lines, skipinitialspace=True))


def read_buffers(path, align):
    """(begin, end, size, alignment, fixed offset or None, gaps) of each row."""
    buffers = []
    for row in read_rows(path):
        begin, end, size = number(row, "lower"), number(row, "upper"), number(row, "size")
        alignment = max(number(row, "alignment", align), align)
        if size < 0 or begin >= end or alignment & (alignment - 1) or alignment < 1:
            raise ValueError("row %d: no buffer" % len(buffers))
        fixed = number(row, "offset", -1)
        gaps = [tuple(map(int, gap.split("-"))) for gap in (row.get("gaps") or "").split()]
        buffers.append((begin, end, up(size, align), alignment, fixed, gaps))
    return buffers


def read_proof(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.split() for line in file]
    if len(lines) < 4 or lines[0] != ["memo", "proof", "1"] or lines[-1] != ["end"]:
        raise ValueError("not a proof")
    (name, align), (other, peak) = lines[1:3]
    align, peak = int(align), int(peak)
    if name != "align" or other != "peak" or align < 1 or align & (align - 1):
        raise ValueError("not a proof")
    return align, peak, lines[3:-1]


def lives(buffer, time):
    begin, end, _, _, _, gaps = buffer
    return begin <= time < end and not any(a <= time < b for a, b in gaps)


def check_bound(buffers, peak, line, has_plan):
    """No plan is below the peak, by this line of the proof."""
    if line[0] == "moment" and len(line) == 4 and line[2] == "alignment":
        time, alignment = int(line[1]), int(line[3])
        if alignment < 1:
            raise Refused("alignment %d" % alignment)
        live = [b for b in buffers if b[3] % alignment == 0 and lives(b, time)]
        need = sum(up(b[2], alignment) for b in live) - max((up(b[2], alignment) - b[2] for b in live), default=0)
        if need < peak:
            raise Refused("the buffers at %d need %d bytes, below the peak of %d" % (time, need, peak))
        return "%d buffers at %d need %d bytes" % (len(live), time, need)
    if line[0] == "fixed" and len(line) == 2 and not has_plan:
        row = int(line[1])
        if not 0 <= row < len(buffers) or buffers[row][4] < 0 or buffers[row][4] + buffers[row][2] < peak:
            raise Refused("row %d is not fixed, or ends below the peak" % row)
        return "row %d is fixed, and ends at %d" % (row, buffers[row][4] + buffers[row][2])
    raise Refused("unknown line: " + " ".join(line))


def pieces(buffers, offsets):
    """Parts of lives without gaps, as (begin, end, low, high)."""
    for (begin, end, size, _, _, gaps), low in zip(buffers, offsets):
        for a, b in sorted(gaps) + [(end, end)]:
            if begin < a and size > 0:
                yield begin, a, low, low + size
            begin = b


def check_plan(buffers, offsets, peak):
    """The offsets are a plan whose peak is this one."""
    for row, ((_, _, size, alignment, fixed, _), offset) in enumerate(zip(buffers, offsets)):
        if offset < 0 or offset % alignment or (fixed >= 0 and offset != fixed):
            raise Refused("row %d: its offset is negative, not aligned, or not the fixed one" % row)
        if offset + size > peak:
            raise Refused("row %d ends at %d, above the peak of %d" % (row, offset + size, peak))

    # Live pieces in order of address: a piece that begins meets only its neighbors.
    import bisect
    events = []
    for begin, end, low, high in pieces(buffers, offsets):
        events += [(begin, 1, low, high), (end, 0, low, high)]
    live = []
    for time, is_begin, low, high in sorted(events):
        at = bisect.bisect_left(live, (low, high))
        if not is_begin:
            live.pop(at)
            continue
        if (at > 0 and live[at - 1][1] > low) or (at < len(live) and live[at][0] < high):
            raise Refused("two buffers share bytes at %d" % time)
        live.insert(at, (low, high))


def check(problem, proof, plan=None):
    """Returns what was proven, in words; raises Refused if it was not."""
    align, peak, lines = read_proof(proof)
    rows = read_rows(plan) if plan else []
    buffers = read_buffers(problem, align)
    if plan and plan == problem:  # its offsets are the plan's, not fixed ones
        buffers = [b[:4] + (-1,) + b[5:] for b in buffers]
    if len(lines) != 1 and peak > 0:
        raise Refused("a proof has one line")
    words = check_bound(buffers, peak, lines[0], plan is not None and plan == problem) if lines else "nothing to place"
    if plan:
        if len(rows) != len(buffers):
            raise Refused("the plan has %d rows, the problem %d" % (len(rows), len(buffers)))
        check_plan(buffers, [number(row, "offset") for row in rows], peak)
        words += ", and the plan needs no more"
    return "proven: no plan is below %d bytes: %s" % (peak, words)


def main(arguments):
    if len(arguments) not in (2, 3) or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if "-h" in arguments or "--help" in arguments else 2
    try:
        print(check(*arguments))
    except Refused as fault:
        print("not proven: %s" % fault)
        return 1
    except (OSError, ValueError, TypeError, KeyError, csv.Error) as fault:
        print("check_proof: %s" % fault, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
