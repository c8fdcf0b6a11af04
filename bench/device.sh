#!/bin/sh
# device.sh - runs everything that needs a GPU within nine minutes:
#
#   sh bench/device.sh
#
# Builds the CUDA tests, examples and benchmarks.  Runs the tests, compute-sanitizer (memcheck, initcheck, synccheck) on the
# kernels and on a short run with swaps, the benchmarks, the examples, and, if time is left, the tests over NCCL with 2, 4
# and 8 ranks, which share the GPU.  Writes machine, date, commit and results to bench/results/GPU.md, and the timelines of
# the chain beside it.  The benchmarks have at least half of the time.
#
# Correctness tests decide on results only.  Times and free memory are measured here and compared with goals in a table.
# racecheck is absent: it checks shared memory, which no kernel here uses.
#
# Environment: OUT       folder of the results and of all messages, instead of bench/results
#              LIMIT_S   seconds for everything, default 540
#              TOKENS    length of the chain, default 98304
#              ALPHA     of the chain's fourth way, swap and recompute, default 0.5
#              COMMIT    required outside a git checkout
#              CUDNN     folder of cudnn-frontend: its example is built and run too, and the chain's attention is cuDNN's;
#                        if that chain prints no table, the chain with attention in blocks runs
# cuBLAS, NCCL and cuDNN come from where nvcc finds them, otherwise from Python's packages (nvidia-cublas, ...), whose
# headers are searched after nvcc's own: a package may bring older headers of the CUDA runtime.
# Exit status 1 if anything failed or was cut short, or if there is no GPU; the file is written if there is one.
set -u
cd "$(dirname "$0")/.." || exit 1

begin_s=$(date +%s)
limit_s=${LIMIT_S:-540}
folder=build/device
rm -rf "$folder"
mkdir -p "$folder" || exit 1
PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer:/usr/local/cuda/extras/compute-sanitizer
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64
export PATH LD_LIBRARY_PATH

left() { echo $((begin_s + limit_s - $(date +%s))); }
stop() { echo "device.sh: $1" >&2; exit 1; }

command -v nvidia-smi >/dev/null 2>&1 || stop "no GPU here: nvidia-smi is missing"
gpu=$(nvidia-smi -i 0 --query-gpu=name --format=csv,noheader 2>/dev/null) && [ -n "$gpu" ] ||
    stop "no GPU here: nvidia-smi finds none"
command -v nvcc >/dev/null 2>&1 || stop "needs nvcc (developer.nvidia.com/cuda-downloads)"
command -v timeout >/dev/null 2>&1 || stop "needs timeout (coreutils)"

results=${OUT:-bench/results}
mkdir -p "$results" || exit 1
name=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
file=$results/$name.md
stages=$folder/stages.md
: >"$stages"
failed=0
benchmarks_s=$((limit_s / 2)) # theirs alone, until they begin

# stage NAME SECONDS COMMAND...: output in $folder/NAME.log; a row in the table of stages.
stage() {
    stage_name=$1 seconds=$2
    shift 2
    : >"$folder/$stage_name.log"
    stage_begin_s=$(date +%s)
    seconds_left=$(($(left) - benchmarks_s))
    [ "$seconds" -le "$seconds_left" ] || seconds=$seconds_left
    if [ "$seconds" -le 0 ]; then
        result="**not run: no time left**" failed=1
    elif timeout -k 5 "$seconds" "$@" >"$folder/$stage_name.log" 2>&1; then
        result=passed
    else
        status=$?
        failed=1 result="**failed, exit status $status**"
        case $status in 124 | 137) result="**stopped after $seconds s**" ;; esac
    fi
    # A skipped test counts as a failure, unless memory was too small or in use.
    [ "$result" = passed ] && grep '^ok .*# SKIP' "$folder/$stage_name.log" | grep -qv 'are not free$' &&
        failed=1 result="**tests were skipped**"
    counts=$(awk '/^ok .*# SKIP/ { s++; next } /^ok / { p++ } /^not ok / { f++ }
        END { if (p + f + s) printf ": %d passed, %d failed, %d skipped", p, f, s }' "$folder/$stage_name.log")
    echo "| $stage_name | $result$counts | $(($(date +%s) - stage_begin_s)) s |" >>"$stages"
    echo "device.sh: $stage_name: $result$counts"
    case $result in passed) ;; *) tail -n 20 "$folder/$stage_name.log" >&2 2>/dev/null ;; esac
}

# ---- build ----

wraps=$(sh tests/cuda_wraps.sh)

arch=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -cd 0-9)
arch=${arch:+sm_$arch}
nvcc_flags="-arch=${arch:-native} -std=c++17 -lineinfo -I."

# find_library NAME HEADER: puts what nvcc needs to build with it into $flags.
packages=$(python3 -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null)
find_library() {
    printf '#include <cuda_runtime.h>\n#include <%s>\nint main() { return 0; }\n' "$2" >"$folder/probe.cpp"
    flags=-l$1
    nvcc "$folder/probe.cpp" $flags -o "$folder/probe" >"$folder/probe.log" 2>&1 && return
    for package in $packages; do
        for library in "$package"/*/lib/lib"$1".so*; do
            home=${library%/lib/*}
            [ -f "$home/include/$2" ] || continue
            ln -sf "$library" "$folder/lib$1.so" # there its name ends in a version
            flags="-Xcompiler -idirafter,$home/include -L$folder -Xlinker -rpath=$home/lib -l$1"
            nvcc "$folder/probe.cpp" $flags -o "$folder/probe" >"$folder/probe.log" 2>&1 && return
        done
    done
    flags=-l$1
    return 1
}
find_library cublasLt cublasLt.h; cublas_lt=$flags
find_library cublas cublas_v2.h; cublas=$flags
has_nccl=no
find_library nccl nccl.h && has_nccl=yes
nccl=$flags

# In the background, because they take longer than all others together.
compile_with_cudnn() { # SOURCE PROGRAM FLAGS...
    source=$1 program=$2
    shift 2
    timeout 240 nvcc $nvcc_flags -O1 -I"$CUDNN/include" "$source" $cudnn $nvrtc "$@" -o "$folder/$program" \
        >"$folder/$program.build.txt" 2>&1
    echo $? >"$folder/$program.status"
}
if [ -n "${CUDNN:-}" ]; then
    find_library cudnn cudnn.h; cudnn=$flags
    find_library nvrtc nvrtc.h; nvrtc=$flags
    compile_with_cudnn bench/cuda_chain.cu cuda_chain_cudnn -DCHAIN_CUDNN $cublas_lt &
    compile_with_cudnn examples/13_cudnn_attention.cu 13_cudnn_attention &
fi

cat >"$folder/build.sh" <<END
pids= bad=0
compile() { # SOURCE PROGRAM FLAGS...
    source=\$1 program=$folder/\$2
    shift 2
    nvcc $nvcc_flags -O3 "\$source" -o "\$program" "\$@" & pids="\$pids \$!"
}
compile tests/cuda/test_device.cu test_device
compile tests/cuda/test_kernels.cu test_kernels
compile tests/cuda/test_step.cu test_step $wraps
compile bench/cuda_memory.cu cuda_memory
compile bench/cuda_kernels.cu cuda_kernels
compile bench/cuda_chain.cu cuda_chain $cublas_lt
compile examples/05_three_edits.cu 05_three_edits
compile examples/06_cuda_arena.cu 06_cuda_arena
compile examples/07_cuda_swap_gemm.cu 07_cuda_swap_gemm $cublas
compile examples/08_cuda_phantom.cu 08_cuda_phantom
if [ $has_nccl = yes ]; then
    compile tests/test_comm_nccl.c test_comm_nccl -x cu -Itests -DMEMO_SP_NCCL $nccl
    compile tests/cuda/nccl_attention.cu nccl_attention -Itests $nccl
    compile tests/cuda/nccl_blocks.cu nccl_blocks -Itests -Iexamples $nccl
    compile examples/12_ring_nccl.cu 12_ring_nccl $nccl
fi
for pid in \$pids; do wait \$pid || bad=1; done
exit \$bad
END
stage build 150 sh "$folder/build.sh"

# ---- tests ----

for test in test_device test_kernels test_step; do
    stage $test 60 "$folder/$test"
done

# ---- compute-sanitizer: the kernels without the huge arrays, a short run with swaps ----

if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck initcheck synccheck; do
        stage "$tool-kernels" 40 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$folder/test_kernels" as_on_the_host
        stage "$tool-swap" 40 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$folder/test_step" swapping
    done
else
    failed=1
    echo "| compute-sanitizer | **not run: it is not installed** | |" >>"$stages"
fi

# ---- wait for the programs built in the background ----

if [ -n "${CUDNN:-}" ]; then
    cat >"$folder/cudnn.sh" <<'END'
bad=0
for program in cuda_chain_cudnn 13_cudnn_attention; do
    while [ ! -f "$1/$program.status" ]; do sleep 1; done
    cat "$1/$program.build.txt"
    [ "$(cat "$1/$program.status")" = 0 ] || bad=1
done
exit $bad
END
    stage build-cudnn 240 sh "$folder/cudnn.sh" "$folder"
fi

# ---- benchmarks ----

# bench NAME SECONDS ARGS...: writes its tables to a file and its other messages to the log.
bench() {
    bench_name=$1 bench_seconds=$2
    shift 2
    : >"$folder/$bench_name.md"
    stage "$bench_name" "$bench_seconds" sh -c 'out=$1; shift; exec "$@" >"$out"' sh "$folder/$bench_name.md" \
        "$folder/$bench_name" "$@"
}
benchmarks_s=0
timeout 240 nvidia-smi -i 0 --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 \
    >"$folder/clocks.txt" 2>/dev/null & monitor=$!
chain() { # PROGRAM
    bench "$1" 240 --tokens "${TOKENS:-98304}" --alpha "${ALPHA:-0.5}" --seconds 75 --out "$folder"
}
[ "$(cat "$folder/cuda_chain_cudnn.status" 2>/dev/null)" = 0 ] && chain cuda_chain_cudnn
if [ -s "$folder/cuda_chain_cudnn.md" ]; then
    mv "$folder/cuda_chain_cudnn.md" "$folder/cuda_chain.md"
else
    chain cuda_chain
fi
kill $monitor 2>/dev/null
wait $monitor 2>/dev/null
bench cuda_kernels 60 30
bench cuda_memory 120 16

# ---- examples: the output must match the head ----

cat >"$folder/examples.sh" <<'END'
. tests/heads.sh
bad=0
"$1/05_three_edits" || bad=1 # its plan depends on the machine; it compares the gradients itself
for source in examples/0[678]_cuda_*.cu; do
    program=$1/$(basename "$source" .cu)
    "$program" >"$program.txt" || bad=1
    cat "$program.txt"
    section "$source" "Expected output" >"$program.expected"
    matches "$program.expected" "$program.txt" || { echo "$source: the output differs from its head"; bad=1; }
done
exit $bad
END
stage examples 60 sh "$folder/examples.sh" "$folder"
[ -z "${CUDNN:-}" ] || stage 13_cudnn_attention 60 "$folder/13_cudnn_attention"

# ---- NCCL: comm, attention over ranks, overlapped blocks; correctness only, as ranks take turns on one GPU ----

cat >"$folder/ring_nccl.sh" <<'END'
NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29544
export NCCL_NET NCCL_SOCKET_IFNAME NCCL_IB_DISABLE WORLD_SIZE MASTER_ADDR MASTER_PORT
RANK=1 LOCAL_RANK=1 NCCL_HOSTID=1 "$1/12_ring_nccl" & other=$!
RANK=0 LOCAL_RANK=0 NCCL_HOSTID=0 "$1/12_ring_nccl" >"$1/12_ring_nccl.txt"
status=$?
wait $other || status=1
cat "$1/12_ring_nccl.txt"
expected=$(sed -n '/^ \* Expected output:/{n;s/^ \* *//p;}' examples/12_ring_nccl.cu)
[ "$(cat "$1/12_ring_nccl.txt")" = "$expected" ] || { echo "the output differs from its head: $expected"; status=1; }
exit $status
END

# Warnings go to files, because NCCL prints them to standard output.
export NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$PWD/$folder/nccl.%h.%p.txt"
if [ $has_nccl = yes ]; then
    stage 12_ring_nccl-2-ranks 60 sh "$folder/ring_nccl.sh" "$folder"
    for ranks in 2 4 8; do
        for test in test_comm_nccl nccl_attention nccl_blocks; do
            stage "$test-$ranks-ranks" $((40 + 8 * ranks)) "$folder/$test" $ranks
        done
    done
else
    failed=1
    echo "| NCCL | **not run: nccl.h or libnccl is not installed** | |" >>"$stages"
fi

# ---- the file ----

# The goals, compared with the figures of the tables below.
goals='
function goal(i, figure, is_reached) {
    printf "| %s | %s | %s |\n", names[i], figure, is_reached ? "yes" : "**no**"
    seen[i] = 1
}
BEGIN {
    n_goals = split("swap at most 1.02 of keep;bits of swap against those of keep;" \
        "swap and recompute faster than recompute alone;bits of swap and recompute against those of keep;" \
        "launching the step as a graph costs the host microseconds;bits of the graph against those of keep;" \
        "copies to host inside the step at least 0.95 of bare ones;" \
        "copies to device inside the step at least 0.95 of bare ones;pinning below 0.25 s/GiB;" \
        "2 TiB of phantom addresses in under a second;row kernels at least 90% of a copy", names, ";")
}
$2 == "swap" { goal(1, $4, $4 + 0 <= 1.02); goal(2, $8, $8 == "the same") }
$2 == "recompute" { recompute = $4 + 0 }
$2 ~ /^swap and recompute/ { goal(3, $4 " of keep, " recompute " recompute alone", $4 + 0 < recompute); goal(4, $8, $8 == "the same") }
$2 ~ /^as one CUDA graph/ { goal(5, $5, $5 + 0 < 1000); goal(6, $6, $6 == "the same") }
$2 ~ /^to (host|device)$/ && NF == 6 { goal($2 == "to host" ? 7 : 8, $5, $5 + 0 >= 0.95) }
$2 ~ /^memo, default/ { goal(9, $3, $3 + 0 < 0.25) }
$2 == "1024 MiB" { goal(10, $3, $3 + 0 < 1) }
$4 ~ /%$/ && $2 !~ /^cudaMemcpy/ {
    n++
    if (n == 1 || $4 + 0 < least) { least = $4 + 0; which = $2 } }
END {
    if (n) goal(11, least "%, " which, least >= 90)
    for (i = 1; i <= n_goals; i++) if (!seen[i]) printf "| %s | not measured | **no** |\n", names[i]
}'

# tested GOAL TEST STAGE: a goal that is reached if the test passed.
tested() {
    if grep -q "^ok [0-9]* - $2\$" "$folder/$3.log"; then
        echo "| $1 | $3: $2 | yes |"
    else
        echo "| $1 | $3: $2 | **no** |"
    fi
}

commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
lp_solve="lp_solve is not installed"
for header in /usr/include/lpsolve/lp_lib.h /usr/local/include/lpsolve/lp_lib.h /usr/include/lp_lib.h; do
    [ -f "$header" ] && lp_solve="lp_solve is installed"
done
{
    echo "# $gpu"
    echo
    echo "Written by \`sh bench/device.sh\`."
    echo
    echo "| | |"
    echo "|---|---|"
    nvidia-smi -i 0 --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max,power.limit \
        --format=csv,noheader | awk -F', ' '{ printf "| GPU | %s, %s, driver %s, PCIe gen %s x%s, %s |\n", $1, $2, $3, $4, $5, $6 }'
    echo "| CUDA | $(nvcc --version | sed -n 's/.*release \([0-9.]*\), V\([0-9.]*\).*/\2/p') |"
    echo "| host | $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(getconf _NPROCESSORS_ONLN) processors, $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo) |"
    echo "| huge pages | $(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown); pool: $(awk '/^HugePages_Total/ { print $2 }' /proc/meminfo) |"
    echo "| date | $(date -u '+%Y-%m-%d %H:%M UTC') |"
    echo "| commit | $commit |"
    sort -n "$folder/clocks.txt" | awk -F', *' '$2 + 0 > 300 { clock[n++] = $1; if ($2 > power) power = $2; if ($3 > heat) heat = $3 }
        END { if (n) printf "| clock under load, chain | %d MHz in the median, %d at least; at most %d W, %d degrees Celsius |\n",
            clock[int(n / 2)], clock[0], power, heat }'
    echo "| planner | the built-in search: CUDA programs are built without lp_solve ($lp_solve) |"
    echo
    echo "| stage | result | time |"
    echo "|---|---|---|"
    cat "$stages"
    echo
    echo "| goal | figure | reached |"
    echo "|---|---|---|"
    awk -F' *[|] *' "$goals" "$folder/cuda_chain.md" "$folder/cuda_memory.md" "$folder/cuda_kernels.md" 2>/dev/null
    tested "reserved memory is the plan's peak" the_arena_reserves_the_plan_s_peak test_step
    tested "a graph's replay gives the same bits" a_graph_gives_the_same_bits test_step
    tested "a step neither allocates nor synchronizes" a_step_neither_allocates_nor_synchronizes test_step
    tested "phantom memory records, request by request, what a real run does" phantom_records_what_a_real_run_records test_device
    echo
    grep -h '^# alpha' "$folder/test_step.log" 2>/dev/null | sed 's/^# /- test_step, /'
    echo
    for bench in cuda_chain cuda_memory cuda_kernels; do
        cat "$folder/$bench.md"
        echo
        [ $bench = cuda_chain ] && [ -f "$folder/chain_measured.svg" ] &&
            printf '![The recorded step](%s-chain_measured.svg)\n![The same step simulated](%s-chain_simulated.svg)\n\n' "$name" "$name"
    done
} | cat -s >"$file.new"
mv "$file.new" "$file" || failed=1
for timeline in chain_measured chain_simulated; do
    [ -f "$folder/$timeline.svg" ] && cp "$folder/$timeline.svg" "$results/$name-$timeline.svg"
    [ -z "${OUT:-}" ] || [ ! -f "$folder/$timeline.json" ] || cp "$folder/$timeline.json" "$results/$name-$timeline.json"
done
[ -z "${OUT:-}" ] || tail -n 200 "$folder"/*.log "$folder"/nccl.*.txt >"$results/$name.log" 2>/dev/null
echo "device.sh: $file, $(($(date +%s) - begin_s)) s"
exit $failed
