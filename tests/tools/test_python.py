"""The cases of test_python.sh, with memo_plan installed: test_python.py CASE SEED FOLDER."""
import copy
import gc
import itertools
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading

import memo_plan

case, seed, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])


def overlap(a, b):
    return a[0] < b[1] and b[0] < a[1]


def refuses(text, call, status="invalid argument"):
    try:
        call()
    except memo_plan.Error as error:
        assert text in str(error) and error.status == status, (str(error), error.status, text)
    else:
        raise AssertionError("accepted: " + text)


def write(name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def random_problems():
    """Offsets are valid by a quadratic check, in the caller's order, and never below the bound."""
    rng = random.Random(seed)
    n_optimal = 0
    for _ in range(300):
        n, align = rng.randint(0, 12), 1 << rng.randint(0, 5)
        begins = [rng.randint(0, 20) for _ in range(n)]
        ends = [begin + rng.randint(1, 8) for begin in begins]
        sizes = [rng.randint(0, 100) for _ in range(n)]
        aligns = [align << rng.randint(0, 2) for _ in range(n)]
        offsets = [None] * n
        if n and rng.random() < 0.3:
            offsets[rng.randrange(n)] = 4 * align * rng.randint(0, 3)
        plan = memo_plan.Plan(begins, ends, sizes, align, aligns, offsets).solve(seed=seed)
        assert plan.begins == begins and plan.ends == ends and plan.sizes == sizes
        rounded = [-(-size // align) * align for size in sizes]
        found = plan.offsets
        for i in range(n):
            assert found[i] % aligns[i] == 0 and offsets[i] in (None, found[i])
            for j in range(i):
                if overlap((begins[i], ends[i]), (begins[j], ends[j])) and sizes[i] and sizes[j]:
                    assert not overlap((found[i], found[i] + rounded[i]), (found[j], found[j] + rounded[j]))
        live = [sum(rounded[i] for i in range(n) if begins[i] <= t < ends[i]) for t in range(29)]
        fixed = [offsets[i] + rounded[i] for i in range(n) if offsets[i] is not None]
        assert plan.bound == (plan.peak if plan.is_optimal else max(live + fixed)) <= plan.peak
        assert plan.peak == max([found[i] + rounded[i] for i in range(n)], default=0) >= max(live + fixed)
        assert plan.is_optimal or plan.peak > plan.bound
        n_optimal += plan.is_optimal
    assert n_optimal > 250, n_optimal


def gaps_and_fixed():
    whole = memo_plan.Plan([0, 4], [10, 6], [8, 8]).solve()
    assert whole.peak == 16
    assert memo_plan.Plan([0, 4], [10, 6], [8, 8], gaps=[(0, 4, 6)]).solve().peak == 8
    # Plans of another allocator are checked.
    assert memo_plan.Plan([0, 4], [10, 6], [8, 8], offsets=[8, 24]).solve().peak == 32
    refuses("share bytes", lambda: memo_plan.Plan([0, 4], [10, 6], [8, 8], offsets=[0, 4]).solve())


def proofs():
    problem = write("proofs.csv", "id,lower,upper,size,alignment\na,0,5,70,64\nb,2,9,100,64\nc,7,12,30,128\n")
    proof, plan = str(folder / "plan.proof"), memo_plan.Plan.from_csv(problem).solve()
    assert plan.is_optimal and plan.write_proof(proof)
    assert str(plan.peak) in memo_plan.check_proof.check(problem, proof)
    with open(proof, encoding="utf-8") as file:
        text = file.read()
    with open(proof, "w", encoding="utf-8") as file:
        file.write(text.replace(f"peak {plan.peak}", f"peak {plan.peak + 1}"))
    try:
        memo_plan.check_proof.check(problem, proof)
    except memo_plan.check_proof.Refused as reason:
        assert "below the peak" in str(reason)
    else:
        raise AssertionError("accepted")
    # A plan that only a search proves has its failed branches as proof.
    problem = write("search.csv", "id,lower,upper,size,alignment\na,0,2,3,4\nb,0,2,3,8\nc,0,2,3,4\nd,0,2,2,8\n")
    plan = memo_plan.Plan.from_csv(problem)
    assert plan.bound == 11  # of live buffers
    assert plan.solve().is_optimal and plan.bound == plan.peak > 11 and plan.write_proof(proof)
    assert "a search of" in memo_plan.check_proof.check(problem, proof)


def errors():
    plan = memo_plan.Plan
    half = plan.__new__(plan)  # as a debugger shows it
    for arguments in (([0], [1], 5), ([3], [1], [5])):
        refuses("", lambda: half.__init__(*arguments))
        assert repr(half).startswith("<memo_plan.Plan: ") and "Error" not in repr(half)
    assert repr(plan.__new__(plan)) == "<memo_plan.Plan: not made>"
    refuses("sizes: not a sequence", lambda: plan([0], [1], 5))
    refuses("begins: not a sequence", lambda: plan(0, [1], [5]))
    refuses("ends: 2 numbers for 1 buffers", lambda: plan([0], [1, 2], [5]))
    refuses("sizes[0]: not a whole number (1.5)", lambda: plan([0], [1], [1.5]))
    refuses("sizes[0]: more than 64 bits", lambda: plan([0], [1], [2**63]))
    refuses("gaps[0]: 2 numbers", lambda: plan([0], [1], [5], gaps=[(0, 1)]))
    refuses("gaps: not a sequence (5)", lambda: plan([0], [1], [5], gaps=5))
    refuses("gaps[0]: not a sequence (7)", lambda: plan([0], [1], [5], gaps=[7]))
    refuses("offsets: not a sequence (5)", lambda: plan([0], [1], [5], offsets=5))
    refuses("offsets[0]: not a whole number ('a')", lambda: plan([0], [1], [5], offsets=["a"]))
    refuses("names: 1 names for 2 buffers", lambda: plan([0, 0], [1, 1], [5, 5], names=["a"]))
    refuses("names: not a sequence (5)", lambda: plan([0], [1], [5], names=5))
    refuses("time_limit: not a number of seconds ('a')", lambda: plan([0], [1], [5]).solve(time_limit="a"))
    refuses("time_limit: not a number of seconds (None)", lambda: plan([0], [1], [5]).solve(time_limit=None))
    refuses("time_limit_s", lambda: plan([0], [1], [5]).solve(time_limit=float("nan")))
    refuses("log: not a function (5)", lambda: plan([0], [1], [5]).solve(log=5))
    assert plan([0], [1], [5], gaps=None).solve().peak == 5
    refuses("alignment", lambda: plan([0], [1], [5], alignment=3))
    refuses("buffer 1", lambda: plan([0, 3], [1, 2], [5, 5]))
    refuses("engine: unknown ('best')", lambda: plan([0], [1], [5]).solve(engine="best"))
    refuses("threads: more than 32 bits", lambda: plan([0], [1], [5]).solve(threads=2**32 + 1))
    refuses("n_threads", lambda: plan([0], [1], [5]).solve(threads=65))
    refuses("time_limit_s", lambda: plan([0], [1], [5]).solve(time_limit=-1))
    refuses("not solved", lambda: plan([0], [1], [5]).offsets, "invalid state")
    solved = plan([0], [1], [5]).solve()
    refuses("no/such", lambda: solved.write(folder / "no" / "such"), "input/output error")
    refuses("no/such", lambda: solved.write_svg(folder / "no" / "such"), "input/output error")
    small = plan([0, 0], [1, 1], [5, 5])
    try:
        small.solve(capacity=9)
        raise AssertionError("9 bytes for 10")
    except memo_plan.Infeasible as error:
        assert "10" in str(error) and small.peak == 10 and sorted(small.offsets) == [0, 5]


def copies():
    """A copy is another plan: the first may go, or be solved again."""
    made = memo_plan.Plan(list(range(1000)), [i + 5 for i in range(1000)], [7] * 1000, 2, gaps=[(0, 1, 2)])
    traced = memo_plan.Plan.from_trace("examples/layer.trace")
    fixed = memo_plan.Plan([3, 0], [9, 6], [8, 8], offsets=[None, 16], alignments=[4, 8], names=["x", "y"])
    fixed.note = ["mine"]
    ways = copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))
    for plan in (made, traced, fixed):
        for way in ways:
            before = way(plan)
            assert not before.is_solved and before.bound == plan.bound and before.sizes == plan.sizes
            before.solve()
            assert not plan.is_solved
    for plan in (made, traced, fixed):
        plan.solve()
        for way in ways:
            other = way(plan)
            assert other.offsets == plan.offsets and other.peak == plan.peak and other.bound == plan.bound
            assert other.is_optimal == plan.is_optimal and other.engine == plan.engine and other.names == plan.names
            assert other.begins == plan.begins and len(other) == len(plan) and repr(other) == repr(plan)
            last = other.solve(seed=1).offsets
    assert copy.copy(fixed).note is fixed.note and copy.deepcopy(fixed).note == ["mine"] and fixed.note == ["mine"]

    # The memory of the first is given to others.
    other, offsets = copy.copy(made), made.offsets
    del made, plan
    gc.collect()
    junk = [bytes(72000) for _ in range(200)]
    assert len(other) == 1000 and other.offsets == offsets and len(junk) + len(last) > 0

    # A damaged pickle is refused.
    restore, (cls, source, is_numpy, solution), _ = other.__reduce__()
    damaged = [0] * 1000, *solution[1:]
    refuses("plan.peak_bytes: wrong", lambda: restore(cls, source, is_numpy, damaged))
    refuses("offsets: 1 numbers for 1000 buffers", lambda: restore(cls, source, is_numpy, ([0], *solution[1:])))


def clocks():
    """Vector clocks: the peak is the least of first fit in any order, by conflicts from the definition alone."""
    rng = random.Random(seed)
    n_apart = 0
    for _ in range(200):
        n, k = rng.randint(1, 5), rng.randint(1, 3)
        begins = [tuple(rng.randint(0, 6) for _ in range(k)) for _ in range(n)]
        ends = [tuple(c + rng.randint(c == begin[0], 3) for c in begin) for begin in begins]
        ends = [(end[0] + (begin == end), *end[1:]) for begin, end in zip(begins, ends)]
        sizes = [rng.randint(1, 9) for _ in range(n)]

        def conflict(i, j):
            return not any(all(a <= b for a, b in zip(ends[x], begins[y])) for x, y in ((i, j), (j, i)))

        best = sum(sizes)
        for order in itertools.permutations(range(n)):
            place = {}
            for i in order:
                taken = sorted((place[j], place[j] + sizes[j]) for j in place if conflict(i, j))
                place[i] = 0
                for low, high in taken:
                    if low < place[i] + sizes[i] and place[i] < high:
                        place[i] = high
            best = min(best, max(place[i] + sizes[i] for i in range(n)))
        plan = memo_plan.Plan(begins, ends, sizes).solve(seed=seed)
        assert plan.is_optimal and plan.peak == best, (begins, ends, sizes, plan, best)
        found = plan.offsets
        for i, j in itertools.combinations(range(n), 2):
            n_apart += conflict(i, j) and (sum(ends[i]) <= sum(begins[j]) or sum(ends[j]) <= sum(begins[i]))
            assert not conflict(i, j) or not overlap((found[i], found[i] + sizes[i]), (found[j], found[j] + sizes[j]))
        assert not plan.write_proof(folder / "clocks.proof") and not (folder / "clocks.proof").exists()
        other = pickle.loads(pickle.dumps(plan))
        assert plan.begins == other.begins == begins and plan.ends == ends and other.offsets == found
    assert n_apart > 50, n_apart

    # What is free in one thread is not yet free in another; a fixed offset stays.
    plan = memo_plan.Plan([(0, 0), [2, 0]], [(2, 1), (3, 1)], [4, 8], offsets=[None, 16]).solve()
    assert plan.offsets[1] == 16 and plan.peak == 24
    assert memo_plan.Plan([(0, 0), (2, 0)], [(2, 1), (3, 1)], [4, 8]).solve().peak == 12
    assert memo_plan.Plan([(0, 0), (2, 1)], [(2, 1), (3, 1)], [4, 8]).solve().peak == 8
    for text, begins, ends in (("ends: numbers beside vector clocks", [(0, 0)], [1]),
                               ("begins[1]: not a sequence (3)", [(0, 0), 3], [(1, 1), (4, 4)]),
                               ("begins[1]: 1 clocks, where begins[0] has 2", [(0, 0), (3,)], [(1, 1), (4, 4)]),
                               ("ends[0]: a clock is before that of begins[0]", [(0, 3)], [(9, 2)]),
                               ("ends[0][1]: not a whole number ('x')", [(0, 3)], [(9, "x")]),
                               ("its lifetime is empty", [(0, 3)], [(0, 3)])):
        refuses(text, lambda: memo_plan.Plan(begins, ends, [1] * len(begins)))
    refuses("gaps: none are possible with vector clocks",
            lambda: memo_plan.Plan([(0, 0)], [(4, 4)], [1], gaps=[(0, 1, 2)]))
    refuses("begins: more than 33554432 pairs", lambda: memo_plan.Plan(
        [(i, 0) for i in range(9000)], [(i + 1, 1) for i in range(9000)], [1] * 9000), "unsupported")


def interrupts():
    """Ctrl-C ends a search at once, with the best plan so far; the handler from before follows, and stays."""
    rng = random.Random(3)
    begins = [rng.randint(0, 40) for _ in range(300)]
    hard = (begins, [begin + rng.randint(1, 15) for begin in begins], [rng.randint(1, 99) for _ in begins], 1,
            [1 << rng.randint(0, 5) for _ in begins])  # alignments that no search ends with
    lines = []

    def interrupt(line):
        lines.append(line)
        if len(lines) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    plan = memo_plan.Plan(*hard)
    try:
        plan.solve(time_limit=60, log=interrupt)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        assert len(lines) < 4, lines  # a search of a minute has many
    assert plan.is_solved and plan.peak >= plan.bound
    try:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("another handler")
    except KeyboardInterrupt:
        pass

    # Neither does a search for a proof go on, here in the log of that plan: the signal reaches both.
    sizes, alignments = [1 + (37 * i * i + 11 * i) % 41 for i in range(14)], [1 << i * i % 5 for i in range(14)]
    stacked = memo_plan.Plan([0] * 14, [2] * 14, sizes, alignments=alignments).solve()
    proof, found = folder / "stacked.proof", []

    def prove(line):
        os.kill(os.getpid(), signal.SIGINT)
        found.append(stacked.write_proof(proof))

    assert stacked.write_proof(proof)
    proof.unlink()
    try:
        memo_plan.Plan(*hard).solve(time_limit=60, log=prove)
        raise AssertionError("not interrupted")
    except KeyboardInterrupt:
        assert len(found) < 4 and not any(found) and not proof.exists(), found

    # A handler that returns keeps the plan; an ignored signal and another thread do not stop the search.
    calls = []
    for handler, n_calls in ((lambda *_: calls.append(1), 1), (signal.SIG_IGN, 1)):
        signal.signal(signal.SIGINT, handler)
        lines.clear()
        assert memo_plan.Plan(*hard).solve(time_limit=60, _node_limit=20000, log=interrupt).is_solved
        assert len(calls) == n_calls and (len(lines) < 4) == callable(handler), (calls, lines)
    signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    lines.clear()
    thread = threading.Thread(target=lambda: memo_plan.Plan(*hard).solve(time_limit=60, _node_limit=20000, log=interrupt))
    thread.start()
    thread.join()
    assert len(calls) == 2 and len(lines) >= 4, (calls, lines)


def csv_files():
    path = write("a.csv", "\ufeff# two buffers\nid,lower,upper,size,alignment,gaps\nx, 0,10,8,,4-6\n\n\"y,1\",4,6,8,16,\n")
    plan = memo_plan.Plan.from_csv(path).solve()
    assert plan.names == ["x", "y,1"] and plan.peak == 8 and plan.begins == [0, 4], plan
    assert memo_plan.Plan.from_csv(write("b.csv", "size,id,upper,lower\n8,0,2,0\n8,1,3,1\n")).solve().peak == 16
    for text, reason in (("", "no column id"), ("id,lower,upper\n", "no column size"),
                         ("id,lower,upper,size\n0,0,1\n", "c.csv:2: 3 fields of 4"),
                         ("id,lower,upper,size,gaps\n0,0,9,4,3\n", "c.csv:2: gaps is not written 3-5 8-9 (3)")):
        refuses(reason, lambda: memo_plan.Plan.from_csv(write("c.csv", text)), "format error")
    same = write("d.csv", "id,lower,upper,size,offset\n0,0,2,8,0\n1,1,3,8,4\n")
    refuses("share bytes", lambda: memo_plan.Plan.from_csv(same).solve())


def traces():
    plan = memo_plan.Plan.from_trace("examples/layer.trace").solve(engine="bilevel")
    plan.write(folder / "p.plan")
    plan.write_svg(folder / "p.svg", "a <title>")
    assert (folder / "p.plan").read_text().startswith("memo plan 1\n")
    assert "a &lt;title&gt;" in (folder / "p.svg").read_text()
    out = subprocess.run(["build/examples/plan_trace", "examples/layer.trace", "--align", "512", "--quiet"],
                         check=True, capture_output=True, text=True).stdout
    assert f"peak_bytes: {plan.peak}\n" in out and f"buffers: {len(plan)}\n" in out, out
    refuses("trace:1:", lambda: memo_plan.Plan.from_trace(b"no trace"), "format error")
    refuses("e.trace:2:", lambda: memo_plan.Plan.from_trace(write("e.trace", "memo trace 1\nmalloc\n")), "format error")


def snapshots():
    history = [{"action": action, "addr": address, "size": size, "stream": 0, "time_us": i, "frames": []}
               for i, (action, address, size) in enumerate((
                   ("alloc", 1, 1000), ("alloc", 2, 500), ("free_completed", 1, 1000), ("alloc", 1, 600),
                   ("free_completed", 2, 500), ("free_completed", 1, 600)))]
    path = folder / "s.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": []}))
    plan = memo_plan.Plan.from_snapshot(path).solve()
    assert plan.sizes == [1000, 500, 600] and plan.offsets[2] == plan.offsets[0] and plan.peak == 1536, plan
    refuses("no mark `x`", lambda: memo_plan.Plan.from_snapshot(path, from_mark="x"), "format error")
    refuses("device 1 has no history", lambda: memo_plan.Plan.from_snapshot(path, device=1), "format error")
    history[0].pop("size")
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": []}))
    refuses("damaged", lambda: memo_plan.Plan.from_snapshot(path), "format error")


def arrays():
    import numpy
    sizes = numpy.array([64, 32, 64], dtype=numpy.uint32)
    plan = memo_plan.Plan(numpy.array([0, 5, 12]), (10, 15, 20), sizes).solve()
    assert isinstance(plan.offsets, numpy.ndarray) and plan.offsets.tolist() == [0, 64, 0]
    assert isinstance(copy.deepcopy(plan).offsets, numpy.ndarray)
    refuses("sizes[0]: not a whole number", lambda: memo_plan.Plan([0], [1], numpy.ones((1, 1), int)))
    refuses("sizes: not a sequence (1)", lambda: memo_plan.Plan([0], [1], numpy.array(1)))


globals()[case]()
