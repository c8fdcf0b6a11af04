#!/bin/sh
# test_infinitrain.sh - InfiniTrain's GPT-2 with memo's hooks has the bits of the original, in three budgets.
#
# INFINITRAIN=FOLDER, or build/InfiniTrain, is a clone of InfiniTrain; the first run compiles it.  Output: TAP.
set -u

. tests/support/tap.sh

clone=${INFINITRAIN:-build/InfiniTrain}
tap_folder build/tests/infinitrain

is_bitwise_the_same() {
    sh examples/infinitrain/port.sh "$clone" >"$folder/out" 2>&1 && cat "$folder/out" &&
        [ "$(grep -c '^[Mw].*: all losses and parameters are bitwise the same' "$folder/out")" -eq 5 ] || { cat "$folder/out"; return 1; }
    # The three budgets move more and more, and what the owner keeps and memo's places fit.
    awk '/^MEMO_BYTES=/ { split($1, budget, /[=:]/); for (i = 2; i < NF; i++) if ($i == "kept") kept = $(i - 2)
            for (i = 2; i < NF; i++) if ($i == "places,") { places = $(i - 2); moved = $(i + 1) }
            n++; if (kept + places > budget[2] || moved <= 0 || moved < last) bad = 1
            last = moved }
        END { exit bad || n != 4 }' "$folder/out"
}

refuses_another_folder() {
    sh examples/infinitrain/port.sh "$folder" >"$folder/out" 2>"$folder/err"
    [ $? -eq 2 ] && grep -q '^usage: .*a clone of InfiniTrain' "$folder/err"
}

# In a folder whose name is a command, with a git and a compiler that only write files.
folders_are_no_commands() {
    place="$folder/a b; touch owned; \$(touch owned)"
    mkdir -p "$place" "$folder/bin"
    for entry in examples extras memo.h memo_plan.h memo_sp.h; do ln -s "$PWD/$entry" "$place/"; done
    cat >"$folder/bin/git" <<'END'
#!/bin/sh
for last; do :; done
case "$*" in
*cat-file*e594d9c*) exit 1 ;;
*clone*) mkdir -p "$last/infini_train/src" "$last/example/common" "$last/example/gpt2"
    touch "$last/infini_train/src/a.cc" "$last/example/gpt2/main.cc" "$last/example/gpt2/checkpoint_loader.cc" ;;
esac
END
    cat >"$folder/bin/compiler" <<'END'
#!/bin/sh
for last; do :; done
case "$*" in
*"-o train"*) exit 33 ;;
*" -c "*) echo object >"$last" ;;
esac
END
    chmod +x "$folder/bin/git" "$folder/bin/compiler"
    bin=$PWD/$folder/bin
    (cd "$place" && PATH=$bin:$PATH CC=true CXX=compiler sh examples/infinitrain/port.sh . >../out 2>&1)
    code=$?
    cat "$folder/out"
    [ "$code" -eq 33 ] || { echo "exit $code"; return 1; }
    [ -s "$place/build/infinitrain/objects/infini_train_src_a.cc.o" ] && [ -z "$(find "$folder" -name owned)" ]
}

test_is "a folder's name is no command" folders_are_no_commands
test_is "a folder that is no clone is refused" refuses_another_folder
if git -C "$clone" cat-file -e b24d92f:example/gpt2/main.cc 2>/dev/null; then
    test_is "losses and parameters of InfiniTrain" is_bitwise_the_same
else
    skip "losses and parameters of InfiniTrain" "there is no clone of InfiniTrain with b24d92f; INFINITRAIN=FOLDER names one"
fi
tap_end
