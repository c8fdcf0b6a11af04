#!/bin/sh
# test_train_gpt.sh - the trainer's command line: options, refusals, dry runs, losses that are bitwise equal under every
# policy.  Output: TAP.
# Environment: TRAIN_GPT   the program (default build/tests/train_gpt)

. tests/support/tap.sh
. tests/trainer/train.sh

all=$(tests_all && echo 1) # each night more variants of some runs

# ---- options ---------------------------------------------------------------------------------------

help_lists_every_option() { # test
    works --help
    for name in --text --policy --alpha --device-memory --host-memory --layers --hidden --heads --kv-heads \
        --seq --batch --accumulate --dropout --steps --seed --learning-rate --loss-log --output --compare \
        --sample --link-bandwidth --dry-run --demo --data --ring --ulysses --zero --rows \
        --tensor --degrees --sub-batches --schedule --mlp-rows --mlp-columns --slice-rows --mlp --states --flops --cluster --spill-bandwidth --seconds --type --vocabulary --random-tokens; do
        expect_out "^  $name "
    done
    expect_out "block NUMBER DEGREE"
    [ -s err ] && fail "help writes to standard error"
    mv out help
    for more in -h '--help me' '--help --steps' '--steps 3 --help --layers none'; do
        works $more
        expect_same help out
    done
}

unknown_options_are_refused() { # test
    refused 'unknown option; the nearest is --layers' $tiny --layer 3
    refused 'unknown option; the nearest is --device-memory' $tiny --devicememory 3MiB
    refused 'unknown option; --help lists all' $tiny --zzzzzzzz
    refused 'not an option; files to learn from follow --text' lonely
    refused '--steps needs a value' $tiny --steps
    refused '--seed needs a value' $tiny --seed --steps 3
    refused '--text needs a value' --text --steps 3
    refused '--seed=3: unknown option; the nearest is --seed' $tiny --seed=3
}

bad_values_are_refused() { # test
    for value in 0 -1 1.5 x 3x '' 1e300 nan inf 0x10; do refused '^train_gpt: --layers .*not a whole number' $tiny --layers "$value"; done
    refused "^train_gpt: --seq '': not a whole number" $tiny --seq ''
    refused "^train_gpt: --device-memory '': not a size" $tiny --device-memory ''
    refused "^train_gpt: --policy '': unknown policy" $tiny --policy ''
    for value in -0.1 1.01 half nan; do refused '^train_gpt: --alpha .*not a number from 0 to 1' $tiny --alpha "$value"; done
    for value in 0 -5MiB 5XB 5MiBs MiB inf 1e30; do refused '^train_gpt: --device-memory .*not a size' $tiny --device-memory "$value"; done
    for value in 1.5 .5 1.5B; do refused '^train_gpt: --device-memory .*not a size above 0 in whole bytes; .* 1.5GiB or' $tiny --device-memory "$value"; done
    refused '^train_gpt: --policy best: unknown policy; use keep, recompute, swap, alpha or memo' $tiny --policy best
    refused '^train_gpt: --dropout 1: not a number' $tiny --dropout 1
    refused '^train_gpt: --seed -1: not a whole number from 0 to 9000000000000000$' $tiny --seed -1
    refused '^train_gpt: --steps 0: not a whole number from 1 to 1000000000$' $tiny --steps 0
}

# A number alone is bytes, and a link of some bytes a second would hold the first step for days.
slow_links_are_refused() { # test
    for value in 1.5 1 2 500 1.5/s 999B; do
        gigabytes=$(echo "$value" | tr -d B/s)
        fails $tiny --dry-run --link-bandwidth "$value"
        expect_one_line
        expect_err "^train_gpt: --link-bandwidth $value: [0-9.]* bytes a second, and the least is 1KB/s; ${gigabytes}GB/s would work$"
        works $tiny --dry-run --link-bandwidth "${gigabytes}GB/s"
    done
    refused '^train_gpt: --link-bandwidth 1e-300: .*; 1GB/s would work$' $tiny --link-bandwidth 1e-300
    for value in 0 -1 x '' /s GB/s 1.5GBs 1.5GB/s/s 1e40GB/s; do
        refused '^train_gpt: --link-bandwidth .*: not a rate; 1.5GB/s or 100MB/s would be$' $tiny --link-bandwidth "$value"
    done
    for value in 1.5GB 1.5GB/s 1500MB/s; do prints ', copies 1.5 GB/s each way' $tiny --dry-run --link-bandwidth $value; done
    for value in 1000 1KB 1kb/s; do prints ', copies 1 KB/s each way' $tiny --dry-run --link-bandwidth $value; done
}

# Whoever wants to wait for it sees first how long.
slow_links_say_how_long() { # test
    works $tiny --dry-run --policy swap --link-bandwidth 1KB
    expect_out '^plan .* 384.4 KiB of rows moved in a step' '^link      copies of a step take 3.28 min or longer at 1 KB/s each way$'
    works $tiny --dry-run --policy swap --link-bandwidth 1MB
    grep '^link ' out && fail 'copies of less than a second are named'
    "$program" --random-tokens --layers 1 --hidden 16 --heads 1 --seq 100000 --batch 1 --steps 1 --link-bandwidth 1KB/s >out 2>err &
    child=$!
    waited=0
    until grep -q '^link ' out || [ $waited -eq 600 ]; do sleep 0.1 && waited=$((waited + 1)); done
    kill -KILL $child
    wait $child
    expect_out '^link      copies of the tokens of a step take 13.3 min or longer at 1 KB/s each way$'
}

options_without_effect_are_refused() { # test
    for option in '--output d' '--loss-log l' '--compare 2' '--sample 5'; do
        fails $tiny --dry-run $option
        expect_one_line
        expect_err "^train_gpt: ${option% *} has no effect with --dry-run"
    done
    works --demo --text text --dry-run
    refused '--spill has no effect without --host-memory SIZE' $tiny --spill spilled.dir
    refused '--graph: the host has no CUDA graphs; train_gpt_cuda on a GPU has' $tiny --graph
    refused '--separator 300: a token below --vocabulary 256 would' $tiny --documents 2 --separator 300
    four="--random-tokens --vocabulary 4 ${tiny#--text text}"
    refused '--separator 10 .the default.: a token below --vocabulary 4 would' $four --documents 2
    works $four
    refused '--stop has no effect above --steps, after which' $tiny --steps 2 --stop 500
    refused '--separator has no effect without --documents N' $tiny --separator 32
    refused '--documents 12: step 2 has a sequence of 13 documents, .*; --documents 13 would work' $tiny --documents 12 --separator 32
    works $tiny --documents 13 --separator 32
    refused '--rows has no effect with this --policy' $tiny --rows --policy alpha
    refused '--schedule has no effect without parts to order; --sub-batches 2 or --tensor 2' $tiny --schedule fine
    refused '--schedule has no effect without parts' $tiny --schedule cross --data 2
    refused '--zero has no effect without ranks to split over' $tiny --zero 1
    refused '--zero has no effect without ranks to split over' $tiny --zero 2 --tensor 2
    works $tiny --schedule fine --sub-batches 2 --zero 0
}

invalid_models_are_refused() { # test
    refused '--hidden 18 is not a multiple of --heads 4; --hidden 24 would be' $tiny --hidden 18
    refused 'rotary positions need an even size' $tiny --hidden 12
    refused '--heads 4 is not a multiple of --kv-heads 3' $tiny --kv-heads 3
}

invalid_ranks_are_refused() { # test
    refused '--batch 2 cannot be divided by --data 4; --batch 4 can' $tiny --data 4
    refused '--ulysses 8 splits --heads 4.*; --ulysses 4 --ring 2 would do' $tiny --ulysses 8
    refused '--seq 7 leaves ranks .* without tokens; --seq 16 would do' $tiny --seq 7 --ring 4 --ulysses 2
    refused 'are 128 ranks; at most 64 would do' $tiny --ring 64 --data 2
    refused '^train_gpt: --zero 3: not a whole number from 0 to 2' $tiny --zero 3
    refused '^train_gpt: --timeout 0: not a number from 1 to 1e+06' $tiny --ring 2 --timeout 0
    refused '--tensor 4 cannot share 4 heads with 2 key-value heads evenly; --tensor 2 can' $tiny --tensor 4
    refused '--ulysses 4 splits the 2 heads of a rank of --tensor 2' $tiny --tensor 2 --ulysses 4
    refused '--sub-batches 3 does not divide the 2 sequences of a rank; --sub-batches 2 does' $tiny --sub-batches 3
    refused '--schedule best: unknown schedule; use default, pipelined, cross or fine' $tiny --schedule best
    refused 'heads of 512: attention over ranks takes 256 at most' $tiny --hidden 2048 --ring 2
    refused 'of device memory cannot hold this run' $tiny --data 2 --device-memory 100KiB
}

invalid_texts_are_refused() { # test
    refused 'missing: cannot be read: No such file' $tiny --text missing
    refused 'empty: the file is empty' $tiny --text text empty
    refused 'the text has 5 bytes, and a sequence of --seq 50 needs one more' $tiny --text short
    refused 'the text has 5 bytes' $tiny --text short --seq 5
    refused 'cannot be read: Is a directory' $tiny --text .
    [ -z "$all" ] || refused '--text /dev/zero: larger than 1024 MiB' $tiny --text text /dev/zero
    refused "no text: the project's own sources are not in this directory" --layers 2
}

shortest_text() { # test
    works $tiny --text short --seq 4 --batch 1
}

# ---- budgets ---------------------------------------------------------------------------------------

impossible_budgets_are_refused() { # test
    refused '100.0 KiB of device memory cannot hold this run: policy memo needs [0-9.]* [KM]iB (parameters.*; try --device-memory [0-9]*[KM]iB' $tiny --device-memory 100KiB
    refused 'policy alpha needs [0-9.]* [KM]iB (parameters.*; try --device-memory [0-9]*[KM]iB' $tiny --policy alpha --device-memory 100KiB
    refused 'policy keep needs' $tiny --policy keep --device-memory 100KiB
    refused '2.0 KiB of host memory cannot hold this run: policy swap needs .*; try --policy keep, .*, --host-memory [0-9]*KiB' $tiny --policy swap --host-memory 2KiB
    refused 'policy memo needs .*; try --alpha 0, ' $tiny --seq 200 --alpha 1 --host-memory 150KiB
    # The tokens of a step need host memory, and so do the copies that are measured.
    refused '1 B of host memory cannot hold this run: .*; try --host-memory 2KiB' $tiny --host-memory 1
    works $tiny --host-memory 2KiB
    refused 'host memory cannot hold the tokens of a step and the copies that are measured; try --host-memory 2KiB$' $tiny --device-memory 700KiB --host-memory 1536
    works $tiny --device-memory 700KiB --host-memory 2KiB
}

# What a refusal suggests works, and a KiB less does not.
suggested_budget_is_exact() { # test
    run $tiny --policy keep --device-memory 100KiB
    enough=$(sed -n 's/.*try --device-memory \([0-9]*\)KiB.*/\1/p' err)
    prints '^keep .* fits$' $tiny --policy keep --device-memory "${enough}KiB" --compare 1
    fails $tiny --policy keep --device-memory "$((enough - 1))KiB"
}

dry_run() { # test
    works $tiny --dry-run
    for policy in keep recompute swap alpha memo; do expect_out "^$policy .* yes"; done
    fails $tiny --dry-run --policy keep --device-memory 100KiB
    expect_one_line
    expect_out '^keep .*no, device: needs'
    # A refusal shows the plan that it is about, here in slices, and no other.
    large="$small --device-memory 7GiB" host=8GiB
    [ -z "$all" ] || large="$eight --device-memory 16GiB" host=60GiB
    fails $large --host-memory $host
    need=$(sed -n 's/.* policy memo needs \([0-9.]* GiB\) in slices of .*/\1/p' err)
    [ "$(grep -c "^memo .*, host: needs $need of\|^memo .* no, host: needs $need of" out)" = 1 ] || fail "$need in: $(cat err; grep '^memo ' out)"
    expect_out '^slices    of [0-9]* rows, because all rows at once do not fit' "^  host .* $need "
    # What it offers is tight: a hundredth less does not fit.
    enough=$(sed -n 's/.*; try --host-memory \([0-9]*\)GiB$/\1/p' err)
    works $large --host-memory "${enough}GiB"
    [ -z "$all" ] || fails $large --host-memory "$((enough - 2))GiB"
    works --dry-run --layers 100 --hidden 4096 --heads 32 --seq 100000 --batch 4 --tile 1000
}

eight="--dry-run --model llama3-8b --cluster h200 --deterministic 0 --states bf16 --seq 32768 --batch 1"
small="--dry-run --model llama3.2-1b ${eight#*llama3-8b}" # planned in a fifth of the time

# With --cluster the plans are those of the program for GPUs: its types, its tiles.
clusters_have_the_types_of_gpus() { # test
    works $eight --seq 4096 --policy alpha
    mv out default.out
    works $eight --seq 4096 --policy alpha --type bf16 --tile 1024
    expect_same default.out out
    works $tiny --dry-run
    mv out default.out
    works $tiny --dry-run --type f32
    expect_same default.out out
}

# All rows just fit: slices leave room for more rows.
faster_slices_are_named() { # test
    works $small --host-memory 112GiB --device-memory 9200MiB
    expect_out '^faster    in slices of 16384 rows (--slice-rows): predicted [0-9.]* ms a step$'
    ms=$(sed -n 's/^faster .* predicted \([0-9]*\).*/\1/p' out)
    all_ms=$(sed -n 's/^predicted \([0-9]*\).*/\1/p' out)
    [ "$((50 * ${ms:-0}))" -le "$((49 * all_ms))" ] || fail "slices take $ms ms, all rows $all_ms"
}

# A name is a shape.  Numbers of parameters are those that the files of each model have.
models_are_known_by_name() { # test
    for model in llama2-7b:6738.42 llama3-8b:8030.26 llama3-70b:70553.71 llama3.2-1b:1235.81 llama3.2-3b:3212.75 qwen2.5-7b:7615.62 \
        qwen2.5-32b:32763.88 qwen3-0.6b:596.05 qwen3-1.7b:1720.57 qwen3-4b:4022.47 qwen3-8b:8190.74 qwen3-14b:14768.31 qwen3-32b:32762.12 qwen3-30b-a3b:30532.12; do
        prints ": ${model#*:} million parameters" --dry-run --model "${model%:*}" --seq 128 --batch 1
        expect_out "^weights   ${model%:*}, known by name"
    done
    refused '--model qwen3-8b: a name has a shape and no weights' --model qwen3-8b --random-tokens
    fails --dry-run --model qwen3-9b
    expect_err '--model qwen3-9b: no such folder; of names llama2-7b, .* or qwen3-30b-a3b work'
}

# A disk costs what it takes: slower ones make longer steps, and one of unknown rate is refused.
a_disk_is_not_free() { # test
    disk="--dry-run --link-bandwidth 48GB --flops 989 --type bf16 --tile 1024 --states bf16 --mlp swiglu --hidden 4096 --heads 32
        --kv-heads 8 --layers 2 --seq 32768 --batch 1 --device-memory 6GiB --host-memory 7GiB --spill spilled"
    fails $disk
    expect_err '--spill spilled: a dry run does not time the disk; --spill-bandwidth RATE would work'
    before=0
    for rate in 100GB 1GB; do
        works $disk --spill-bandwidth $rate
        expect_out "; the file ${rate%GB} GB/s each way" 'through a file of'
        step=$(sed -n 's/^predicted \([0-9]*\).*/\1/p' out)
        [ "${step:-0}" -gt $before ] || fail "$rate: $step ms, not above $before"
        before=$step
    done
    refused '--spill-bandwidth has no effect without --spill' $tiny --spill-bandwidth 1GB
}

# planned_in_time ARGUMENT...: planning takes seconds of processor time for every length.
planned_in_time() {
    (ulimit -t 60 && exec "$program" --hidden 4096 --heads 32 --batch 1 --dry-run "$@") >out 2>err
    code=$?
    expect_code 0
    expect_out '^memo .* yes$'
}

# Long times of a step are no obstacle.
long_contexts_are_planned() { # test
    planned_in_time --layers 32 --seq 524288
    [ -z "$all" ] || planned_in_time --layers 1000 --seq 16777216
    planned_in_time --layers 100${all:+0} --seq 16777216 --flops 0.001

    # All logits alone would take 98 GiB, and all of an MLP more than a fifth of the device.
    works $million --dry-run --device-memory 120GiB --mlp-rows 8192
    [ -n "$all" ] || return 0
    fails $million --dry-run --device-memory 120GiB
    expect_err 'needs 137.7 GiB in slices of 2048 rows .*; try .*--device-memory [0-9]*GiB$'
}

long_contexts_are_planned_in_budgets() { # slow test
    planned_in_time --layers 1000 --seq 16777216 --device-memory 30TiB --host-memory 500TiB --link-bandwidth 10GB
    expect_out '^predicted [0-9.]* ms'
}
million="--policy recompute --cluster h200 --deterministic 0 --type bf16 --hidden 4096 --layers 4 --heads 32 --seq 1048576 --batch 1 --tile 1024 --random-tokens --vocabulary 50304"

# predicted_ms ARGUMENT...: the step predicted by a dry run, for a budget in which a plan must swap or recompute rows.
predicted_ms() {
    works --hidden 4096 --layers 8 --heads 32 --seq 65536 --batch 1 --dry-run --device-memory 60GiB "$@"
    sed -n 's/^predicted \([0-9]*\)\..*/\1/p' out
}

rates_give_times() { # test
    # 8 layers of 12 h^2 multiplications a row, 3 times, at 0.75 of the peak, and 2 + 5 products of the causal
    # half of attention, at 0.6 and 0.55 of it; the classifier adds 1 in 10^4.
    exact=$(awk 'BEGIN { n = 65536; h = 4096; peak = 312e12
        print int(8e3 * (3 * 2 * 12 * h * h * n / (0.75 * peak) + n * n * h * (2 / 0.6 + 5 / 0.55) / peak)) }')
    fast=$(predicted_ms --link-bandwidth 1000GB)
    [ "$((fast * 1000 / exact))" -ge 995 ] && [ "$((fast * 1000 / exact))" -le 1005 ] || fail "$fast ms predicted, not $exact"
    slow=$(predicted_ms --link-bandwidth 1000GB --flops 31.2)
    [ "$((slow / (fast / 10)))" -ge 99 ] && [ "$((slow / (fast / 10)))" -le 101 ] || fail "$slow ms at a tenth of the rate of $fast ms"
    # With --cluster other kernels read and write 22 h numbers of a row forward, and 29 h backward.
    exact=$(awk 'BEGIN { n = 65536; h = 4096; peak = 2250e12
        print int(8e3 * n * (3 * 2 * 12 * h * h / (0.75 * peak) + n * h * (2 / 0.6 + 5 / 0.55) / peak + 51 * h * 2 / 6e12)) }')
    narrow=$(predicted_ms --link-bandwidth 1000GB --type bf16 --cluster b200)
    [ "$((narrow * 1000 / exact))" -ge 995 ] && [ "$((narrow * 1000 / exact))" -le 1005 ] || fail "$narrow ms predicted for a b200, not $exact"
    [ "$(predicted_ms --link-bandwidth 1MB)" -gt "$fast" ] || fail 'a slow link costs nothing'
    [ -z "$(predicted_ms)" ] || fail 'times without the rate of copies'
    expect_out '^profile   estimated: 312 TFLOP/s.*copies take no time; --link-bandwidth or --cluster would'
    run --hidden 1024 --layers 2 --heads 8 --seq 4096 --batch 1 --dry-run --cluster h100 --policy alpha
    expect_out '^budget .*device 80.0 GiB.* copies 48 GB/s each way' '^profile   estimated: 989 TFLOP/s'
    run --hidden 1024 --layers 2 --heads 8 --seq 4096 --batch 1 --dry-run --cluster h100 --policy alpha --flops 100 --device-memory 70GiB
    expect_out '^budget .*device 70.0 GiB' '^profile   estimated: 100 TFLOP/s'
    run --hidden 1024 --layers 2 --heads 8 --seq 4096 --batch 1 --dry-run --cluster gh200 --policy alpha
    expect_out '^budget .*device 95.0 GiB, host 447.0 GiB, copies 170 GB/s to the host, 412 GB/s back' '^profile .*; copies 170 GB/s to the host, 412 GB/s back'
    run --hidden 1024 --layers 2 --heads 8 --seq 4096 --batch 1 --dry-run --cluster gh200 --policy alpha --link-bandwidth 50GB
    expect_out '^budget .* copies 50 GB/s each way'
    run --hidden 1024 --layers 2 --heads 8 --seq 524288 --tile 1024 --batch 1 --dry-run --cluster h200 --policy alpha
    expect_out '^profile .*attention beyond 262144 tokens was slower'
    refused '--cluster has no effect without --dry-run' $tiny --cluster h100
    refused '--cluster z80: unknown cluster; use a800, a100, h100, h200, b200, gh200, gb200, gb10, rtx4080, rtx4090, rtx5080, rtx5090 or 3090-pcie' $tiny --cluster z80
}

# The rate of a dry run covers the whole step: each micro-batch costs as much, the update is shared by all of them.
rates_cover_micro_batches_and_update() { # slow test
    large="--dry-run --cluster h200 --deterministic 0 --type bf16 --states bf16 --random-tokens --vocabulary 32000 --hidden 4096 --heads 32
        --layers 8 --seq 8192 --batch 1 --tile 4096 --device-memory 12GiB --policy alpha"
    before=0
    for n in 1 2 4; do
        works $large --accumulate $n --update pass
        awk -v n=$n -v before=$before '/^predicted / { step = $2; for (i = 1; i < NF; i++) if ($i == "recomputing,") update = $(i + 1) }
            /^rate / { rate = $2; expected = n * 8192 / (1e-3 * step) }
            END { exit !(update > 0 && rate > expected * 0.999 && rate < expected * 1.001 && rate > before) }' out || fail "$n: $(grep '^pred\|^rate' out)"
        before=$(sed -n 's/^rate *\([0-9]*\).*/\1/p' out)
        [ $n != 4 ] || pass_ms=$(sed -n 's/^predicted *\([0-9]*\).*/\1/p' out)
    done
    expect_out '^predicted [0-9.]* ms a step, .* ms in the update; [0-9.]* ms a micro-batch' ' of rows moved in a step and [0-9.]* GiB of states'

    # A deferred update hides behind the forward: auto takes it, and the whole step is shorter.
    works $large --accumulate 4
    expect_out '^update  *on the device, of each layer before its next forward'
    deferred_ms=$(sed -n 's/^predicted *\([0-9]*\).*/\1/p' out)
    [ "$deferred_ms" -lt "$pass_ms" ] || fail "deferred $deferred_ms ms, in a pass $pass_ms ms"
}

# A run of 1M tokens is refused by cuDNN's deterministic backward; what is offered works.  Longest is found by plans, which
# keep less on the host than all inputs, and is no less than a length that fits.
long_runs_are_offered_what_works() { # slow test
    long="--dry-run --cluster h200 --type bf16 --states bf16 --hidden 4096 --heads 32 --kv-heads 8 --mlp swiglu --mlp-columns 14336 \
        --batch 1 --tile 1024 --random-tokens --device-memory 40GiB"
    fails $long --layers 4 --seq 1048576
    expect_err '40.0 GiB .* needs 45.6 GiB in slices of 2048 rows (.*; try --deterministic 0, --device-memory 46GiB$'
    works $long --layers 4 --seq 1048576 --deterministic 0
    works $long --layers 4 --seq 1048576 --device-memory 46GiB
    # 90 KB a token; to keep all inputs and keys there takes twice as much.
    works $long --layers 8 --seq 262144 --deterministic 0 --host-memory 23GiB
    longest=$(sed -n 's/^longest *\([0-9]*\) .*/\1/p' out)
    [ "${longest:-0}" -ge 262144 ] && [ "$longest" -lt 524288 ] || fail "longest is $longest"
    expect_out '^budget .* host 23.0 GiB'
}

# Rates that were measured at this length; of 6 s P + 6 n h s^2 less than products and attention alone allow (55.4 and 47.1 %),
# by what other kernels move.
a_cluster_has_measured_rates() { # slow test
    model="--dry-run --cluster h200 --type bf16 --hidden 4096 --layers 8 --heads 32 --random-tokens --batch 1 --tile 1024 --deterministic 0"
    for case in '65536 54.1' '1048576 47.0'; do
        works $model --policy keep --device-memory 100TiB --seq "${case% *}"
        expect_out '^budget .* host 256.0 GiB'
        awk -v exact="${case#* }" 'BEGIN { off = 1 } /^rate / { sub(/.*MFU /, ""); off = $0 - exact } END { exit !(off > -0.15 && off < 0.15) }' out ||
            fail "$(grep '^rate' out)"
    done
    works $model --device-memory 60GiB --seq 65536
    expect_out 'products reach 0.729 and attention 0.608, 0.526 in the backward, as measured on an H200; '
}

# ---- the same numbers under every policy -----------------------------------------------------------

# policies_agree LOG OPTIONS POLICY...: with these options, policies have the losses of keep, which are in LOG.
policies_agree() {
    policies_log=$1 policies_options=$2
    shift 2
    rm -f "$policies_log"
    works $tiny $policies_options --policy keep --loss-log "$policies_log"
    for policy; do has_losses_of "$policies_log" $tiny $policies_options --policy $policy; done
}

losses_equal_over_policies_and_alphas() { # test
    policies_agree keep.log '' recompute swap alpha memo 'memo --alpha 0' 'memo --alpha 0.125' 'memo --alpha 0.25' \
        'memo --alpha 0.5' 'memo --alpha 1'
    [ "$(wc -l <keep.log)" -eq 4 ] || fail "the log has $(wc -l <keep.log) lines, not 4"
    grep -v -q -E '^[0-9]+ [0-9.e+-]+ 0x1?[0-9a-f.]+p[+-][0-9]+$' keep.log && fail 'a line of the log is not: step, decimal, hexadecimal'
    run $tiny --policy keep --seed 2 --loss-log seed.log
    cmp -s keep.log seed.log && fail 'another seed makes the same losses'
}

spilled_rows_come_back() { # test
    mkdir spilled
    for layers in ${all:+4} 7; do
        run $tiny --layers $layers --policy keep --loss-log kept.log
        for policy in swap alpha memo; do
            alpha=
            [ $policy = swap ] || alpha="--alpha 1"
            has_losses_of kept.log $tiny --layers $layers --policy $policy $alpha --host-memory 128KiB --spill spilled
            expect_out 'through a file of'
        done
    done
    # The planner's choice with little memory on the device and less on the host.
    run $tiny --layers 8 --policy keep --loss-log kept.log
    has_losses_of kept.log $tiny --layers 8 --policy memo --device-memory 655KiB --host-memory 16KiB --spill spilled
    expect_out 'through a file of'
    [ -z "$(ls -A spilled)" ] || fail 'a file is left in the directory'
    refused '--spill nowhere: no file can be made there' $tiny --policy swap --host-memory 128KiB --spill nowhere
    refused '--spill text: no file can be made there: Not a directory' $tiny --policy swap --host-memory 128KiB --spill text
    refused '4.0 KiB of host memory cannot hold this run: policy alpha needs 17.5 KiB .*; try --host-memory 18KiB' $tiny --layers 8 \
        --device-memory 680KiB --host-memory 4KiB --spill spilled --policy alpha
    [ -z "$all" ] || refused 'policy memo needs 9.5 KiB .*; try .*--host-memory 10KiB' $tiny --layers 8 --device-memory 680KiB \
        --host-memory 4KiB --spill spilled
    works $tiny --layers 8 --device-memory 680KiB --host-memory 10KiB --spill spilled
    # Only the disk lacks.
    fails --random-tokens --layers 8 --hidden 65536 --heads 512 --seq 4194304 --tile 65536 --batch 1 --policy swap \
        --host-memory 20TiB --spill spilled --spill-bandwidth 1GB --dry-run
    expect_err 'free space in --spill cannot hold this run: policy swap needs 102.0 TiB .*; try .*, another --spill with free space of 103TiB$'
    expect_out '^swap .* no, disk: needs 102.0 TiB of '
}

# States that the device cannot hold come layer by layer, with the bits of a run that holds them, and are saved and resumed.
states_stream() { # more test
    works $tiny --steps 8 --stop 4 --loss-log kept.log --save kept.save
    cp kept.log kept8.log
    works $tiny --steps 8 --resume kept.save --loss-log kept8.log
    for size in ${all:+400KiB} 300KiB; do
        works $tiny --steps 8 --stop 4 --policy alpha --device-memory $size --loss-log streamed.log --save streamed.save
        expect_same kept.log streamed.log
        expect_same kept.save streamed.save
        works $tiny --steps 8 --policy alpha --device-memory $size --resume kept.save --loss-log streamed.log --sample 20
        expect_same kept8.log streamed.log
    done
    awk '/^  host / { exit !($2 > 0) }' out || fail "no states on the host: $(grep -A2 ^memory out)"
    refused 'optimizer [0-9.]* KiB, .* the rest [0-9.]* KiB' $tiny --device-memory 200KiB
    compares_and_draws $tiny --device-memory 300KiB --output streamed
    expect_out '^recompute  *-  *[0-9.]* [KM]iB  *[0-9.]* [KM]iB  *[1-9][0-9.]* [KM]iB ' # states alone move
    prints ' 0 races' $tiny --policy alpha --device-memory 300KiB --link-bandwidth 50MB --output slow # copies outlast the compute stream
    # The step that is recorded may be the first by a plan, which takes the place of the one before.
    works $tiny --device-memory 300KiB --steps 2 --output two-steps
    grep -q '^predicted ' two-steps/report.html || fail 'the page has a plan that is gone'
    for owner in 'places of states' activations 'buffers of a micro-batch'; do
        grep -q ">$owner" streamed/memory.svg || fail "the picture of memory has no $owner"
    done
}

# AdamW on the host has the bits of the device, also in a run that was cut and continues with the other.
states_are_updated_on_the_host() { # more test
    works $tiny --steps 8 --accumulate 2 --loss-log kept.log --save kept.save
    for size in 2MiB ${all:+400KiB} 250KiB; do
        prints '^update  *on the host' $tiny --steps 8 --accumulate 2 --policy alpha --update host --device-memory $size --loss-log host.log --save host.save
        expect_same kept.log host.log
        expect_same kept.save host.save
        for place in device host; do
            case $size,$place in
            250KiB,device) continue ;; # does not fit
            250KiB,host | *,device) now=host ;;
            *) now=device ;;
            esac
            works $tiny --steps 8 --accumulate 2 --stop 3 --policy alpha --update $place --device-memory $size --save cut.save --loss-log cut.log
            works $tiny --steps 8 --accumulate 2 --policy alpha --update $now --device-memory $size --resume cut.save --loss-log cut.log
            expect_same kept.log cut.log
        done
    done
    prints '^update  *on the host' $tiny --device-memory 250KiB
    refused 'cannot hold this run' $tiny --device-memory 250KiB --update device
    compares_and_draws $tiny --device-memory 400KiB --update host --output hosted
    for type in '--type bf16 --states bf16' '--slice-rows 24'; do
        works $tiny $type --policy keep --loss-log kept.log
        has_losses_of kept.log $tiny $type --policy alpha --update host --device-memory 400KiB
    done
    refused '--update host does not work with --zero: .*; --zero 0 would work' $tiny --data 2 --zero 1 --update host
    refused '--update host does not work with --layers 1, .*; --layers 2 would work' $tiny --layers 1 --update host
    fails $tiny --dry-run --cluster h200 --update host
    expect_err '--update host does not work with --cluster: .*; --update device would work'
    refused '--update cpu: unknown update; use auto, device, host, pass, deferred or fused' $tiny --update cpu
}

# A deferred update has the bits of a pass, clipping by the norm of its own step included: losses, parameters and moments, also
# of runs that are cut and go on with the other, and of every policy.
updates_are_deferred() { # test
    tight='--steps 6 --accumulate 2'
    for type in '--device-memory 400KiB' ${all:+"--type bf16 --states bf16 --slice-rows 24 --device-memory 250KiB"}; do
        works $tiny $type $tight --policy alpha --update pass --loss-log kept.log --save kept.save
        expect_out '^update  *on the device, behind the backward'
        prints '^update  *on the device, of each layer before its next forward' $tiny $type $tight --policy alpha --update deferred --loss-log cut.log --save deferred.save
        expect_same kept.log cut.log
        expect_same kept.save deferred.save
        for first in pass deferred; do
            case $first in pass) then=deferred ;; *) then=pass ;; esac
            works $tiny $type $tight --policy alpha --stop 3 --update $first --save cut.save --loss-log cut.log
            works $tiny $type $tight --policy alpha --update $then --resume cut.save --loss-log cut.log
            expect_same kept.log cut.log
        done
    done
    compares_and_draws $tiny --device-memory 400KiB --update deferred --output deferred
}

# An update in the last backward has the bits of a pass, also where a run is cut and goes on with another, and --clip-by is a
# training of its own that a resumed run must keep.
updates_are_fused() { # test
    tight='--steps 6 --accumulate 2 --device-memory 400KiB --policy alpha'
    works $tiny $tight --loss-log plain.log
    for clip in layer ${all:+before}; do
        rm -f kept.log kept.save
        works $tiny $tight --clip-by $clip --update pass --loss-log kept.log --save kept.save
        expect_out 'clipped by the norm of .*: another training than by --clip-by step'
        ! cmp -s plain.log kept.log || fail "--clip-by $clip changes nothing"
        prints '^update  *on the device, of each layer in its last backward' $tiny $tight --clip-by $clip --update fused --loss-log cut.log --save fused.save
        expect_same kept.log cut.log
        expect_same kept.save fused.save
        works $tiny $tight --clip-by $clip --stop 3 --update fused --save cut.save --loss-log cut.log
        refused 'the saved run had --clip-by .* (now step)' $tiny $tight --resume cut.save
        works $tiny $tight --clip-by $clip --update deferred --resume cut.save --loss-log cut.log
        expect_same kept.log cut.log
    done
    [ -z "$all" ] || prints ' 0 races' $tiny $tight --clip-by before --update fused --output fused
    refused '--update fused does not work with --clip-by step, .*; --clip-by layer or before would work' $tiny --update fused
    refused '--update fused does not work with --compare, .*; --update deferred would work' $tiny --update fused --clip-by layer --compare 2
    refused '--update host does not work with --clip-by layer, .*; --clip-by before would work' $tiny --update host --clip-by layer
}

# with_profile_program NAME 'STATEMENTS': compiles NAME, which reads a profile `p` from a file and writes it to another.
with_profile_program() {
    cat >"$1.c" <<END
#include "memo_plan.h"
int main(int argc, char** argv) {
    static memo_profile p, read; /* as it was */
    memo_error error;
    if (argc != 3 || memo_profile_read(argv[1], &p, &error)) return 1;
    read = p;
    $2
    return memo_profile_write(&p, argv[2], &error) != MEMO_STATUS_OK;
}
END
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c99 -O0 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -I"$sources" "$1.c" "$sources/build/tests/lib.a" -o "$1" \
        $(sed -n 's/^LP_SOLVE_LIBS := //p' "$sources/build/config.mk") -lpthread -lm || fail "$1 does not compile"
}

# Groups of micro-batches have the losses and the checkpoint of one after the other, and save copies of states: after timed
# steps, and by a profile in which only copies take long.
micro_batches_are_grouped() { # test
    with_profile_program slow_link 'p.forward_s[0] = p.backward_s[0] = 1e-6, p.update_s_per_byte = p.update_host_s_per_byte = 1e-12;
        for (int k = 0; k < 2; k++) p.copies[k].out_s = p.copies[k].back_s = 1e-6 * (double)p.copies[k].size_bytes;'
    for options in ${all:+"--accumulate 6 --slice-rows 24 --device-memory 260KiB"} '--accumulate 4 --device-memory 320KiB'; do
        works $tiny $options --steps 6 --device-memory 4MiB --policy keep --loss-log kept.log --save kept.save
        works $tiny $options --steps 6 --link-bandwidth 5MB --output timed --policy alpha --loss-log grouped.log --save grouped.save
        expect_same kept.log grouped.log
        expect_same kept.save grouped.save
        ./slow_link timed/step.profile slow.profile || fail 'the profile is not read'
        for place in pass host; do
            prints '^groups  *[2-6] micro-batches go through each layer together' $tiny $options --steps 6 --update $place \
                --policy alpha --profile slow.profile --loss-log grouped.log --save grouped.save
            expect_same kept.log grouped.log
            expect_same kept.save grouped.save
        done
    done
    works $tiny --accumulate 1 --policy alpha --device-memory 320KiB --profile slow.profile
    grep '^groups' out && fail 'one micro-batch is no group'
    compares_and_draws $tiny --accumulate 4 --device-memory 320KiB --profile slow.profile --output grouped
    expect_out '^groups '
    works $tiny --accumulate 4 --device-memory 320KiB --dry-run --profile slow.profile
    grep 'attention was timed' out && fail 'it was timed at this length'
    prints 'attention was timed at 50 tokens, and takes about 0.5 times as long at 25,' $tiny --accumulate 4 --seq 25 --batch 4 \
        --device-memory 320KiB --dry-run --profile slow.profile
}

# So they do on several ranks: a layer's update waits for its sums over ranks.
states_stream_on_ranks() { # test
    for ranks in '--data 2 --zero 0' '--ring 2 --zero 1' '--ulysses 2 --zero 2 --accumulate 2' '--tensor 2 --sub-batches 2 --schedule cross'; do
        works $tiny $ranks --policy keep --loss-log kept.log
        has_losses_of kept.log $tiny $ranks --policy recompute --device-memory 300KiB
        case $ranks in *'--zero '[12]*) ;; *) has_losses_of kept.log $tiny $ranks --update host --device-memory 300KiB ;; esac
        awk '/^  host / { exit !($2 > 30) }' out || fail "$ranks: no states on the host: $(grep -A2 ^memory out)"
    done
}

losses_equal_with_accumulation_and_few_layers() { # test
    slow='--link-bandwidth 200MB'
    policies_agree keep.log '--accumulate 3 --layers 5' "recompute $slow" "swap $slow" "alpha $slow" "memo $slow"
    for layers in 1 2 3; do policies_agree keep.log "--layers $layers" 'memo --alpha 0.5'; done
}

# Policies, ranks and plans have its tensors; the rate counts its parameters.
swiglu_is_compared_and_drawn() { # test
    refused '--mlp relu: unknown mlp; use gelu or swiglu' $tiny --mlp relu
    compares_and_draws $tiny --mlp swiglu --output swiglu/run --device-memory 600KiB --rows
    expect_out '[ ,]swiglu\(,\|$\)' 'heads.*, SwiGLU'
    run $tiny --mlp swiglu --policy keep --loss-log one.log
    run $tiny --mlp swiglu --tensor 2 --loss-log tensor.log
    expect_near one.log tensor.log
    run $tiny --policy keep --loss-log gelu.log
    ! cmp -s one.log gelu.log || fail 'SwiGLU changes nothing'
}

# The MLP's tensors are recomputed under every policy, and no plan has them.
mlp_in_chunks() { # test
    policies_agree keep.log '--mlp-rows 20' recompute swap 'memo --alpha 0.5'
    works $tiny --policy keep --loss-log one.log
    expect_same_lines 1 one.log keep.log
    expect_near one.log keep.log
    has_losses_of one.log $tiny --policy keep --mlp-rows 32
    prints '^predicted ' $tiny --mlp-rows 20 --compare 1 --device-memory 420KiB --ring 2 --output chunks
    expect_out 'bitwise the same'
    ! grep -q 'norm2\|gelu' out || fail 'a tensor of the MLP is planned'
    grep -q 'recompute 3: GELU' chunks/timeline.json || fail 'the timeline shows no recomputation'
    works $tiny --mlp-rows 20 --dry-run --ring 2 --profile chunks/step.profile
    run $tiny --dry-run --ring 2 --profile chunks/step.profile
    expect_err 'has other tensors or kinds of layers than this model; use a file .* for the same model'
    works --help
    expect_out 'They must be of the same'
    works $tiny --mlp-rows 20 --dry-run --cluster h100
    prints 'bitwise the same' $tiny --mlp-rows 20 --tensor 2 --sub-batches 2 --schedule fine --compare 1
}

# Slices of whole tiles of attention have the losses of all rows at once; others have them up to rounding.  Every policy
# has their gradients.
in_slices() { # test
    long="$tiny --seq 300 --steps 1"
    works $long --policy keep --loss-log one.log
    has_losses_of one.log $long --slice-rows 128
    has_losses_of one.log $long --slice-rows 256
    works $tiny --policy keep --steps 1 --loss-log one.log
    works $tiny --steps 1 --slice-rows 24 --compare 1 --device-memory 430KiB --output slices --loss-log slices.log
    expect_near one.log slices.log
    expect_out 'bitwise the same' ' 0 races' '^memo  *rows .*  fits$'
    refused '--slice-rows 20: 0, or a multiple of --tile 8, would work' $tiny --slice-rows 20
    refused 'one sequence for each --data rank, without documents, .*an even number of rows would work' $tiny --slice-rows 8 --ring 2
}

# Each rank has a share of each slice.  An 8B model at 4M tokens fits eight ranks.
in_slices_over_ranks() { # test
    works $tiny --batch 1 --policy keep --loss-log one.log
    for ranks in '--ring 2' '--ulysses 2' '--ring 2 --ulysses 2 --zero 2'; do
        policies_agree ranks.log "--batch 1 $ranks --slice-rows 8" 'memo --alpha 0.5'
        expect_near one.log ranks.log
    done
}

slices_over_ranks_are_planned() { # slow test
    for ranks in '--ring 8' '--ulysses 8' '--ring 2 --ulysses 4'; do
        works --dry-run --cluster h100 --type bf16 --states bf16 --hidden 4096 --layers 32 --heads 32 --kv-heads 8 --mlp swiglu \
            --mlp-columns 14336 --vocabulary 128256 --random-tokens --batch 1 --tile 1024 --mlp-rows 4096 --zero 2 \
            --deterministic 0 --seq 4194304 --slice-rows 32768 $ranks
        expect_out '^memo  *rows .*  yes$'
    done
}

# They are chosen if all rows at once do not fit, also where measuring finds that out; every policy takes the same.
slices_are_chosen() { # slow test
    long="$tiny --seq 2300 --batch 1 --steps 2"
    refused 'cannot hold this run' $long --slice-rows 2304 --device-memory 2800KiB
    works $long --slice-rows 1152 --policy memo --loss-log given.log
    for options in '--dry-run' '--loss-log chosen.log --compare 1' '--loss-log chosen.log --slice-rows 0 --policy alpha'; do
        works $long --device-memory 2800KiB $options
        expect_out '^slices    of 1152 rows, because all rows at once do not fit: device: needs 3.* MiB of 2.7 MiB$'
    done
    expect_same given.log chosen.log
    run $long --loss-log chosen.log
    ! grep -q '^slices' out || fail 'slices although all rows at once fit'
    expect_same_lines 1 given.log chosen.log
    refused 'cannot hold this run' $long --device-memory 1MiB --ring 2
}

# Without a promise of bits the times of slices of two sizes tell which are taken, by a hundredth at least; a run that goes on takes
# its own again, of any size, though larger ones fit.
slices_are_tried() { # slow test
    long="$tiny --seq 4200 --batch 1 --layers 1 --accumulate 1 --steps 2"
    works $long --device-memory 4MiB --deterministic 0 --stop 1 --save tried --loss-log whole.log
    expect_out '^slices    of [0-9]* rows, .* of a key head takes [0-9.]* s in slices of 2104, [0-9.]* s in slices of 1056$'
    sed -n 's/^slices    of \([0-9]*\) .* takes \([0-9.]*\) s .*, \([0-9.]*\) s .*/\1 \2 \3/p' out >times
    awk '{ exit $1 == ($3 < 0.99 * $2 ? 1056 : 2104) || ($3 > 0.985 * $2 && $3 < 0.995 * $2) ? 0 : 1 }' times || fail "took: $(cat times)"
    rows=$(cut -d ' ' -f 1 times)
    has_losses_of whole.log $long --stop 1 --slice-rows "$rows"
    works $long --stop 1 --slice-rows 1400 --save own
    works $long --slice-rows 1400 --loss-log own.log
    for options in '' '--deterministic 0'; do
        works $long --device-memory 4MiB --resume own --loss-log resumed.log $options
        expect_out '^slices    of 1400 rows, because all rows at once do not fit: device: needs [0-9.]* MiB of 4.0 MiB$'
        [ "$(tail -n 1 own.log)" = "$(tail -n 1 resumed.log)" ] || fail "resumed: $(tail -n 1 resumed.log), not $(tail -n 1 own.log)"
    done
    works $long --device-memory 3MiB --resume own # where they do not fit, the largest that do
    expect_out '^slices    of [0-9]* rows'
    refused '--deterministic has no effect with --slice-rows, without cuDNN.s attention' $tiny --slice-rows 24 --deterministic 0
}

# The table has the need of a policy's own refusal, in digits that differ from the budget's.
needs_are_those_of_refusals() { # test
    close="$tiny --hidden 64 --device-memory 1200KiB --dry-run"
    fails $close
    expect_out '^memo .*  no, device: needs 12[0-9][0-9]\.[05] KiB of 1200\.0 KiB$'
    need=$(sed -n 's/^recompute .* no, device: needs \(.*\) of .*/\1/p' out)
    fails $close --policy recompute
    expect_err "^train_gpt: 1200.0 KiB of device memory .*: policy recompute needs $need ("
}

# expect_near LOG LOG: the first losses differ by at most 10^-6, later ones by 10^-5: the first update of AdamW divides each
# gradient by its size, which enlarges the rounding of small gradients.
expect_near() {
    paste -d ' ' "$1" "$2" | awk '{ near = $1 == 1 ? 1e-6 : 1e-5 }
        NF != 6 || $2 - $5 > near || $5 - $2 > near { exit 1 }' || fail "$1 and $2 are not near"
}

# 50 tokens are padded on 4 ranks of a ring.
ranks_have_the_losses_of_one() { # test
    run $tiny --policy keep --loss-log one.log
    for ranks in '--data 2' '--ulysses 2 --zero 1' '--ring 4' '--data 2 --ring 2 --ulysses 2 --zero 2'; do
        policies_agree ranks.log "$ranks" recompute swap 'memo --alpha 0.5'
        expect_near one.log ranks.log
        expect_out '^ranks     a step took .*; a rank has a device peak up to .* and sends up to [1-9][0-9.]* [KM]iB a step$'
    done
    expect_out '^ranks     8: data 2 x ring 2 x ulysses 2, each with 1 of 2 sequences and 13 of 50 tokens'
}

# Each rank measures; all take the first one's figures, and so the same rows.
ranks_plan_their_rows() { # test
    for ranks in '--ring 2' ${all:+"--tensor 2 --sub-batches 2"} ${all:+"--tensor 2 --sub-batches 2 --schedule cross"} \
        ${all:+"--tensor 2 --ulysses 2 --schedule fine"}; do
        run $tiny $ranks --policy keep --loss-log ranks.log
        budget=380
        [ "$ranks" != '--ring 2' ] || budget=424 # which has buffers of its own
        timeout 120 "$program" $tiny $ranks --device-memory ${budget}KiB --loss-log planned.log >out 2>err
        code=$?
        expect_code 0
        expect_out '^predicted '
        expect_same ranks.log planned.log
    done
}


tensor_ranks_have_the_losses_of_one() { # test
    run $tiny --policy keep --loss-log one.log
    block_degrees 2 2 1 1 1 2 2 1
    for split in '--tensor 2 --sub-batches 2' '--tensor 2 --data 2 --sub-batches 2' '--sub-batches 2 --ulysses 2 --tensor 2' \
        '--degrees degrees'; do
        set -- 'memo --alpha 0.5 --schedule fine'
        [ "$split" != '--degrees degrees' ] || set -- # which memo does not plan
        policies_agree ranks.log "$split" 'recompute --schedule pipelined' 'swap --schedule cross' "$@" 'recompute --schedule fine'
        expect_near one.log ranks.log
    done
    expect_out '^ranks     2: data 1 x ring 1 x ulysses 1 x tensor 2, '
    expect_out '^schedule  fine: 1 sub-batch of whole sequences'
    run $tiny --tensor 2 --sub-batches 2 --schedule fine
    # 4 layers, each with 2 sums of 100 rows of 16 floats in either direction, and the norms' gradients.
    expect_out ' and sends up to 100.5 KiB a step, 100.5 KiB to tensor ranks$'
}

bad_degrees_are_refused() { # test
    refused '^train_gpt: --degrees nowhere: cannot be read\|^train_gpt: --degrees .*nowhere' $tiny --degrees nowhere
    block_degrees 2 2 1
    refused 'degrees: has 3 blocks, but --layers 4 are 8' $tiny --degrees degrees
    block_degrees 2 2 1 1 1 2 2 3
    refused 'degree 3 is not a power of two' $tiny --degrees degrees
    block_degrees 2 2 1 1 1 2 2 1
    refused 'degrees up to 2 do not fit --tensor 1; --tensor 2 does' $tiny --degrees degrees --tensor 1
    refused '--policy memo plans rows.*; --policy keep, recompute and swap work' $tiny --degrees degrees
    refused 'spreads --batch 2 over groups of 1 of --tensor 2 ranks; --batch 4 could be' $tiny --degrees degrees --policy keep --sub-batches 2
    refused '--degrees that differ spread whole sequences.*; --data works' $tiny --degrees degrees --policy keep --ulysses 2
}

# random_options SEED: options of a small model on one rank, "; ", and those of its ranks, parts and policy.  Writes the file
# degrees if they have it.
random_options() {
    awk -v seed="$1" '
        function number(least, most) { return least + int(rand() * (most - least + 1)) }
        function pick(words, all) { return all[number(1, split(words, all, " "))] }
        function maybe(option) { return rand() < 0.3 ? " " option : "" }
        BEGIN {
            srand(seed)
            layers = number(1, 4); heads = pick("2 4 8"); degree = heads / 2; n_ranks = pick("1 ranks tensor degrees")
            printf "--layers %d --heads %d --kv-heads %d --hidden %d", layers, heads, degree * pick("1 2"), heads * pick("4 6 8")
            tile = number(1, 12)
            printf " --seq %d --batch %s --tile %d", number(9, 40), pick(n_ranks == "degrees" ? "4 8" : "2 4"), tile
            printf " --accumulate %d --dropout %s", number(1, 3), pick("0 0.1")
            printf "%s%s%s;", maybe("--mlp swiglu"), maybe("--states bf16"), maybe("--type bf16")
            printf " --policy %s", pick(n_ranks == "degrees" ? "keep recompute swap" : "keep recompute swap alpha memo")
            if (n_ranks == "ranks")
                printf " --data %s --ring %s --ulysses %s --zero %s", pick("1 2"), pick("1 2 3"), pick("1 2"), pick("0 1 2")
            if (n_ranks == "tensor") printf " --tensor %d --data %s", pick("1 " degree), pick("1 2")
            if (n_ranks ~ "tensor|degrees") printf " --sub-batches %s --schedule %s", pick("1 2"), pick("default pipelined cross fine")
            if (n_ranks != "degrees") printf "%s%s", maybe("--mlp-rows " number(5, 20)), maybe("--slice-rows " tile * number(1, 3))
            if (n_ranks == "degrees") {
                printf " --degrees degrees"
                for (b = 0; b < 2 * layers; b++) print "block " b " " pick("1 " degree) >"degrees"
            }
            print ""
        }'
}

# Options that go together give equal bits under every policy, and the losses of one rank.  Others are refused in one line.
random_options_work_or_are_refused() { # more test
    n_cases=4 n_run=0
    tests_all && n_cases=50
    for case in $(seq "$tap_seed" $((tap_seed + n_cases - 1))); do
        options=$(random_options "$case")
        n_failed=$failed
        # shellcheck disable=SC2086
        run --text text --steps 2 ${options%;*} ${options#*;} --compare 1 --loss-log ranks.log
        if [ "$code" = 2 ]; then
            expect_one_line
            expect_err '^train_gpt: .'
        else
            n_run=$((n_run + 1))
            expect_code 0
            expect_out 'bitwise the same'
            mv ranks.log split.log
            works --text text --steps 2 ${options%;*} --policy keep --loss-log one.log
            case $options in *bf16*) ;; *) expect_near one.log split.log ;; esac
        fi
        [ $failed = "$n_failed" ] || fail "to repeat: --seed $case; train_gpt --text text --steps 2 ${options%;*} ${options#*;}"
    done
    [ $((5 * n_run)) -ge $n_cases ] || fail "only $n_run of $n_cases cases ran"
}

tensor_ranks_compare_and_draw() { # test
    compares_and_draws $tiny --tensor 2 --sub-batches 2 --schedule fine --zero 1 --data 2 --batch 4 --output tensor/run
    grep -q '"comm"' tensor/run/timeline.json || fail 'no stream comm in the timeline'
    block_degrees 2 2 1 1 1 2 2 1
    compares_and_draws $tiny --degrees degrees --policy swap --output tensor/run
}

# expect_same_lines N FILE FILE: the first N lines.
expect_same_lines() { [ "$(head -n "$1" "$2")" = "$(head -n "$1" "$3")" ] || fail "$2 and $3 begin differently"; }

# Activations and weights in bf16: as equal, with other losses.
bf16_is_compared_and_drawn() { # test
    refused '--type f16: unknown type; use f32 or bf16' $tiny --type f16
    run $tiny --loss-log f32.log
    compares_and_draws $tiny --type bf16 --data 2 --zero 1 --batch 2 --output bf16/run --loss-log bf16.log
    ! cmp -s f32.log bf16.log || fail 'the type changes nothing'
    refused '--states f16: unknown states; use f32, bf16, pure-bf16 or 8bit' $tiny --states f16
    prints 'bitwise the same' $tiny --states bf16 --compare 2 --loss-log states.log
    expect_same_lines 1 f32.log states.log
    ! cmp -s f32.log states.log || fail 'the type of the states changes nothing'
}

# Gradients in bf16, no master weights, moments of 8 bits: as equal where they leave the device, at every moment and after a cut.
# A file has 2 bytes of weights and 2 of moments, and scales.
states_take_six_bytes() { # test
    least='--policy alpha --steps 6 --accumulate 2 --device-memory 290KiB --clip-by before'
    for options in '--type bf16 --states 8bit' ${all:+'--states 8bit' '--type bf16 --states pure-bf16' '--slice-rows 24 --states pure-bf16'}; do
        rm -f kept.log kept.save
        works $tiny $options --steps 6 --accumulate 2 --clip-by before --policy keep --loss-log kept.log --save kept.save
        prints '^update  *on the device, of each layer in its last' $tiny $options $least --update fused --loss-log cut.log --save cut.save
        expect_same kept.log cut.log
        expect_same kept.save cut.save
        works $tiny $options $least --update deferred --stop 3 --save cut.save --loss-log cut.log
        works $tiny $options $least --update fused --resume cut.save --save cut.save --loss-log cut.log
        expect_same kept.log cut.log
        expect_same kept.save cut.save
        has_losses_of kept.log $tiny $options $least --update host
    done
    refused 'a checkpoint of another model: its --states is [a-z0-9-]*, not f32' $tiny ${options%--states*} --resume kept.save
    refused '--states 8bit does not work with --tensor 2, .*; --states pure-bf16 would work' $tiny --states 8bit --tensor 2
}

# 31 layers of 8B's shape in 24 + 112 GiB.
six_bytes_are_faster_than_fourteen() { # slow test
    shape="--dry-run --cluster h200 --random-tokens --vocabulary 128256 --hidden 4096 --heads 32 --kv-heads 8 --mlp swiglu --mlp-columns 14336
        --layers 31 --seq 65536 --batch 1 --tile 4096 --mlp-rows 8192 --deterministic 0 --device-memory 24GiB --host-memory 112GiB"
    for states in bf16:14000 pure-bf16:12300 8bit:12250; do
        works $shape --states ${states%:*}
        awk -v most="${states#*:}" '/^predicted / { n = $2 } END { exit !(n > 0 && n < most) }' out || fail "$states: $(grep ^predicted out)"
    done
}

# Tokens of any number; the rate and its share of a peak are one number, and one of the options.
random_tokens_have_a_rate() { # test
    refused '--vocabulary has no effect on a text, whose 256 tokens' $tiny --vocabulary 300
    refused '--sample has no effect with --random-tokens' $tiny --random-tokens --sample 3
    works --layers 2 --hidden 16 --heads 2 --seq 128 --batch 2 --steps 2 --random-tokens --vocabulary 1000 --compare 1 --flops 0.5
    expect_out 'bitwise the same' 'random tokens below 1000' 'a uniform guess  *6.908 nats'
    expect_out 'step 1 of 2 *loss 6.[89]'
    # P: two tables of 1000 x 16, five norms, attention and MLP of two layers.
    awk '/^rate/ { p = 2 * 16000 + 5 * 16 + 2 * 12 * 256; n = 6 * p + 6 * 2 * 16 * 128
            off = 1e12 * $4 / ($2 * n); part = $4 / 0.5 * 100; mfu = $0; sub(/.*MFU /, "", mfu); sub(/%.*/, "", mfu)
            exit !(off > 0.99 && off < 1.01 && mfu / part > 0.98 && mfu / part < 1.02) }' out ||
        fail "the rate is wrong: $(grep '^rate' out)"
}

# All that is done with one rank is done with several.
ranks_compare_and_draw() { # test
    compares_and_draws $tiny --ring 2 --ulysses 2 --zero 1 --output ranks/run
    [ "$(ls ranks/run | wc -l)" -eq 9 ] || fail "unexpected files: $(ls ranks/run)"
}

alpha_is_rounded_to_tiles_and_said() { # test
    prints 'alpha     0.32: 32 of 100 rows swapped.*rounded from --alpha 0.3' $tiny --alpha 0.3
    run $tiny --alpha 0.32
    ! grep -q rounded out || fail 'whole tiles are rounded'
}

# A budget between the needs of alpha 0 and alpha 1.  In a dry run copies cost nothing, so only memory
# limits the plan.  In a run on a device that cannot keep everything, measured times decide how much of
# the budget is used.
plans_keep_within_host_memory() { # test
    for alpha in 0 1; do
        run $tiny --seq 200 --dry-run --alpha $alpha
        eval "host$alpha=$(awk '/^memo / { print int($5) }' out)" # KiB
    done
    budget=$(((host0 + host1) / 2))
    prints '^alpha     0\.[0-9]*: ' $tiny --seq 200 --host-memory ${budget}KiB --policy alpha --dry-run
    expect_out '^limit     host memory is the limit; .* more would save'
    run $tiny --seq 200 --policy keep --loss-log keep.log
    has_losses_of keep.log $tiny --seq 200 --host-memory ${budget}KiB --device-memory 1300KiB --compare 2 --rows
    expect_out '^profile ' '^rows  *layers  *kept  *swapped  *recomputed' '^limit ' '^predicted '
    expect_out '^swap .*host: needs .*; run without limit' '^alpha .* fits$' '^memo .* fits$' 'bitwise the same'
}

# The least that is suggested is enough, for both memories, and no host memory will do too.
plans_keep_within_device_memory() { # test
    for policy in alpha memo; do
        run $tiny --hidden 32 --device-memory 1MiB --seq 200 --policy $policy
        least=$(sed -n 's/.*--device-memory \([0-9]*\)KiB.*/\1/p' err)
        run $tiny --hidden 32 --seq 200 --policy keep --loss-log keep.log
        for more in 0 250; do
            has_losses_of keep.log $tiny --hidden 32 --seq 200 --policy $policy --device-memory "$((least + more))KiB"
        done
        fails $tiny --hidden 32 --seq 200 --policy $policy --device-memory "$((least - 1))KiB"
    done
    run $tiny --seq 200 --policy keep --loss-log keep.log
    has_losses_of keep.log $tiny --seq 200 --host-memory 10KiB
}

# A table of rows has one line for all equal tensors and layers, and its lines cover all rows.
plans_are_printed() { # test
    prints '^rows  *[0-9.]* [KMi]*B kept, [0-9.]* [KMi]*B swapped, [0-9.]* [KMi]*B recomputed .* --rows' \
        $tiny --layers 6 --device-memory 600KiB --dry-run
    works $tiny --layers 6 --device-memory 600KiB --dry-run --rows
    awk '/^rows / { n = $7; inside = 1; next }
         /^limit / { inside = 0 }
         inside { if ($2 + $3 + $4 != n) bad = 1; for (i = 5; i <= NF; i++) { gsub(",", "", $i); split($1, l, "-")
                  layers[$i] += (2 in l ? l[2] - l[1] + 1 : 1) } }
         END { for (t in layers) { n_tensors++; if (layers[t] != 6) bad = 1 } exit bad || n_tensors != 13 }' out ||
        fail "not every row of 13 tensors in 6 layers is in the table: $(cat out)"
}

comparison_of_policies() { # test
    prints '^keep .*reference' $tiny --compare 3 --device-memory 500KiB --output compared
    expect_out '^3 steps of every policy, by turns of two'
    for told in out compared/report.html; do
        [ "$(grep -c '^no times  1 timed round cannot tell policies apart; --compare 10 has 5$' $told)" = 1 ] ||
            fail "$told does not say why it has no times"
        grep -E 'step time|quartiles|^keep .* ms ' $told && fail "times of one step in $told"
    done
    for policy in recompute swap alpha memo; do expect_out "^$policy .* equal "; done
    expect_out 'bitwise the same'

    # A small alpha moves no column: 1/32 would have seven characters.
    works $tiny --seq 32 --batch 1 --tile 1 --alpha 0.03 --compare 1
    awk '/ (reference|equal) / { n++; if (substr($0, 17, 2) !~ /[^ ] / || substr($0, 30, 2) != "B ") bad = 1 }
         / 0\.031[23] / { small++ }
         END { exit bad || n != 5 || small != 2 }' out || fail "columns of the table do not line up: $(cat out)"

    # Times and predictions of all policies, on the page too, unless the machine does other work.
    tests_all || return 0
    works $tiny --steps 12 --compare 12 --device-memory 500KiB --output compared
    for told in out compared/report.html; do
        if grep -q '^no times  steps of [a-z]* take [0-9.]* to [0-9.]* ms, so' $told; then
            grep 'predicted.*, measured' $told && fail "predictions beside times that tell nothing in $told"
            continue
        fi
        grep -q '^12 steps of every policy, .*; times are medians of every second step' $told &&
            [ "$(grep -c '^[a-z]*  *predicted [0-9.]* ms a step, measured [0-9.]* ms ([-+][0-9.]*% in the median of rounds)$' $told)" = 5 ] ||
            fail "no times in $told: $(cat out)"
    done
}

# expect_calls TEXT ARGUMENT...: plans, sessions that time their steps and others of a run.
expect_calls() {
    expected=$1
    shift
    ./counted "$@" >out 2>err || fail "$* fails: $(cat err)"
    calls="$(grep -c '_plan$' err) $(grep -c '_create$' err) $(grep -c '_open$' err)"
    [ "$calls" = "$expected" ] || fail "$*: $calls plans, sessions that time their steps and others, not $expected"
}

# Each policy is planned once, from one profile, and opened once: to be compared, trained and recorded.
a_session_for_each_policy() { # slow test
    cat >counted.c <<'END'
#include <stdio.h>
static void* timing; /* the session that times its steps; its runs are not of a policy */
int __real_memo_session_run(void* session, const void* names, void* e);
int __wrap_memo_session_run(void* session, const void* names, void* e) {
    fprintf(stderr, session != timing ? "runs %p\n" : "timed %p\n", session);
    return __real_memo_session_run(session, names, e);
}
int __real_memo_session_create(const void* d, void** session, void* e);
int __wrap_memo_session_create(const void* d, void** session, void* e) {
    const int status = __real_memo_session_create(d, session, e);
    fputs("memo_session_create\n", stderr);
    timing = *session;
    return status;
}
int __real_memo_session_plan(const void* d, const void* profile, void** plan, void* e);
int __wrap_memo_session_plan(const void* d, const void* profile, void** plan, void* e) {
    fputs("memo_session_plan\n", stderr);
    return __real_memo_session_plan(d, profile, plan, e);
}
int __real_memo_session_open(const void* d, const void* plan, void** session, void* e);
int __wrap_memo_session_open(const void* d, const void* plan, void** session, void* e) {
    const int status = __real_memo_session_open(d, plan, session, e);
    fputs("memo_session_open\n", stderr);
    if (*session == timing) timing = NULL; /* its memory */
    return status;
}
END
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c99 -O0 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -I"$sources" -I"$sources/examples" "$sources"/examples/gpt/*/*.c counted.c \
        "$sources/build/tests/lib.a" -Wl,--wrap=memo_session_plan,--wrap=memo_session_create,--wrap=memo_session_open,--wrap=memo_session_run \
        -o counted $(sed -n 's/^LP_SOLVE_LIBS := //p' "$sources/build/config.mk") -lpthread -lm || fail 'it does not compile'
    expect_calls '1 0 1' $tiny --policy keep
    # The session that times its steps trains on: four steps, and the recorded one.
    expect_calls '1 1 0' $tiny --device-memory 600KiB --output counted.dir
    [ "$(grep -c '^timed \|^runs ' err) $(grep -c '^timed ' err)" = '5 5' ] || fail "steps were run beside the training: $(cat err)"
    expect_calls '5 1 5' $tiny --device-memory 600KiB --compare 1 --output counted.dir --seconds 1000

    # The sessions take turns of two steps, here numbered by their first, in another order in each round.  The last trains.
    expect_calls '5 1 5' $tiny --steps 4 --device-memory 600KiB --compare 4
    order=$(awk '$1 == "runs" { if (!($2 in number)) number[$2] = n++; printf "%d", number[$2] }' err)
    [ "$order" = 001122334444332211004444 ] || fail "the sessions run in this order: $order"

    # Where times are told, layers are timed again before each round, and the rows of each policy are planned with their times.
    expect_calls '30 6 5' $tiny --steps 10 --device-memory 600KiB --compare 10
    expect_calls '5 0 0' $tiny --device-memory 600KiB --dry-run
}

# The report repeats the plan's figures beside the measured ones.
report='ms a step, stalled [0-9.]* ms, recomputing [0-9.]* ms; measured [0-9.]* ms, stalled [0-9.]* ms$'
prediction_beside_measurement() { # test
    longer="$tiny --seq 200" # recomputation takes at least 0.1 ms
    works $longer --device-memory 900KiB --output timed
    for options in '' ${all:+"--policy alpha"} ${all:+"--compare 1"} ${all:+"--accumulate 40"}; do
        works $longer --device-memory 900KiB --profile timed/step.profile --steps 2 $options
        expect_out "^predicted [0-9.]* $report"
        awk 'function near(a, b) { return a - b < 0.11 && b - a < 0.11 }
            / ms a step, of which / { step = $2 + 0; stall = $8 + 0; recompute = $12 + 0 }
            /^predicted .* measured / { found++; bad = !near($2, step) || !near($7, stall) || !near($10, recompute) || !($13 > 0) }
            /^memo  *predicted / { bad_row = !near($3, step) }
            END { exit found != 1 || bad || bad_row || recompute == 0 }' out || fail "$options: the figures differ: $(grep predicted out)"
    done

    # A plan that keeps everything has the times of the profile, and those of an update of all states, to a tenth of a unit.
    run $longer --policy keep --profile timed/step.profile --accumulate 40 --steps 1
    expect_out "^predicted [0-9.]* $report"
    awk '/^rows [0-9]/ { between = $5; update = $6 }
        /^layer / { expected = 40 * (4 * ($2 + $3) + between) * 1e-12 }
        /^  device / { expected += update * 1e-12 * $2 * ($3 == "KiB" ? 1024 : 1048576); slack = update * 1e-12 * 0.06 * 1048576 }
        /^predicted / { found = 1; bad = $2 - expected > slack + 0.06 || expected - $2 > slack + 0.06 || $7 != 0 || $10 != 0 }
        END { exit !found || bad }' timed/step.profile out || fail "not the profile's times: $(grep ^predicted out)"

    # On a slow link a step takes at least as long as its copies, and mostly waits for them.  Half of the rows travel, and
    # all states fit: otherwise both would follow the measured times.
    run $longer --device-memory 4MiB --profile timed/step.profile --policy alpha --alpha 0.5 --link-bandwidth 800KB --steps 2
    awk '/^plan .* KiB of rows moved in a step/ { copies_ms = $(NF - 7) * 1024 / 800 }
        /^predicted .* measured / { measured = $13 + 0; stall = $16 + 0 }
        END { exit !(copies_ms > 500 && measured > 0.95 * copies_ms && stall <= measured && stall > 0.5 * copies_ms) }' out ||
        fail "not the times of copies: $(grep '^pl\|^pr' out)"
    works $tiny --policy swap
    ! grep -q '^predicted' out || fail 'a prediction without a profile'
}

# The steps that a run times are its first: losses, parameters and moments are those of a run by the stored times.
timed_steps_train() { # test
    for options in '--device-memory 300KiB --accumulate 2' \
        ${all:+"--device-memory 390KiB --tensor 2 --sub-batches 2 --schedule cross"} \
        ${all:+"--device-memory 430KiB --ring 2 --slice-rows 0"} ${all:+"--policy alpha --seq 200 --device-memory 900KiB"} \
        ${all:+"--device-memory 390KiB --tensor 2"} ${all:+"--device-memory 600KiB"}; do
        works $tiny --steps 10 $options --output timed --loss-log timed.log --save timed.save
        expect_out '^timed     the first steps, under policy ' '^predicted .* measured '
        awk '/^  step / { if (plans) after++; else before++ }
            /^profile / { plans = 1 }
            END { exit !(before > 2 && after > 2) }' out || fail "$options: no plan between steps: $(cat out)"
        works $tiny --steps 10 $options --profile timed/step.profile --loss-log stored.log --save stored.save
        ! grep -q '^timed ' out || fail "$options: stored times are taken again"
        expect_same stored.log timed.log
        expect_same stored.save timed.save
    done
    # Three steps are timed; the fourth is the first by their plan.
    works $tiny --steps 3 --policy alpha --device-memory 600KiB
    expect_out '^timed     all 3 steps, under policy .*; a run of 4 or more trains on by a plan from their times$'
    works $tiny --steps 4 --policy alpha --device-memory 600KiB
    expect_out '^timed     the first steps, ' '^profile '

    # A run that ends before its plan, and one that resumes without times.
    rm -f cut.save.profile # of another test
    works $tiny --steps 10 --device-memory 600KiB --stop 2 --save cut.save --loss-log cut.log
    [ ! -e cut.save.profile ] || fail 'two steps have a profile'
    works $tiny --steps 10 --policy alpha --device-memory 600KiB --resume cut.save --save cut.save --loss-log cut.log
    expect_out '^timed ' '^profile '
    works $tiny --steps 10 --policy keep --loss-log kept.log --save kept.save
    expect_same kept.log cut.log
    expect_same kept.save cut.save
}

# OpenBLAS's fallback for processors that it does not know is not used on those with AVX2, unless the user asks for it.
openblas_suits_the_processor() { # test
    works $tiny --steps 1
    if grep -q '^flags.* avx2.* fma\|^flags.* fma.* avx2' /proc/cpuinfo 2>/dev/null && grep -q 'OpenBLAS with kernels' out; then
        ! grep -q 'kernels for Prescott' out || fail "$(grep kernels out)"
        OPENBLAS_CORETYPE=Prescott prints 'kernels for Prescott' $tiny --steps 1
    fi
}

# The table comes before training; a run that would take longer takes fewer steps.
runs_are_shortened_to_seconds() { # test
    prints '^steps     [0-9]*, to end within 1 s: one takes [0-9]* ms' $tiny --steps 1000000 --seconds 1 --compare 2
    awk '/bitwise the same/ { compared = NR } /^  step / { if (!trained) trained = NR }
         END { exit !(compared && trained && compared < trained) }' out || fail 'training comes before the table'
    run $tiny --steps 3 --loss-log steps.log
    has_losses_of steps.log $tiny --steps 3 --seconds 1000
    expect_out '^steps     3, to end within'
}

# ---- files -----------------------------------------------------------------------------------------

# A profile that one run has written plans the next, and a dry run without a device.
profile_is_read() { # test
    works $tiny --output measured --device-memory 600KiB
    grep '^profile ' out >measured.line
    works $tiny --profile measured/step.profile --device-memory 600KiB --output again
    expect_same measured/step.profile again/step.profile
    expect_same measured/step.plan again/step.plan
    works $tiny --profile measured/step.profile --device-memory 600KiB --dry-run
    grep '^profile ' out >read.line
    expect_same measured.line read.line

    # The names of tensors count, not their order.
    with_profile_program reversed 'for (int t = 0; t < p.n_tensors; t++) p.tensors[t] = read.tensors[p.n_tensors - 1 - t];'
    ./reversed measured/step.profile reversed.profile || fail 'the profile is not read'
    ! cmp -s measured/step.profile reversed.profile || fail 'the order is the same'
    works $tiny --profile reversed.profile --device-memory 600KiB --output third
    expect_same measured/step.profile third/step.profile
    expect_same measured/step.plan third/step.plan

    refused 'has times of 100 rows, but a micro-batch of a rank has 350' $tiny --profile measured/step.profile --batch 7
    head -c 200 measured/step.profile >cut.profile
    refused '--profile cut.profile:[0-9]*: truncated' $tiny --profile cut.profile
    fails $tiny --profile measured/step.profile --dry-run --link-bandwidth 1GB
    expect_err '--link-bandwidth has no effect with --dry-run and --profile'
    # A file is no faster than the profile says; this one has no times of it.
    spills="$tiny --layers 8 --policy alpha --device-memory 680KiB --host-memory 64KiB --spill ."
    works $spills --output spills
    works $spills --profile spills/step.profile
    with_profile_program without 'p.file.size_bytes = 0;'
    ./without spills/step.profile without.profile || fail 'the profile is not read'
    refused '--profile without.profile: has no times of a file, which --spill needs; --spill-bandwidth RATE' $spills --profile without.profile
    works $spills --profile without.profile --spill-bandwidth 1GB

    # The buffers of a GPU's kernels, its memory and its peak, with the times of the profile.
    works $tiny --dry-run --cluster h100 --deterministic 0
    cp out estimated
    works $tiny --profile measured/step.profile --dry-run --cluster h100 --deterministic 0
    expect_out "^$(grep '^budget' estimated | sed 's/, copies.*//')\$"
    expect_out "^$(grep '^  device' estimated)\$"
    expect_out "^rate .*$(sed -n 's/^rate .*\(of .*\)/\1/p' estimated)\$"
    grep -q "^predicted $(sed -n 's/^predicted \([0-9.]* ms\).*/\1/p' estimated)" out && fail 'the times are not those of the profile'
}

output_into_a_file() { # test
    run $tiny --steps 120
    lines=$(grep -c '^  step ' out)
    [ "$lines" -ge 20 ] && [ "$lines" -le 40 ] || fail "$lines lines of progress for 120 steps"
    grep -q "$(printf '\r')" out && fail 'a carriage return in a file'
    LC_ALL=de_DE.UTF-8 "$program" $tiny --policy keep --loss-log german.log >/dev/null 2>&1
    has_losses_of german.log $tiny --policy keep
}

generated_text_is_escaped() { # test
    printf 'tab\there, bell\007, caf\303\251, and a line\n%.0s' 1 2 3 4 5 6 7 8 >strange
    works $tiny --text strange --seq 40 --sample 60
    [ -z "$(LC_ALL=C tr -d '\n -~' <out)" ] || fail 'unprintable bytes reach the output'
}

default_text() { # test
    (cd "$sources" && "$program" --layers 1 --hidden 8 --heads 1 --seq 16 --batch 1 --steps 1 >"$directory/a folder/out" 2>"$directory/a folder/err")
    code=$?
    expect_code 0
    expect_out "the project's own sources"
}

tests_of "$sources/tests/trainer/test_train_gpt.sh" judged
tap_end
