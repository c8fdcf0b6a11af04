#!/bin/sh
# test_train_cuda.sh - the trainer on GPUs, and over NCCL, without either: kernels run thread by thread on the CPU, on
# stand-ins for CUDA, cuBLASLt, cuDNN and NCCL.  A rank is a process, as on GPUs.  Output: TAP.
#
# Its programs take long to build: it runs with each push (MEMO_TEST_ALL=rest) and each night, not under `make test`.
# NCCL's stand-in adds in an order that depends on the place in the buffer and on the count, and takes memory of the device and pinned memory.
# Environment: TRAIN_GPT   the program for the host (default build/tests/train_gpt)
set -u

. tests/support/tap.sh

folder=$PWD/build/tests/train_cuda
host=${TRAIN_GPT:-build/tests/train_gpt}
needs_program "$host"
cuda=${CUDA_HOME:-/usr/local/cuda}/include
tap_folder "$folder"

skip_all() {
    skip "the trainer on GPUs, on stand-ins" "$1"
    tap_end
    exit
}
has_header() { # HEADER
    printf '#include <cuda_runtime_api.h>\n#include <%s>\n' "$1" >"$folder/probe.c"
    ${CC:-cc} -isystem "$cuda" -fsyntax-only "$folder/probe.c" 2>/dev/null
}
tests_all || skip_all "run make test-all"
command -v nvcc >/dev/null 2>&1 || skip_all "nvcc is not installed"
has_header cublasLt.h || skip_all "cuBLASLt's header is not installed"
nccl=-DMEMO_CUDA_NCCL
has_header nccl.h || nccl=

# ---- two programs: with the built-in attention, with cuDNN's ----

# The kernels take most of the time: only they are worth the optimizer.
host_flags="-std=c99 -O0 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -DTRAIN_CUDA $nccl -I. -Iexamples -pthread"
host_flags="$host_flags -isystem $cuda -Wall -Wextra -Werror $(sed -n 's/^JSON_CFLAGS := //p' build/config.mk)"
lp_libs=$(sed -n 's/^LP_SOLVE_LIBS := //p' build/config.mk)
json_libs=$(sed -n 's/^JSON_LIBS := //p' build/config.mk)
builds_trainer() { # PROGRAM FLAGS...; only some sources know of cuDNN
    program=$folder/$1
    shift
    ${CC:-cc} $host_flags "$@" -r examples/gpt/run/*.c examples/gpt/model/enqueue.c -o "$program.o" &&
        nvcc -cudart none -Xlinker --wrap=memo_cuda_device_create "$folder/gpt_stand_in.o" build/strict/tests/fake_cuda.o \
            "$folder/capacities.o" build/tests/lib.a "$folder/shared.o" "$program.o" -o "$program" $json_libs $lp_libs -lpthread -lm
}
builds() {
    flags="-std=c++17 -O1 -I. -Iexamples -Itests/cuda -Werror all-warnings"
    flags="$flags -Xcompiler -Wall,-Wextra,-Wshadow,-Werror,-fno-strict-aliasing"
    nvcc -x c++ $flags $nccl -c tests/cuda/gpt_stand_in.cpp -o "$folder/gpt_stand_in.o" &&
        make --no-print-directory -s build/strict/tests/fake_cuda.o >&2 &&
        ${CC:-cc} $host_flags -c tests/cuda/capacities.c -o "$folder/capacities.o" &&
        ${CC:-cc} $host_flags -r examples/gpt/kernels/*.c examples/gpt/show/*.c $(ls examples/gpt/model/*.c | grep -v enqueue) -o "$folder/shared.o" &&
        builds_trainer train_gpt && builds_trainer train_gpt_cudnn -DTRAIN_CUDNN -DGPT_GROUP_QUERIES=8
}

awk 'BEGIN { for (i = 0; i < 400; i++) printf "line %d has the number %d in it\n", i % 17, i * i % 101 }' >"$folder/text"
tiny="--text $folder/text --layers 2 --hidden 16 --heads 2 --seq 8 --tile 4 --dropout 0.1 --steps 2"
budget="--device-memory 45MiB"
trainer=$folder/train_gpt

# start RANKS RANK ARGUMENT...: becomes one process, as torchrun starts it; call it in a subshell.
start() {
    ranks=$1 rank=$2
    shift 2
    # shellcheck disable=SC2086
    exec env TMPDIR="$folder" RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK="$rank" MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$port "$trainer" $tiny $budget "$@" </dev/null
}

# over_nccl RANKS NAME ARGUMENT...: all processes; the first one's output in NAME.out.  Fails if any rank fails.
over_nccl() {
    n=$1 name=$2 processes=
    shift 2
    port=$((20000 + ($$ + tap_n * 40) % 9000))
    for r in $(seq 1 $((n - 1))); do
        start "$n" "$r" "$@" >"$folder/$name.$r" 2>&1 &
        processes="$processes $!"
    done
    (start "$n" 0 "$@") >"$folder/$name.out" 2>&1 || { # the others would wait for it
        kill $processes 2>/dev/null
        tail -n 20 "$folder/$name.out"
        return 1
    }
    for process in $processes; do
        wait "$process" || { tail -n 10 "$folder/$name".*; return 1; }
    done
}

# No loss of two logs differs by more than roundings to bf16 move it: cuDNN's attention rounds probabilities too.
near=1e-4
are_near() { # LOG LOG
    paste -d ' ' "$1" "$2" | awk -v near=$near 'NF != 6 || $2 - $5 > near || $5 - $2 > near { print; bad = 1 }
        END { exit bad || NR != 2 }'
}

# agrees_with_host NAME ARGUMENT...: policies gave the same bits, a recorded step has no race, losses are near the host's.
agrees_with_host() {
    name=$1
    shift
    # shellcheck disable=SC2086
    $host $tiny "$@" --type bf16 --loss-log "$folder/host.log" >/dev/null || return 1
    cat "$folder/$name.out"
    grep -q 'bitwise the same' "$folder/$name.out" && grep -q ' 0 races' "$folder/$name.out" &&
        are_near "$folder/$name.log" "$folder/host.log"
}

# ---- a model of others ----

# Norms of heads, biases, a tied table and scaled frequencies: losses near the host's, in a budget too, and the same weights.
models_of_others() {
    python3 tests/trainer/models.py make "$folder/made" || return 1
    for family in qwen2 qwen3 qwen3_moe; do
        few="--model $folder/made/$family --tokens $folder/made/tokens.u16 --seq 8 --batch 1 --tile 4 --steps 2 --type bf16 --policy keep"
        # shellcheck disable=SC2086
        $host $few --loss-log "$folder/host.log" >/dev/null &&
            $host $few --learning-rate 0 --write-model "$folder/by_host/$family" >/dev/null &&
            "$trainer" $few $budget --loss-log "$folder/one.log" --policy memo --compare 1 >"$folder/one.out" &&
            "$trainer" $few $budget --learning-rate 0 --write-model "$folder/by_gpu/$family" >/dev/null || return 1
        grep -q 'bitwise the same' "$folder/one.out" && are_near "$folder/one.log" "$folder/host.log" &&
            python3 tests/trainer/models.py same "$folder/by_host/$family" "$folder/by_gpu/$family" || return 1
        # shellcheck disable=SC2086
        "$trainer" $few $budget --steps 4 --loss-log "$folder/calls.log" >/dev/null &&
            "$trainer" $few $budget --steps 4 --graph --loss-log "$folder/graph.log" >/dev/null &&
            cmp "$folder/calls.log" "$folder/graph.log" || return 1
    done
}

# Adapters: losses near the host's, as a graph too, and in the least memory, where frozen weights come from their files.
adapters_of_others() {
    for family in qwen2 qwen3 qwen3_moe; do
        few="--model $folder/made/$family --adapter $folder/made/$family.adapter --tokens $folder/made/tokens.u16 --seq 8 --batch 1"
        few="$few --tile 4 --steps 2 --type bf16"
        # shellcheck disable=SC2086
        $host $few --policy keep --loss-log "$folder/host.log" >/dev/null &&
            "$trainer" $few $budget --loss-log "$folder/one.log" --compare 1 >"$folder/one.out" &&
            "$trainer" $few $budget --learning-rate 0 --write-model "$folder/by_gpu/$family.adapter" >/dev/null || return 1
        grep -q 'bitwise the same' "$folder/one.out" && are_near "$folder/one.log" "$folder/host.log" &&
            python3 tests/trainer/models.py same "$folder/made/$family.adapter" "$folder/by_gpu/$family.adapter" || return 1
        # shellcheck disable=SC2086
        "$trainer" $few $budget --steps 4 --policy keep --loss-log "$folder/calls.log" >/dev/null &&
            "$trainer" $few $budget --steps 4 --policy keep --graph --loss-log "$folder/graph.log" >/dev/null &&
            cmp "$folder/calls.log" "$folder/graph.log" || return 1
        low=1024 least=46080 # KiB
        while [ $((least - low)) -gt 1 ]; do
            middle=$(((low + least) / 2))
            # shellcheck disable=SC2086
            if "$trainer" $few --dry-run --device-memory ${middle}KiB >/dev/null 2>&1; then least=$middle; else low=$middle; fi
        done
        # shellcheck disable=SC2086
        "$trainer" $few --steps 4 --device-memory ${least}KiB --loss-log "$folder/least.log" >"$folder/one.out" &&
            cmp "$folder/calls.log" "$folder/least.log" && grep -q '^update  ' "$folder/one.out" || return 1
    done
}

# ---- one GPU ----

one_gpu() { # ARGUMENT...
    # shellcheck disable=SC2086
    "$trainer" $tiny $budget --batch 2 "$@" --compare 1 --loss-log "$folder/one.log" --sample 5 \
        --output "$folder/run" >"$folder/one.out" 2>&1 || { cat "$folder/one.out"; return 1; }
    agrees_with_host one --batch 2 "$@" && [ -s "$folder/run/timeline.svg" ]
}

# Updates in the next forward: the losses, parameters and moments of a pass, and a recorded step without a race.  In the last
# backward, too, with moments of 8 bits.
defers() {
    tight="--device-memory 32990KiB --batch 2 --accumulate 2 --layers 4 --steps 6 --policy alpha"
    for update in pass deferred; do
        # shellcheck disable=SC2086
        "$trainer" $tiny $tight --update $update --loss-log "$folder/$update.log" --save "$folder/$update.save" \
            >"$folder/$update.out" 2>&1 || { cat "$folder/$update.out"; return 1; }
    done
    grep '^update ' "$folder/pass.out" "$folder/deferred.out"
    grep -q '^update  *on the device, behind the backward' "$folder/pass.out" &&
        grep -q '^update  *on the device, of each layer before its next forward' "$folder/deferred.out" &&
        cmp "$folder/pass.log" "$folder/deferred.log" && cmp "$folder/pass.save" "$folder/deferred.save" || return 1
    # shellcheck disable=SC2086
    "$trainer" $tiny $tight --update deferred --compare 2 --output "$folder/run" >"$folder/one.out" 2>&1
    grep 'bitwise the same' "$folder/one.out" && grep ' 0 races' "$folder/one.out" || return 1
    for update in pass fused; do
        # shellcheck disable=SC2086
        "$trainer" $tiny $tight --device-memory 32900KiB --clip-by layer --states 8bit --update $update --loss-log "$folder/$update.log" --save "$folder/$update.save" \
            >"$folder/$update.out" 2>&1 || { cat "$folder/$update.out"; return 1; }
    done
    grep '^update  *on the device, of each layer in its last backward' "$folder/fused.out" &&
        cmp "$folder/pass.log" "$folder/fused.log" && cmp "$folder/pass.save" "$folder/fused.save" || return 1
    # shellcheck disable=SC2086
    ! "$trainer" $tiny $budget --update fused --clip-by layer --graph 2>"$folder/err" &&
        grep -e '--update fused does not work with --graph' "$folder/err" || return 1
    # shellcheck disable=SC2086
    ! "$trainer" $tiny $budget --update deferred --graph 2>"$folder/err" &&
        grep -e '--update deferred does not work with --graph' "$folder/err"
}

# Every run whose plan has a choice says what it predicted and what it measured.
predicts() { # ATTENTION BUDGET; BUDGET: 6 layers need more to keep everything
    predicts_by "$@" "[0-9.]* ms, stalled [0-9.]* ms" && predicts_by "$@" "[0-9.]* ms" --graph
}
predicts_by() { # ATTENTION BUDGET MEASURED FLAGS...
    attention=$1 device_memory=$2 measured=$3
    shift 3
    "$trainer" --layers 6 --hidden 16 --heads 2 --seq 8 --batch 1 --tile 4 --steps 6 --device-memory "$device_memory" "$@" \
        >"$folder/one.out" 2>&1
    grep "^compute\|^predicted\|^train_gpt" "$folder/one.out"
    grep -q "^compute .*$attention" "$folder/one.out" &&
        grep -q "^predicted [0-9.]* ms a step, stalled [0-9.]* ms, recomputing [0-9.]* ms; measured $measured\$" "$folder/one.out"
}

# cuDNN is wrong from 60 queries a call on: the first step finds it, and the slices that its message names train as the host does.
wrong_attention_is_found() {
    # shellcheck disable=SC2086
    ! FAKE_CUDNN_WRONG_FROM=60 "$trainer" $tiny --seq 64 $budget >/dev/null 2>"$folder/err" &&
        grep "cuDNN.s attention: d_q of 64 queries.*; slices of fewer queries, .* would work" "$folder/err" || return 1
    # shellcheck disable=SC2086
    FAKE_CUDNN_WRONG_FROM=60 "$trainer" $tiny --seq 64 --slice-rows 32 $budget --loss-log "$folder/one.log" >"$folder/one.out" 2>&1 ||
        { cat "$folder/one.out"; return 1; }
    # shellcheck disable=SC2086
    $host $tiny --seq 64 --type bf16 --loss-log "$folder/host.log" >/dev/null && are_near "$folder/one.log" "$folder/host.log"
}

# Gradients in any order cannot be compared bitwise.
any_order_is_not_compared() {
    "$trainer" --deterministic 0 --compare 1 >/dev/null 2>"$folder/refused.txt"
    [ $? -eq 2 ] && grep 'deterministic 1 would work' "$folder/refused.txt"
}

# The benchmark of the trainer finds its figures in what the trainer prints.  Between the least 41430 KiB and the 41600 KiB
# that keep everything, memo must recompute rows.  A stand-in for PyTorch computes products and attention alone in 10 ms.
is_benchmarked() {
    mkdir -p "$folder/bin"
    cat >"$folder/bin/python3" <<'END'
#!/bin/sh
[ "$1" != -c ] || { echo True; exit; }
echo "| products and attention alone, forward and backward | 64 | 6 | 10 ms | 6400 | 1 GiB |"
END
    cat >"$folder/bin/trainer" <<END
#!/bin/sh
case " \$* " in *" --policy memo "*) set -- "\$@" --device-memory 41500KiB --host-memory 16KiB ;; esac
exec "$folder/train_gpt_cudnn" "\$@"
END
    chmod +x "$folder/bin/python3" "$folder/bin/trainer"
    PATH=$folder/bin:$PATH TRAINER=$folder/bin/trainer CUDNN=none LAYERS=6 HIDDEN=16 HEADS=2 VOCABULARY=64 TILE=4 STEPS=2 \
        OUT=$folder/results sh bench/device.sh C 64 && cat "$folder"/results/*-trainer-64.md || return 1
    log=$folder/results/no-gpu-log.md # figures, commands and messages, without this folder
    grep -q '^<details><summary>memo-64' "$log" && grep -q '^\$ .*--policy swap' "$log" && ! grep -F "$(pwd -P)" "$log" || return 1
    for policy in memo recompute keep swap 'memo, a graph'; do
        grep -q "^| memo, $policy | 64 | 6 | [0-9.]* ms | [0-9.]* | [0-9.e-]* % | device .* MiB" \
            "$folder"/results/*-trainer-64.md || return 1
    done
    grep '^predicted' build/device-trainer-64/memo-64.log
    awk -F '[|]' '/^predicted .* a step, of which/ { split($0, word, " "); recompute_ms = word[12] + 0 }
        /^predicted .* measured / { found = 1 }
        /^[|] memo, memo [|]/ { step_ms = 64e3 / $6 }
        /^[|] 64 [|]/ { ratio = $8; expected = step_ms / (10 + recompute_ms) }
        END { print ratio " in the table, of " expected
            exit !(found && recompute_ms > 0 && ratio > 0.998 * expected && ratio < 1.002 * expected) }' \
        build/device-trainer-64/memo-64.log "$folder"/results/*-trainer-64.md
}

# The budgets are capacities of the device and of pinned memory, in every run but the first look at the GPU.
budgets_are_capacities() {
    capacities() { # EXPECTED ARGUMENT...
        expected=$1
        shift
        rm -f "$folder/capacities"
        # shellcheck disable=SC2086
        CAPACITIES=$folder/capacities "$trainer" $tiny --batch 2 "$@" >"$folder/one.out" 2>&1 || { cat "$folder/one.out"; return 1; }
        cat "$folder/capacities"
        [ "$(wc -l <"$folder/capacities")" -gt 1 ] && [ "$(sed 1d "$folder/capacities" | sort -u)" = "$expected" ]
    }
    capacities '47185920 65536' --device-memory 45MiB --host-memory 64KiB --compare 1 --output "$folder/run" &&
        capacities '47185920 65536' --device-memory 45MiB --host-memory 64KiB --policy swap --graph &&
        capacities '47185920 0' --device-memory 45MiB --policy recompute
}

# Kernels, cuBLASLt, cuDNN, NCCL and its channels each take 20 MiB of a GPU with 256 MiB when they are first used.  What
# they leave holds 100 MiB of scratch memory beside the model.  150 MiB are refused: an arena planned before would not have
# left them room in the middle of the run.
libraries_come_first() (
    budget=
    FAKE_CUDA_DEVICE_MIB=256 FAKE_CUDA_LIBRARY_MIB=20
    export FAKE_CUDA_DEVICE_MIB FAKE_CUDA_LIBRARY_MIB
    over_nccl 2 first --data 2 --batch 2 --reserve 1MiB --attention-memory 100MiB || return 1
    cat "$folder/first.out"
    room=$(sed -n 's/^budget .*device \([0-9.]*\) MiB,.*/\1/p' "$folder/first.out")
    awk "BEGIN { exit !($room > 140 && $room < 156) }" || return 1
    over_nccl 2 second --data 2 --batch 2 --reserve 1MiB --attention-memory 150MiB && return 1
    grep -q 'device memory cannot hold this run' "$folder/second.out"
)

# graph_trains RANKS ARGUMENT...: a CUDA graph gives the losses of calls, and parameters that generate the same bytes.
graph_trains() {
    graph_ranks=$1
    shift
    for way in calls graph; do
        option=
        [ $way = calls ] || option=--graph
        # shellcheck disable=SC2086
        over_nccl "$graph_ranks" $way --batch 2 --steps 4 --sample 20 "$@" $option --loss-log "$folder/$way.log" || return 1
        sed -n '/ bytes of the text:$/,$p' "$folder/$way.out" >"$folder/$way.text"
    done
    cat "$folder/graph.out"
    grep -q '^step .* by a CUDA graph$' "$folder/graph.out" && [ "$(wc -l <"$folder/graph.log")" -eq 4 ] &&
        [ -s "$folder/graph.text" ] && cmp "$folder/calls.log" "$folder/graph.log" && cmp "$folder/calls.text" "$folder/graph.text"
}
graphs_train() {
    graph_trains 1 --policy keep && graph_trains 1 --policy recompute --accumulate 2 &&
        graph_trains 1 --policy swap --layers 6 --accumulate 2 --host-memory 16KiB --spill "$folder" &&
        grep -q "layers' through a file" "$folder/graph.out" &&
        graph_trains 1 --policy memo --alpha 0.5 --layers 4 --accumulate 2 &&
        graph_trains 1 --policy swap --layers 4 --sub-batches 2 --schedule fine
}
graphs_train_on_ranks() {
    graph_trains 2 --data 2 --zero 2 --accumulate 2 --policy recompute &&
        graph_trains 4 --data 2 --tensor 2 --zero 1 --policy swap
}

# A graph is the matter of all ranks: the stand-in for NCCL ends a rank that calls what another has captured.
half_a_graph_fails() {
    port=$((27100 + $$ % 800))
    start 2 1 --data 2 --batch 2 --steps 4 >"$folder/half.1" 2>&1 &
    half=$!
    start 2 0 --data 2 --batch 2 --steps 4 --graph >"$folder/half.out" 2>&1 &
    wait $! && return 1
    wait "$half" && return 1
    grep -h 'an operation is captured on some ranks only' "$folder/half.1" "$folder/half.out"
}

# ---- ranks ----

ranks_train() { # N ARGUMENT...
    n=$1
    shift
    over_nccl "$n" ranks "$@" --compare 1 --loss-log "$folder/ranks.log" --output "$folder/run" || return 1
    agrees_with_host ranks "$@"
}

# ---- launchers ----

# plans PATTERN VARIABLE=VALUE...: a dry run prints a line like PATTERN.
plans() {
    pattern=$1
    shift
    # shellcheck disable=SC2086
    env "$@" "$trainer" $tiny $budget --batch 2 --dry-run >"$folder/plan.out" 2>&1
    cat "$folder/plan.out"
    grep -q -e "$pattern" "$folder/plan.out"
}
every_launcher_is_known() {
    ranks='^ranks  *2: data 2'
    plans "$ranks" RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 &&
        plans "$ranks" OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 &&
        plans "$ranks" PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 \
            SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=0 &&
        plans "$ranks" PMI_RANK=0 PMI_SIZE=2 MASTER_ADDR=host &&
        plans "$ranks" SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=2 || return 1
    ! plans "$ranks" SLURM_PROCID=0 SLURM_NTASKS=2
}

# refused PATTERN [VARIABLE=VALUE]... -- ARGUMENT...: exit 2 after one line like PATTERN.
refused() {
    pattern=$1 variables=
    shift
    while [ "$1" != -- ]; do
        variables="$variables $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    env $variables "$trainer" $tiny $budget --batch 4 "$@" >/dev/null 2>"$folder/err"
    status=$?
    cat "$folder/err"
    [ $status -eq 2 ] && grep -q -e "$pattern" "$folder/err" && [ "$(wc -l <"$folder/err")" -eq 1 ]
}
mistakes_are_refused() {
    refused "RANK: not a number of ranks in the environment ('a')" RANK=a WORLD_SIZE=2 -- &&
        refused 'WORLD_SIZE: not set in the environment' RANK=0 -- &&
        refused 'RANK: 2 in the environment is not below WORLD_SIZE, 2' RANK=2 WORLD_SIZE=2 MASTER_ADDR=a -- &&
        refused 'MASTER_ADDR: not set' SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 'SLURM_STEP_TASKS_PER_NODE=1(x2)' -- &&
        refused 'torchrun started 2; torchrun --nproc-per-node 4 would do' RANK=0 WORLD_SIZE=2 MASTER_ADDR=a -- --data 4 &&
        refused '2 ranks: each is a process; start this program with mpirun -n 2' -- --data 2 &&
        refused '--graph with 2 ranks: NCCL 2.27 does not order' NCCL_LAUNCH_ORDER_IMPLICIT=0 RANK=0 WORLD_SIZE=2 \
            MASTER_ADDR=a -- --data 2 --graph &&
        (trainer=$folder/train_gpt_cudnn && refused '--graph with --documents: --ring 1 and --ulysses 2 send' RANK=0 \
            WORLD_SIZE=2 MASTER_ADDR=a -- --ulysses 2 --graph --documents 2) &&
        refused '--graph takes at most 256 micro-batches' -- --accumulate 257 --graph &&
        refused '--device-memory 9.0 GiB: the GPU has 8.0 GiB, of which .* free; no --device-memory would take what libraries leave' -- \
            --device-memory 9GiB &&
        refused '--attention-memory has no effect without cuDNN.s attention; make CUDNN=' -- --attention-memory 1MiB &&
        refused '--ring 2, --ulysses 1: the attention of these kernels' RANK=0 WORLD_SIZE=2 MASTER_ADDR=a -- --ring 2
}

# Two bytes for each pair of tokens: the program says before it starts what would fit, and that does.
long_attention_is_refused() (
    tiny="--random-tokens --layers 2 --hidden 16 --heads 2 --seq 100000 --tile 100 --slice-rows 1000000"
    budget="--device-memory 2GiB"
    refused "2.0 GiB of device memory cannot hold this run: .*; try --deterministic 0, --device-memory [0-9]*GiB$" -- || return 1
    # shellcheck disable=SC2086
    "$trainer" $tiny $budget --batch 4 --deterministic 0 --dry-run >/dev/null 2>&1 &&
        refused "^train_gpt: --type f32: cuDNN's attention takes bf16 only" -- --type f32
)

# With --cluster each program prints the same: types, tiles, scratch memory, times.  Two sequences: then all split heads alike,
# although that with cuDNN does so from 8 queries on.
clusters_are_planned_alike() {
    small="--layers 4 --hidden 1024 --heads 8 --kv-heads 4 --seq 32768 --batch 1 --policy recompute"
    large="--model llama3.2-1b --seq 16384 --batch 1 --states bf16 --deterministic 0 --mlp-rows 8192 --device-memory 9GiB --host-memory 18GiB"
    for options in "$small" "$small --slice-rows 4096" "$small --deterministic 0 --batch 4" "$small --ring 2 --ulysses 2 --batch 2" \
        "$small --attention-memory 3GiB" "$large"; do
        for program in "$folder/train_gpt" "$folder/train_gpt_cudnn" "$host"; do
            # shellcheck disable=SC2086
            "$program" --dry-run --cluster h200 $options >"$folder/alike.out" 2>&1
            grep -q '^plan ' "$folder/alike.out" || { cat "$folder/alike.out"; return 1; }
            [ "$program" != "$folder/train_gpt" ] || mv "$folder/alike.out" "$folder/alike"
            [ "$program" = "$folder/train_gpt" ] || diff "$folder/alike" "$folder/alike.out" || return 1
        done
    done
    grep -q '^memo .* yes$' "$folder/alike"
}

# The first rank waits for one that does not come.
ctrl_c_ends_the_meeting() {
    port=$((29100 + $$ % 800))
    start 2 0 --data 2 --batch 2 >"$folder/alone.out" 2>&1 &
    process=$!
    wait_for "$folder/fake_nccl.127.0.0.1:$((port + 1))"
    kill -INT "$process"
    wait "$process"
    [ $? -eq 130 ] || { cat "$folder/alone.out"; return 1; }
}

# a_lost_rank_ends_the_others ARGUMENT...: the second rank is killed in the middle of training, in the third step or later.
a_lost_rank_ends_the_others() {
    port=$((28100 + ($$ + tap_n * 40) % 800))
    rm -f "$folder/lost.log"
    start 2 1 --data 2 --batch 2 --steps 10000 "$@" >"$folder/lost.1" 2>&1 &
    lost=$!
    start 2 0 --data 2 --batch 2 --steps 10000 "$@" --loss-log "$folder/lost.log" >"$folder/lost.out" 2>&1 &
    first=$!
    wait_for "$folder/lost.log" 60
    tries=0
    while [ $tries -lt 600 ] && [ "$(wc -l <"$folder/lost.log")" -lt 3 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -KILL "$lost"
    wait "$first"
    [ $? -eq 1 ] && grep "^train_gpt: rank 0: .* on 'nccl " "$folder/lost.out" && return
    tail -n 5 "$folder/lost.out"
    return 1
}

with_cudnn() ( # COMMAND...
    trainer=$folder/train_gpt_cudnn near=1e-3
    "$@"
)
late_streams() ( # COMMAND...
    FAKE_CUDA_MODE=late
    export FAKE_CUDA_MODE
    "$@"
)

# Streams are threads, with random delays (tests/cuda/queues.h).
strict_streams() ( # COMMAND...
    FAKE_CUDA_MODE=strict STRICT_SEED=$tap_seed STRICT_QUIET=1
    export FAKE_CUDA_MODE STRICT_SEED STRICT_QUIET
    echo "STRICT_SEED=$STRICT_SEED"
    "$@"
)

# Profilers see the passes of each layer as NVTX ranges: a library in a profiler's place writes them down.
layers_have_names() {
    cat >"$folder/ranges.c" <<END
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
static int push(const char* name) { return fprintf(stderr, "range %s\n", name); }
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
    const NvtxExportTableCallbacks* callbacks = (const NvtxExportTableCallbacks*)get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned n;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &n)) return 0;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    return 1;
}
END
    ${CC:-cc} -w -fPIC -shared -isystem "$cuda" "$folder/ranges.c" -o "$folder/ranges.so" || return 1
    # shellcheck disable=SC2086
    NVTX_INJECTION64_PATH=$folder/ranges.so "$folder/train_gpt" $tiny $budget --policy recompute --steps 1 >"$folder/ranges.out" 2>&1 || return 1
    sed -n 's/^range //p' "$folder/ranges.out" | head -n 5 | tr '\n' , | grep '^forward 0,forward 1,backward 1,backward 0,recompute 0,'
}

tap_more=1
test_is "the trainer builds on stand-ins" builds
[ -x "$folder/train_gpt" ] || { tap_end; exit 1; }
test_is "sub-batches, a window and documents on one GPU" one_gpu --window 5 --documents 8 --separator 32 --sub-batches 2 --schedule fine --policy recompute
test_is "slices and parts of a sequence on one GPU, with cuDNN's attention" \
    with_cudnn one_gpu --slice-rows 4 --sub-batches 2 --batch 1
if [ -n "$json_libs" ] && command -v python3 >/dev/null 2>&1; then
    nightly_test_is "models of others" models_of_others
    nightly_test_is "adapters of others" adapters_of_others
else
    skip "models of others" "needs python3 and cJSON (apt-get install libcjson-dev, then make setup)"
fi
if has_header nvtx3/nvToolsExt.h; then
    test_is "layers have names for profilers" layers_have_names
else
    skip "layers have names for profilers" "NVTX's header is not installed"
fi
test_is "updates in the next forward" defers
test_is "a step as long as predicted is measured" predicts "built-in attention" 33310KiB
test_is "a step as long as predicted is measured, with cuDNN's attention" \
    with_cudnn predicts "cuDNN's attention, deterministic" 41600KiB
test_is "gradients in any order are not compared" with_cudnn any_order_is_not_compared
test_is "attention that is wrong beyond a length is found" with_cudnn wrong_attention_is_found
nightly_test_is "bench/device.sh finds the trainer's figures" is_benchmarked
test_is "budgets are capacities" budgets_are_capacities
if [ -z "$nccl" ]; then
    skip "the trainer over NCCL, on stand-ins" "NCCL's header is not installed"
    tap_end
    exit
fi
test_is "libraries take their device memory before the plan" with_cudnn libraries_come_first
test_is "steps by a CUDA graph" graphs_train
nightly_test_is "steps by a CUDA graph, on strict streams" strict_streams graphs_train
test_is "steps by a CUDA graph, streams as late as possible" late_streams \
    graph_trains 1 --policy swap --layers 6 --host-memory 16KiB --spill "$folder"
test_is "steps by a CUDA graph, with cuDNN's attention, a window and documents" with_cudnn graph_trains 1 --policy memo \
    --alpha 0.5 --accumulate 2 --slice-rows 8 --window 6 --documents 8 --separator 32
test_is "steps by a CUDA graph on two and four ranks" graphs_train_on_ranks
test_is "steps by a CUDA graph on ring x Ulysses ranks, streams as late as possible" \
    with_cudnn late_streams graph_trains 4 --ring 2 --ulysses 2 --hidden 32 --heads 4 --zero 2 --batch 1 --policy swap
test_is "steps by a CUDA graph on tensor ranks with sub-batches, streams as late as possible" \
    late_streams graph_trains 2 --tensor 2 --sub-batches 2 --schedule cross --policy recompute
test_is "a graph of one rank alone fails" half_a_graph_fails
test_is "every launcher is known" every_launcher_is_known
test_is "mistakes of launchers and of ranks are refused" mistakes_are_refused
test_is "a length without memory for deterministic attention is refused" with_cudnn long_attention_is_refused
nightly_test_is "clusters are planned alike on the host" clusters_are_planned_alike
test_is "Ctrl-C ends the meeting of the ranks" ctrl_c_ends_the_meeting
test_is "a lost rank ends the others" a_lost_rank_ends_the_others
test_is "a lost rank ends the others in a graph" a_lost_rank_ends_the_others --graph
nightly_test_is "two data ranks" ranks_train 2 --data 2 --batch 2
nightly_test_is "two tensor ranks" ranks_train 2 --tensor 2 --batch 1
nightly_test_is "two data ranks, ZeRO 1" ranks_train 2 --data 2 --zero 1 --batch 2
test_is "two data ranks, ZeRO 2, streams as late as possible" \
    late_streams ranks_train 2 --data 2 --zero 2 --batch 2 --accumulate 2
nightly_test_is "two data x two tensor ranks" ranks_train 4 --data 2 --tensor 2 --zero 1 --batch 2
test_is "two ring ranks, with cuDNN's attention" with_cudnn ranks_train 2 --ring 2 --batch 1
nightly_test_is "two Ulysses ranks, with cuDNN's attention and a window" with_cudnn ranks_train 2 --ulysses 2 --batch 2 --window 5
nightly_test_is "two Ulysses ranks with two groups of heads" with_cudnn ranks_train 2 --ulysses 2 --hidden 32 --heads 4 --batch 2
nightly_test_is "two ring x two Ulysses ranks, with cuDNN's attention" \
    with_cudnn ranks_train 4 --ring 2 --ulysses 2 --zero 2 --batch 1
nightly_test_is "four data ranks, whose sums have NCCL's order" late_streams ranks_train 4 --data 4 --batch 4
tap_end
