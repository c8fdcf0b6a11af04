#!/usr/bin/env python3
"""fuzz_proofs.py - changes a problem and its proof a little: check_proof.py refuses them in words, or no plan is below the peak,
which has_plan tries.  Arguments: tests/support/fuzz.py.  FUZZ_TOOL: another program, for fuzz_planted.py.

A text is the CSV of the problem, a line `----`, and the proof."""
import csv
import os
import sys

sys.path[:0] = ["tests/support", "tests/tools"]
arguments = sys.argv[1:]
import fuzz  # noqa: E402
sys.argv = ["test_proofs.py", "fuzz", "0", fuzz.folder, os.environ.get("FUZZ_TOOL", "examples/tools/check_proof.py")]
import test_proofs as proofs  # noqa: E402

PROBLEM, PROOF = os.path.join(fuzz.folder, "problem.csv"), os.path.join(fuzz.folder, "problem.proof")


def rows_of(text, align):
    """As the planner reads them."""
    rows = []
    for row in csv.DictReader([line for line in text.split("\n") if line.strip()], skipinitialspace=True):
        gaps = [tuple(map(int, gap.split("-"))) for gap in (row["gaps"] or "").split()]
        offset = int(row["offset"].strip() or -1) if row["offset"] else -1
        size, alignment = int(row["size"]), max(int((row["alignment"] or "").strip() or 1), align)
        rows.append(proofs.Row(int(row["lower"]), int(row["upper"]), -(-size // align) * align, alignment,
                               offset if offset >= 0 else None, gaps))
    return rows


def target(text):
    problem, _, proof = text.partition("\n----\n")
    for path, part in ((PROBLEM, problem), (PROOF, proof)):
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(part)
    try:
        proofs.checker.check(PROBLEM, PROOF)
    except (proofs.checker.Refused, ValueError, TypeError, KeyError, csv.Error):
        return

    # Small ones are tried; all times count from the first.
    align, peak, _ = proofs.checker.read_proof(PROOF)
    rows = rows_of(problem, align)
    first, last = min((row.begin for row in rows), default=0), max((row.end for row in rows), default=0)
    if peak < 1 or peak > 64 or last - first > 16 or len(rows) > 8 or any(row.size > 64 for row in rows):
        return
    moved = [row._replace(begin=row.begin - first, end=row.end - first, gaps=[(a - first, b - first) for a, b in row.gaps])
             for row in rows]
    assert not proofs.has_plan(moved, peak - 1), "there is a plan below %d" % peak


def grown(rng, problem, rows, peak):
    """A proof that the checker has nothing against, line by line, until it accepts it or there are six lines more."""
    proofs.write("true.csv", problem.rstrip("\n").split("\n"))
    lines = []
    for lines, reason in proofs.grown_proofs(rng, len(rows), proofs.sets_of(rows), peak, 6):
        if not reason:
            break
    return lines


def change(rng, text):
    """Most of the time the proof claims more as well, as in test_proofs.py."""
    problem, _, proof = text.partition("\n----\n")
    lines, way = proof.rstrip("\n").split("\n"), rng.randrange(4)
    try:
        peak = int(lines[2].split()[1])
        if len(lines) < 5 or not way:
            raise ValueError
        if way == 1:
            lines = grown(rng, problem, rows_of(problem, 1), peak + rng.randint(0, 2))
        else:
            lines = proofs.changed_lines(rng, lines, problem.count("\n"), peak)
    except (IndexError, ValueError, TypeError, KeyError, csv.Error):
        return fuzz.changed(rng, text)
    return problem + "\n----\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    fuzz.run(target, proofs.checker, arguments, change)
