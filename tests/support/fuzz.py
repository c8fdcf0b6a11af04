"""fuzz.py - a loop that changes valid texts a little: one to three words or lines.  Texts that reach new lines of the program are
kept, and changed further; looking for new lines takes as long as the program, so one text of three is looked at.  As libFuzzer does
for programs in C: FOLDER gets what is new, the other folders have the first texts.

  run(target, module, arguments, change)   arguments: -max_total_time=SECONDS -seed=N -artifact_prefix=PATH FOLDER OTHER...

SECONDS are of processor time.  target(text) raises an exception if something is wrong; then PATHfound has the text.  change(random, text): another text."""
import atexit
import hashlib
import os
import random
import re
import shutil
import sys
import tempfile
import time

# Where a target writes its files: in memory, if that is possible.
folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
atexit.register(shutil.rmtree, folder, ignore_errors=True)

NUMBERS = ("0", "1", "-1", "2", "64", "2147483648", "9223372036854775807", "1" * 30, "x", "")


WORD = re.compile(r"-?\d+|[^\s\d]+")


def some_word(rng, text):
    """Where a word begins and ends."""
    at = text.rfind("\n", 0, rng.randrange(len(text) + 1)) + 1
    words = [match.span() for match in WORD.finditer(text, at, (text + "\n").index("\n", at))]
    return rng.choice(words) if words else (at, at)


def changed_word(rng, text):
    begin, end = some_word(rng, text)
    word, way = text[begin:end], rng.randrange(4)
    if way < 2 and re.fullmatch(r"-?\d+", word):
        word = str(int(word) + rng.choice((-2, -1, 1, 2)))
    elif way < 3:
        word = text[slice(*some_word(rng, text))]
    else:
        word = rng.choice(NUMBERS)
    return text[:begin] + word + text[end:]


def changed_lines(rng, text):
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    way = rng.randrange(3)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def changed(rng, text):
    for _ in range(rng.randint(1, 3)):
        text = changed_word(rng, text) if rng.randrange(3) else changed_lines(rng, text)
    return text[:4096]


def steps_of(target, text, module):
    """The pairs of lines of the module that follow each other."""
    steps, path = set(), module.__file__

    def enter(frame, event, _):
        if frame.f_code.co_filename != path:
            return None
        last = [0]

        def line(frame, event, _):
            steps.add((frame.f_code.co_firstlineno, last[0], frame.f_lineno))
            last[0] = frame.f_lineno
            return line
        return line

    sys.settrace(enter)
    try:
        target(text)
    finally:
        sys.settrace(None)
    return steps


def run(target, module, arguments, change=changed):
    options = dict(argument[1:].split("=") for argument in arguments if argument[0] == "-")
    places = [argument for argument in arguments if argument[0] != "-"]
    seed, found = int(options.get("seed", 0)), options.get("artifact_prefix", "") + "found"
    rng, end = random.Random(seed or None), time.process_time() + float(options["max_total_time"])
    os.makedirs(places[0], exist_ok=True)
    first = []
    for place in places:
        for name in sorted(os.listdir(place)):
            with open(os.path.join(place, name), encoding="utf-8", newline="") as file:
                first.append(file.read())
    texts, seen, n = [], set(), 0
    while first or time.process_time() < end:
        is_first = len(first) > 0
        text = first.pop() if is_first else change(rng, rng.choice(texts))
        n += 1
        try:
            if not is_first and rng.randrange(3):
                target(text)
                continue
            steps = steps_of(target, text, module)
        except BaseException:
            with open(found, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            print("found, after %d: %s" % (n, found), flush=True)
            raise
        if steps <= seen and texts:
            continue
        seen |= steps
        texts.append(text)
        with open(os.path.join(places[0], hashlib.sha1(text.encode()).hexdigest()), "w", encoding="utf-8", newline="") as file:
            file.write(text)
    print("stat::number_of_executed_units: %d" % n)
