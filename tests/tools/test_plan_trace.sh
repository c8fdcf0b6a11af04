#!/bin/sh
# test_plan_trace.sh - the tool plan_trace: its output, files and refusals.  Needs build/examples/plan_trace.  Output: TAP.
set -u

. tests/support/tap.sh

tool=build/examples/plan_trace
needs_program $tool
tap_folder build/tests/plan_trace

value() { # KEY FILE
    sed -n "s/^$1: //p" "$2"
}

prints_keys() { # test
    run 0 examples/layer.trace || return 1
    for key in buffers lower_bound_bytes peak_bytes gap_bytes gap_percent proof engine solve_seconds; do
        [ -n "$(value $key "$folder/out")" ] || return 1
    done
}

writes_files() { # test
    run 0 examples/layer.trace --csv "$folder/a.csv" --plan "$folder/a.plan" --svg "$folder/a.svg" \
        --json "$folder/a.json" --compare-caching || return 1
    [ "$(head -n 1 "$folder/a.csv")" = id,lower,upper,size,offset ] || return 1
    [ "$(wc -l <"$folder/a.csv")" -eq $(($(value buffers "$folder/out") + 1)) ] || return 1
    [ -n "$(value caching_reserved_bytes "$folder/out")" ] || return 1
    head -n 1 "$folder/a.plan" | grep -q '^memo plan ' && grep -q '</svg>' "$folder/a.svg" &&
        grep -q device_traces "$folder/a.json"
}

# A proven plan has no gap, though the sum of live sizes is less.
proven_plans_have_no_gap() { # test
    printf 'id,lower,upper,size,alignment\na,0,5,4,8\nb,0,5,4,8\n' >"$folder/aligned.csv"
    run 0 "$folder/aligned.csv" --svg "$folder/aligned.svg" || return 1
    [ "$(value peak_bytes "$folder/out") $(value lower_bound_bytes "$folder/out") $(value gap_percent "$folder/out")" = "12 12 0.0000" ] &&
        grep -q 'gap 0.00% (optimal' "$folder/aligned.svg"
}

# Offsets that are all given are checked; the bound is that of the buffers without them.
given_offsets_are_valid() { # test
    printf 'id,lower,upper,size,offset\na,0,5,4,0\nb,2,6,4,12\n' >"$folder/given.csv"
    run 0 "$folder/given.csv" --svg "$folder/given.svg" || return 1
    grep -q 'peak 16 B, lower bound 8 B, gap 100.00% (valid, offsets given)' "$folder/given.svg" || return 1
    [ "$(value peak_bytes "$folder/out") $(value lower_bound_bytes "$folder/out") $(value gap_percent "$folder/out")" = "16 8 100.0000" ] &&
        [ "$(value 'offsets given' "$folder/out")" = valid ] && ! grep -q '^proof\|^engine' "$folder/out" || return 1
    printf 'id,lower,upper,size,offset\na,0,5,4,0\nb,2,6,4,\n' >"$folder/some.csv"
    run 0 "$folder/some.csv" && [ "$(value proof "$folder/out")" = optimal ]
}

# The proof of a plan convinces a checker that trusts nothing; a larger peak, another moment or a moved buffer do not.
checker="python3 examples/tools/check_proof.py"
proofs_are_checked() { # test
    printf 'id,lower,upper,size,alignment\na,0,5,70,64\nb,2,9,100,64\nc,7,12,30,128\nd,3,4,9,16\n' >"$folder/raw.csv"
    run 0 "$folder/raw.csv" --proof "$folder/raw.proof" --csv "$folder/raw.out.csv" || return 1
    [ "$(value proof "$folder/out")" = optimal ] || return 1
    $checker "$folder/raw.csv" "$folder/raw.proof" "$folder/raw.out.csv" | grep '^proven: ' || return 1
    peak=$(sed -n 's/^peak //p' "$folder/raw.proof")
    [ "$peak" = "$(value peak_bytes "$folder/out")" ] || return 1
    sed "s/^peak .*/peak $((peak + 1))/" "$folder/raw.proof" >"$folder/high.proof"
    sed 's/^moment [0-9]*/moment 11/' "$folder/raw.proof" >"$folder/late.proof"
    sed 's/,\([0-9]*\)$/,0/' "$folder/raw.out.csv" >"$folder/moved.csv"
    for wrong in "high.proof raw.out.csv" "late.proof raw.out.csv" "raw.proof moved.csv"; do
        $checker "$folder/raw.csv" "$folder/${wrong% *}" "$folder/${wrong#* }" >"$folder/refused"
        [ $? -eq 1 ] && grep '^not proven: ' "$folder/refused" || { echo "accepted: $wrong"; return 1; }
    done
}

# A buffer whose gaps cover its life is as large as the plan: that is its proof.
sizes_are_proofs() { # test
    printf 'id,lower,upper,size,gaps\na,0,5,7,\nb,2,9,100,2-6 6-9\nc,4,12,30,\n' >"$folder/covered.csv"
    run 0 "$folder/covered.csv" --proof "$folder/covered.proof" --csv "$folder/covered.out.csv" || return 1
    [ "$(value peak_bytes "$folder/out") $(value proof "$folder/out") $(grep -c '^size 1$' "$folder/covered.proof")" = "100 optimal 1" ] || return 1
    $checker "$folder/covered.csv" "$folder/covered.proof" "$folder/covered.out.csv" | grep '^proven: ' || return 1
    for wrong in 's/^size 1/size 2/' 's/^size 1/size 3/' 's/^peak .*/peak 101/'; do
        sed "$wrong" "$folder/covered.proof" >"$folder/wrong.proof"
        $checker "$folder/covered.csv" "$folder/wrong.proof" >"$folder/refused"
        [ $? -eq 1 ] && grep '^not proven: ' "$folder/refused" || { echo "accepted: $wrong"; return 1; }
    done
}

# A plan that only an exhausted search proves has the failed search as its proof.  A higher peak, a search without its last
# failure, and a branch that does not fail are refused.
search_proofs_are_checked() { # test
    printf 'id,lower,upper,size,alignment\na,0,2,3,4\nb,0,2,3,8\nc,0,2,3,4\nd,0,2,2,8\n' >"$folder/odd0.csv"
    awk 'BEGIN { srand(7); print "id,lower,upper,size"
        for (i = 0; i < 24; i++) { a = int(9 * rand()); print i "," a "," a + 1 + int(4 * rand()) "," 1 + int(12 * rand()) } }' >"$folder/odd1.csv"
    n_searches=0
    for k in 0 1 2 3 $(tests_all && echo 4 5 6); do
        [ $k -gt 1 ] && awk -v k=$k 'BEGIN { srand(k); print "id,lower,upper,size,alignment,gaps"
            for (i = 0; i < 18; i++) { a = int(8 * rand()); b = a + 4 + int(6 * rand())
                gap = rand() < 0.4 ? a + 1 "-" a + 2 : ""
                print i "," a "," b "," 1 + int(12 * rand()) "," 2 ^ int(3 * rand()) "," gap } }' >"$folder/odd$k.csv"
        rm -f "$folder/odd.proof"
        run 0 "$folder/odd$k.csv" --proof "$folder/odd.proof" --csv "$folder/odd.out.csv" || return 1
        [ "$(value proof "$folder/out")" = optimal ] || { echo "problem $k: not proven"; return 1; }
        $checker "$folder/odd$k.csv" "$folder/odd.proof" "$folder/odd.out.csv" >"$folder/said" || { cat "$folder/said"; return 1; }
        grep -q 'a search of' "$folder/said" || continue
        n_searches=$((n_searches + 1))
        peak=$(sed -n 's/^peak //p' "$folder/odd.proof")
        sed "s/^peak .*/peak $((peak + 1))/" "$folder/odd.proof" >"$folder/high.proof"
        awk '$0 == "end" { last = "" } NR > 1 && last != "" { print last } { last = $0 } END { print }' "$folder/odd.proof" >"$folder/short.proof"
        awk '{ print } $0 == "search" { print ")" }' "$folder/odd.proof" >"$folder/open.proof"
        for wrong in high short open; do
            $checker "$folder/odd$k.csv" "$folder/$wrong.proof" >"$folder/refused"
            [ $? -eq 1 ] && grep -q '^not proven: ' "$folder/refused" || { echo "accepted: $wrong, problem $k"; return 1; }
        done
    done
    echo "$n_searches searches" && [ $n_searches -ge 2 ]
}

# Waits until a process has a handler of TERM; where /proc does not tell, a second.
catches_term() { # PROCESS
    [ -r "/proc/$1/status" ] || sleep 1
    while [ -r "/proc/$1/status" ]; do
        caught=$(sed -n 's/^SigCgt:[^0-9a-f]*[0-9a-f]*\([0-9a-f]\{4\}\)$/\1/p' "/proc/$1/status")
        [ $((0x${caught:-0} & 0x4000)) -eq 0 ] || return 0
        sleep 0.1
    done
}

# Alignments of which no search comes to an end.
hard_problem() {
    awk 'BEGIN { srand(3); print "id,lower,upper,size,alignment"
        for (i = 0; i < 300; i++) { b = int(rand() * 40); print i "," b "," b + 1 + int(rand() * 15) "," 1 + int(rand() * 99) "," 2 ^ int(rand() * 6) } }' >"$folder/hard.csv"
}

# Without a proof the tool says so in its exit status, and the file of an earlier proof stays.
no_proof_is_a_failure() { # test
    hard_problem
    echo before >"$folder/hard.proof"
    run 1 "$folder/hard.csv" --engine greedy --proof "$folder/hard.proof" --csv "$folder/hard.out.csv" || return 1
    [ "$(value proof "$folder/out")" = feasible ] && grep -q 'hard.proof: not written; the plan is not proven' "$folder/err" || return 1
    [ "$(cat "$folder/hard.proof")" = before ] && [ -s "$folder/hard.out.csv" ]
}

# Buffers with alignments of which many live together; a few others, whose alignments leave holes, decide.
a_proof_beside_a_large_set() {
    run 0 ../shared/instances/align-loglife-200-1.csv --proof "$folder/large.proof" || return 1
    $checker ../shared/instances/align-loglife-200-1.csv "$folder/large.proof" >"$folder/said" || { cat "$folder/said"; return 1; }
    awk '$1 == "set" && NF > 17 { large = 1 } END { exit !large }' "$folder/large.proof"
}

# A signal ends a search that would last a minute, with a valid plan on the terminal and in a file.
signals_end_planning() { # test
    hard_problem
    for signal in INT TERM; do
        rm -f "$folder/hard.plan"
        $tool "$folder/hard.csv" --time-limit 600 --plan "$folder/hard.plan" >"$folder/out" 2>"$folder/err" &
        catches_term $!
        kill -s $signal $! 2>/dev/null
        wait $! || { echo "exit status $?"; return 1; }
        [ -n "$(value peak_bytes "$folder/out")" ] && grep -q '^memo plan ' "$folder/hard.plan" || return 1
        grep 'stopped; this is the best plan so far' "$folder/err" || return 1
    done
}

# A signal ends the search for a proof, too.  The tool has planned when its numbers are there, and then waits for a reader of
# the CSV.  All other files are written, and an earlier proof stays.
signals_end_proofs() { # test
    awk 'BEGIN { print "id,lower,upper,size,alignment"
        for (i = 0; i < 14; i++) print i ",0,2," 1 + (37 * i * i + 11 * i) % 41 "," 2 ^ (i * i % 5) }' >"$folder/stacked.csv"
    run 0 "$folder/stacked.csv" --proof "$folder/stacked.proof" || return 1
    [ "$(wc -l <"$folder/stacked.proof")" -gt 1000 ] && mkfifo "$folder/pipe" || return 1
    for signal in INT TERM; do
        rm -f "$folder/out" "$folder/stacked.svg"
        echo before >"$folder/stacked.proof"
        $tool "$folder/stacked.csv" --csv "$folder/pipe" --proof "$folder/stacked.proof" --svg "$folder/stacked.svg" >"$folder/out" 2>"$folder/err" &
        wait_for "$folder/out" && kill -s $signal $! && cat "$folder/pipe" >"$folder/stacked.out.csv"
        wait $!
        [ $? -eq 1 ] && [ "$(value proof "$folder/out")" = optimal ] && [ "$(wc -l <"$folder/stacked.out.csv")" -eq 15 ] || return 1
        grep 'stacked.proof: not written; the search that proves the plan was stopped' "$folder/err" || return 1
        [ "$(cat "$folder/stacked.proof")" = before ] && [ -s "$folder/stacked.svg" ] || return 1
    done
}

# The fields that MemoryViz.js reads of a snapshot: the keys of every event; frees whose two moments follow each other;
# blocks inside the segment that overlap no live block; no block left at the end, in agreement with the segment.
snapshot_is_what_the_viewer_reads() {
    printf 'id,lower,upper,size,gaps\n"a\\b",0,10,4,3-5 7-8\ny,3,5,4,\nzero,2,9,0,\nz,7,8,3,\n' >"$folder/gaps.csv"
    for file in examples/layer.trace "$folder/gaps.csv"; do
        run 0 "$file" --json "$folder/s.json" --pickle "$folder/s.pickle" || return 1
        python3 - "$folder/s.json" "$folder/s.pickle" <<'END' || return 1
import json, pickle, sys
snapshot = json.load(open(sys.argv[1], encoding="utf-8"))
assert pickle.load(open(sys.argv[2], "rb")) == snapshot, "pickle and JSON differ"
assert {"segments", "device_traces", "allocator_settings"} <= set(snapshot)
assert len(snapshot["device_traces"]) == 1
(segment,) = snapshot["segments"]
assert {"address", "total_size", "allocated_size", "active_size", "requested_size", "device", "stream",
        "segment_type", "blocks", "frames"} <= set(segment)
assert segment["device"] == 0 and sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
assert all({"size", "requested_size", "state", "frames"} <= set(b) for b in segment["blocks"])
first, *events = snapshot["device_traces"][0]
assert first["action"] == "segment_alloc"
assert (first["addr"], first["size"]) == (segment["address"], segment["total_size"])
live, asked, now = {}, None, 0
for e in events:
    assert {"action", "addr", "size", "stream", "time_us", "frames"} <= set(e), e
    assert all(isinstance(e[k], int) for k in ("addr", "size", "stream", "time_us")) and e["time_us"] >= now
    assert all(isinstance(f["name"], str) and isinstance(f["filename"], str) and isinstance(f["line"], int)
               for f in e["frames"])
    now, block = e["time_us"], (e["addr"], e["size"])
    assert (asked is not None) == (e["action"] == "free_completed") and asked in (None, block)
    asked = block if e["action"] == "free_requested" else None
    if e["action"] == "alloc":
        assert 0 < e["size"] and e["addr"] + e["size"] <= segment["total_size"]
        assert all(a + n <= e["addr"] or e["addr"] + e["size"] <= a for a, n in live.items())
        live[e["addr"]] = e["size"]
    elif e["action"] == "free_completed":
        assert live.pop(e["addr"]) == e["size"]
assert not live and asked is None
END
    done
}

# A snapshot of the plan, read back as any other is, is the trace again.
snapshot_makes_the_round_trip() {
    run 0 examples/layer.trace --pickle "$folder/s.pickle" || return 1
    python3 examples/pytorch/snapshot_to_trace.py "$folder/s.pickle" -o "$folder/s.trace" || return 1
    peak=$(value peak_bytes "$folder/out")
    run 0 "$folder/s.trace" && [ "$(value peak_bytes "$folder/out")" = "$peak" ]
}

caching_allocator() { # test
    run 0 examples/layer.trace --compare-caching || return 1
    for key in caching_allocated_bytes caching_reserved_bytes caching_fragmentation_percent \
        caching_over_plan_percent caching_least_capacity_bytes; do
        [ -n "$(value $key "$folder/out")" ] || return 1
    done
    [ "$(value caching_out_of_memory "$folder/out")" = no ] || return 1
    # 30 MiB, then 40, in 60: the first segment must go back.  Below 40 nothing helps.
    printf 'malloc 1 31457280\nfree 1 31457280\nmalloc 2 41943040\nfree 2 41943040\n' >"$folder/two.trace"
    run 0 "$folder/two.trace" --compare-caching --capacity 62914560 || return 1
    [ "$(value caching_retries "$folder/out")" = "1 first, 0 later" ] || return 1
    [ "$(value caching_least_capacity_bytes "$folder/out")" = 41943040 ] || return 1
    printf 'id,lower,upper,size\n1,0,1,31457280\n2,1,2,41943040\n' >"$folder/two.csv"
    run 1 "$folder/two.csv" --compare-caching --capacity 40000000 || return 1
    value caching_out_of_memory "$folder/out" | grep -q '^request 2 of 4, 41943040 bytes for id 1$'
}

# No two rows of a written CSV share a time and an address; the peak is the one that is printed.
rows_do_not_overlap() {
    awk -F, -v peak="$2" '
        NR > 1 {
            for (i = 0; i < n; i++)
                if ($2 < upper[i] && lower[i] < $3 && $5 < offset[i] + size[i] && offset[i] < $5 + $4) bad = 1
            lower[n] = $2; upper[n] = $3; size[n] = $4; offset[n++] = $5
            if ($5 + $4 > top) top = $5 + $4
        }
        END { exit bad || top != peak }' "$1"
}

csv_has_every_column() { # test
    printf 'id,lower,upper,size,alignment,offset,gaps\nx,0,10,4,4,,3-5 7-8\ny,3,5,4,,0,\nz,7,8,8,1,,\n' \
        >"$folder/in.csv"
    run 0 "$folder/in.csv" --csv "$folder/b.csv" || return 1
    [ "$(value peak_bytes "$folder/out")" = 8 ] && [ "$(value proof "$folder/out")" = optimal ] || return 1
    grep -q '^y,3,5,4,0$' "$folder/b.csv"
}

# Quotes, the mark of UTF-8, line ends of two bytes, a comment and blank lines before the heading, columns in any
# order, ids that recur or are empty; the rows come back in the file's order.
csv_as_others_write_it() { # test
    printf '\357\273\277# made, by hand\r\n\r\nsize, upper ,lower,id,note\r\n' >"$folder/in.csv"
    printf '5,9,4,"a,""b""",x\r\n4,\t3,0, c d ,"y, z"\r\n4,2,1,,\r\n4,2,1,c d,' >>"$folder/in.csv"
    run 0 "$folder/in.csv" --csv "$folder/b.csv" || return 1
    printf 'id,lower,upper,size,offset\n"a,""b""",4,9,5,0\nc d,0,3,4,0\n' >"$folder/wanted"
    head -n 3 "$folder/b.csv" | cmp - "$folder/wanted" || return 1
    sed -n 4p "$folder/b.csv" | grep -q '^,1,2,4,[48]$' && sed -n 5p "$folder/b.csv" | grep -q '^c d,1,2,4,[48]$' || return 1
    run 0 "$folder/b.csv" --csv "$folder/c.csv" && cmp "$folder/b.csv" "$folder/c.csv"
}

# One layer of 16 bytes that its backward needs, and 4 that it does not.
makes_layers() { # test
    printf '%s\n' 'malloc 1 8' 'mark layer 0 forward begin' 'malloc 2 16' 'malloc 3 4' 'free 3 4' 'malloc 4 8' \
        'mark layer 0 forward end' 'mark layer 0 backward begin' 'free 1 8' 'free 2 16' 'mark layer 0 backward end' \
        'free 4 8' >"$folder/one.trace"
    for layers in 1 5 100; do
        run 0 "$folder/one.trace" --layers $layers || return 1
        [ "$(value buffers "$folder/out")" -eq $((1 + 3 * layers)) ] || return 1
        [ "$(value peak_bytes "$folder/out")" -eq $((8 + 24 * layers)) ] || return 1
    done
    run 2 examples/layer.trace --layers 4 && grep -q 'layer.trace: n_layers: .* record one layer' "$folder/err" || return 1
    printf 'id,lower,upper,size\na,0,1,4\n' >"$folder/some.csv"
    run 2 "$folder/some.csv" --layers 2 && grep -q 'some.csv: a CSV; --layers needs a trace' "$folder/err" || return 1
    run 2 "$folder/one.trace" --layers 0 && grep -q 'layers.*not a whole number from 1' "$folder/err"
}

zero_byte_is_refused() { # test
    printf 'id,lower,upper,size\na,0,3,4\0\nb,1,2,5\n' >"$folder/bad"
    run 2 "$folder/bad" && grep -q 'bad:2: ' "$folder/err"
}

fault_of_several_rows_names_the_file() { # test
    printf 'id,lower,upper,size,offset\na,0,3,4,0\nb,1,2,5,3\n' >"$folder/bad"
    run 2 "$folder/bad" && grep -q 'bad: buffers 0 (id 0) and 1 (id 1)' "$folder/err"
}

capacity_of_any_size() { # test
    for capacity in 9 4611686018427387904 9223372036854775807; do
        printf 'id,lower,upper,size\na,0,3,4\nb,1,2,5\n' | "$tool" - --capacity $capacity >"$folder/out" || return 1
        [ "$(value peak_bytes "$folder/out")" = 9 ] || return 1
    done
}

# A link stays a link; another name of standard output is written to, not replaced.
writes_through_links() { # test
    ln -s target.csv "$folder/link.csv" && ln -s /proc/self/fd/1 "$folder/stdout.csv" || return 1
    run 0 examples/layer.trace --csv "$folder/link.csv" && [ -L "$folder/link.csv" ] && [ -s "$folder/target.csv" ] || return 1
    run 0 examples/layer.trace --csv "$folder/link.csv" && [ -L "$folder/link.csv" ] || return 1
    [ -e /proc/self/fd/1 ] || return 0
    run 0 examples/layer.trace --csv "$folder/stdout.csv" && [ -L "$folder/stdout.csv" ] || return 1
    grep -q '^peak_bytes: ' "$folder/out" && grep -q '^id,lower,upper' "$folder/out"
}

outputs_do_not_replace_each_other() { # test
    cp examples/layer.trace "$folder/own.trace"
    ln -s own.trace "$folder/own.link"
    run 2 "$folder/own.trace" --csv "$folder/own.trace" && run 2 "$folder/own.trace" --svg "$folder/own.link" || return 1
    cmp examples/layer.trace "$folder/own.trace" || return 1
    run 2 "$folder/own.trace" --csv "$folder/new" --json "$folder/new" && [ ! -e "$folder/new" ] || return 1
    run 2 "$folder/own.trace" --csv "$folder/new" --json "$folder/../plan_trace/new" && [ ! -e "$folder/new" ] || return 1
    ln -s new "$folder/promise"
    run 2 "$folder/own.trace" --csv "$folder/new" --json "$folder/promise" && [ ! -e "$folder/new" ] || return 1
    "$tool" - --csv "$folder/own.trace" <"$folder/own.trace" && return 1
    cmp examples/layer.trace "$folder/own.trace" || return 1
    run 0 "$folder/own.trace" --csv /dev/null --json /dev/null
}

standard_input() { # test
    status=0
    printf 'malloc 1 100\nmalloc 2 50\nfree 1 100\nmalloc 3 100\nfree 2 50\nfree 3 100\n' |
        "$tool" - >"$folder/out" || return 1
    [ "$(value peak_bytes "$folder/out")" = 150 ]
}

endless_file_is_refused() { # test
    run 2 /dev/zero && grep -q '^plan_trace: /dev/zero: larger than 1024 MiB$' "$folder/err"
}

capacity_not_met() { # test
    run 1 examples/layer.trace --capacity 1 && grep -q capacity "$folder/err"
}

refuses() { # TEXT PATTERN
    printf "$1" >"$folder/bad"
    run 2 "$folder/bad" && grep -q "$2" "$folder/err" && [ ! -s "$folder/out" ]
}

refuses_arguments() { # test
    run 2 && run 2 "$folder/no_such_file" && run 2 examples/layer.trace --align 3 &&
        run 2 examples/layer.trace --engine none && run 2 examples/layer.trace --seed &&
        run 2 examples/layer.trace --time-limit 0 && run 2 examples/layer.trace --svg --csv "$folder/x.csv" &&
        grep -q -e '--svg: no value' "$folder/err" && [ ! -e ./--csv ] && run 2 examples/layer.trace --csv "$folder/no/where.csv"
}

recorded_traces() { # test
    for trace in tests/data/*.trace; do
        run 0 "$trace" --csv "$folder/c.csv" || return 1
        [ "$(value proof "$folder/out")" = optimal ] || return 1
        [ "$(value peak_bytes "$folder/out")" = "$(value lower_bound_bytes "$folder/out")" ] || return 1
        rows_do_not_overlap "$folder/c.csv" "$(value peak_bytes "$folder/out")" || return 1
        run 0 "$trace" --engine bilevel && [ "$(value proof "$folder/out")" = optimal ] || return 1
    done
}

public_instances() {
    for letter in C H; do
        run 0 ../shared/minimalloc/$letter.1048576.csv --capacity 1048576 --time-limit 60 \
            --csv "$folder/d.csv" || return 1
        rows_do_not_overlap "$folder/d.csv" "$(value peak_bytes "$folder/out")" || return 1
    done
}

tests_of tests/tools/test_plan_trace.sh
test_with python3 "a snapshot is what the viewer reads" snapshot_is_what_the_viewer_reads
test_with python3 "a snapshot makes the round trip" snapshot_makes_the_round_trip
test_is empty_file_is_refused refuses '' 'bad'
test_is backward_lifetime_is_refused refuses 'id,lower,upper,size\nx,5,5,4\n' 'bad:2: '
test_is large_size_is_refused refuses 'id,lower,upper,size\nx,1,5,9223372036854775807\n' 'bad:2: size'
test_is short_row_is_refused refuses 'id,lower,upper,size\nx,1,5\n' 'bad:2: size'
test_is open_quote_is_refused refuses 'id,lower,upper,size\n"x,1,5,3\n' 'bad:2: '
test_is gap_outside_is_refused refuses 'id,lower,upper,size,gaps\nx,1,5,3,0-2\n' 'bad:2: '
test_is column_named_twice_is_refused refuses 'id,lower,upper,size,size\nx,1,5,3,4\n' 'bad:1: '
test_is heading_is_refused refuses 'id,start,upper,size\nx,1,5,3\n' 'bad:1: '
test_is unknown_free_is_refused refuses 'malloc 1 4\nfree 2 4\n' 'bad:2: '
if [ -f ../shared/instances/align-loglife-200-1.csv ]; then
    test_is a_proof_beside_a_large_set a_proof_beside_a_large_set
else
    skip a_proof_beside_a_large_set "../shared/instances is not there"
fi
if [ -d ../shared/minimalloc ]; then
    test_is public_instances public_instances
else
    skip public_instances "../shared/minimalloc is not there"
fi
tap_end
