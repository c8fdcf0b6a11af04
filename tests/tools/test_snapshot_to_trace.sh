#!/bin/sh
# test_snapshot_to_trace.sh - traces from PyTorch's memory snapshots, and refusals.
#
# The script makes small snapshots in PyTorch's layout; PyTorch is not needed.  Output: TAP.
set -u

. tests/support/tap.sh

tool="python3 examples/pytorch/snapshot_to_trace.py"
planner=build/examples/plan_trace
tap_folder build/tests/snapshot_to_trace

# The trace of `run` is these lines between its two first and its last; the planner takes it.
is_trace() { # LINES
    grep -v '^#' "$folder/out" | sed '1d;$d' >"$folder/found"
    printf "$1" >"$folder/expected"
    diff "$folder/expected" "$folder/found" || return 1
    [ "$(head -n 1 "$folder/out")" = "memo trace 1" ] || return 1
    [ "$(tail -n 1 "$folder/out" | cut -d ' ' -f 1,2)" = "end $(wc -l <"$folder/expected" | tr -d ' ')" ] || return 1
    [ ! -x $planner ] || $planner "$folder/out" --quiet
}

# One line on standard error that has PATTERN, nothing on standard output.
refuses() { # PATTERN ARGUMENTS...
    pattern=$1
    shift
    run 2 "$@" && grep -q -e "$pattern" "$folder/err" || return 1
    [ "$(wc -l <"$folder/err")" -eq 1 ] && [ ! -s "$folder/out" ]
}

make_snapshots() {
    (cd "$folder" && python3 -) <<'END'
import os
import pickle

clock = 0


def entry(action, addr, size, stream=0):
    global clock
    clock += 10
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": clock, "frames": []}


def alloc(addr, size, stream=0):
    return [entry("alloc", addr, size, stream)]


def free(addr, size, stream=0):
    return [entry("free_requested", addr, size, stream), entry("free_completed", addr, size, stream)]


def mark(name, stage, device=0):
    return {"name": name, "stage": stage, "device": device, "time_us": clock + 5}


def save(name, *traces, protocol=4, **more):
    snapshot = dict({"segments": [], "device_traces": list(traces)}, **more)
    with open(name + ".pickle", "wb") as file:
        pickle.dump(snapshot, file, protocol=protocol)


def block(size, requested_size, state):
    return {"size": size, "requested_size": requested_size, "state": state, "frames": []}


segment = [entry("segment_alloc", 4096, 2097152)]
oom = {"action": "oom", "device_free": 0, "size": 9, "stream": 0, "time_us": clock}
save("plain", segment + alloc(4096, 1000) + alloc(8192, 50) + free(4096, 1000) + [oom] + alloc(4096, 700) +
     [entry("snapshot", 0, 0)], protocol=2)

# The block of another stream is let go of long before that stream is done with it.
handle = 94250000000000
save("streams", alloc(1, 10, handle) + alloc(2, 20) + alloc(3, 30, handle + 8) +
     [entry("free_requested", 1, 10, handle)] + alloc(4, 40) + [entry("free_completed", 1, 10, handle)] + free(2, 20))
save("too_many", [entry("alloc", i, 1, handle + i) for i in range(65)])

# Freed inside: 100.  There all the time: 4608.  Made inside and still there: 4096, which must not be listed twice.
save("before", free(100, 11) + alloc(4096, 12) + free(200, 13, 7), segments=[
    {"device": 0, "address": 4096, "stream": 0, "blocks": [block(512, 12, "active_allocated"),
     block(512, 400, "active_allocated"), block(512, 300, "inactive"), block(512, 33, "active_awaiting_free")]},
    {"device": 1, "address": 9000, "stream": 0, "blocks": [block(512, 5, "active_allocated")]}])

events, marks = alloc(1, 100), []
for step in range(2):
    marks.append(mark("step %d" % step, "START"))
    marks.append(mark("elsewhere", "START", device=1))
    events += alloc(2, 200)
    marks.append(mark("layer 0 forward", "START"))
    events += alloc(3, 300)
    marks.append(mark("layer 0 forward", "END"))
    events += free(3, 300) + free(2, 200)
    marks.append(mark("step %d" % step, "END"))
save("marks", events, external_annotations=marks)
save("marks_in_history", [dict(entry("user_defined", 0, 0), frames=[{"name": "START", "filename": "a\nb\x1b"}])] +
     alloc(1, 5) + [dict(entry("user_defined", 0, 0), frames=[{"name": "END", "filename": "a\nb\x1b"}])])

save("second_device", [], alloc(1, 77))
save("empty", [])
save("only_frees", free(1, 5))
save("requested_only", alloc(1, 5) + [entry("free_requested", 1, 5)])
save("lost_free", alloc(1, 5) + alloc(1, 6) + free(1, 6))
save("bad_size", alloc(1, -5))
save("text_size", alloc(1, "5\nmalloc 7 7"))
save("no_address", [{"action": "alloc", "size": 1, "stream": 0}])
save("no_entries", [1, 2])
with open("other.pickle", "wb") as file:
    pickle.dump([1, 2, 3], file)
with open("plain.pickle", "rb") as file:
    data = file.read()
for n in range(0, len(data), 37):
    with open("cut.%d" % n, "wb") as file:
        file.write(data[:n])


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


save("evil", [Evil()])
with open("evil_class.pickle", "wb") as file:
    file.write(b"\x80\x02ccollections\nOrderedDict\n.")
END
}

plain="malloc 0 1000\nmalloc 1 50\nfree 0 1000\nmalloc 2 700\n"
exact() { # test
    run 0 "$folder/plain.pickle" && is_trace "$plain" || return 1
    cat >"$folder/exact" <<'END'
memo trace 1
# PyTorch, device 0, to free_completed; 0 blocks from before are not listed
malloc 0 1000
malloc 1 50
free 0 1000
malloc 2 700
end 4 49a68b3d1e002271
END
    diff "$folder/exact" "$folder/out"
}

output_file() { # test
    echo old >"$folder/step.trace"
    run 0 "$folder/plain.pickle" -o "$folder/step.trace" && [ ! -s "$folder/out" ] || return 1
    run 0 "$folder/plain.pickle" --output - && cmp "$folder/out" "$folder/step.trace" || return 1
    run 2 "$folder/empty.pickle" -o "$folder/step.trace" && grep -q '^malloc 2 700$' "$folder/step.trace" || return 1
    refuses 'no/where: No such file' "$folder/plain.pickle" -o "$folder/no/where" || return 1
    mkdir -p "$folder/a_folder" || return 1
    refuses 'a_folder: Is a directory' "$folder/plain.pickle" -o "$folder/a_folder" || return 1
    run 0 "$folder/plain.pickle" -o /dev/null && [ -c /dev/null ] || return 1
    cp "$folder/plain.pickle" "$folder/own.pickle" && ln -s own.pickle "$folder/link.pickle" || return 1
    for name in own.pickle link.pickle; do
        refuses "$name: is also the snapshot" "$folder/own.pickle" -o "$folder/$name" || return 1
    done
    cmp "$folder/plain.pickle" "$folder/own.pickle" || return 1
    [ -z "$(find "$folder" -name 'step.trace.*' -o -name 'a_folder.*')" ]
}

streams() { # test
    run 0 "$folder/streams.pickle" && is_trace "malloc 0 10\nmalloc 1 20 transient 1\nmalloc 2 30 transient 2
malloc 3 40 transient 1\nfree 0 10\nfree 1 20\n" &&
        refuses 'at most 64 streams' "$folder/too_many.pickle"
}

free_requested() { # test
    run 0 "$folder/streams.pickle" --free requested && is_trace "malloc 0 10\nmalloc 1 20 transient 1
malloc 2 30 transient 2\nfree 0 10\nmalloc 3 40 transient 1\nfree 1 20\n"
}

one_kind_of_free() { # test
    refuses 'no free_completed entry' "$folder/requested_only.pickle" &&
        run 0 "$folder/requested_only.pickle" --free requested && is_trace "malloc 0 5\nfree 0 5\n"
}

blocks_from_before() { # test
    run 0 "$folder/before.pickle" && is_trace "malloc 0 12\n" &&
        grep -q '; 4 blocks from before are not' "$folder/out" &&
        run 0 "$folder/before.pickle" --resident && is_trace "malloc 0 11\nmalloc 1 13 transient 1
malloc 2 400 persistent\nmalloc 3 33 persistent\nfree 0 11\nmalloc 4 12\nfree 1 13\n" &&
        run 0 "$folder/before.pickle" --resident --free requested && is_trace "malloc 0 11\nmalloc 1 13 transient 1
malloc 2 400 persistent\nfree 0 11\nmalloc 3 12\nfree 1 13\n"
}

marks() { # test
    run 0 "$folder/marks.pickle" --from-mark "step 1 begin" --to-mark "step 1 end" && is_trace "mark step 1 begin
malloc 0 200\nmark layer 0 forward begin\nmalloc 1 300\nmark layer 0 forward end\nfree 1 300\nfree 0 200
mark step 1 end\n" || return 1
    run 0 "$folder/marks.pickle" --from-mark "layer 0 forward end" --to-mark "step 1 begin" --resident &&
        is_trace "malloc 0 100 persistent\nmalloc 1 200\nmalloc 2 300\nmark layer 0 forward end\nfree 2 300
free 1 200\nmark step 0 end\nmark step 1 begin\n" || return 1
    run 0 "$folder/marks.pickle" --to-mark "layer 0 forward end" && is_trace "malloc 0 100\nmark step 0 begin
malloc 1 200\nmark layer 0 forward begin\nmalloc 2 300\nmark layer 0 forward end\n" || return 1
    run 0 "$folder/marks_in_history.pickle" && is_trace "mark a b  begin
malloc 0 5\nmark a b  end\n" || return 1
    refuses 'no mark `step 7 begin`; there are: step 0 begin; ' "$folder/marks.pickle" --from-mark "step 7 begin" &&
        refuses 'no mark `step 0 end` behind' "$folder/marks.pickle" --from-mark "step 1 begin" \
            --to-mark "step 0 end" &&
        refuses 'there are: none' "$folder/plain.pickle" --to-mark x &&
        refuses 'no block' "$folder/marks.pickle" --from-mark "step 1 end"
}

devices() { # test
    run 0 "$folder/second_device.pickle" --device 1 && is_trace "malloc 0 77\n" &&
        refuses 'device 0 has no history (there is one of device 1)' "$folder/second_device.pickle" &&
        refuses 'device 2 has no history' "$folder/second_device.pickle" --device 2 &&
        refuses 'device -1 has no history' "$folder/second_device.pickle" --device -1
}

lost_free() { run 0 "$folder/lost_free.pickle" && is_trace "malloc 0 5\nfree 0 5\nmalloc 1 6\nfree 1 6\n"; } # test

empty_history() { # test
    refuses '_record_memory_history' "$folder/empty.pickle" && refuses 'no alloc entry' "$folder/only_frees.pickle"
}

no_code_is_run() { # test
    here=$(pwd)
    cd "$folder" || return 1
    status=0
    python3 "$here/${tool#python3 }" evil.pickle >out 2>err || status=$?
    cd "$here" || return 1
    [ $status -eq 2 ] && [ ! -e "$folder/ran" ] && grep -q 'posix.system; a snapshot is plain data' "$folder/err" &&
        refuses 'collections.OrderedDict' "$folder/evil_class.pickle"
}

damaged() { # test
    for file in "$folder"/cut.*; do
        refuses 'not a whole pickle' "$file" || return 1
    done
    refuses 'not a whole pickle' README.md && refuses 'no device_traces' "$folder/other.pickle" &&
        refuses 'a size is no number' "$folder/bad_size.pickle" &&
        refuses 'a size is no number' "$folder/text_size.pickle" &&
        refuses "damaged.*'addr'" "$folder/no_address.pickle" && refuses 'damaged' "$folder/no_entries.pickle" &&
        refuses 'No such file' "$folder/no_such_file" && refuses 'Is a directory' "$folder"
}

options() { # test
    refuses 'required: snapshot' && refuses 'unrecognized.*--resid;' "$folder/plain.pickle" --resid &&
        refuses 'invalid choice' "$folder/plain.pickle" --free never &&
        refuses 'invalid int' "$folder/plain.pickle" --device x &&
        run 0 --help && grep -q '_record_memory_history' "$folder/out" && grep -q 'plan_trace step.trace' "$folder/out"
}

if ! command -v python3 >/dev/null 2>&1 || ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
    skip snapshot_to_trace "python3 (3.8 or newer) is not installed"
    tap_end
    exit
fi
make_snapshots || exit 1
tests_of tests/tools/test_snapshot_to_trace.sh
tap_end
