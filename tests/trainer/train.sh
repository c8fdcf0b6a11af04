# train.sh - the frame of tests of the trainer, after tap.sh:  . tests/support/tap.sh; . tests/trainer/train.sh

program=${TRAIN_GPT:-build/tests/train_gpt}
case $program in /*) ;; *) program=$PWD/$program ;; esac
needs_program "$program"
sources=$PWD
directory=$(mktemp -d) || exit 1
trap 'rm -rf "$directory"' EXIT
trap 'exit 130' INT TERM # dash runs the trap above on exit alone
# As a checkout may be called.
mkdir "$directory/a folder" && ln -s "$program" "$directory/a folder/train gpt" || exit 1
program="$directory/a folder/train gpt"
cd "$directory/a folder" || exit 1

# fail TEXT: the current test fails and says why, but goes on.
fail() {
    echo "$1"
    failed=1
}
# judged FUNCTION: fails if it called fail.
judged() {
    failed=0
    "$1"
    [ $failed -eq 0 ]
}

# run ARGUMENT...: output in out, messages in err, exit status in $code.  works: 0; fails: 2.
run() {
    "$program" "$@" >out 2>err </dev/null
    code=$?
}

works() { run "$@" && expect_code 0; }
fails() { run "$@" && expect_code 2; }
prints() { # PATTERN ARGUMENT...
    expected=$1
    shift
    works "$@"
    expect_out "$expected"
}
expect_code() { [ "$code" = "$1" ] || fail "exit $code, not $1: $(tail -n 1 err)"; }
expect_out() { for pattern; do grep -q -e "$pattern" out || fail "no output like '$pattern'"; done; }
expect_err() { grep -q -e "$1" err || fail "no message like '$1', but: $(cat err)"; }
expect_one_line() { [ "$(wc -l <err)" -eq 1 ] || fail "$(wc -l <err) lines of messages, not 1"; }
expect_same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# has_losses_of LOG ARGUMENT...: a run with the bits of LOG; its own losses are in same.log.
has_losses_of() {
    log=$1
    shift
    rm -f same.log
    works "$@" --loss-log same.log
    expect_same "$log" same.log
}

# compares_and_draws ARGUMENT...: policies have equal gradients, a recorded step has no race, and the model speaks.
compares_and_draws() {
    prints 'bitwise the same' "$@" --compare 2 --sample 30
    expect_out ' 0 races' '30 more, generated:'
}

# started LOG ARGUMENT...: a long run, $child, that has done its first step.
started() {
    log=$1
    shift
    rm -f "$log"
    "$program" $tiny --steps 1000000 --loss-log "$log" "$@" >out 2>err &
    child=$!
    wait_for "$log"
}
# ended SIGNAL: the run gets the signal, and ends.
# (A shell lets background jobs ignore SIGINT; the program's own handler undoes that.)
ended() {
    kill -"$1" $child
    wait $child
    code=$?
}
interrupted() { # SIGNAL LOG ARGUMENT...
    signal=$1
    shift
    started "$@"
    ended "$signal"
}

# refused PATTERN ARGUMENT...: one line like PATTERN, exit 2, nothing left behind.
refused() {
    pattern=$1
    shift
    rm -rf left.log left.dir
    fails --loss-log left.log --output left.dir/run "$@"
    expect_one_line
    expect_err "$pattern"
    for path in left.log left.dir left.log.part; do
        [ ! -e $path ] || fail "$path is left behind"
    done
}

# A text with some order in it, the same on every machine.
awk 'BEGIN { for (i = 0; i < 1500; i++) printf "line %d of the text has the number %d in it\n", i % 17, i * i % 101 }' >text
# Small enough that a step takes milliseconds; four layers, so that two are swapped; a short last tile.
tiny="--text text --layers 4 --hidden 16 --heads 4 --kv-heads 2 --seq 50 --batch 2 --tile 8 --steps 4 --dropout 0.1"
: >empty
printf 'short' >short

# block_degrees DEGREE...: the file degrees, of as many blocks.
block_degrees() {
    block=0
    for degree in "$@"; do
        echo "block $block $degree"
        block=$((block + 1))
    done >degrees
}
