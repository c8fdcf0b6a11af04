#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""check_proof.py - checks a proof that no plan of these buffers is smaller, and a plan that meets it.

    check_proof.py PROBLEM.csv PROOF [PLAN.csv]

PROBLEM has the columns id,lower,upper,size; alignment, offset (fixed) and gaps ("3-5 8-9") are optional.  PROOF is what
`plan_trace PROBLEM.csv --proof PROOF` writes.  PLAN is what `--csv PLAN.csv` writes: offsets for the rows of PROBLEM.  For a
trace, the file of --csv is the problem and the plan.

The second line of PROOF, `align A`, is that of `plan_trace --align A`: sizes are rounded up to A, and the verdict says so.  Then the
proof is one line,
    moment T alignment A   The buffers that live at T and have at least alignment A begin at multiples of A.  So each of them but
                           the highest takes its size rounded up to A.  The sum, less the largest rounding, is the peak or more.
    fixed ROW              This row has a fixed offset, and ends at the peak or above.
    size ROW               This row has the bytes of the peak, or more.
or sets of rows that overlap pairwise, and a failed search for a plan below the peak.  If there is one, then also one whose offsets
have the least sum: each row lies at 0, on top of a row below, or where it is fixed.  So rows are placed upwards, each at its
*minimum*, on top of the placed rows that it overlaps.  No row lies below its *bound*; a *first* row is below all unplaced rows
that it overlaps, and a *blocked* row is not first.  The *part* is the unplaced rows that a rule may look at; at first it is all.
No other unplaced row overlaps a row of the part.  Each line says why it holds in this plan:
    set ROW ...            Every two rows of a set overlap; every two rows that overlap are in a set.  Rows of a set have bytes, so
                           of two rows one lies above the other.  Sets are numbered from 0.
    w A B                  The part becomes its rows in sets A to B - 1.  These are in no other set.  If they have no plan, then
                           there is no plan of all rows.
    l S ROW [BOUND]        ROW is not the lowest of set S: its bound is too high, or the others do not fit above it.  So it lies
                           above a row that can be the lowest, and begins at BOUND or above, where one of these ends at the
                           earliest.  Without BOUND: it fits nowhere.
    k ROW [BOUND]          ROW is blocked: a row that it overlaps lies below it.  So it is not the lowest in one of its sets, and
                           begins at BOUND or above: likewise.
    f BOUND                The lowest row of the part is first, at its minimum: BOUND at least, and so is every other row.
    p ROW ... )            If ROW is first, then the least sum puts it on top of placed rows.  The lines up to ) show that this
                           fails.  From there on ROW is blocked, until a row that it overlaps is placed.
    s S                    Fails: no row of set S can be the lowest, or the rows from one of their bounds up do not fit below the
                           peak.
    d                      Fails: no row can be first, but the lowest row is.  Or a row could end below all others, so the
                           offsets have not the least sum.
    m N                    Fails: the part's minimums, bounds and blocks are those with which the N-th p or w began, which has
                           failed.  Nothing else decides whether a part has a plan.
A rule refuses a row or a set outside the part, a set whose rows are all placed, and a number that it does not need.
Shares no code with the planner, and reads each file once.  Exit status: 0 proven; 1 not proven; 2 a file cannot be read.
"""
import bisect
import copy
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
        if fixed < -1 or fixed > 0 and fixed % alignment or any(not begin <= a < b <= end for a, b in gaps):
            raise ValueError("row %d: its offset is not aligned, or a gap leaves its life" % len(buffers))
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


def need(sizes, alignment):
    """The bytes of sizes on top of each other, each at a multiple of the alignment."""
    return sum(up(size, alignment) for size in sizes) - max((up(size, alignment) - size for size in sizes), default=0)


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
        least = need([b[2] for b in live], alignment)
        if least < peak:
            raise Refused("the buffers at %d need %d bytes, below the peak of %d" % (time, least, peak))
        return "%d buffers at %d need %d bytes" % (len(live), time, least)
    if line[0] == "fixed" and len(line) == 2 and not has_plan:
        row = int(line[1])
        if not 0 <= row < len(buffers) or buffers[row][4] < 0 or buffers[row][4] + buffers[row][2] < peak:
            raise Refused("row %d is not fixed, or ends below the peak" % row)
        return "row %d is fixed, and ends at %d" % (row, buffers[row][4] + buffers[row][2])
    if line[0] == "size" and len(line) == 2:
        row = int(line[1])
        if not 0 <= row < len(buffers) or buffers[row][2] < peak:
            raise Refused("row %d has not the bytes of the peak" % row)
        return "row %d has %d bytes" % (row, buffers[row][2])
    raise Refused("unknown line: " + " ".join(line))


# How many numbers each line of a search has.
NUMBERS = {"w": (2,), "l": (2, 3), "k": (1, 2), "f": (1,), "p": (1,), ")": (0,), "s": (1,), "d": (0,), "m": (1,)}


class Search:
    """The rows in the sets of a proof, and what is known of them on the way; bytes.  No plan may end above `most`."""

    def __init__(self, buffers, sets, most):
        self.most, self.sets, self.stacks = most, sets, {}
        self.rows = sorted(set().union(*sets))
        self.size = {i: buffers[i][2] for i in self.rows}
        self.alignment = {i: buffers[i][3] for i in self.rows}
        self.fixed = {i: buffers[i][4] for i in self.rows}
        self.sets_of = {i: [s for s, rows in enumerate(sets) if i in rows] for i in self.rows}
        self.near = {i: set().union(*(sets[s] for s in self.sets_of[i])) - {i} for i in self.rows}
        if any((j in self.near[i]) != overlap(buffers[i], buffers[j]) for i in self.rows for j in self.rows if i < j):
            raise Refused("two rows are not in a set exactly if they overlap")
        if not all(self.size.values()):
            raise Refused("a row of a set has no bytes")
        self.minimum = {i: max(self.fixed[i], 0) for i in self.rows}
        self.bound = {i: self.clear(i, self.minimum[i]) for i in self.rows}
        self.blocked, self.unplaced, self.part, self.has_failed = set(), set(self.rows), set(self.rows), False

    def state(self):
        return {i: (self.minimum[i], self.bound[i], i in self.blocked) for i in self.part & self.unplaced}

    def members(self, s):
        """The unplaced rows of a set: at least one, and all in the part."""
        rows = self.sets[s] & self.unplaced if 0 <= s < len(self.sets) else frozenset()
        if not rows or not rows <= self.part:
            raise Refused("set %d has no row, or a row outside the part" % s)
        return rows

    def clear(self, i, offset):
        """The lowest offset for a row, from this one on, that is aligned and clear of fixed rows."""
        if self.fixed[i] >= 0:
            return offset
        offset = up(offset, self.alignment[i])
        for low, high in sorted((self.fixed[j], self.fixed[j] + self.size[j]) for j in self.near[i] if self.fixed[j] >= 0):
            if low < offset + self.size[i] and high > offset:
                offset = up(high, self.alignment[i])
        return offset

    def fits(self, i, offset):
        return (offset <= self.fixed[i] or self.fixed[i] < 0) and self.clear(i, offset) + self.size[i] <= self.most

    def lift(self, i, bound):
        """The row does not begin below the bound."""
        if bound > self.bound[i]:
            self.has_failed |= not self.fits(i, bound)
            self.bound[i] = self.clear(i, bound)

    def latest(self, rows):
        """Where the lowest of these rows, which overlap, begins at the latest: of a few rows in the best order."""
        if rows not in self.stacks:
            alignments = {self.alignment[i] for i in rows}
            if not rows or len(alignments) == 1 or len(rows) > 16:
                least = min(alignments, default=1)
                self.stacks[rows] = (self.most - need([self.size[i] for i in rows], least)) // least * least if rows else self.most
            else:
                self.stacks[rows] = max((self.latest(rows - {i}) - self.size[i]) // self.alignment[i] * self.alignment[i]
                                        for i in rows)
        return self.stacks[rows]

    def can_be_lowest(self, i, rows):
        return self.bound[i] <= self.latest(rows) and self.bound[i] + self.size[i] <= self.latest(rows - {i})

    def lowest(self, s, i):
        """The rows but i that can be the lowest of set s, and whether i can."""
        rows = self.members(s)
        return [j for j in rows if j != i and self.can_be_lowest(j, rows)], self.can_be_lowest(i, rows)

    def above(self, i, rows, bound=None):
        """The row lies above one of these."""
        ends = [max(self.bound[j] + self.size[j], self.bound[i]) for j in rows]
        if any(self.fits(i, end) if bound is None else self.clear(i, end) < bound for end in ends):
            raise Refused("row %d may lie lower" % i)
        self.has_failed = bound is None
        self.bound[i] = max(self.bound[i], bound or 0)

    def floor(self):
        return min((self.minimum[i] for i in self.part & self.unplaced
                    if i not in self.blocked and self.bound[i] == self.minimum[i]), default=self.most + 1)

    def place(self, i):
        if i not in self.part & self.unplaced or i in self.blocked or self.bound[i] != self.minimum[i]:
            raise Refused("row %d cannot be first" % i)
        top = self.minimum[i] + self.size[i]
        self.unplaced.discard(i)
        for j in sorted(self.near[i] & self.unplaced):
            self.blocked.discard(j)
            if top > self.minimum[j]:
                self.minimum[j] = up(top, self.alignment[j])
                self.lift(j, self.minimum[j])

    def step(self, kind, numbers):
        """A line of the search that opens and ends nothing, and remembers nothing."""
        if kind == "l":
            others, is_lowest = self.lowest(numbers[0], numbers[1])
            if numbers[1] not in self.members(numbers[0]) or is_lowest:
                raise Refused("row %d may be the lowest of set %d" % (numbers[1], numbers[0]))
            self.above(numbers[1], others, *numbers[2:])
        elif kind == "k":
            if numbers[0] not in self.blocked & self.unplaced & self.part:
                raise Refused("row %d is not blocked, or outside the part" % numbers[0])
            others = [j for s in self.sets_of[numbers[0]] for j in self.lowest(s, numbers[0])[0]]
            self.above(numbers[0], others, *numbers[1:])
        elif kind == "f":
            if self.floor() < numbers[0]:
                raise Refused("the floor is %d" % self.floor())
            for i in self.part & self.unplaced:
                self.lift(i, numbers[0])
        elif kind == "s":
            rows = sorted(self.members(numbers[0]), key=lambda i: self.bound[i])
            if any(self.can_be_lowest(i, frozenset(rows)) for i in rows) and all(
                    self.bound[i] <= self.latest(frozenset(rows[k:])) for k, i in enumerate(rows)):
                raise Refused("set %d fits" % numbers[0])
            self.has_failed = True
        elif kind == "d":
            floor, rows = self.floor(), self.part & self.unplaced
            if not rows or floor <= self.most and all(self.fixed[i] >= 0 or self.minimum[i] + self.size[i] > floor for i in rows):
                raise Refused("a row can be first at %d" % floor)
            self.has_failed = True
        else:  # w
            if not 0 <= numbers[0] < numbers[1] <= len(self.sets):
                raise Refused("no sets %d to %d" % (numbers[0], numbers[1] - 1))
            inside = set().union(*self.sets[numbers[0]:numbers[1]])
            outside = set().union(*self.sets[:numbers[0]], *self.sets[numbers[1]:])
            if inside & outside & self.unplaced:
                raise Refused("a row is in the part and outside")
            self.part = self.part & inside
            if not self.part & self.unplaced:
                raise Refused("the part has no row")


def overlap(a, b):
    """Is there a moment at which both buffers live?"""
    times = [a[0], b[0]] + [end for _, end in a[5] + b[5]]
    return any(lives(a, time) and lives(b, time) for time in times)


def check_search(buffers, peak, lines):
    """No plan is below the peak, because the search for one fails."""
    sets = [frozenset(map(int, line[1:])) for line in lines if line[0] == "set"]
    steps = [(line[0], list(map(int, line[1:]))) for line in lines[len(sets) + 1:]]
    if not sets or lines[len(sets)] != ["search"] or not all(rows and rows <= set(range(len(buffers))) for rows in sets):
        raise Refused("no search")
    search, wanted = Search(buffers, sets, peak - 1), {numbers[0] for kind, numbers in steps if kind == "m"}
    states, failed, open_nodes, n_nodes = {0: search.state()}, set(), [([0], -1, ())], 1
    for kind, numbers in steps:
        if len(numbers) not in NUMBERS.get(kind, ()):
            raise Refused("unknown line: " + " ".join([kind, *map(str, numbers)]))
        if search.has_failed != (kind == ")"):
            raise Refused("a branch goes on after its failure, or does not fail")
        if kind == ")":
            nodes, i, (search.minimum, search.bound, search.blocked, search.unplaced, search.part) = open_nodes.pop()
            failed.update(nodes)
            search.blocked.add(i)
            search.has_failed = False
        elif kind == "m":
            if numbers[0] not in failed or search.state() != states[numbers[0]]:
                raise Refused("node %d is no such failure" % numbers[0])
            search.has_failed = True
        elif kind == "p":
            saved = search.minimum, search.bound, search.blocked, search.unplaced, search.part
            open_nodes.append(([], numbers[0], saved))
            search.minimum, search.bound, search.blocked, search.unplaced = map(copy.copy, saved[:4])
            search.place(numbers[0])
        else:
            search.step(kind, numbers)
        if kind in "pw":
            if n_nodes in wanted:
                states[n_nodes] = search.state()
            open_nodes[-1][0].append(n_nodes)
            n_nodes += 1
    if not search.has_failed or len(open_nodes) != 1:
        raise Refused("the search does not fail")
    return "a search of %d rows fails in %d steps" % (len(search.rows), len(steps))


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
    if not lines and peak > 0:
        raise Refused("no line")
    words = "nothing to place"
    try:
        if len(lines) == 1:
            words = check_bound(buffers, peak, lines[0], plan is not None and plan == problem)
        elif lines:
            words = check_search(buffers, peak, lines)
    except (IndexError, KeyError, ValueError, TypeError) as fault:
        raise Refused("a line is wrong: %s" % fault) from fault
    if plan:
        if len(rows) != len(buffers):
            raise Refused("the plan has %d rows, the problem %d" % (len(rows), len(buffers)))
        check_plan(buffers, [number(row, "offset") for row in rows], peak)
        words += ", and the plan needs no more"
    rounded = " if sizes are rounded up to %d" % align if align > 1 else ""
    return "proven: no plan is below %d bytes%s: %s" % (peak, rounded, words)


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
