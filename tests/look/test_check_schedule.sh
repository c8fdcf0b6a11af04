#!/bin/sh
# test_check_schedule.sh - the tool check_schedule: its output, timelines, refusals and exit statuses.  Needs
# build/examples/check_schedule.  Output: TAP.
set -u

. tests/support/tap.sh

tool=build/examples/check_schedule
needs_program $tool
tap_folder build/tests/check_schedule

value() { # KEY
    sed -n "s/^$1: //p" "$folder/out"
}

finds_the_races_of_the_files() { # test
    for file in tests/races/*.faulty.schedule; do
        run 1 "$file" || return 1
        value race >"$folder/races"
        sed -n 's/^#! //p' "$file" | cmp - "$folder/races" || return 1
        run 0 "$(echo "$file" | sed 's/faulty/fixed/')" && [ "$(value races)" -eq 0 ] || return 1
    done
}

waits_that_do_nothing() { # test
    printf 'stream a\nstream b\nwait never b\nrun x a writes 0..4\nrecord e a\nwait e b\n%s' \
        'wait e b
run y b reads 0..4
' >"$folder/waits"
    run 0 "$folder/waits" || return 1
    [ "$(value unrecorded)" = 'wait for event never (operation 0, on b)' ] || return 1
    [ "$(value redundant | wc -l)" -eq 3 ]
}

# Two of two operations are marked, in the legend too.  If no operation has a duration, all get the same one.
draws() { # test
    sed 's/ takes [0-9]*//' tests/races/diffusers-13502.faulty.schedule >"$folder/timeless"
    for file in tests/races/diffusers-13502.faulty.schedule "$folder/timeless"; do
        run 1 "$file" --svg "$folder/a.svg" --chrome "$folder/a.json" || return 1
        grep -q '</svg>' "$folder/a.svg" || return 1
        [ "$(grep -c '<title>race: ' "$folder/a.svg")" -eq 2 ] || return 1
        [ "$(grep -c '"name":"race: .*"dur":[0-9.]*[1-9]' "$folder/a.json")" -eq 2 ] || return 1
    done
    run 0 tests/races/diffusers-13502.fixed.schedule --svg "$folder/b.svg" || return 1
    ! grep -q 'race: ' "$folder/b.svg"
}

standard_input() { # test
    "$tool" - <tests/races/openvdb-2287.fixed.schedule >"$folder/out" && [ "$(value streams)" -eq 3 ] &&
        "$tool" - --svg - <tests/races/openvdb-2287.fixed.schedule | grep -q '</svg>'
}

# The schedule that a program writes of its recorded run.
reads_what_was_recorded() { # test
    build/examples/14_find_a_race "$folder/recorded" && run 1 "$folder/recorded" || return 1
    value race | grep -q '^"fill" (operation 5, on compute) writes bytes 0..4096 of x that "to host" (operation 3, '
}

refuses() { # TEXT MESSAGE
    printf "$1" >"$folder/bad"
    run 2 "$folder/bad" && grep -q "^check_schedule: $folder/$2" "$folder/err"
}

refuses_arguments() { # test
    file=tests/races/openvdb-2287.fixed.schedule
    cp $file "$folder/own"
    ln -sf own "$folder/link"
    run 2 && run 2 $file $file && run 2 $file --leap && run 2 $file --svg && run 2 "$folder/nothing" &&
        run 2 "$folder/own" --svg "$folder/link" && run 2 "$folder/own" --chrome "$folder/own" &&
        run 2 $file --svg "$folder/c" --chrome "$folder/c" && run 2 $file --svg "$folder/no/c" || return 1
    cmp $file "$folder/own" && run 0 --help && run 0 $file -h && grep -q '^usage: ' "$folder/out"
}

tests_of tests/look/test_check_schedule.sh
test_is fault_names_file_and_line refuses 'stream a\nrun x b\n' 'bad:2: '
test_is empty_file_is_refused refuses '' 'bad: '
test_is cut_file_is_refused refuses 'memo schedule 1\nstream a\nrun x a\n' 'bad:3: '
tap_end
