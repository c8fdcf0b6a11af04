#!/bin/sh
# device.sh - what needs a GPU, in three parts of nine minutes each:
#
#   sh bench/device.sh pack  builds what A, B and C run, without a GPU, into build/device-pack; a machine
#                            that finds this folder beside the same sources builds the arena alone, which saves 90 to 150 s.  With
#                            CUDNN it takes 44 MiB; what programs share, memo and the graphs of cuDNN, is compiled once
#   sh bench/device.sh A     tests, examples, and the benchmarks: a chain of layers, row kernels, memory, host time of calls,
#                            requests beside PyTorch's allocator and CUDA's, the file tier
#   sh bench/device.sh B     compute-sanitizer (memcheck, initcheck, synccheck) on the kernels and on a short run with swaps,
#                            memcheck on the trainer's model; the tests over NCCL with 2, 4 and 8 ranks, and the trainer
#                            with 2 and 4, which share the GPU
#   sh bench/device.sh C [TOKENS]
#                            the trainer beside PyTorch: 8 layers of 4096, one sequence of 65536 tokens by default, and the step's
#                            products and attention alone as a ceiling; 131072 and 262144 are calls of their own.
#                            bench/results/h200.md has what came out
#
# --dry-run as the first argument prints the commands.  bench/device_long.sh has longer sequences, one case a call.
#
# Each part prints the host's memory first and pins at most 0.7 of what is available.  It writes machine, date, commit and
# results to bench/results/GPU.md, GPU-ranks.md or GPU-trainer[-TOKENS].md; A also writes the timelines of the chain beside it.
#
# Correctness tests decide on results only.  Times and free memory are measured here and compared with goals in a table.
# racecheck is absent: it checks shared memory, which no kernel here uses.
#
# Environment: OUT       folder of the results, instead of bench/results; tables and messages arrive there as they are made, in
#                        partial.md and partial.log, so that a call cut short keeps them.  GPU-log.md there gets results,
#                        commands and messages of each part, without folders of this machine: the public log of a release
#              LIMIT_S   seconds for everything, default 540
#              HOST_GIB  most GiB that a case pins: for machines whose memory grows with use
#              TOKENS    length of the chain, default 98304
#              ALPHA     of the chain's fourth way, swap and recompute, default 0.5
#              COMMIT    required outside a git checkout
#              CUDNN     folder of cudnn-frontend: its example and the tests of the model with it are built and run too; the
#                        attention of chain and trainer is cuDNN's; if that chain prints no table, the chain with attention in blocks runs
#              SPILL     folder on the disk that the file tier is measured on, default /tmp; it takes 768 MiB
#              TRAINER   C: a trainer to run instead of the one built here, without a GPU; LAYERS, HIDDEN, HEADS,
#                        VOCABULARY, TILE and STEPS make it small
# cuBLAS, NCCL and cuDNN come from where nvcc finds them, otherwise from Python's packages (nvidia-cublas, ...).
# Exit status 1 if anything failed or was cut short, or if there is no GPU; the file is written if there is one.
set -u
cd "$(dirname "$0")/.." || exit 1
. bench/device_common.sh

[ "${1:-}" = --dry-run ] && DRY_RUN=1 && shift
part=${1:-}
[ $# -gt 0 ] && shift

nvcc_flags() { echo "-arch=${arch:-native} -std=c++17 -lineinfo -I."; }

# compile_all NAME SECONDS: builds what standard input lists, SOURCE PROGRAM FLAGS... a line, at the same time, unless it is
# packed.  Programs with -DLINKED share memo's implementation, which takes longer to compile than they do.
compile_all() {
    compile_name=$1 compile_seconds=$2
    {
        echo 'pids= bad=0'
        has_memo=
        while read -r source program flags; do
            is_packed "$program" && echo "cp $pack/$program $folder/" && continue
            case " $flags " in *' -DLINKED '*)
                [ -n "$has_memo" ] || echo "${CC:-cc} -std=c99 -O2 -I. -pthread -c examples/gpt/memo.c -o $folder/memo.o || exit 1"
                has_memo=yes flags="$flags -Xlinker $folder/memo.o -lpthread -lm"
            esac
            echo "nvcc $(nvcc_flags) -O3 $source -o $folder/$program $flags & pids=\"\$pids \$!\""
        done
        echo 'for pid in $pids; do wait $pid || bad=1; done; exit $bad'
    } >"$folder/$compile_name.sh"
    is_dry && sed 's/^/    /' "$folder/$compile_name.sh"
    stage "$compile_name" "$compile_seconds" sh "$folder/$compile_name.sh"
}

# ---- A: tests, examples, benchmarks ----

# In the background, because they take longer than all others together.
compile_with_cudnn() { # SOURCE PROGRAM FLAGS...
    source=$1 program=$2
    shift 2
    is_packed "$program" && cp "$pack/$program" "$folder/" && : >"$folder/$program.build.txt" &&
        echo 0 >"$folder/$program.status" && return
    timeout $build_s nvcc $(nvcc_flags) -O1 -DATTENTION_LINKED "$source" -Xlinker build/examples/cudnn_graphs.o $cudnn $nvrtc "$@" -o "$folder/$program" \
        >"$folder/$program.build.txt" 2>&1
    echo $? >"$folder/$program.status"
}

programs_cudnn() {
    echo "bench/cuda_chain.cu cuda_chain_cudnn -DMEMO_STATIC -DCHAIN_CUDNN $cublas_lt"
    echo "examples/13_cudnn_attention.cu 13_cudnn_attention -DMEMO_STATIC"
    echo "tests/cuda/test_gpt.cu test_gpt_cudnn -DMEMO_STATIC -DTEST_CUDNN -Iexamples -Itests/support $cublas_lt"
}

start_cudnn() {
    [ -n "${CUDNN:-}" ] && ! is_dry || return
    find_library cudnn cudnn.h; cudnn=$flags
    find_library nvrtc nvrtc.h; nvrtc=$flags
    rm -f "$folder"/*.status
    programs_cudnn >"$folder/cudnn.txt"
    {
        # The graphs, of all of them and of the trainer, unless all are packed.
        is_packed 13_cudnn_attention || NVCC_APPEND_FLAGS=$(include_homes) MEMO_NO_INSTALL=1 timeout $build_s \
            make CUDNN="$CUDNN" build/examples/cudnn_graphs.o >"$folder/cudnn_graphs.txt" 2>&1
        while read -r source program flags; do
            compile_with_cudnn "$source" "$program" $flags &
        done <"$folder/cudnn.txt"
        wait
    } &
}

await_cudnn() {
    [ -n "${CUDNN:-}" ] || return
    cat >"$folder/cudnn.sh" <<'END'
bad=0
for program in cuda_chain_cudnn 13_cudnn_attention test_gpt_cudnn; do
    while [ ! -f "$1/$program.status" ]; do sleep 1; done
    cat "$1/cudnn_graphs.txt" "$1/$program.build.txt" 2>/dev/null
    [ "$(cat "$1/$program.status")" = 0 ] || bad=1
done
exit $bad
END
    stage build-cudnn $build_s sh "$folder/cudnn.sh" "$folder"
}

chain() { # PROGRAM
    bench "$1" 240 "$folder/$1" --tokens "${TOKENS:-98304}" --alpha "${ALPHA:-0.5}" --seconds 75 --out "$folder"
}

# One recorded iteration of a GPT, for the allocators.
requests=tests/data/gpt-h4096-n8-s32k-store.trace

# cuDNN's chain, or the other one if it prints no table.
run_chain() {
    is_dry || timeout 240 nvidia-smi -i 0 --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader,nounits -l 1 \
        >"$folder/clocks.txt" 2>/dev/null & monitor=$!
    [ "$(cat "$folder/cuda_chain_cudnn.status" 2>/dev/null)" = 0 ] && chain cuda_chain_cudnn
    if [ -s "$folder/cuda_chain_cudnn.md" ]; then
        mv "$folder/cuda_chain_cudnn.md" "$folder/cuda_chain.md"
    else
        chain cuda_chain
    fi
    kill $monitor 2>/dev/null
    wait $monitor 2>/dev/null
}

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

write_goals() {
    echo "| goal | figure | reached |"
    echo "|---|---|---|"
    awk -F' *[|] *' "$goals" "$folder/cuda_chain.md" "$folder/cuda_memory.md" "$folder/cuda_kernels.md" 2>/dev/null
    tested "reserved memory is the plan's peak" the_arena_reserves_the_plan_s_peak test_step
    tested "a graph's replay gives the same bits" a_graph_gives_the_same_bits test_step
    tested "a step neither allocates nor synchronizes" a_step_neither_allocates_nor_synchronizes test_step
    tested "phantom memory records, request by request, what a real run does" phantom_records_what_a_real_run_records test_device
    echo
}

programs_a() {
    cat <<END
tests/cuda/test_device.cu test_device -DLINKED
tests/cuda/test_kernels.cu test_kernels -DLINKED
tests/cuda/test_step.cu test_step -DLINKED $(sh tests/cuda/cuda_wraps.sh)
tests/cuda/test_gpt.cu test_gpt -DLINKED -Iexamples -Itests/support $cublas_lt
bench/cuda_memory.cu cuda_memory -DLINKED
bench/cuda_kernels.cu cuda_kernels -DLINKED
bench/cuda_chain.cu cuda_chain -DLINKED $cublas_lt
bench/calls.c calls -DLINKED -x cu
bench/spill.c spill -x cu
bench/arena.c arena -x cu $torch
examples/05_three_edits.cu 05_three_edits -DMEMO_STATIC
examples/06_cuda_arena.cu 06_cuda_arena -DMEMO_STATIC
examples/07_cuda_swap_gemm.cu 07_cuda_swap_gemm -DMEMO_STATIC $cublas
examples/08_cuda_phantom.cu 08_cuda_phantom -DMEMO_STATIC
END
}

part_a() {
    begin ""
    reserved_s=$((limit_s / 2)) # of the benchmarks, until they begin
    find_library cublasLt cublasLt.h; cublas_lt=$flags
    find_library cublas cublas_v2.h; cublas=$flags
    find_torch; torch=$flags
    check_pack $(programs_a | awk '{ print $2 }') cuda_chain_cudnn 13_cudnn_attention test_gpt_cudnn
    start_cudnn
    compile_all build 150 <<END
$(programs_a)
END
    for test in test_device test_kernels test_step test_gpt; do
        stage $test 60 "$folder/$test"
    done
    await_cudnn

    reserved_s=0
    run_chain
    bench cuda_kernels 60 "$folder/cuda_kernels" 30
    bench cuda_memory 150 "$folder/cuda_memory" $((host_gib < 16 ? host_gib : 16))
    bench calls 30 "$folder/calls"
    bench arena 60 "$folder/arena" 3 "$requests"
    bench spill 60 "$folder/spill" "${SPILL:-/tmp}" 256 25
    # The output must match the head.
    cat >"$folder/examples.sh" <<'END'
. tests/support/heads.sh
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
    [ -z "${CUDNN:-}" ] || for program in 13_cudnn_attention test_gpt_cudnn; do
        stage $program 120 "$folder/$program" # cuDNN compiles each graph
    done
    is_dry && return

    {
        write_head "sh bench/device.sh A"
        sort -n "$folder/clocks.txt" | awk -F', *' '$2 + 0 > 300 { clock[n++] = $1; if ($2 > power) power = $2; if ($3 > heat) heat = $3 }
            END { if (n) printf "| clock under load, chain | %d MHz in the median, %d at least; at most %d W, %d degrees Celsius |\n",
                clock[int(n / 2)], clock[0], power, heat }'
        write_stages
        write_goals
        grep -h '^# alpha' "$folder/test_step.log" 2>/dev/null | sed 's/^# /- test_step, /'
        echo
        for bench in cuda_chain cuda_memory cuda_kernels calls spill; do
            cat "$folder/$bench.md"
            echo
            [ $bench = cuda_chain ] && [ -f "$folder/chain_measured.svg" ] &&
                printf '![The recorded step](%s-chain_measured.svg)\n![The same step simulated](%s-chain_simulated.svg)\n\n' "$name" "$name"
        done
        printf '### Requests of %s\n\n```\n' "$requests"
        cat "$folder/arena.md"
        printf '```\n'
        for timeline in chain_measured chain_simulated; do
            [ -f "$folder/$timeline.svg" ] && cp "$folder/$timeline.svg" "$results/$name-$timeline.svg"
            [ -z "${OUT:-}" ] || [ ! -f "$folder/$timeline.json" ] || cp "$folder/$timeline.json" "$results/$name-$timeline.json"
        done
    } 2>/dev/null | end
}

# The trainer compares its policies bit by bit.  NCCL takes ranks that share a GPU only if each has a host of its own by
# NCCL_HOSTID; they then meet over the loopback.
train_over_nccl() {
    cat >"$folder/trainer_ranks.sh" <<'END'
trainer=$1 ranks=$2 others=
shift 2
NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=29548
export NCCL_NET NCCL_SOCKET_IFNAME NCCL_IB_DISABLE WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
for rank in $(seq 1 $((ranks - 1))); do
    RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID=$rank "$trainer" "$@" & others="$others $!"
done
RANK=0 LOCAL_RANK=0 NCCL_HOSTID=0 "$trainer" "$@"
status=$?
for other in $others; do wait "$other" || status=1; done
exit $status
END
    build_trainer
    ranks_options="--layers 4 --hidden 256 --heads 4 --seq 1024 --tile 128 --batch 4 --steps 4 --compare 2
        --device-memory 4GiB --host-memory 1GiB"
    stage trainer-2-data-ranks 120 sh "$folder/trainer_ranks.sh" "$trainer" 2 $ranks_options --data 2 --zero 2
    stage trainer-4-ranks 150 sh "$folder/trainer_ranks.sh" "$trainer" 4 $ranks_options --data 2 --tensor 2 --zero 1
    [ -z "${CUDNN:-}" ] || for split in ring ulysses; do
        stage trainer-2-$split-ranks 100 sh "$folder/trainer_ranks.sh" "$trainer" 2 $ranks_options --$split 2
    done
}

# ---- B: sanitizers, ranks over NCCL; correctness only, as ranks take turns on one GPU ----

programs_b() {
    echo "tests/cuda/test_kernels.cu test_kernels -DLINKED"
    echo "tests/cuda/test_step.cu test_step -DLINKED $(sh tests/cuda/cuda_wraps.sh)"
    echo "tests/cuda/test_gpt.cu test_gpt -DLINKED -Iexamples -Itests/support $cublas_lt"
    if [ $has_nccl = yes ]; then
        echo "tests/sp/test_comm_nccl.c test_comm_nccl -x cu -Itests/support -DMEMO_CUDA_NCCL $nccl"
        echo "tests/cuda/nccl_attention.cu nccl_attention -DMEMO_STATIC -Itests/support $nccl"
        echo "tests/cuda/nccl_blocks.cu nccl_blocks -DMEMO_STATIC -Itests/support -Iexamples $nccl"
        echo "examples/12_ring_nccl.cu 12_ring_nccl -DMEMO_STATIC $nccl"
    fi
}

part_b() {
    begin -ranks
    has_nccl=no
    find_library cublasLt cublasLt.h; cublas_lt=$flags
    find_library nccl nccl.h && has_nccl=yes
    nccl=$flags
    check_pack $(programs_b | awk '{ print $2 }')
    programs_b | compile_all build 150

    # The kernels without the huge arrays, a short run with swaps, the trainer's model.
    if is_dry || command -v compute-sanitizer >/dev/null 2>&1; then
        for tool in memcheck initcheck synccheck; do
            stage "$tool-kernels" 40 compute-sanitizer --tool $tool --error-exitcode 9 \
                "$folder/test_kernels" as_on_the_host
            stage "$tool-swap" 40 compute-sanitizer --tool $tool --error-exitcode 9 \
                "$folder/test_step" swapping
        done
        stage memcheck-gpt 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$folder/test_gpt" bf16_is
    else
        failed=1
        echo "| compute-sanitizer | **not run: it is not installed** | |" >>"$stages"
    fi

    # Warnings go to files, because NCCL prints them to standard output.
    export NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$PWD/$folder/nccl.%h.%p.txt"
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
    if [ $has_nccl = yes ]; then
        stage 12_ring_nccl-2-ranks 60 sh "$folder/ring_nccl.sh" "$folder"
        for ranks in 2 4 8; do
            [ $ranks != 8 ] || train_over_nccl # 8 ranks take the longest, so they come last
            for test in test_comm_nccl nccl_attention nccl_blocks; do
                stage "$test-$ranks-ranks" $((40 + 8 * ranks)) "$folder/$test" $ranks
            done
        done
    else
        failed=1
        echo "| NCCL | **not run: nccl.h or libnccl is not installed** | |" >>"$stages"
    fi
    is_dry && return

    {
        write_head "sh bench/device.sh B"
        write_stages
    } | end
}

# ---- C: the trainer beside PyTorch ----

# The rows of a length by worth, since time may run out: what gives the ratios of the goals, then PyTorch's other ways, which a
# long length leaves out.  Of a step of half a minute there are two, the first of which does not count.
part_c() { # [TOKENS]
    tokens=${1:-65536}
    [ $# -le 1 ] || stop "C: one length a call ($*)"
    begin "-trainer${1:+-$1}"
    : >"$folder/trainer.md"
    build_trainer
    layers=${LAYERS:-8} steps=${STEPS:-$((tokens > 200000 ? 2 : tokens > 100000 ? 3 : 5))}
    seconds=$((60 + tokens / 900)) # measuring 8 layers of 262144 tokens takes 130 s
    c_train() { train "$1-$tokens" $seconds "$1" "$tokens" "$layers" "$steps"; }
    c_torch() { # NAME FLAGS...
        c_name=$1
        shift
        torch "$c_name-$tokens" $seconds "$tokens" "$layers" "$steps" "$@"
    }
    c_train memo
    c_torch pytorch-select --policy select
    c_torch alone --alone
    c_torch pytorch
    c_train recompute
    if [ "$tokens" -le 131072 ]; then
        c_train keep
        c_torch pytorch-keep --policy keep
        c_torch pytorch-keep-compile --policy keep --compile
        c_train swap
        # The first two steps of a graph do not count.  It is for short steps, which launches could delay.
        train "graph-$tokens" $seconds memo "$tokens" "$layers" $((steps > 3 ? steps : 4)) --graph
        c_torch pytorch-select-compile --policy select --compile
        c_torch pytorch-offload --policy offload
        c_torch pytorch-select-rows --policy select --mlp-rows 8192
    fi
    is_dry && return

    {
        write_head "sh bench/device.sh C $tokens"
        write_stages
        write_trainer
        trainer_goals "$tokens"
    } 2>/dev/null | end
}

# ---- pack: the programs of all parts ----

# Not the arena's, which needs the PyTorch of the machine that it runs on.
programs_packed() { { programs_a; programs_b; } | grep -v '^bench/arena.c ' | sort -u; }

part_pack() {
    is_packing=1
    begin -packing
    arch=${CUDA_ARCH:-sm_90} limit_s=7200 build_s=3000
    pack=build/device-pack
    is_dry || rm -rf "$pack"
    mkdir -p "$pack"
    find_library cublasLt cublasLt.h; cublas_lt=$flags
    find_library cublas cublas_v2.h; cublas=$flags
    torch= has_nccl=no
    find_library nccl nccl.h && has_nccl=yes
    nccl=$flags
    start_cudnn
    programs_packed | compile_all build $build_s
    await_cudnn
    rm -f build/examples/train_gpt_cuda build/examples/memo_cuda.o # perhaps with lp_solve
    build_trainer LP_SOLVE_CFLAGS= LP_SOLVE_LIBS=
    is_dry && return
    rm -f build/examples/memo_cuda.o
    mv "$trainer" "$pack/" && rm -f "$trainer.sources"
    programs_packed | while read -r source program flags; do mv "$folder/$program" "$pack/"; done
    [ -z "${CUDNN:-}" ] || for program in cuda_chain_cudnn 13_cudnn_attention test_gpt_cudnn; do mv "$folder/$program" "$pack/"; done
    strip "$pack"/* # of the host's symbols, since the folder travels
    trainer_files | pack_mark train_gpt_cuda
    { programs_packed; [ -z "${CUDNN:-}" ] || programs_cudnn; } | while read -r source program flags; do
        sources_of "$source" $flags | pack_mark "$program"
    done
    [ $failed = 0 ] || rm -f "$pack"/*.sources # no part takes it
    du -sh "$pack"
    exit $failed
}

case $part in
A) part_a ;;
pack) part_pack ;;
B) part_b ;;
C) part_c "$@" ;;
*) stop "A, B, C or pack would work (${part:-none given})" ;;
esac
