#!/bin/sh
# test_degrees_plan.sh - the tool degrees_plan: makespans, timeline, degrees, refusals.  Output: TAP.
# Environment: DEGREES_PLAN   the program (default build/examples/degrees_plan)
set -u

. tests/support/tap.sh

program=${DEGREES_PLAN:-build/examples/degrees_plan}
tap_folder build/tests/degrees_plan
needs_program "$program"
lists="--forward 2,3,2,3 --recompute 2,3,2,3 --backward 4,6,4,6"

# run ARGUMENT...: output in out, messages in err.
run() { "$program" "$@" >"$folder/out" 2>"$folder/err"; }

# The makespans, in the order of the help text.
prints() { # COMM EXPECTED...
    run $lists --comm "$1" || return 1
    shift
    cat "$folder/out"
    set -- "$@"
    for key in forward_default forward_pipelined backward_default backward_pipelined backward_cross backward_fine; do
        echo "$key: $1"
        shift
    done >"$folder/expected"
    cmp -s "$folder/expected" "$folder/out"
}

published_vector_c_2() { prints 2,2,2,2 36 22 92 68 62 62; } # test
published_vector_c_5() { prints 5,5,5,5 60 42 140 98 78 65; } # test
no_communication() { prints 0,0,0,0 20 20 60 60 60 60; } # test
fractions() { prints 0.5,0.5,.5,5e-1 24 20.5 68 62 60.5 60.5; } # test

# Every digit and no exponent, in every unit.
plain_numbers() { # test
    zeros="--recompute 0,0 --backward 0,0 --comm 0,0"
    run --forward 133456789012345.25,0 $zeros && grep -qx 'forward_default: 266913578024690.5' "$folder/out" &&
        run --forward 0,0.00002 $zeros && grep -qx 'forward_default: 0.00004' "$folder/out" &&
        run --forward 1e15,1e15 $zeros && grep -qx 'forward_default: 4000000000000000' "$folder/out" &&
        run --forward 0.1,0.2 $zeros && grep -qx 'forward_pipelined: 0.6000000000000001' "$folder/out" &&
        ! grep -q '[0-9]e' "$folder/out"
}

one_layer() { # test
    run --forward 1,1 --recompute 0,0 --backward 1,1 --comm 0,1 && grep -q '^backward_fine: 4$' "$folder/out"
}

timeline() { # test
    run $lists --comm 2,2,2,2 --timeline "$folder/t.json" || return 1
    for name in F1a cF4b R4a B4a cB4a B1b cB1b compute comm; do
        grep -q "\"$name\"" "$folder/t.json" || { echo "no $name"; return 1; }
    done
    command -v python3 >/dev/null 2>&1 || return 0
    python3 -c 'import json,sys; json.load(open(sys.argv[1]))' "$folder/t.json"
}
timeline_unwritable() { # test
    run $lists --comm 2,2,2,2 --timeline /nonexistent/t.json
    [ $? -eq 1 ] && grep -q "cannot be written" "$folder/err"
}

help() { run --help && grep -q -e "--degrees-profile" "$folder/out"; } # test

# Exit status 2, nothing on standard output, one line that contains TEXT.
refuses() { # TEXT ARGUMENT...
    text=$1
    shift
    run "$@"
    code=$?
    cat "$folder/err"
    [ $code -eq 2 ] && [ ! -s "$folder/out" ] && [ "$(wc -l <"$folder/err")" -eq 1 ] && grep -q -e "$text" "$folder/err"
}
refusals() { # test
    refuses "four lists" &&
        refuses "is missing" --forward 1,1 --recompute 1,1 --backward 1,1 &&
        refuses "has 3 times" --forward 1,1 --recompute 1,1,1 --backward 1,1 --comm 1,1 &&
        refuses "a layer has two" --forward 1 --recompute 1 --backward 1 --comm 1 &&
        refuses "is not a time" --forward 1,-1 --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward 1, --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward 1,,1 --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward 1,inf --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward 1,0x1 --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward 1,1e16 --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "is not a time" --forward '1, 1' --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "given twice" --forward 1,1 --forward 1,1 --recompute 1,1 --backward 1,1 --comm 1,1 &&
        refuses "no value" --forward &&
        refuses "unknown option" --speed 3 &&
        refuses "needs the four lists" --timeline x --degrees-profile y &&
        refuses "needs --degrees-profile or --estimate" $lists --comm 1,1,1,1 --output x &&
        refuses "needs --cluster and --gpus" --estimate 2,64,64,4 --cluster a100 &&
        refuses "no such preset (a1000)" --estimate 2,64,64,4 --cluster a1000 --gpus 8 &&
        refuses "a power of two" --estimate 2,64,64,4 --cluster a100 --gpus 6 &&
        refuses "four numbers" --estimate 2,64,64 --cluster a100 --gpus 8 &&
        refuses "four numbers" --estimate 2,64,64,0 --cluster a100 --gpus 8 &&
        refuses "four numbers" --estimate 2,64,64,4,4 --cluster a100 --gpus 8 &&
        refuses "at most" --estimate 9999,64,64,4 --cluster a100 --gpus 8 &&
        refuses "needs --estimate" $lists --comm 1,1,1,1 --gpus 8 &&
        refuses "one of the two" --degrees-profile x --estimate 2,64,64,4 --cluster a100 --gpus 8 &&
        refuses "--output: no value" --degrees-profile x --output --timeline y &&
        refuses "/nonexistent/profile: cannot be read" --degrees-profile /nonexistent/profile &&
        refuses "tests: cannot be read: Is a directory" --degrees-profile tests
}

# Attention and MLP of two layers; degree 4 holds half and communicates more.
profile() { # MEMORY
    echo "blocks 4"
    echo "degrees 2 4"
    echo "memory $1"
    echo "boundary 2"
    echo "gather 2 4 100000"
    for block in 0 1 2 3; do
        echo "block $block 2 1000000 500000 3000000 500000 0 1000 100 300"
        echo "block $block 4 1000000 1500000 3000000 1500000 0 500 200 300"
    done
}

degrees() { # test
    profile 0 >"$folder/profile"
    run --degrees-profile "$folder/profile" --output "$folder/degrees" || return 1
    cat "$folder/out"
    # 4 * (1 + 3) ms inside the blocks, 3 * (1 + 3) between them, 1 + 0.5 and 0.5 + 3 at the ends.
    grep -q '^degrees: 2\*4$' "$folder/out" && grep -q '^block_3: 2$' "$folder/out" &&
        grep -q '^step_s: 0\.033$' "$folder/out" && grep -q '^memory_bytes: 4700$' "$folder/out" &&
        grep -q '^optimal: 1$' "$folder/out" && grep -q '^solve_s: ' "$folder/out" &&
        [ "$(sed -n 1p "$folder/degrees")" = "memo degrees 1" ] && grep -q '^block 3 2$' "$folder/degrees"
}
within_memory() { # test
    profile 4200 >"$folder/profile"
    run --degrees-profile "$folder/profile" || return 1
    cat "$folder/out"
    step_s=$(sed -n 's/^step_s: //p' "$folder/out")
    grep -q '^block_[0-3]: 4$' "$folder/out" && grep -q '^optimal: 1$' "$folder/out" &&
        [ -n "$step_s" ] && grep -qx "lower_bound_s: $step_s" "$folder/out"
}
memory_too_small() { # test
    profile 100 >"$folder/profile"
    run --degrees-profile "$folder/profile"
    [ $? -eq 1 ] && grep -q "memory_bytes: too small (100); the smallest plan needs 3100" "$folder/err"
}
damaged_profile() { # test
    { profile 100; echo "block 0 3 1 1 1 1 1 1 1 1"; } >"$folder/profile"
    refuses "profile:14: unexpected \`block\` after the last block" --degrees-profile "$folder/profile"
}

# The estimate is a profile: planning from its file gives the same plan; times there are whole nanoseconds.
an_estimate_is_a_profile() { # test
    run --estimate 4,4096,4096,64 --cluster 3090-pcie --gpus 8 --profile-output "$folder/estimated" || return 1
    cp "$folder/out" "$folder/direct"
    run --degrees-profile "$folder/estimated" || return 1
    digits='/^solve_s/d; s/^\([a-z_]*_s: [0-9.]\{7\}\).*/\1/'
    sed "$digits" "$folder/direct" >"$folder/direct.plan"
    sed "$digits" "$folder/out" | diff "$folder/direct.plan" - && grep -q '^step_s: [1-9]' "$folder/out" &&
        grep -q '^degrees 1 2 4 8$' "$folder/estimated" && [ "$(grep -c '^block_' "$folder/out")" = 8 ]
}

output_unwritable() { # test
    profile 0 >"$folder/profile"
    run --degrees-profile "$folder/profile" --output "$folder/no/degrees"
    [ $? -eq 1 ] && grep -q "no/degrees: cannot be written" "$folder/err"
}

# By any name.
outputs_replace_nothing() { # test
    profile 0 >"$folder/own"
    ln -sf own "$folder/link"
    ln -f "$folder/own" "$folder/twin"
    for name in own link twin ../degrees_plan/own; do
        refuses "is also the file of --degrees-profile" --degrees-profile "$folder/own" --output "$folder/$name" || return 1
    done
    profile 0 | cmp - "$folder/own" || return 1
    refuses "is also the file of --output" --degrees-profile "$folder/own" --output "$folder/new" $lists --comm 1,1,1,1 \
        --timeline "$folder/../degrees_plan/new" && [ ! -e "$folder/new" ]
}

tests_of tests/tools/test_degrees_plan.sh
tap_end
