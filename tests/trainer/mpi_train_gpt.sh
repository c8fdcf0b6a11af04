#!/bin/sh
# mpi_train_gpt.sh - the trainer over MPI, with a process per rank: losses match threads bitwise and one rank up to
# rounding; refusals.  Output: TAP.  `make -f .ci/checks.mk test-mpi` runs it.
#
# Environment: MPIRUN   mpirun with its options (default mpirun)
set -u
. tests/support/tap.sh

tap_folder build/mpi/train_gpt
awk 'BEGIN { for (i = 0; i < 1500; i++) printf "line %d has the number %d in it\n", i % 17, i * i % 101 }' >"$folder/text"
tiny="--text $folder/text --layers 3 --hidden 16 --heads 4 --kv-heads 2 --seq 51 --batch 4 --accumulate 2 --tile 8
    --steps 4 --dropout 0.1"

over_mpi() { # N OPTION...
    n=$1
    shift
    # shellcheck disable=SC2086
    ${MPIRUN:-mpirun} -n "$n" build/examples/train_gpt_mpi $tiny "$@" </dev/null
}
as_threads() { # OPTION...
    # shellcheck disable=SC2086
    build/examples/train_gpt $tiny "$@" </dev/null
}

# No loss of the two logs differs by more than 10^-6.
are_near() {
    paste -d ' ' "$1" "$2" | awk 'NF != 6 || $2 - $5 > 1e-6 || $5 - $2 > 1e-6 { bad = 1 } END { exit bad || NR != 4 }'
}

losses_are_right() { # N OPTION...
    over_mpi "$@" --loss-log "$folder/mpi.log" || return 1
    shift
    as_threads "$@" --loss-log "$folder/threads.log" || return 1
    cmp "$folder/mpi.log" "$folder/threads.log" && are_near "$folder/mpi.log" "$folder/one.log"
}

everything_else_works() {
    over_mpi 2 --ring 2 --compare 2 --sample 20 --output "$folder/run" >"$folder/out" || return 1
    for file in loss.svg memory.svg plan.svg report.html step.plan step.profile step.trace timeline.json timeline.svg; do
        [ -s "$folder/run/$file" ] || { echo "no $file"; return 1; }
    done
    grep ' 0 races' "$folder/out" &&
        grep 'bitwise the same' "$folder/out" && grep '20 more, generated' "$folder/out"
}

# refused PATTERN N OPTION...: exit 2 after one line like PATTERN.
refused() {
    pattern=$1
    shift
    over_mpi "$@" 2>"$folder/err"
    [ $? -eq 2 ] && grep -e "$pattern" "$folder/err" && [ "$(grep -c '^train_gpt: ' "$folder/err")" -eq 1 ]
}

as_threads --loss-log "$folder/one.log" >/dev/null || exit 1
test_is two_data_ranks losses_are_right 2 --data 2
test_is two_ring_ranks losses_are_right 2 --ring 2 --zero 1 --policy recompute
test_is four_ranks_of_two_kinds losses_are_right 4 --data 2 --ulysses 2 --zero 1
test_is four_sequence_ranks losses_are_right 4 --ring 2 --ulysses 2 --zero 2 --policy memo --alpha 0.5
test_is four_tensor_ranks losses_are_right 4 --data 2 --tensor 2 --sub-batches 2 --schedule cross --policy recompute
test_is comparison_sample_and_pictures everything_else_works
test_is another_number_of_ranks_is_refused refused 'mpirun started 2; mpirun -n 4 would do' 2 --data 4
test_is too_small_a_device_is_refused refused 'device memory cannot hold this run' 2 --device-memory 100KiB
tap_end
