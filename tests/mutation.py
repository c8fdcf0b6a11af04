#!/usr/bin/env python3
"""mutation.py - how many random changes of the rooms do the tests see?  Run from the project's root: make -f .ci/checks.mk mutation

  python3 tests/mutation.py [--seed N[,N]] [--count 40] [--plain] [--seconds N] [--jobs 2] [--least 36]
                            [--tests "test_a test_b"] [PART ...]

COUNT one-line changes of src/ (no CUDA) and extras/ are drawn from each seed: another comparison, a statement or a wait less, an
argument or a sum off by one.  PART: only files whose path contains one.  --tests: only these programs look.  All are compiled into
one copy of the tree, in build/mutation, and MEMO_PLANTED=K in the environment makes the change K.  AddressSanitizer and
UndefinedBehaviorSanitizer look too: what reads beyond an array may have no other end; --plain leaves them out, and takes a third of
the time.  One run of each test program shows which changes it reaches.  Then each change runs the programs that reach it, the fast ones first, until a check is false, or,
with --seconds, until those that are left would take more of processor time; under MEMO_TEST_ALL these run as under `make test-all`.
A change that none sees is shown: find out whether it changes behaviour, and write its test, or its line in tests/mutation_same.txt,
of which none is drawn.  A line for each seed, and the last line, is "N caught, N survived, N reached by no test".  Exit status 1 if
fewer than --least of COUNT are caught of a seed."""
import argparse
import concurrent.futures
import glob
import os
import random
import re
import shutil
import subprocess
import time

FOLDER = "build/mutation"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
SOURCE = r"""#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int is_planted(int number);
/* Which change is made, and a file with a byte for each that says whether a program came by.  Threads store the same. */
int is_planted(int number) {
    static volatile int planted = -1;
    static unsigned char none[1 << 16], *volatile seen = none;
    if (planted < 0) {
        const char *made = getenv("MEMO_PLANTED"), *path = getenv("MEMO_PLANTED_SEEN");
        const int file = path ? open(path, O_RDWR) : -1;
        void* map = file < 0 ? MAP_FAILED : mmap(NULL, 1 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) seen = (unsigned char*)map;
        if (file >= 0) close(file);
        planted = made ? atoi(made) : 0;
    }
    seen[number] = 1;
    return planted == number;
}
"""
HEADER = """#ifdef __cplusplus
extern "C"
#endif
int is_planted(int number);
"""
# Scripts that compile headers in ways of their own see no change that other programs do not see.
OTHERS = re.compile("compile|cuda|python|install|cmake|packaging|examples|nccl|tsan|infinitrain|kann|audit|enums|snapshot_to|xla")
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}


def closing(text, at):
    """Where the parenthesis that opens at `at` closes; -1: on another line."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return -1


def code_of(line):
    """The line with blanks in place of comments and texts."""
    return re.sub(r"/\*.*?(\*/|$)|\"(\\.|[^\"])*\"|'(\\.|[^'])*'", lambda m: " " * len(m.group()), line)


def function_lines(lines):
    """(number, line, its code, whether a statement begins in it) of each line inside of a function."""
    head, inside, begins, comment = "", False, True, False
    for number, line in enumerate(lines):
        code = code_of(line).rstrip()
        if comment or code.startswith("#") or code.endswith("\\"):
            comment = comment and "*/" not in line
            continue
        comment = "/*" in line and "*/" not in line[line.rindex("/*"):]
        if not code:
            continue
        if inside and code[0] != "}":
            yield number, line, code, begins
        elif not code[0].isspace():
            head, inside = code, False
        if not inside and code.endswith("{"):
            inside = "(" in head and not re.match(r"typedef|struct|enum|union|extern|static const", head)
        begins = bool(re.search(r"([;{}:]|\belse)$", code) or re.match(r" *(if|for|while|else if) \(.*\)$", code))


def expressions(code):
    """(begin, end) of conditions and of what is assigned or returned."""
    found = []
    for match in re.finditer(r"\b(if|while) \(", code):
        end = closing(code, match.end() - 1)
        if end > 0:
            found.append((match.end(), end))
    loop = re.match(r" *for \([^;]*; ([^;]+); [^;]*\)", code)
    if loop:
        found.append(loop.span(1))
    value = re.search(r"(?: = |return )([^={][^;]*);$", code)
    if value and "for (" not in code and "static" not in code:
        found.append(value.span(1))
    return [(a, b) for a, b in found if code[a:b].count("(") == code[a:b].count(")")]


def changes(code, begins):
    """(kind, (begin, end), (begin, end, new text)) of a line: in an expression or statement, a part becomes another; or all of a
    statement is dropped: None."""
    first = len(code) - len(code.lstrip())
    is_whole = begins and code.endswith(";") and code.count("(") == code.count(")")
    is_declared = re.match(r" *((const|unsigned|struct) )*\w+\*? \**\w+(\[| = |;|,)", code) and not code.lstrip().startswith("return")
    is_call = is_whole and not is_declared and re.match(
        r" *(?!return|goto|break|continue|else|for|MEMO_ASSERT)[\w>.\[\]()*-]+(\(| [-+|&*]?= |\+\+|--)", code)
    if is_call or (is_whole and re.match(r" *if \(", code)):
        yield "wait" if re.search(r"wait|join|sync", code) else "statement", (first, len(code)), None
    for begin, end in expressions(code) + ([(first, len(code))] if is_call else []):
        text = code[begin:end]
        for match in re.finditer(r" (<=?|>=?|==|!=|&&|\|\|) ", text):
            yield "comparison", (begin, end), (begin + match.start(1), begin + match.end(1), OTHER[match.group(1)])
        # 1 * x: compiles for numbers alone.
        for match in re.finditer(r"(?<=[(, ])(\w+(?:(?:->|\.)\w+)*)(?=[,)])", text):
            if "(" in text[:match.start()] and match.group() not in ("NULL", "void"):
                for sign in "+-":
                    yield "argument", (begin, end), (begin + match.start(), begin + match.end(), f"1 * {match.group()} {sign} 1")
        for match in re.finditer(r" [+-] 1\b", text):
            yield "argument", (begin, end), (begin + match.start(), begin + match.end(), "")


def candidates(parts):
    """The changes of all rooms by kind."""
    found = {}
    for path in sorted(glob.glob("src/**/*.h", recursive=True) + glob.glob("extras/memo_*.h")):
        if "cuda" in path or not any(part in path for part in parts or [""]):
            continue
        for number, line, code, begins in function_lines(open(path).read().split("\n")):
            for kind, part, edit in changes(code, begins):
                found.setdefault(kind, []).append((path, number, line.rstrip(), part, edit))
    return found


def edited(line, part, edit):
    return line[part[0]:edit[0]] + edit[2] + line[edit[1]:part[1]]


def planted(change, k):
    path, number, line, (begin, end), edit = change
    old, is_statement = line[begin:end], end == len(code_of(line).rstrip())
    if edit is None:
        made = f"{{ if (!is_planted({k})) {{ {old} }} }}"
    elif is_statement:
        made = f"{{ if (is_planted({k})) {{ {edited(line, (begin, end), edit)} }} else {{ {old} }} }}"
    else:
        made = f"(is_planted({k}) ? ({edited(line, (begin, end), edit)}) : ({old}))"
    return line[:begin] + made + line[end:]


def new_line(change):
    """The line with the change, or all that is dropped."""
    path, number, line, part, edit = change
    return "dropped: " + line.strip() if edit is None else edited(line, (0, len(line)), edit).strip()


def shown(change):
    return f"{change[0]}:{change[1] + 1}\n      {change[2].strip()}\n      {new_line(change)}"


def same():
    """(path, new line) of changes that alter nothing."""
    lines = [line.split("\t") for line in open("tests/mutation_same.txt") if line.strip() and line[0] != "#"]
    return {(path, text) for path, text, reason in lines}


def run(command, log, **environment):
    with open(log, "w") as out:
        return subprocess.run(command, cwd=FOLDER, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                              env={**os.environ, **environment}).returncode


def draw(found, source):
    """Half comparisons and waits, and half statements and arguments; a line once."""
    kinds, lines = [kind for kind in ["comparison"] * 3 + ["wait"] + ["statement"] * 2 + ["argument"] * 2 if kind in found], set()
    left_out = same()
    while True:
        change = source.choice(found[source.choice(kinds)])
        if change[:2] not in lines and (change[0], new_line(change)) not in left_out:
            lines.add(change[:2])
            yield change


def plant(chosen, paths):
    """Writes the changes into the copy's rooms, from the originals; paths: rooms changed so far."""
    paths |= {change[0] for change in chosen.values()}
    for path in paths:
        lines = open(path).read().split("\n")
        for k, change in chosen.items():
            if change[0] == path:
                lines[change[1]] = planted(change, k)
        with open(f"{FOLDER}/{path}", "w") as file:
            file.write("\n".join(lines))
    subprocess.run(["sh", "scripts/amalgamate"], cwd=FOLDER, check=True)


def compiles(compiler):
    """The numbers of changes in lines that do not compile, in the library of the tests and in extras/memo_pack.h."""
    result = subprocess.run(f"{compiler} -std=c99 -fsyntax-only -fmax-errors=0 -w -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE "
                            "-I. -Itests/support -include planted.h tests/lib/memo.c tests/plan/test_pack.c",
                            shell=True, cwd=FOLDER, capture_output=True, text=True)
    bad = set()
    for path, number in re.findall(r"^(?:\./|tests/lib/\.\./\.\./)?([\w/.]+):(\d+):\d+: error", result.stderr, re.M):
        bad |= {int(k) for k in re.findall(r"is_planted\((\d+)\)", open(f"{FOLDER}/{path}").read().split("\n")[int(number) - 1])}
    if result.returncode and not bad:
        raise SystemExit("mutation.py: does not compile:\n" + result.stderr[:2000])
    return bad


def build(arguments):
    """A copy of the tree with COUNT changes that compile, and its programs; returns the changes."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for path in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n"):
        if os.path.isfile(path):
            os.makedirs(os.path.dirname(f"{FOLDER}/{path}") or ".", exist_ok=True)
            shutil.copy2(path, f"{FOLDER}/{path}")
    open(f"{FOLDER}/planted.h", "w").write(HEADER)
    open(f"{FOLDER}/planted.c", "w").write(SOURCE)
    found, compiler = candidates(arguments.parts), os.environ.get("CC", "cc")
    numbers = {seed: range(1 + i * arguments.count, 1 + (i + 1) * arguments.count) for i, seed in enumerate(arguments.seed)}
    sources, lines = {seed: draw(found, random.Random(seed)) for seed in numbers}, set()
    flags = "" if arguments.plain else SANITIZERS
    os.environ["CC"] = f"{compiler} {flags} -include {os.path.abspath(FOLDER)}/planted.h {os.path.abspath(FOLDER)}/planted.o"
    subprocess.run([compiler, "-O2", "-D_DEFAULT_SOURCE", "-c", "planted.c", "-o", "planted.o"], cwd=FOLDER, check=True)
    chosen, paths, bad = {}, set(), {k for of_seed in numbers.values() for k in of_seed}
    while bad:
        for seed, of_seed in numbers.items():
            for k in of_seed:
                if k in bad:
                    chosen[k] = next(change for change in sources[seed] if change[:2] not in lines)
                    lines.add(chosen[k][:2])
        plant(chosen, paths)
        bad = compiles(compiler)
    copy = os.path.abspath(FOLDER)
    tests = [f"TESTS={arguments.tests}"] if arguments.tests else []
    names = subprocess.run(["make", "-s", "-f", "Makefile", "-f", "-", *tests, "names"], cwd=FOLDER, capture_output=True, text=True,
                           check=True, input="names: ; @echo $(if $(TEST_SCRIPTS),$(SCRIPTED)) : $(TEST_SCRIPTS) $(TEST_PROGRAMS)").stdout.strip().split("\n")[-1].split()
    run(["make", "-k", f"-j{arguments.jobs}", f"CC={compiler}", f"CPPFLAGS=-include {copy}/planted.h", f"LDLIBS={copy}/planted.o", f"CFLAGS={flags}", *tests,
         "test-programs", *names[:names.index(":")]], f"{FOLDER}/build.log", MEMO_NO_INSTALL="1")
    return numbers, chosen, [name for name in names[names.index(":") + 1:] if os.path.isfile(f"{FOLDER}/{name}") and not OTHERS.search(name)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=lambda text: [int(seed) for seed in text.split(",")], default=[int(time.time())])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seconds", type=int, default=1 << 30)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--least", type=int, default=36)
    parser.add_argument("--tests")
    parser.add_argument("parts", nargs="*")
    arguments = parser.parse_args()
    print("seed " + ",".join(map(str, arguments.seed)), flush=True)
    numbers, chosen, programs = build(arguments)
    os.makedirs(f"{FOLDER}/logs")

    def reach(program):
        """Runs without a change: the seconds of processor time, and the changes that are reached; None: fails."""
        name = os.path.basename(program)
        seen = os.path.abspath(f"{FOLDER}/logs/{name}.seen")
        open(seen, "wb").write(bytes(1 << 12))
        log = f"{FOLDER}/logs/{name}.unchanged"
        if run(["sh", "tests/run.sh", f"logs/{name}", program], log, MEMO_PLANTED="0", MEMO_PLANTED_SEEN=seen):
            return None
        used = int(re.findall(r"of processor time (\d+) s", open(log).read())[-1])
        return used, {k for k, byte in enumerate(open(seen, "rb").read()) if byte}, program

    def is_seen(k):
        """The program that sees a change; "": none does; None: none reaches it."""
        reaching = [(used, program) for used, reached, program in runs if k in reached]
        left = arguments.seconds
        for used, program in sorted(reaching):
            if used > left:
                break
            left -= used
            if run(["sh", "tests/run.sh", f"logs/{k}", program], f"{FOLDER}/logs/{k}.log", MEMO_PLANTED=str(k), MEMO_TEST_FIRST="1",
                   MEMO_TEST_TIMEOUT=str(20 + 2 * used)):
                return os.path.basename(program)
        return "" if reaching else None

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [result for result in pool.map(reach, programs) if result]
        print(f"{len(runs)} of {len(programs)} programs pass without a change, {sum(r[0] for r in runs)} s of processor time", flush=True)
        ends = dict.fromkeys(["caught", "survived", "reached by no test"], 0)
        counts = {seed: dict(ends) for seed in numbers}
        seed_of = {k: seed for seed, of_seed in numbers.items() for k in of_seed}
        for k, by in zip(seed_of, pool.map(is_seen, seed_of)):
            what = "caught" if by else "survived" if by == "" else "reached by no test"
            counts[seed_of[k]][what] += 1
            print(f"{k:3} {what}{' by ' + by if by else ''}: {shown(chosen[k])}", flush=True)
    for seed, of_seed in counts.items() if len(counts) > 1 else []:
        print(f"seed {seed}: " + ", ".join(f"{n} {what}" for what, n in of_seed.items()))
    print(", ".join(f"{sum(of_seed[what] for of_seed in counts.values())} {what}" for what in ends))
    return any(of_seed["caught"] < min(arguments.least, arguments.count) for of_seed in counts.values())


if __name__ == "__main__":
    raise SystemExit(main())
