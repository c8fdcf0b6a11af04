#!/bin/sh
# test_python.sh - pip builds and installs memo_plan without a network, from the folder and from its source archive; then
# the cases of test_python.py, and the example of python/README.md.
#
# Output: TAP.
set -u

. tests/support/tap.sh

root=$(pwd)
tap_folder "$root/build/tests/python"
python=$folder/venv/bin/python

if ! python3 -m venv "$folder/venv" >"$folder/venv.log" 2>&1; then
    skip python "python3 has no venv with pip (apt-get install python3-venv)"
    tap_end
    exit
fi
# numpy and setuptools, if the machine has them; pip then leaves them alone.
sed -i.bak 's/^include-system-site-packages.*/include-system-site-packages = true/' "$folder/venv/pyvenv.cfg"

# setuptools builds wheels since 70.1, and before with wheel.
builds() { "$python" -c 'try: import setuptools.command.bdist_wheel
except ImportError: import setuptools, wheel' 2>/dev/null; }
[ -n "${MEMO_NO_INSTALL:-}" ] || builds || timeout 60 "$python" -m pip install -q --disable-pip-version-check 'setuptools>=70.1' >"$folder/venv.log" 2>&1
if ! builds; then
    skip python "setuptools cannot build a wheel (pip install 'setuptools>=70.1', or apt-get install python3-setuptools python3-wheel)"
    tap_end
    exit
fi

# make test-all builds with the optimizer of users; it takes five times as long.
installs() { # PATH
    CFLAGS="$(tests_all || echo -O0) ${CFLAGS:-}" "$python" -m pip install --no-index --no-build-isolation --disable-pip-version-check --force-reinstall "$1"
}

# The first block in README.md is the program, the first block after `prints` its output.
readme() {
    sed -n '/^```python/,/^```$/p' python/README.md | sed '1d;$d' >"$folder/readme.py"
    sed -n '/^prints/,$p' python/README.md | sed -n '/^```$/,/^```$/p' | sed '1d;$d' >"$folder/expected"
    [ -s "$folder/readme.py" ] && [ -s "$folder/expected" ] || return 1
    (cd "$folder" && "$python" readme.py >found) && diff "$folder/expected" "$folder/found" &&
        grep -q '</svg>' "$folder/plan.svg"
}

# The allocator in README.md plans tilings of OmniMalloc, and keeps what is pinned.
omnimalloc() {
    {
        sed -n '/^~~~python$/,/^~~~$/p' python/README.md | sed '1d;$d'
        cat <<'EOF'
from omnimalloc.primitives import Allocation
found = MemoAllocator().allocate(tuple(Allocation(i, 10 + i, i % 3, 3 + i % 2) for i in range(9)))
live = [sum(a.size for a in found if a.start <= t < a.end) for t in range(5)]
assert max(a.offset + a.size for a in found) == max(live), found
pinned = MemoAllocator().allocate((Allocation("a", 4, 0, 2, 16), Allocation("b", 4, 1, 3)))
assert [a.offset for a in pinned] == [16, 0], pinned
found = MemoAllocator().allocate((Allocation("a", 4, (0, 0), (2, 1)), Allocation("b", 8, (2, 0), (3, 1)), Allocation("c", 8, (2, 1), (3, 2))))
assert not any(x.conflicts_with(y) and x.overlaps_spatially(y) for x in found for y in found if x is not y), found
assert max(a.offset + a.size for a in found) == 16, found
EOF
    } >"$folder/allocator.py"
    "$python" "$folder/allocator.py"
}

# The archive has all it needs: it is built where there is no repository.
source_archive() {
    (cd python && "$python" -B -c "from setuptools import build_meta; build_meta.build_sdist('$folder')") || return 1
    "$python" -m pip uninstall -q -y memo-plan && ! "$python" -c 'import memo_plan' 2>/dev/null || return 1
    mkdir -p "$folder/alone" && mv "$folder"/memo_plan-*.tar.gz "$folder/alone" &&
        (cd "$folder/alone" && installs ./memo_plan-*.tar.gz) && readme
}

no_compiler() {
    touch python/memo_plan/memo_plan.c
    ! (CC=no_such_compiler && export CC && installs ./python) >"$folder/out" 2>&1 && grep "command 'no_such_compiler' failed" "$folder/out"
}

# Without setuptools pip names it.
no_back_end() {
    ! "$python" -m pip install --no-index --disable-pip-version-check --force-reinstall ./python >"$folder/out" 2>&1 && grep 'setuptools' "$folder/out"
}

echo "# seed $tap_seed"
test_is installed installs ./python
test_is readme readme
for case in random_problems gaps_and_fixed errors copies clocks proofs interrupts csv_files traces snapshots; do
    test_is $case "$python" tests/tools/test_python.py $case "$tap_seed" "$folder"
done
if "$python" -c 'import numpy' 2>/dev/null; then
    test_is arrays "$python" tests/tools/test_python.py arrays "$tap_seed" "$folder"
else
    skip arrays "python3 has no numpy"
fi
if "$python" -c 'import omnimalloc' 2>/dev/null; then
    test_is omnimalloc omnimalloc
else
    skip omnimalloc "python3 has no omnimalloc"
fi
nightly_test_is source_archive source_archive
test_is no_compiler no_compiler
test_is no_back_end no_back_end
tap_end
