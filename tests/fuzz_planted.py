#!/usr/bin/env python3
"""fuzz_planted.py - does each fuzzer find bugs in the time that it has with each push?  Run from the project's root: make -f .ci/checks.mk fuzz-planted

  python3 tests/fuzz_planted.py [--seconds 5] [--seeds 1,2] [PART ...]

The changes of tests/fuzz_planted.txt are compiled into one copy of the tree, in build/fuzz-planted, and MEMO_PLANTED=K makes the
change K, as in mutation.py; a tool in Python gets a copy for each change.  Each fuzzer runs with each of its changes and each seed
for SECONDS of processor time, from tests/corpus; without a change it must find nothing.  PART: only changes whose first line contains one.
The last line is "N found, N missed"."""
import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, "tests")
import mutation  # noqa: E402

FOLDER = "build/fuzz-planted"


def read_changes():
    """(file, fuzzer, old text, new text) of each."""
    changes = []
    for line in open("tests/fuzz_planted.txt"):
        if line.startswith("= "):
            changes.append([*line.split()[1:3], "", ""])
        elif line[:2] in ("- ", "+ "):
            changes[-1][2 + (line[0] == "+")] = line[2:].rstrip("\n")
    return changes


def planted(path, text, old, new, k):
    if text.count(old) != 1:
        raise SystemExit(f"fuzz_planted.py: {path}: not once: {old}")
    if path.endswith(".py"):
        return text.replace(old, new)
    made = f"{{ if (is_planted({k})) {{ {new} }} else {{ {old} }} }}" if old.endswith(";") else f"(is_planted({k}) ? ({new}) : ({old}))"
    return text.replace(old, made)


def build(changes):
    shutil.rmtree(FOLDER, ignore_errors=True)
    for path in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n"):
        if os.path.isfile(path):
            os.makedirs(os.path.dirname(f"{FOLDER}/{path}") or ".", exist_ok=True)
            shutil.copy2(path, f"{FOLDER}/{path}")
    for k, (path, _, old, new) in changes.items():
        text = open(path if path.endswith(".py") else f"{FOLDER}/{path}").read()
        with open(f"{FOLDER}/{k}.py" if path.endswith(".py") else f"{FOLDER}/{path}", "w") as file:
            file.write(planted(path, text, old, new, k))
    with open(f"{FOLDER}/planted.h", "w") as header, open(f"{FOLDER}/planted.c", "w") as source:
        header.write(mutation.HEADER)
        source.write(mutation.SOURCE)
    copy = os.path.abspath(FOLDER)
    subprocess.run(["cc", "-O1", "-D_DEFAULT_SOURCE", "-c", "planted.c", "-o", "planted.o"], cwd=FOLDER, check=True)
    subprocess.run(["make", "-f", ".ci/checks.mk", "-k", "OPTIMIZE_FUZZ=-O0", f"ASSERTS='-DMEMO_ASSERT(condition)=assert(condition)' -include {copy}/planted.h "
                    f"{copy}/planted.o", *sorted({f"build/fuzz/fuzz_{change[1]}" for change in changes.values()})], cwd=FOLDER,
                   env={**os.environ, "MEMO_NO_INSTALL": "1"})


def finds(fuzzer, k, path, seconds, seed):
    """Whether it ends with a failure before the system ends it; its output is in FOLDER."""
    corpus, log = f"found/{fuzzer}-{k}-{seed}", f"{FOLDER}/{fuzzer}-{k}-{seed}.log"
    os.makedirs(f"{FOLDER}/{corpus}")
    environment = {**os.environ, "MEMO_PLANTED": str(k)}
    if path.endswith(".py") and k:
        environment["FUZZ_TOOL"] = f"{k}.py"
    with open(log, "w") as out:
        return subprocess.run([f"build/fuzz/fuzz_{fuzzer}", "-max_total_time=600", f"-seed={seed}", "-max_len=4096", "-timeout=60",
                               f"-artifact_prefix=found/{fuzzer}-", "-verbosity=0", "-print_final_stats=1", corpus, f"tests/corpus/{fuzzer}"],
                              cwd=FOLDER, stdout=out, stderr=out, env=environment,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
                              ).returncode not in (0, 72, -signal.SIGXCPU)  # 72: see tests/support/fuzz.h


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    changes = {k: change for k, change in enumerate(read_changes(), 1)
               if any(part in " ".join(change[:2]) for part in arguments.parts or [""])}
    build(changes)
    n_found = n_missed = 0
    for fuzzer in sorted({change[1] for change in changes.values()}):
        if finds(fuzzer, 0, "", arguments.seconds, 1):
            print(f"FAIL  {fuzzer}: finds something without a change, or did not build: {FOLDER}/{fuzzer}-0-1.log", flush=True)
            n_missed += 1
            continue
        for k, (path, of, _, new) in changes.items():
            for seed in arguments.seeds.split(",") if of == fuzzer else []:
                found = finds(fuzzer, k, path, arguments.seconds, seed)
                n_found, n_missed = n_found + found, n_missed + (not found)
                print(f"{'found ' if found else 'MISSED'} {fuzzer}, seed {seed}, change {k}: {path}: {new}", flush=True)
    print(f"{n_found} found, {n_missed} missed")
    return n_missed > 0


if __name__ == "__main__":
    sys.exit(main())
