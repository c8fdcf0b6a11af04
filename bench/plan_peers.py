"""Solves a memo plan file with another planner: python plan_peers.py PLANNER PLAN LIMIT RESULT

PLANNER is cp-sat (pip: ortools) or supermalloc (pip: omnimalloc, in an environment of its own); LIMIT is in seconds.
RESULT gets a line "SECONDS IS_PROVEN", then the offset of each buffer in the order of the plan.  Exit status 2: the
planner has no such feature (supermalloc: alignments, gaps, fixed buffers, holds).  One thread each."""
import sys
import time


def read_plan(path):
    """Buffers in order: size, alignment, fixed offset or None, ranges of life, lane, holds."""
    alignment, buffers, gaps, holds = 1, [], {}, {}
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
            "fixed": offset if is_fixed else None, "begin": begin, "end": end, "lane": lane, "holds": holds.get(i, [])
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


def supermalloc(plan, limit):
    from omnimalloc import Allocation
    from omnimalloc.allocators.supermalloc import SupermallocAllocator
    if any(b["alignment"] > 1 or b["fixed"] is not None or len(b["ranges"]) > 1 or b["holds"] for b in plan):
        sys.exit(2)
    buffers = tuple(Allocation(id=i, size=b["size"], start=b["begin"], end=b["end"])
                    for i, b in enumerate(plan) if b["size"])
    result = SupermallocAllocator(timeout=limit, num_threads=1).solve(buffers)
    place = {b.id: b.offset for b in result.allocations}
    return [place.get(i, 0) for i in range(len(plan))], result.proved_optimal


def main():
    planner, path, limit, result = sys.argv[1:5]
    plan = read_plan(path)
    begin = time.monotonic()
    offsets, is_proven = {"cp-sat": cp_sat, "supermalloc": supermalloc}[planner](plan, float(limit))
    seconds = time.monotonic() - begin
    if offsets is None:
        sys.exit(3)
    with open(result, "w") as file:
        file.write(f"{seconds:.6f} {int(is_proven)}\n")
        file.writelines(f"{offset}\n" for offset in offsets)


main()
