"""Solves a memo plan file with another planner: python plan_peers.py PLANNER PLAN LIMIT SEED RESULT

PLANNER: cp-sat (pip: ortools); supermalloc or omni (pip: omnimalloc, in an environment of its own); minimalloc (the
program that $MINIMALLOC names, built from github.com/google/minimalloc).  LIMIT is in seconds.  The planner sees the buffers
in an order shuffled with SEED.  A plan from vectors of clocks has a line "clock STARTS ENDS" for each buffer.
RESULT gets a line "CPU_SECONDS IS_PROVEN", then the offset of each buffer in the order of the plan.  Exit status 2: the
planner has no such feature (supermalloc, omni: alignments, gaps, fixed buffers; all but cp-sat: holds without clocks).
One thread each."""
import os
import random
import resource
import subprocess
import sys
import tempfile
import time


def read_plan(path):
    """Buffers in order: size, alignment, fixed offset or None, ranges of life, lane, holds."""
    alignment, buffers, gaps, holds, clocks = 1, [], {}, {}, []
    for line in open(path):
        word = line.split()
        if word[0] == "alignment":
            alignment = int(word[1])
        elif word[0] == "buffer":
            buffers.append([int(w) for w in word[1:10]])
        elif word[0] == "gap":
            gaps.setdefault(int(word[1]), []).append((int(word[2]), int(word[3])))
        elif word[0] == "hold":
            holds.setdefault(int(word[1]), []).append((int(word[2]), int(word[3])))
        elif word[0] == "clock":
            clocks.append([int(w) for w in word[1:]])
    plan = []
    for i, (_, begin, end, size, offset, own, is_fixed, _, lane) in enumerate(buffers):
        ranges, time_ = [], begin
        for gap in sorted(gaps.get(i, [])):
            if gap[0] > time_:
                ranges.append((time_, gap[0]))
            time_ = gap[1]
        if end > time_:
            ranges.append((time_, end))
        plan.append({
            "size": -(-size // alignment) * alignment, "alignment": max(own, alignment), "ranges": ranges,
            "fixed": offset if is_fixed else None, "begin": begin, "end": end, "lane": lane, "holds": holds.get(i, []),
            "clock": clocks[i] if clocks else None
        })
    return plan


def cp_sat(plan, limit):
    from ortools.sat.python import cp_model
    model = cp_model.CpModel()
    highest = sum(b["size"] + b["alignment"] for b in plan)
    highest += max([b["fixed"] for b in plan if b["fixed"] is not None], default=0)
    peak = model.new_int_var(0, highest, "peak")
    offsets, times, places, sizes = [], [], [], []
    for b in plan:
        if b["fixed"] is not None:
            offset = b["fixed"]
        else:
            offset = b["alignment"] * model.new_int_var(0, highest // b["alignment"], "")
        offsets.append(offset)
        model.add(offset + b["size"] <= peak)
        for begin, end in b["ranges"] if b["size"] else []:
            times.append(model.new_fixed_size_interval_var(begin, end - begin, ""))
            places.append(model.new_fixed_size_interval_var(offset, b["size"], ""))
            sizes.append(b["size"])
    model.add_no_overlap_2d(times, places)
    model.add_cumulative(times, sizes, peak)
    for i, b in enumerate(plan):  # the later of a held pair begins when the earlier is over
        for k, other in enumerate(plan):
            if b["end"] <= other["begin"] and any(
                    lane == other["lane"] and other["begin"] < until for lane, until in b["holds"]):
                is_below = model.new_bool_var("")
                model.add(offsets[i] + b["size"] <= offsets[k]).only_enforce_if(is_below)
                model.add(offsets[k] + other["size"] <= offsets[i]).only_enforce_if(~is_below)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, False
    return [o if isinstance(o, int) else solver.value(o) for o in offsets], status == cp_model.OPTIMAL


def has_features(plan):
    return any(b["alignment"] > 1 or b["fixed"] is not None or len(b["ranges"]) > 1 or (b["holds"] and not b["clock"])
               for b in plan)


def minimalloc(plan, limit):
    """It decides whether a capacity suffices: first the largest sum of live sizes, then halfway between the last failure and
    the best plan (at first twice that sum), each with half of the time that is left."""
    if any(b["fixed"] is not None or b["holds"] or b["clock"] for b in plan):
        sys.exit(2)
    live = sorted(change for b in plan for begin, end in b["ranges"]
                  for change in ((begin, 1, b["size"]), (end, 0, -b["size"])))
    now = low = 0
    for _, _, size in live:
        now += size
        low = max(low, now)
    best, peak, capacity, bound, is_proven, left = None, 2 * low, low, low, False, limit
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, "in.csv"), os.path.join(folder, "out.csv")
        with open(source, "w") as file:
            file.write("id,lower,upper,size,alignment,gaps\n")
            for i, b in enumerate(plan):
                gaps = " ".join(f"{a[1]}-{c[0]}" for a, c in zip(b["ranges"], b["ranges"][1:]))
                if b["ranges"]:
                    file.write(f"{i},{b['ranges'][0][0]},{b['ranges'][-1][1]},{b['size']},{b['alignment']},{gaps}\n")
        while low < peak and left > 0.01:
            before = cpu_s()
            ran = subprocess.run([os.environ["MINIMALLOC"], f"--capacity={capacity}", f"--timeout={left / 2:.3f}s",
                                  f"--input={source}", f"--output={made}"], capture_output=True, text=True)
            left -= cpu_s() - before
            if ran.returncode == 0:
                best, peak = [0] * len(plan), 0
                for line in open(made).read().split()[1:]:
                    words = line.split(",")
                    best[int(words[0])] = int(words[-1])
                peak = max(o + b["size"] for o, b in zip(best, plan))
            else:
                low = capacity + 1
                if "DEADLINE" not in ran.stderr.upper() and bound == capacity:
                    bound = low
            capacity = (low + peak) // 2
    return best, best is not None and peak <= bound


def allocations(plan):
    from omnimalloc import Allocation
    if has_features(plan):
        sys.exit(2)
    made = []
    for i, b in enumerate(plan):
        n = len(b["clock"]) // 2 if b["clock"] else 0
        begin, end = (tuple(b["clock"][:n]), tuple(b["clock"][n:])) if n else (b["begin"], b["end"])
        if b["size"]:
            made.append(Allocation(id=i, size=b["size"], start=begin, end=end))
    return tuple(made)


def offsets_of(plan, made):
    place = {b.id: b.offset for b in made}
    return [place.get(i, 0) for i in range(len(plan))]


def supermalloc(plan, limit):
    from omnimalloc.allocators.supermalloc import SupermallocAllocator
    buffers = allocations(plan)
    if plan[0]["clock"]:
        sys.exit(2)
    result = SupermallocAllocator(timeout=limit, num_threads=1).solve(buffers)
    return offsets_of(plan, result.allocations), result.proved_optimal


def omni(plan, limit):
    import omnimalloc
    from omnimalloc.allocators.omni import OmniAllocator
    omnimalloc._cpp.set_max_threads(1)
    return offsets_of(plan, OmniAllocator().allocate(allocations(plan))), False


def cpu_s():
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def main():
    planner, path, limit, seed, result = sys.argv[1:6]
    plan = read_plan(path)
    order = list(range(len(plan)))
    random.Random(int(seed)).shuffle(order)
    solve = {"cp-sat": cp_sat, "minimalloc": minimalloc, "supermalloc": supermalloc, "omni": omni}[planner]
    if planner == "cp-sat":
        import ortools.sat.python.cp_model
    elif planner != "minimalloc":
        import omnimalloc.allocators.supermalloc
    begin = cpu_s()
    shuffled, is_proven = solve([plan[i] for i in order], float(limit))
    seconds = cpu_s() - begin
    if shuffled is None:
        sys.exit(3)
    offsets = [0] * len(plan)
    for i, offset in zip(order, shuffled):
        offsets[i] = offset
    with open(result, "w") as file:
        file.write(f"{seconds:.6f} {int(is_proven)}\n")
        file.writelines(f"{offset}\n" for offset in offsets)


main()
