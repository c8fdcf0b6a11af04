#!/bin/sh
# device.sh - everything that needs a GPU, in one command and within nine minutes:
#
#   sh bench/device.sh
#
# Builds the CUDA tests, examples and benchmarks; runs the tests, compute-sanitizer (memcheck, racecheck, synccheck) on the
# kernels and on a short run with swaps, the examples, the benchmarks, and, with the time that is left, the tests over NCCL
# with 2, 4 and 8 ranks, which share the GPU; writes one Markdown file with machine, date and commit to
# bench/results/GPU.md, with the timelines of the chain beside it.
#
# Environment: OUT       folder of the results, instead of bench/results
#              LIMIT_S   seconds for everything, default 540
#              TOKENS    length of the chain, default 65536
#              COMMIT    where this is no git checkout
#              CUDNN     folder of cudnn-frontend: its example is built and run, too
# Exit status 1 where anything failed, was cut short, or there is no GPU; the file is written all the same, if there is one.
set -u
cd "$(dirname "$0")/.." || exit 1

begin_s=$(date +%s)
limit_s=${LIMIT_S:-540}
folder=build/device
mkdir -p "$folder" || exit 1
PATH=$PATH:/usr/local/cuda/bin
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

# stage NAME SECONDS COMMAND...: output in $folder/NAME.log; a row in the table of stages.
stage() {
    stage_name=$1 seconds=$2
    shift 2
    [ "$seconds" -le "$(left)" ] || seconds=$(left)
    stage_begin_s=$(date +%s)
    if [ "$seconds" -le 0 ]; then
        result="**not run: no time left**" failed=1
    elif timeout -k 5 "$seconds" "$@" >"$folder/$stage_name.log" 2>&1; then
        result=passed
    else
        status=$?
        failed=1 result="**failed, exit status $status**"
        [ $status -eq 124 ] && result="**stopped after $seconds s**"
    fi
    counts=$(awk '/^ok .*# SKIP/ { s++; next } /^ok / { p++ } /^not ok / { f++ }
        END { if (p + f + s) printf ": %d passed, %d failed, %d skipped", p, f, s }' "$folder/$stage_name.log" 2>/dev/null)
    echo "| $stage_name | $result$counts | $(($(date +%s) - stage_begin_s)) s |" >>"$stages"
    echo "device.sh: $stage_name: $result$counts"
    case $result in passed) ;; *) tail -n 20 "$folder/$stage_name.log" >&2 2>/dev/null ;; esac
}

# ---- build ----

wraps=
for symbol in $(sed -n 's/^SYMBOL[A-Z_]*(\([A-Za-z0-9]*\).*/\1/p' tests/cuda/test_step.cu); do
    wraps="$wraps -Xlinker --wrap=$symbol"
done

echo '#include <nccl.h>' >"$folder/probe.cu"
echo 'int main() { return ncclGroupStart(); }' >>"$folder/probe.cu"
has_nccl=no
nvcc "$folder/probe.cu" -lnccl -o "$folder/probe" 2>"$folder/probe.log" && has_nccl=yes

cat >"$folder/build.sh" <<END
set -u
compile() { # SOURCE PROGRAM FLAGS...
    source=\$1 program=$folder/\$2
    shift 2
    rm -f "\$program"
    nvcc -arch=native -std=c++17 -O3 -lineinfo -I. "\$source" -o "\$program" "\$@"
}
compile tests/cuda/test_device.cu test_device & p1=\$!
compile tests/cuda/test_kernels.cu test_kernels & p2=\$!
compile tests/cuda/test_step.cu test_step $wraps & p3=\$!
compile bench/cuda_memory.cu cuda_memory & p4=\$!
compile bench/cuda_kernels.cu cuda_kernels & p5=\$!
compile bench/cuda_chain.cu cuda_chain -lcublasLt & p6=\$!
compile examples/06_cuda_arena.cu 06_cuda_arena & p7=\$!
compile examples/07_cuda_swap_gemm.cu 07_cuda_swap_gemm -lcublas & p8=\$!
compile examples/08_cuda_phantom.cu 08_cuda_phantom & p9=\$!
bad=0
for p in \$p1 \$p2 \$p3 \$p4 \$p5 \$p6 \$p7 \$p8 \$p9; do wait \$p || bad=1; done
if [ $has_nccl = yes ]; then
    compile tests/test_comm_nccl.c test_comm_nccl -x cu -Itests -DMEMO_SP_NCCL -lnccl & p1=\$!
    compile tests/cuda/nccl_attention.cu nccl_attention -Itests -lnccl & p2=\$!
    compile tests/cuda/nccl_blocks.cu nccl_blocks -Itests -Iexamples -lnccl & p3=\$!
    compile examples/12_ring_nccl.cu 12_ring_nccl -lnccl & p4=\$!
    for p in \$p1 \$p2 \$p3 \$p4; do wait \$p || bad=1; done
fi
exit \$bad
END
stage build 150 sh "$folder/build.sh"

# ---- tests ----

# A test that was skipped here has shown nothing.
cat >"$folder/unskipped.sh" <<'END'
out=$1
shift
"$@" >"$out"
status=$?
cat "$out"
grep -q '# SKIP' "$out" && exit 3
exit $status
END
unskipped="sh $folder/unskipped.sh $folder/unskipped.txt"
for test in test_device test_kernels test_step; do
    stage $test 60 $unskipped "$folder/$test"
done

# ---- compute-sanitizer: the kernels but for the huge arrays, a short run with swaps ----

if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck; do
        stage "$tool-kernels" 40 $unskipped compute-sanitizer --tool $tool --error-exitcode 9 \
            "$folder/test_kernels" as_on_the_host
        stage "$tool-swap" 40 $unskipped compute-sanitizer --tool $tool --error-exitcode 9 \
            "$folder/test_step" swapping
    done
else
    failed=1
    echo "| compute-sanitizer | **not run: it is not installed** | |" >>"$stages"
fi

# ---- examples: the output is the one in their heads ----

cat >"$folder/examples.sh" <<'END'
. tests/heads.sh
bad=0
for source in examples/0[678]_cuda_*.cu; do
    program=$1/$(basename "$source" .cu)
    "$program" >"$program.txt" || bad=1
    cat "$program.txt"
    section "$source" "Expected output" >"$program.expected"
    matches "$program.expected" "$program.txt" || { echo "$source: the output is not as its head says"; bad=1; }
done
exit $bad
END
stage examples 60 sh "$folder/examples.sh" "$folder"
if [ -n "${CUDNN:-}" ]; then
    stage build-cudnn 240 nvcc -arch=native -std=c++17 -O1 -I. -I"$CUDNN/include" examples/13_cudnn_attention.cu \
        -lcudnn -lnvrtc -o "$folder/13_cudnn_attention"
    stage 13_cudnn_attention 30 "$folder/13_cudnn_attention"
fi

# ---- benchmarks ----

# bench NAME SECONDS ARGS...: its tables in a file, its other messages in the log.
bench() {
    bench_name=$1 bench_seconds=$2
    shift 2
    : >"$folder/$bench_name.md"
    stage "$bench_name" "$bench_seconds" sh -c 'out=$1; shift; exec "$@" >"$out"' sh "$folder/$bench_name.md" \
        "$folder/$bench_name" "$@"
}
bench cuda_chain 300 --tokens "${TOKENS:-65536}" --out "$folder"
bench cuda_kernels 60 30
bench cuda_memory 120 16

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
[ "$(cat "$1/12_ring_nccl.txt")" = "$expected" ] || { echo "not as the head says: $expected"; status=1; }
exit $status
END

if [ $has_nccl = yes ]; then
    stage 12_ring_nccl-2-ranks 60 sh "$folder/ring_nccl.sh" "$folder"
    for ranks in 2 4 8; do
        for test in test_comm_nccl nccl_attention nccl_blocks; do
            stage "$test-$ranks-ranks" $((40 + 8 * ranks)) $unskipped "$folder/$test" $ranks
        done
    done
else
    failed=1
    echo "| NCCL | **not run: nccl.h or libnccl is not installed** | |" >>"$stages"
fi

# ---- the file ----

# From the tables below, the figures that have a goal.
goals='
function goal(name, figure, unit, is_reached) {
    printf "| %s | %s%s | %s |\n", name, figure, unit, is_reached ? "yes" : "**no**"
}
$2 == "swap" { goal("swap at most 1.02 of keep", $4, "", $4 + 0 <= 1.02) }
$2 ~ /^to (host|device)$/ && NF == 6 && $5 + 0 > 0 {
    goal("copies " $2 " inside the step at least 0.95 of bare ones", $5, "", $5 + 0 >= 0.95) }
$2 ~ /^memo, default/ { goal("pinning below 0.25 s/GiB", $3, "", $3 + 0 < 0.25) }
$2 == "1024 MiB" { goal("2 TiB of phantom addresses in under a second", $3, "", $3 + 0 < 1) }
$4 ~ /%$/ && $2 !~ /^cudaMemcpy/ {
    n++
    if (n == 1 || $4 + 0 < least) { least = $4 + 0; which = $2 } }
END { if (n) goal("row kernels at least 90% of a copy; least: " which, least, "%", least >= 90) }'

commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
[ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || commit="$commit with changes"
lp_solve="lp_solve is not here"
for header in /usr/include/lpsolve/lp_lib.h /usr/local/include/lpsolve/lp_lib.h /usr/include/lp_lib.h; do
    [ -f "$header" ] && lp_solve="lp_solve is here"
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
    echo "| planner | memo's own search: CUDA programs are built without lp_solve ($lp_solve) |"
    echo
    echo "| stage | result | time |"
    echo "|---|---|---|"
    cat "$stages"
    echo
    echo "| goal | figure | reached |"
    echo "|---|---|---|"
    awk -F' *[|] *' "$goals" "$folder/cuda_chain.md" "$folder/cuda_memory.md" "$folder/cuda_kernels.md" 2>/dev/null
    echo
    grep -h '^# alpha' "$folder/test_step.log" 2>/dev/null | sed 's/^# /- test_step, /'
    echo
    for bench in cuda_chain cuda_memory cuda_kernels; do
        cat "$folder/$bench.md"
    done
} >"$file.new" && mv "$file.new" "$file"
for timeline in chain_measured chain_simulated; do
    [ -f "$folder/$timeline.svg" ] && cp "$folder/$timeline.svg" "$results/$name-$timeline.svg"
    [ -z "${OUT:-}" ] || [ ! -f "$folder/$timeline.json" ] || cp "$folder/$timeline.json" "$results/$name-$timeline.json"
done
echo "device.sh: $file, $(($(date +%s) - begin_s)) s"
exit $failed
