#!/bin/sh
# test_train_files.sh - the files of the trainer: none is lost, however a run is named, ended or resumed; signals.
# Output: TAP.
# Environment: TRAIN_GPT   the program (default build/tests/train_gpt)

. tests/support/tap.sh
. tests/trainer/train.sh

# ---- outputs ---------------------------------------------------------------------------------------

# Paths are checked before the run plans and measures, which would take time and print lines.
expect_nothing_planned() { [ ! -s out ] || fail "printed before the refusal: $(head -n 1 out)"; }

invalid_outputs_are_refused() { # test
    : >plain
    fails $tiny --output plain/run --loss-log left.log
    expect_err '--output plain/run: cannot be made'
    expect_nothing_planned
    [ ! -e left.log ] || fail 'left.log is left behind'
    fails $tiny --output made/here --loss-log no/such/directory/log
    expect_err '--loss-log no/such/directory/log: cannot be written'
    expect_nothing_planned
    [ ! -e made ] || fail 'made is left behind'
    refused '--output plain: cannot be written: Not a directory' $tiny --output plain
    refused 'cannot be made: File name too long' $tiny --output "$(printf '%0300d' 0)"
    mkdir folder
    refused '--save folder: not a regular file; another name would work' $tiny --save folder
    refused '--save /dev/null: not a regular file' $tiny --save /dev/null
}

# A limit of file sizes is an error, not a signal.
a_full_loss_log_fails_after_the_run() { # test
    (ulimit -f 4 && exec "$program" $tiny --steps 300 --loss-log full.log >/dev/null 2>err)
    code=$?
    expect_code 1
    expect_one_line
    expect_err '^train_gpt: --loss-log full.log: cannot be written: File too large'
}

# What no step could be written to is refused before the first.
late_errors_are_early() { # test
    if [ -c /dev/full ]; then
        fails $tiny --loss-log /dev/full
        expect_err '^train_gpt: --loss-log /dev/full: cannot be written: No space left on device'
        expect_nothing_planned
    fi
    for name in here ./here; do
        refused '--[a-z-]* .*here.*: is also the file of --' $tiny --save here --output $name
        refused '--[a-z-]* .*here.*: is also the file of --' $tiny --save $name --output here/there
        refused '--[a-z-]* .*here.*: is also the file of --' $tiny --loss-log $name --output here
        [ ! -e here ] || fail 'here is left behind'
    done
    mkdir -p taken/plan.svg held.profile
    refused '--output taken/plan.svg: cannot be written: Is a directory' $tiny --output taken
    refused '--save held.profile: cannot be written: Is a directory' $tiny --save held
    refused '--save text/file: is also the file of --text' $tiny --save text/file
    refused '--save short/file: cannot be written: Not a directory' $tiny --save short/file
    ln -s nowhere dangling
    refused '--save dangling: a link to no file; another name would' $tiny --save dangling
    refused '--loss-log dangling: a link to no file; another name would' $tiny --loss-log dangling
    [ -h dangling ] && [ ! -e nowhere ] || fail 'the link is another'
    mkfifo pipe
    timeout 20 "$program" $tiny --resume pipe >out 2>err
    code=$?
    expect_code 2
    expect_err '--resume pipe: not a regular file'
}

# The run ends before the first step, or soon after the first line that cannot be written.
a_full_output_ends_the_run() { # test
    if [ -c /dev/full ]; then
        timeout 60 "$program" $tiny --steps 600 --loss-log unwritten.log >/dev/full 2>err
        code=$?
        expect_code 1
        expect_one_line
        expect_err '^train_gpt: standard output cannot be written'
        [ ! -e unwritten.log ] || fail 'a log is left behind'
    fi
    (ulimit -f 3 && exec timeout 60 "$program" $tiny --steps 600 --policy keep >full.out 2>err)
    code=$?
    expect_code 1
    expect_one_line
    expect_err '^train_gpt: standard output cannot be written'
    ! grep -q 'step [45][0-9][0-9] of' full.out && grep -q '^  step 1 of' full.out || fail 'no step, or all, were done'
}

# The file of a checkpoint is too large for the limit, the log is not.
a_failed_save_ends_no_training() { # test
    (ulimit -f 100 && exec "$program" $tiny --save kept2 --save-every 1 --loss-log all.log >/dev/null 2>err)
    code=$?
    expect_code 1
    expect_err '^train_gpt: --save kept2: cannot be written: File too large; the run goes on'
    [ "$(wc -l <all.log)" -eq 4 ] && [ ! -e kept2 ] || fail 'steps are missing, or a file is there'
}

inputs_are_not_overwritten() { # test
    cp text own
    ln -sf own link
    block_degrees 2 2 2 2 2 2 2 2
    cp degrees degrees.before
    for name in own link "$PWD/own"; do
        refused "--loss-log $name: is also the file of --text" $tiny --text own --loss-log "$name"
        expect_nothing_planned
    done
    refused '--loss-log degrees: is also the file of --degrees' $tiny --degrees degrees --policy keep --loss-log degrees
    for name in twice/plan.svg twice//plan.svg ./twice/./plan.svg "$PWD/twice/plan.svg"; do
        refused 'is also the file of --' $tiny --output twice --loss-log "$name"
        [ ! -e twice ] || fail 'twice is left behind'
    done
    mkdir out.dir && cp text out.dir/step.trace
    refused '--output out.dir/step.trace: is also the file of --text' $tiny --text out.dir/step.trace --output out.dir
    expect_same text out.dir/step.trace
    expect_same text own
    expect_same degrees degrees.before
    # Files beside those of options, links to them, and files that are read without being named.
    works $tiny --steps 8 --save kept --stop 4 --device-memory 600KiB
    cp kept kept.before && cp kept.profile profile.before
    for beside in profile lock; do
        cp text fresh.$beside
        ln -f fresh.$beside hard && ln -sf "$PWD/fresh.$beside" soft
        for name in fresh.$beside ./fresh.$beside hard soft; do
            refused "--save .*fresh.$beside: is also the file of --text" $tiny --text $name --save fresh
            refused "--save .*fresh.$beside: is also the file of --loss-log" $tiny --save fresh --loss-log $name
        done
        expect_same text fresh.$beside
        rm fresh.$beside
        refused "--save fresh.$beside: is also the file of --loss-log" $tiny --save fresh --loss-log ./fresh.$beside
    done
    refused '--save fresh.profile: is also the file of --profile' $tiny --save fresh --profile fresh.profile
    refused '--loss-log kept.profile: is also the file of --resume' $tiny --resume kept --loss-log kept.profile
    ln kept.profile to.profile
    refused 'to.profile: is also the file of --resume' $tiny --resume kept --save to
    expect_same kept kept.before
    expect_same kept.profile profile.before
    cp text fresh.part
    works $tiny --text fresh.part --save fresh
    expect_same text fresh.part
    cp text README.md
    refused 'is also the file of the text' --layers 2 --hidden 8 --heads 1 --seq 16 --loss-log README.md
    expect_same text README.md
    rm README.md
}

# ---- checkpoints -----------------------------------------------------------------------------------

# A pause changes no bit, with every split of the states; the file is replaced whole.
a_resumed_run_has_the_same_losses() { # test
    for ranks in '' '--data 2 --zero 2 --states 8bit' '--tensor 2 --type bf16 --states bf16' '--ring 2 --policy recompute'; do
        rm -f saved*
        works $tiny $ranks --steps 6 --batch 2 --dropout 0.1 --loss-log whole.log
        works $tiny $ranks --steps 6 --batch 2 --dropout 0.1 --stop 2 --save saved --loss-log first.log
        works $tiny $ranks --steps 6 --batch 2 --dropout 0.1 --resume saved --save saved --save-every 1 --loss-log second.log
        expect_out '^resume    saved, after step 2$'
        cat first.log second.log >both.log
        expect_same whole.log both.log
        [ ! -e saved.part ] || fail 'the file aside is left behind'
    done
    works $tiny --steps 6 --policy keep --loss-log whole.log
    works $tiny --steps 6 --policy keep --stop 2 --save paused --loss-log first.log
    for other in '--policy recompute' '--policy swap' '--alpha 0.5'; do
        rm -f second.log
        works $tiny --steps 6 --resume paused $other --loss-log second.log
        cat first.log second.log >both.log
        expect_same whole.log both.log
    done
    refused 'saved after step 6; --steps or --stop above that would continue' $tiny --steps 6 --batch 2 --ring 2 --resume saved
    prints '^resume    saved, after step 6; it had --steps 6 (now 9)$' $tiny --steps 9 --batch 2 --data 2 --resume saved --resume-with-changes
}

# All differences are named.
changes_need_a_word() { # test
    works $tiny --steps 6 --stop 2 --save saved
    cp text text2 && printf Q | dd of=text2 bs=1 seek=100 conv=notrunc 2>/dev/null
    for change in '--steps 6 (now 7)' '--learning-rate 0.003 (now 0.001)' '--seq 50 (now 40)' '--batch 2 (now 4)' \
        '--accumulate 1 (now 2)' '--dropout 0.1 (now 0.2)' 'no --window (now 9)' 'no --documents (now 50)' '--tile 8 (now 4)'; do
        name=${change#no }
        name=${name%% *} now=${change##* }
        refused "^train_gpt: --resume saved: the saved run had $change; --resume-with-changes would" $tiny --steps 6 --resume saved "$name" "${now%)}"
    done
    works $tiny --steps 6 --stop 2 --save windowed --window 9
    refused 'the saved run had --window 9 (now none); --res' $tiny --steps 6 --resume windowed
    refused 'the saved run had another text; --res' $tiny --steps 6 --resume saved --text text2
    refused 'had --steps 6 (now 9), --seq 50 (now 40), another text; --res' $tiny --steps 9 --seq 40 --text text2 --resume saved
    prints 'after step 2; it had --steps 6 (now 9), --seq 50 (now 40), another text$' $tiny --steps 9 --seq 40 --text text2 --resume saved --resume-with-changes
    refused '--resume-with-changes has no effect without --resume FILE' $tiny --resume-with-changes
}

# What was logged before the saved step stays; later steps are cut and trained again.  A damaged file cuts nothing.
a_resumed_run_continues_the_log() { # test
    works $tiny --steps 6 --loss-log whole.log
    works $tiny --steps 6 --stop 4 --loss-log on.log
    cp on.log before.log
    works $tiny --steps 6 --stop 2 --save saved
    size=$(wc -c <saved)
    for at in 30 60 200 600 $((size - 9)); do
        cp saved bad
        printf '\377' | dd of=bad bs=1 seek="$at" conv=notrunc 2>/dev/null
        fails $tiny --steps 6 --resume bad --loss-log on.log --save on.save
        expect_same before.log on.log
    done
    printf '5 1.2' >>on.log
    works $tiny --steps 6 --resume saved --loss-log on.log
    expect_same whole.log on.log
    cp text not.log
    refused 'not.log: holds no losses that could be continued' $tiny --steps 6 --resume saved --loss-log not.log
    expect_same text not.log
}

# Sets a number of a checkpoint's head, and the digest of all bytes after the head's 11 numbers of the run.
resealed() { # FILE BYTE NUMBER
    python3 - "$@" <<'END'
import struct, sys
name, at, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
data = bytearray(open(name, "rb").read())
seal = 64 + 8 * (11 + 12 + 2) # numbers of the model, of the run, rows of a slice, a norm
old, = struct.unpack_from("=Q", data, seal)
def digest():
    struct.pack_into("=Q", data, seal, 0)
    value = 14695981039346656037
    for word, in struct.iter_unpack("=Q", data):
        value = (value ^ word) * 0x9e3779b97f4a7c15 % 2**64
        value ^= value >> 32
    return value
assert digest() == old, "the digest is another today"
struct.pack_into("=q", data, at, number)
struct.pack_into("=Q", data, seal, digest())
open(name, "wb").write(data)
END
}

bad_checkpoints_are_refused() { # test
    refused '--resume missing: cannot be read: No such file' $tiny --resume missing
    refused '--save no/such/file: cannot be written: No such file' $tiny --save no/such/file
    refused '--save text: is also the file of --text' $tiny --save text
    refused '--save-every has no effect without --save FILE' $tiny --save-every 3
    refused '--compare has no effect with --resume' $tiny --resume text --compare 1
    refused '--resume text: not a checkpoint' $tiny --resume text
    run $tiny --steps 2 --save saved --seed 3
    refused 'a checkpoint of another model: its --seed is 3, not 1' $tiny --steps 4 --resume saved
    for change in '--type f32 bf16' '--states f32 bf16' '--mlp gelu swiglu'; do
        set -- $change
        refused "a checkpoint of another model: its $1 is $2, not $3" $tiny --steps 4 --seed 3 --mlp-columns 64 --resume saved "$1" "$3"
    done
    head -c 100 saved >head
    refused '--resume head: cut short: it has 100 bytes, fewer than the [0-9]* of a ' $tiny --steps 4 --seed 3 --resume head
    head -c 1000 saved >part
    cp saved old && printf 2 | dd of=old bs=1 seek=20 conv=notrunc 2>/dev/null
    refused '--resume old: a checkpoint of format 2; this program reads format 6' $tiny --seed 3 --resume old
    refused '--resume part: cut short or altered: it has 1000 bytes' $tiny --steps 4 --seed 3 --resume part
    if command -v python3 >/dev/null; then
        cp saved many && resealed many 56 3 # updates, of 2 steps
        refused '--resume many: altered: saved after step 2 and 3 updates' $tiny --steps 4 --seed 3 --resume many
        cp saved fewer && resealed fewer 56 1 # a step may have no update
        works $tiny --steps 4 --seed 3 --resume fewer --resume-with-changes
    fi
    refused '--save large: a file of [0-9.]* TiB does not fit into .* of free space; another folder' $tiny --save large --layers 4000 --hidden 8192
}

# ---- files -----------------------------------------------------------------------------------------

files_are_written() { # test
    works $tiny --output new/run --sample 30 --compare 1
    for file in report.html memory.svg plan.svg loss.svg timeline.svg timeline.json step.trace step.plan step.profile; do
        [ -s new/run/$file ] || fail "$file is missing or empty"
        expect_out "^new/run/report.html.*[/ ]$file\(,\|\$\)\|^new/run/$file "
    done
    for file in new/run/*.svg new/run/report.html; do
        grep -q '</svg>' "$file" || fail "$file has no end"
        if command -v xmllint >/dev/null 2>&1; then xmllint --noout "$file" 2>/dev/null || fail "$file is not XML"; fi
    done
    page=new/run/report.html
    if command -v python3 >/dev/null; then
        python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' $page || fail "$page is not well formed"
    fi
    [ "$(wc -c <$page)" -lt 2000000 ] || fail "$page has 2 MB or more"
    sed 's|http://www.w3.org/2000/svg||g' $page | grep -nE 'src=|href=|url\(|https?:|@import' && fail "$page refers to another file"
    grep -q '@media(prefers-color-scheme:dark){' $page || fail "$page has no dark style"
    for words in 'Device memory' 'Policies' 'Plan' 'Timeline' 'Addresses' 'Loss'; do
        grep -q "<h2>$words</h2>" $page || fail "$page lacks $words"
    done
    [ "$(grep -c 'makespan [0-9]' $page)" -eq 1 ] || fail "$page has other makespans than that of its timeline"
    [ "$(grep -c '^<p>' $page)" -eq 7 ] || fail "$page does not say what to see"
    grep -q '^<p>One recorded step.*on device.* copy within the device' $page || fail "$page does not explain its timeline"
    for policy in recompute swap alpha memo; do grep -q "^$policy .* equal " $page || fail "$page has no line of $policy"; done
    [ "$(grep -c '<svg' $page)" -eq 4 ] || fail "$page has other pictures"
    [ "$(ls new/run | wc -l)" -eq 9 ] || fail "unexpected files: $(ls new/run)"
    expect_out ' 0 races' '30 more, generated:'
    works $tiny --policy alpha --output new/free
    grep -q -- --device-memory new/free/memory.svg && fail "memory.svg has a limit that was not given"
}

# ---- Ctrl-C ----------------------------------------------------------------------------------------

interrupt_keeps_the_log() { # test
    for ranks in '' '--ring 2'; do
        interrupted INT interrupted.log --output interrupted.dir $ranks
        expect_code 130
        expect_err 'interrupted after step [0-9]*'
        expect_one_line
        [ "$(tail -c 1 interrupted.log | od -An -tx1 | tr -d ' ')" = 0a ] || fail 'the last line of the log is not complete'
        awk '$1 != NR || NF != 3 { exit 1 }' interrupted.log || fail 'the log has a gap'
    done
}

# Neither do the remaining rounds time layers again.
interrupt_ends_a_comparison() { # test
    "$program" $tiny --steps 4000 --compare 4000 --device-memory 600KiB --link-bandwidth 1GB >compared.out 2>err &
    child=$!
    waited=0
    until grep -q '^memory ' compared.out || [ $waited -eq 300 ]; do sleep 0.1 && waited=$((waited + 1)); done
    grep -q '^profile .*forward takes' compared.out || fail 'nothing was measured'
    sleep 0.5
    kill -INT $child
    waited=0
    while kill -0 $child 2>/dev/null && [ $waited -lt 150 ]; do sleep 0.1 && waited=$((waited + 1)); done
    [ $waited -lt 150 ] || kill -KILL $child
    wait $child
    code=$?
    expect_code 130
    expect_err 'interrupted after step 0'
    expect_one_line
}

# A closed terminal, or a scheduler that ends the job, loses no step.
other_signals_save_too() { # test
    for signal in TERM HUP; do
        rm -f signal.save
        interrupted $signal signal.log --save signal.save
        expect_code 130
        run $tiny --steps 1000000 --stop 1 --resume signal.save
        expect_err 'signal.save: saved after step [1-9]'
    done
}

# The first signal waits for the end of the step, which does not come for minutes on this link.
ends_at_the_second() { # SIGNAL STATUS
    rm -f begun
    "$program" $tiny --policy swap --link-bandwidth 1KB --loss-log begun >out 2>err </dev/null &
    child=$!
    while [ ! -e begun ] && kill -0 $child; do sleep 0.1; done
    sleep 1
    kill -"$1" $child
    sleep 0.5
    kill -0 $child || fail "$1 ends the run at once" # the first would end a program that does not save
    kill -"$1" $child
    (sleep 30 && kill -KILL $child) &
    killer=$!
    wait $child
    code=$?
    kill $killer
    expect_code "$2"
}
a_second_signal_ends_a_step() { # test
    ends_at_the_second TERM 143
    ends_at_the_second HUP 129
}

# Each of them saves, at any moment, and leaves nothing else.  A pipe that nobody reads is a signal, too.
signals_leave_whole_files() { # test
    mkdir sent && cd sent || return
    cp ../text .
    for wait in 0 0.03; do
        for signal in QUIT HUP XCPU PIPE TERM; do
            rm -f log kept*
            interrupted $signal log --save kept --save-every 1 --output d
            sleep $wait
            expect_code 130
            expect_err 'interrupted after step [1-9]'
            [ "$(ls | tr '\n' ' ')" = "err kept log out text " ] || fail "$signal leaves $(ls)"
            run $tiny --steps 1000000 --stop 1 --resume kept
            expect_err 'kept: saved after step [1-9]'
        done
    done
    rm -f kept
    "$program" $tiny --steps 2000 --save kept 2>err | sed '/^  step/q' >out
    [ "$(ls | tr '\n' ' ')" = "err kept log out text " ] || fail "a closed pipe leaves $(ls)"
    expect_err 'interrupted after step [1-9]'
    cd ..
}

# The second is refused at once, under any name, until the first has ended, also by KILL.
one_run_saves_to_a_file() { # test
    works $tiny --save one
    ln -s one alias
    chmod 604 one
    started one.log --save one --save-every 1
    for name in one ./one alias; do refused '--save .*one: another run saves to this file; another name' $tiny --save $name; done
    ended KILL
    works $tiny --save alias
    [ -h alias ] && [ "$(ls -A | grep -c '^one')" -eq 2 ] || fail "left behind: $(ls -A | grep '^one')"
    [ "$(stat -c %a one)" = 604 ] || fail "the mode is $(stat -c %a one)"
    (umask 002 && works $tiny --save fresh.one)
    [ "$(stat -c %a fresh.one)" = 660 ] || fail "the mode of a new file is $(stat -c %a fresh.one)"

    # A run that was killed while it saved leaves files that the next run removes.
    for wait in 0 0.01 0.02 0.03; do
        started three.log --hidden 64 --save three --save-every 1
        sleep $wait
        ended KILL
    done
    works $tiny --hidden 64 --save three
    [ "$(ls -d three*)" = "$(printf 'three\nthree.log')" ] || fail "left behind: $(ls -d three*)"
    cp text four.lock
    refused 'four.lock is no lock of a run' $tiny --save four
    expect_same text four.lock
}

# Nor do two runs write to one log; a killed run leaves no lock.
one_run_writes_a_loss_log() { # test
    works $tiny --stop 2 --save paused
    mkdir logs
    started logs/two.log
    for more in '' '--resume paused' '--output logs'; do
        fails $tiny $more --loss-log logs/two.log
        expect_one_line
        expect_err '^train_gpt: --loss-log logs/two.log: another run writes to this file; another name would work'
    done
    awk '$1 != NR || NF != 3 { exit 1 }' logs/two.log || fail 'the log has a gap'
    ended KILL
    works $tiny --loss-log logs/two.log
    [ "$(wc -l <logs/two.log)" -eq 4 ] || fail 'the log of a killed run is not replaced'
    [ "$(ls logs)" = two.log ] || fail "left behind: $(ls logs)"
}

# No signal leaves an empty directory behind.
signals_leave_no_directory() { # test
    for signal in INT TERM HUP; do
        interrupted $signal signal.log --output d
        [ ! -e d ] || fail "$signal leaves a directory behind"
        [ -z "$(ls -A | grep memo-)" ] || fail "$signal leaves something behind"
    done
    works $tiny --output d --loss-log d/log
    [ "$(ls d | wc -l)" -eq 9 ] || fail "unexpected files: $(ls d)"
}

# Ctrl-C of one leaves the other's files alone.
two_runs_share_a_new_directory() { # test
    rm -f second.log
    started first.log --output shared/new
    "$program" $tiny --steps 100 --loss-log second.log --output shared/new >out 2>err &
    second=$!
    wait_for second.log
    ended INT
    wait $second
    code=$?
    expect_code 0
    [ "$(ls shared/new | wc -l)" -eq 8 ] || fail "unexpected files: $(ls shared/new)"
}

# One line is rewritten, and ended by a line break, also after Ctrl-C.
progress_on_a_terminal() {
    script -qec "'$program' $tiny --steps 300" /dev/null >out 2>&1 </dev/null
    [ "$(tr '\r' '\n' <out | grep -c '^.\[Kstep')" -ge 2 ] || fail 'the line is not written anew'
    grep -q 'step 300 of 300' out || fail 'the last step is not shown'
    [ "$(grep -c 'step ' out)" -le 2 ] || fail 'more than one line of progress'
    rm -f typed.log
    {
        wait_for typed.log
        printf '\003'
        sleep 1
    } | script -qec "'$program' $tiny --steps 20000 --loss-log typed.log" /dev/null >out 2>&1
    grep -q '^train_gpt: interrupted after step' out || fail 'the progress line is not ended'
}

# What a session logs while it plans, in one line that is cleared before the next output; a file has none of it.
planning_on_a_terminal() {
    tight="--random-tokens --layers 4 --hidden 64 --seq 256 --device-memory 5MiB --host-memory 64MiB --steps 4"
    works $tight
    expect_out '^profile .*forward takes'
    grep -q 'session:' out err && fail "without a terminal: a session's log"
    script -qec "'$program' $tight" /dev/null >out 2>&1 </dev/null || fail "exit status $? on a terminal"
    tr '\r' '\n' <out >lines
    grep -q 'session: measuring copies up to [0-9]* bytes$' lines || fail "no progress: $(cat lines)"
    grep -q "^$(printf '\033')\[Kkeep  " lines || fail "the line is not cleared: $(cat lines)"
}

tests_of "$sources/tests/trainer/test_train_files.sh" judged
for name in progress_on_a_terminal planning_on_a_terminal; do
    title=$(echo $name | tr _ ' ')
    if script -qec true /dev/null >/dev/null 2>&1 </dev/null; then
        test_is "$title" judged $name
    else
        skip "$title" "no script(1) to make a terminal with; apt-get install bsdutils"
    fi
done
tap_end
