"""The cases of test_proofs.sh: test_proofs.py CASE SEED FOLDER [CHECKER].

A proof is false if has_plan, which tries all offsets, finds a plan below the peak that the proof claims."""
import collections
import functools
import importlib.util
import os
import pathlib
import random
import subprocess
import sys

case, seed, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
spec = importlib.util.spec_from_file_location("check_proof", (sys.argv[4:] or ["examples/tools/check_proof.py"])[0])
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)

TOOL = "build/examples/plan_trace"
HEADING = "id,lower,upper,size,alignment,offset,gaps"


def n_cases(few, most):
    """As memo_test_cases in tests/support/memo_test.h."""
    wanted = os.environ.get("MEMO_TEST_ALL", "")
    parts = int(wanted.partition("/")[2] or 1)
    return max(few, most // parts) if wanted else few


def write(name, lines):
    with open(folder / name, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return str(folder / name)


def verdict(*files):
    """Why the proof of a problem is refused, or its plan; "" if both are accepted."""
    try:
        checker.check(*files)
    except (checker.Refused, ValueError) as reason:
        return str(reason)
    return ""


# A row of a problem.  offset: None, or where it is fixed.  gaps: pairs.
Row = collections.namedtuple("Row", "begin end size alignment offset gaps")


def text_of(rows):
    return [HEADING] + ["%d,%d,%d,%d,%d,%s,%s" % (
        i, row.begin, row.end, row.size, row.alignment, "" if row.offset is None else row.offset,
        " ".join("%d-%d" % gap for gap in row.gaps)) for i, row in enumerate(rows)]


def has_plan(rows, peak):
    """Tries all offsets.  A byte at a moment is a bit, and each row takes those that it needs."""
    last = max(row.end for row in rows)
    rows = sorted(rows, key=lambda row: (row.begin, row.end))
    moments = [[t for t in range(row.begin, row.end) if not any(a <= t < b for a, b in row.gaps)] for row in rows]
    later = [sum(((1 << peak) - 1) << t * peak for t in range(last) if any(t in m for m in moments[k:]))
             for k in range(len(rows) + 1)]

    @functools.lru_cache(maxsize=None)
    def fits(k, taken):
        if k == len(rows):
            return True
        row = rows[k]
        bits = sum(((1 << row.size) - 1) << t * peak for t in moments[k])
        offsets = range(0, peak - row.size + 1, row.alignment) if row.offset is None else [row.offset]
        return any(offset + row.size <= peak and not taken & bits << offset and
                   fits(k + 1, (taken | bits << offset) & later[k + 1]) for offset in offsets)

    return peak >= 0 and fits(0, 0)


def random_problem(rng):
    """Few rows, of which a search often needs more bytes than live at a moment."""
    rows, n_times = [], rng.randint(2, 7)
    biggest, coarsest = rng.choice((3, 5, 8)), rng.choice((0, 1, 2, 2, 3))
    for _ in range(rng.randint(3, 7)):
        begin = rng.randrange(n_times)
        end = rng.randint(begin + 1, n_times)
        gaps = []
        if end - begin > 2 and rng.random() < 0.5:
            gap = rng.randint(begin, end - 2)
            gaps = [(gap, rng.randint(gap + 1, end - 1))]
        alignment = 1 << rng.randint(0, coarsest)
        offset = alignment * rng.randint(0, 8 // alignment) if rng.random() < 0.15 else None
        rows.append(Row(begin, end, rng.randint(rng.random() > 0.1, biggest), alignment, offset, gaps))
    return rows


def is_plan(rows, offsets, peak):
    used = set()
    for row, offset in zip(rows, offsets):
        cells = {(t, byte) for t in range(row.begin, row.end) if not any(a <= t < b for a, b in row.gaps)
                 for byte in range(offset, offset + row.size)}
        if cells & used or offset % row.alignment or offset < 0 or row.offset not in (None, offset) or offset + row.size > peak:
            return False
        used |= cells
    return True


def planned(rows):
    """The lines of the proof that the planner writes, and its offsets; None if these rows have no plan.  Leaves true.csv,
    true.proof and plan.csv."""
    done = subprocess.run([TOOL, write("true.csv", text_of(rows)), "--quiet", "--proof", str(folder / "true.proof"), "--csv",
                           str(folder / "plan.csv")], capture_output=True, text=True)
    if "share bytes" in done.stderr:
        return None
    assert done.returncode == 0, (rows, done.stderr)
    return ((folder / "true.proof").read_text(encoding="utf-8").split("\n")[:-1],
            [int(row["offset"]) for row in checker.read_rows(str(folder / "plan.csv"))])


def random_line(rng, n_rows, n_sets, peak):
    kind = rng.choice("wllkkfpp)sdm")
    number = {"w": (n_sets, n_sets + 1), "l": (n_sets, n_rows, peak), "k": (n_rows, peak), "f": (peak,), "p": (n_rows,),
              ")": (), "s": (n_sets,), "d": (), "m": (9,)}[kind]
    numbers = [rng.randrange(-(rng.random() < 0.02), most + 1) for most in number]
    if kind in "lk" and rng.random() < 0.4 or rng.random() < 0.03:
        numbers = numbers[:-1]
    return " ".join([kind, *map(str, numbers)])


def changed_lines(rng, lines, n_rows, peak):
    """One to three changes of a proof behind its first line; its end stays.  Most of the time it claims more as well."""
    lines = lines[:]
    n_sets = sum(line.startswith("set") for line in lines)
    if rng.random() < 0.8:
        lines[2] = "peak %d" % (peak + rng.randint(1, 2))
    for _ in range(rng.randint(1, 3)):
        at, other = rng.randrange(3, len(lines)), rng.randrange(3, len(lines))
        way = rng.randrange(6)
        if way == 0:
            lines.insert(other, lines[at])
        elif way == 1 and at < len(lines) - 1:
            del lines[at]
        elif way == 2 and max(at, other) < len(lines) - 1:
            lines[at], lines[other] = lines[other], lines[at]
        elif way == 3:
            lines.insert(at, random_line(rng, n_rows, n_sets, peak + 2))
        else:  # a number, also that of `align`
            at = rng.randrange(1, len(lines))
            words = lines[at].split()
            numbers = [k for k, word in enumerate(words) if word.lstrip("-").isdigit()]
            if numbers:
                k = rng.choice(numbers)
                words[k] = str(int(words[k]) + rng.choice((-2, -1, -1, 1, 1, 2)))
                lines[at] = " ".join(words)
    return lines


def changed_rows(rng, rows):
    """One change of a problem."""
    rows = rows[:]
    at = rng.randrange(len(rows))
    row = rows[at]
    way = rng.randrange(7)
    if way == 0:
        row = row._replace(size=max(row.size + rng.choice((-2, -1, 1)), 0))
    elif way == 1:
        row = row._replace(alignment=max(row.alignment * rng.choice((1, 2)) // 2, 1))
    elif way == 2:
        row = row._replace(begin=min(row.begin + 1, row.end - 1), gaps=[])
    elif way == 3:
        row = row._replace(end=max(row.end - 1, row.begin + 1), gaps=[])
    elif way == 4:
        row = row._replace(gaps=[] if row.gaps or row.end - row.begin < 3 else [(row.begin + 1, row.begin + 2)])
    elif way == 5:
        row = row._replace(offset=None if row.offset is not None else row.alignment * rng.randint(0, 3))
    elif len(rows) > 3:
        del rows[at]
        return rows
    rows[at] = row._replace(offset=None if row.offset is None else row.offset // row.alignment * row.alignment)
    return rows


def sets_of(rows):
    """A line for the rows that live at a moment at which a row begins or its gap ends."""
    moments = sorted({row.begin for row in rows} | {end for row in rows for _, end in row.gaps})
    live = [[i for i, row in enumerate(rows) if row.size > 0 and row.begin <= t < row.end and
             not any(a <= t < b for a, b in row.gaps)] for t in moments]
    return ["set " + " ".join(map(str, members)) for members in live if members]


def grown_proofs(rng, n_rows, sets, peak, n_tries):
    """Proofs of true.csv that grow line by line: a line stays if the checker has nothing against it.  Lines that end a branch
    come first.  Yields each proof and its verdict."""
    lines, n_nodes, n_open = [], 1, 0
    for _ in range(n_tries):
        enders = [")"] * (n_open > 0) + ["d"] + ["s %d" % s for s in range(len(sets))] + ["m %d" % n for n in range(1, n_nodes)]
        for line in rng.sample(enders, min(6, len(enders))) + [random_line(rng, n_rows, len(sets) - 1, peak) for _ in range(9)]:
            proof = ["memo proof 1", "align 1", "peak %d" % peak, *sets, "search", *lines, line, "end"]
            reason = verdict(str(folder / "true.csv"), write("grown.proof", proof))
            yield proof, reason
            if reason == "the search does not fail":
                lines.append(line)
                n_nodes += line[0] in "pw"
                n_open += (line[0] == "p") - (line[0] == ")")
                break
        else:
            lines, n_nodes, n_open = [], 1, 0


def mutants():
    """No proof that claims too much is accepted: a true proof with changes, that of a changed problem, or one that grew.  All
    that the planner writes are."""
    rng, n_mutants = random.Random(seed), n_cases(2500, 50000)
    n, lines_of = collections.Counter(), collections.Counter()

    def judge(rows, proof, reason, optimum=0):
        n["mutants"] += 1
        n["accepted"] += not reason
        if reason:
            return
        align, peak = (int(line.split()[1]) for line in proof[1:3])
        if align > 1:
            rows = [row._replace(size=-(-row.size // align) * align, alignment=max(row.alignment, align)) for row in rows]
        if (align > 1 or peak > optimum) and has_plan(rows, peak - 1):
            n["false"] += 1
            print("accepted, but there is a plan below %d:" % peak, *text_of(rows), *proof, sep="\n")

    while n["mutants"] < n_mutants:
        rows = random_problem(rng)
        made = planned(rows)
        if made is None or "search" not in made[0] and rng.random() < 0.8:
            continue
        lines, offsets = made
        problem, proof, plan = (str(folder / name) for name in ("true.csv", "true.proof", "plan.csv"))
        peak = int(lines[2].split()[1])
        n["problems"] += 1
        lines_of.update(line.split()[0] for line in lines[3:-1])
        assert verdict(problem, proof, plan) == "", (rows, lines)
        assert is_plan(rows, offsets, peak) and not has_plan(rows, peak - 1), (rows, peak)

        for _ in range(40):
            mutant = changed_lines(rng, lines, len(rows), peak)
            judge(rows, mutant, verdict(problem, write("mutant.proof", mutant)), peak)
        for _ in range(20):
            changed = changed_rows(rng, rows)
            judge(changed, lines, verdict(write("mutant.csv", text_of(changed)), proof))
        for mutant, reason in grown_proofs(rng, len(rows), sets_of(rows), peak + 1, 12):
            judge(rows, mutant, reason, peak)

        # A plan that is none is refused as well.
        for _ in range(10):
            at = rng.randrange(len(rows))
            moved = offsets[:at] + [offsets[at] + rng.choice((-4, -2, -1, 1, 2, 4))] + offsets[at + 1:]
            reason = verdict(problem, proof, write("moved.csv", ["offset", *map(str, moved)]))
            assert (reason == "") == is_plan(rows, moved, peak), (rows, moved, reason)
    print(", ".join("%s %d" % pair for pair in n.items()), "; lines of true proofs:", dict(lines_of))
    assert n["false"] == 0


# Three rows that live together, one that lives alone, and the head of a proof of the three.
THREE = """
0,0,2,3,1,,
1,0,2,4,4,,
2,0,2,4,4,,"""
ALONE = """
3,5,6,1,1,,"""
HEAD = """
memo proof 1
align 1
peak 12
set 0 1 2
"""

# False proofs, each with the reason.
FALSE = {
    "s on a set of which all rows are placed": ("""
0,0,2,10,1,,""", """
memo proof 1
align 1
peak 1000
set 0
search
p 0
s 0
)
d
end"""),
    "s on sets of which all rows are placed, behind two rows": ("""
0,0,2,10,1,,
1,1,3,10,1,,""", """
memo proof 1
align 1
peak 1000
set 0 1
search
p 0
p 1
s 0
)
d
)
p 1
p 0
s 0
)
d
)
d
end"""),
    "a part without rows": (THREE, HEAD + """search
p 0
w 0 0
s 0
)
w 0 0
m 2
end"""),
    "s on rows outside the part": (THREE + ALONE, HEAD + """set 3
search
p 0
w 1 2
s 0
)
w 1 2
m 2
end"""),
    "l on rows outside the part": (THREE + ALONE, HEAD + """set 3
search
p 0
w 1 2
l 0 1
)
w 1 2
m 2
end"""),
    "k on a row outside the part": (THREE + ALONE, HEAD + """set 3
search
p 0
p 1
)
w 1 2
k 1
)
w 1 2
m 3
end"""),
    "a fixed row of no bytes as an obstacle": ("""
0,0,2,4,1,,
1,0,2,0,1,3,
2,0,2,4,1,6,""", """
memo proof 1
align 1
peak 13
set 0 1 2
search
s 0
end"""),
}


def false_proofs():
    for name, (rows, proof) in FALSE.items():
        assert verdict(write("false.csv", [HEADING + rows]), write("false.proof", [proof.strip()])), "accepted: " + name


def refused_lines():
    """A line with a number too many or too few, before the search or in it."""
    rows = [Row(0, 2, 3, 4, None, []), Row(0, 2, 3, 8, None, []), Row(0, 2, 3, 4, None, []), Row(0, 2, 2, 8, None, [])]
    lines, _ = planned(rows)
    problem = str(folder / "true.csv")
    assert "search" in lines and verdict(problem, str(folder / "true.proof")) == ""
    for at in range(lines.index("search"), len(lines)):
        wrong = lines[:at] + [lines[at] + " 0 0"] + lines[at + 1:]
        assert verdict(problem, write("wrong.proof", wrong)), wrong


def unread_problems():
    """Rows that the planner refuses are no problem: an offset that is not aligned, a gap outside the life."""
    proof = write("any.proof", ["memo proof 1", "align 1", "peak 4", "moment 1 alignment 1", "end"])
    for row, status in (("0,0,9,4,4,8,2-3", 0), ("0,0,9,4,4,6,", 2), ("0,0,9,4,4,-8,", 2), ("0,2,9,4,4,,1-3", 2),
                        ("0,0,9,4,4,,3-3", 2), ("0,0,9,4,4,,5-10", 2)):
        done = subprocess.run([sys.executable, checker.__file__, write("any.csv", [HEADING, row]), proof], capture_output=True)
        assert done.returncode == status, (row, done)


if __name__ == "__main__":
    globals()[case]()
