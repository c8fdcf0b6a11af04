#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Turns a memory snapshot of PyTorch into a memo trace, so that a real training step can be planned.

In PyTorch; the name around the step is optional and needs torch 2.4 or newer:

  torch.cuda.memory._record_memory_history(max_entries=1000000, context=None)
  with torch.profiler.record_function("step 3"):
      train_step()
  torch.cuda.synchronize()
  torch.cuda.memory._dump_snapshot("snapshot.pickle")

Afterwards:

  python3 examples/pytorch/snapshot_to_trace.py snapshot.pickle -o step.trace \\
      --from-mark "step 3 begin" --to-mark "step 3 end"
  build/examples/plan_trace step.trace --align 512 --compare-caching --svg step.svg

Names of record_function become marks, "NAME begin" and "NAME end"; memo gives a meaning to
"iteration", "layer N forward", "layer N recompute" and "layer N backward".  Names on other threads
than the caller's are kept with _record_memory_history(..., global_record_annotations=True).
Sizes are those requested, not rounded.  Exit: 0 written, 2 bad input, with one line that says why.
"""
import argparse
import heapq
import os
import pickle
import sys

HOW = "call torch.cuda.memory._record_memory_history() before the work; --help shows how"


class Refused(Exception):  # with a reason for the user, in one line
    pass


class PlainUnpickler(pickle.Unpickler):
    """Lists, dicts, strings and numbers need no import; whatever asks for one could run code."""

    def find_class(self, module, name):
        raise Refused(f"asks for {module}.{name}; a snapshot is plain data, nothing was run")


def load(path):
    with open(path, "rb") as file:
        try:
            snapshot = PlainUnpickler(file).load()
        except (Refused, OSError):
            raise
        except Exception as error:  # damaged pickles raise nearly everything
            raise Refused(f"not a whole pickle ({type(error).__name__}: {error})") from None
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise Refused("not a memory snapshot, it has no device_traces; " + HOW)
    return snapshot


def mark_text(name, stage):
    text = "".join(c if c >= " " else " " for c in f"{name} ")  # a mark is one line
    return text + {"START": "begin", "END": "end"}[stage]


def read_timeline(snapshot, device):
    """What happened on the device: each an entry of the history, or the text of a mark."""
    traces = snapshot["device_traces"]
    if not 0 <= device < len(traces) or not traces[device]:
        others = ", ".join(str(i) for i, trace in enumerate(traces) if trace)
        raise Refused(f"device {device} has no history"
                      f"{f' (there is one of device {others})' if others else ''}; {HOW}")
    # The first versions with annotations had them in the history.  Now they are a list of their own,
    # and the clock is all that ties them to it; merge keeps the history's order whatever the clock says.
    entries = ((e.get("time_us", 0), e if e["action"] != "user_defined" else
                mark_text(e["frames"][0]["filename"], e["frames"][0]["name"])) for e in traces[device])
    marks = [(a["time_us"], mark_text(a["name"], a["stage"]))
             for a in snapshot.get("external_annotations", ())
             if a.get("device", device) == device and a.get("stage") in ("START", "END")]
    marks.sort(key=lambda pair: pair[0])
    return [item for _, item in heapq.merge(marks, entries, key=lambda pair: pair[0])]


def size_of(entry, key="size"):
    if type(entry[key]) is not int or not 0 <= entry[key] <= 1 << 62:
        raise Refused(f"damaged: a {key} is no number of bytes")
    return entry[key]


def find_blocks(snapshot, timeline, device, end_action):
    """[size, stream, begin, end] of each block, in positions of the timeline.

    begin -1: from before the history; end len(timeline): never freed."""
    actions = {entry["action"] for entry in timeline if not isinstance(entry, str)}
    if "alloc" not in actions:
        raise Refused(f"the history of device {device} has no alloc entry; {HOW}")
    if end_action not in actions and actions & {"free_requested", "free_completed"}:
        raise Refused(f"the history has no {end_action} entry; choose the other --free")
    blocks, live = [], {}
    for i, entry in enumerate(timeline):
        if isinstance(entry, str) or entry["action"] not in ("alloc", end_action):
            continue
        block = live.pop(entry["addr"], None)
        if block:
            block[3] = i  # at an alloc too: the entry of the earlier free was lost
        if entry["action"] == "alloc":
            live[entry["addr"]] = [size_of(entry), entry["stream"], i, len(timeline)]
            blocks.append(live[entry["addr"]])
        elif not block:
            blocks.append([size_of(entry), entry["stream"], -1, i])
    # A block in use at the end that the history never mentions was there before it and stayed.  One
    # that waits for another stream counts as in use only where the end of that wait is the block's.
    in_use = ("active_allocated",)
    if end_action == "free_completed":
        in_use += ("active_pending_free", "active_awaiting_free")  # the name depends on the version
    for segment in snapshot.get("segments", ()):
        address = segment["address"]
        for block in segment["blocks"]:
            if segment["device"] == device and block["state"] in in_use and address not in live:
                size = size_of(block, "requested_size" if "requested_size" in block else "size")
                blocks.append([size, segment["stream"], -1, len(timeline)])
            address += block["size"]
    return blocks


def find_mark(timeline, text, start):
    if text in timeline[start:]:
        return timeline.index(text, start)
    marks = list(dict.fromkeys(entry for entry in timeline if isinstance(entry, str)))
    raise Refused(f"no mark `{text}`{' behind the first' if start else ''}; there are: "
                  f"{'; '.join(marks[:8]) or 'none'}{'; ...' if marks[8:] else ''}")


def convert(snapshot, options):
    """The bytes of the trace."""
    try:
        return convert_entries(snapshot, options)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Refused("damaged, an entry is not as PyTorch writes it "
                      f"({type(error).__name__}: {error})") from None


def convert_entries(snapshot, options):
    timeline = read_timeline(snapshot, options.device)
    blocks = find_blocks(snapshot, timeline, options.device, "free_" + options.free)
    low = find_mark(timeline, options.from_mark, 0) if options.from_mark else 0
    high = find_mark(timeline, options.to_mark, low) + 1 if options.to_mark else len(timeline)
    lines, ids, streams = [], {}, {}

    def malloc(block, memory_class="transient"):
        number = ids[id(block)] = len(ids)
        stream = streams.setdefault(block[1], len(streams))
        if stream > 63:
            raise Refused("a memo trace has at most 64 streams, this needs more")
        words = f" {memory_class} {stream}" if stream else f" {memory_class}"
        lines.append(f"malloc {number} {block[0]}{words if words != ' transient' else ''}")

    earlier = [block for block in blocks if block[2] < low <= block[3]]
    for block in earlier if options.resident else ():
        malloc(block, "transient" if block[3] < high else "persistent")
    begins = {block[2]: block for block in blocks}
    ends = {block[3]: block for block in blocks}
    for i in range(low, high):
        if isinstance(timeline[i], str):
            lines.append("mark " + timeline[i])
        if i in ends and id(ends[i]) in ids:
            lines.append(f"free {ids[id(ends[i])]} {ends[i][0]}")
        if i in begins:
            malloc(begins[i])
    if not ids:
        raise Refused("no block is allocated in the part that was asked for")
    head = (f"memo trace 1\n# PyTorch, device {options.device}, to free_{options.free}; {len(earlier)} blocks "
            f"from before are {'listed first' if options.resident else 'not listed'}\n")
    data = (head + "\n".join(lines) + "\n").encode("utf-8", "replace")
    checksum = 0xCBF29CE484222325  # FNV-1a of all before the last line
    for byte in data:
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return data + b"end %d %016x\n" % (len(lines), checksum)


def check_files(source, path):
    """The output must not take the snapshot from its user."""
    target = os.path.realpath(path)
    if path != "-" and os.path.isfile(target) and os.path.samefile(source, target):
        raise Refused("is also the snapshot; another name for the output would work")


def write(data, path):
    """At once or not at all, but for standard output, pipes and devices."""
    target = 1 if path == "-" else os.path.realpath(path)
    in_place = path == "-" or os.path.exists(target) and not os.path.isfile(target)
    temporary = target if in_place else f"{target}.{os.getpid()}"
    with open(temporary, "wb" if in_place else "xb") as file:
        try:
            file.write(data)
            file.flush()
            if not in_place:
                os.replace(temporary, target)
        except BaseException:
            if not in_place:
                os.unlink(temporary)
            raise


class Parser(argparse.ArgumentParser):
    """argparse itself says nothing where help cannot be written."""

    def print_help(self, file=None):
        try:
            write(self.format_help().encode(), "-")
        except OSError as error:
            self.exit(2, f"snapshot_to_trace: standard output: {error.strerror}\n")


def main():
    parser = Parser(prog="snapshot_to_trace", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda message: parser.exit(2, f"snapshot_to_trace: {message}; --help lists the options\n")
    add = parser.add_argument
    add("snapshot", help="the pickle")
    add("-o", "--output", default="-", metavar="FILE", help="default -: standard output")
    add("--device", type=int, default=0, metavar="N", help="default 0")
    add("--free", choices=("completed", "requested"), default="completed",
        help="where a block ends: when no stream uses it any more (the default), or when the program "
        "let go of it; they differ for blocks with Tensor.record_stream")
    add("--resident", action="store_true",
        help="list blocks from before too, such as parameters, as live from the start")
    add("--from-mark", metavar="TEXT", help="begin at the first such mark")
    add("--to-mark", metavar="TEXT", help="end at the first such mark behind it")
    options = parser.parse_args()
    place = options.snapshot
    try:
        snapshot = load(place)
        place = options.output
        check_files(options.snapshot, place)
        place = options.snapshot
        data = convert(snapshot, options)
        place = options.output
        write(data, place)
        return 0
    except Refused as error:
        reason = str(error)
    except OSError as error:
        reason = error.strerror
    reason = "".join(c if c.isprintable() else " " for c in reason)  # parts of it came from the file
    print(f"snapshot_to_trace: {place}: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
