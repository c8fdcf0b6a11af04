#!/usr/bin/env python3
"""cuda_sass.py - how near to the memory's bandwidth the trainer's kernels can come, by their machine code.  Needs no GPU.

    nvcc -arch=sm_90 -std=c++17 -O3 -I. -Iexamples -DGPT_CUDA_BF16 -DMEMO_CUDA_IMPLEMENTATION -cubin \
        examples/gpt/kernels/cuda.cu -o build/kernels.cubin
    nvcc -arch=sm_90 -std=c++17 -O1 -I. -Iexamples -Itests/cuda -cubin examples/gpt/kernels/cudnn.cu -o build/cudnn.cubin
    nvcc -arch=sm_90 -std=c++17 -O3 -I. -DLINKED -cubin bench/cuda_kernels.cu -o build/rows.cubin
    python3 bench/cuda_sass.py build/kernels.cubin build/cudnn.cubin build/rows.cubin

For each kernel it takes the loop with the most bytes for its instructions, and the other loops that only access 16 bytes
at a time (other types), and prints bounds, in parts of an H200's bandwidth:
    issue   4 instructions a clock and multiprocessor, 16 lanes a clock in the special-function unit, against the bytes
            that the loop moves; instructions of both sides of a branch count
    flight  bytes of the loads that the resident warps have under way before the first use, against latency x bandwidth
            (Little's law)
    fill    parts of the sectors of 32 bytes that a store of a warp fills: lanes that store 16 bytes of 32 each time take
            the L2, taken as 5.5 TB/s, twice.  The first-level cache joins loads
Accesses of 16 bytes count whole, even if they hit a cache.  The last lines add up what a layer of the trainer moves, at
most at 90 % of the bandwidth, beside its products at 0.75 and its attention at 0.6 and 0.55 of the peak.  This is an
estimate from code, not a measurement.  Needs cuobjdump, part of CUDA."""
import re
import subprocess
import sys

CLOCK_HZ, SMS, BANDWIDTH, L2_BANDWIDTH, LATENCY_S = 1.755e9, 132, 4.8e12, 5.5e12, 700e-9
BYTES_PER_CLOCK = BANDWIDTH / CLOCK_HZ / SMS  # of a multiprocessor
REGISTERS, WARPS_MAX, BLOCK_WARPS = 65536, 64, 8


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def width(opcode):  # bytes a lane
    parts = opcode.split(".")
    for part, n in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1)):
        if part in parts:
            return n
    return 4


def registers(cubin):
    found = re.findall(r"Function (\S+?):\s*\n\s*REG:(\d+)", run("cuobjdump", "-res-usage", cubin))
    return {name: int(n) for name, n in found}


def kernels(cubin):
    name, code = None, []
    for line in run("cuobjdump", "-sass", cubin).splitlines():
        if "Function : " in line:
            if name:
                yield name, code
            name, code = line.split(": ")[1].strip(), []
        match = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line)
        if match:
            code.append((int(match.group(1), 16), match.group(2)))
    if name:
        yield name, code


def opcode_of(text):
    return re.sub(r"^@!?U?P\d+\s+", "", text).split()[0]


def loops(code):
    for address, text in code:
        match = re.search(r"\bBRA(?:\.\S+)?\s.*?(0x[0-9a-f]+)", text)
        if match and int(match.group(1), 16) <= address:
            begin = int(match.group(1), 16)
            yield [opcode_and_text for at, opcode_and_text in code if begin <= at <= address]


def moved(body):
    return sum(width(opcode_of(t)) for t in body if opcode_of(t).startswith(("LDG", "STG")))


def stored(body):
    """Bytes of the stores, and of the sectors that these take: a lane's neighbors of one address register lie side by side."""
    accesses = []
    for text in body:
        match = re.search(r"^STG.*\[(R\d+)(?:\.64)?(?:\+(-?0x[0-9a-f]+))?\]", text[text.index(opcode_of(text)):])
        if match:
            accesses.append((match.group(1), int(match.group(2) or "0", 16), width(opcode_of(text))))
    n_bytes, n_sectors = 0, 0
    for base, at, n in accesses:
        begin, end = at, at + n
        for other, first, count in sorted(accesses):
            if other == base and first <= end and first + count > end:
                end = first + count
        for other, first, count in sorted(accesses, reverse=True):
            if other == base and first + count >= begin and first < begin:
                begin = first
        n_bytes += n
        n_sectors += n * min(end - begin, 32) // n if end - begin > n else n
    return n_bytes, max(n_sectors, n_bytes)


def in_flight(body):
    """The most bytes of loads whose results no instruction has used yet."""
    most, waiting = 0, {}
    for text in body:
        opcode = opcode_of(text)
        operands = re.findall(r"\bR(\d+)\b", text)
        is_load = opcode.startswith("LDG")
        for r in operands[is_load:]:
            for first in [f for f, n in waiting.items() if f <= int(r) < f + max(n // 4, 1)]:
                waiting.clear()  # the first use waits; what was under way has arrived soon after
                break
        if is_load:  # only now: its address may have been in the same register
            waiting[int(operands[0])] = width(opcode)
            most = max(most, sum(waiting.values()))
    return most


def short(name):
    found = re.search(r"_Z\d+(\w+?)_kernel(?:I((?:Li\d+E)+)E)?", name)
    if not found:
        return name
    numbers = re.findall(r"Li(\d+)E", found.group(2) or "")
    return found.group(1) + ("<" + ", ".join(numbers) + ">" if numbers else "")


# Elements that a layer's kernel moves a token and column: forward and backward, without dropout.
LAYER = {"gpt_norm<8, 16>": 4, "gpt_norm_backward<8, 16>": 8, "gpt_norm_sums<8>": 4, "gpt_rope<8>": 8, "gpt_dropout<8>": 10,
         "gpt_elements<8, 5>": 8, "gpt_elements<8, 6>": 12, "attention_put": 4, "copy": 2}
HIDDEN, TOKENS, PEAK = 4096, 65536, 989e12


def put_layer(bounds):
    own_s = sum(2 * n * HIDDEN * TOKENS / BANDWIDTH / min(0.9, bounds.get(name, 1)) for name, n in LAYER.items())
    others_s = (72 * TOKENS * HIDDEN ** 2 / 0.75 + TOKENS ** 2 * HIDDEN * (2 / 0.6 + 5 / 0.55)) / PEAK
    print(f"a layer of {HIDDEN} columns, {TOKENS} tokens: own kernels {1e3 * own_s:.1f} ms, products and attention "
          f"{1e3 * others_s:.0f} ms: {own_s / others_s:.1%}")


def is_whole(body):
    accesses = [opcode_of(t) for t in body if opcode_of(t).startswith(("LDG", "STG"))]
    return len(accesses) > 1 and all(width(a) == 16 for a in accesses)


def put(name, body, n_registers):
    """Prints a loop's line, and returns its bound."""
    n_bytes, n = moved(body), len(body)
    n_mufu = sum(opcode_of(t).startswith("MUFU") for t in body)
    clocks = max(n / 4, n_mufu * 32 / 16)  # of a multiprocessor, for one warp
    issue = n_bytes * 32 / clocks / BYTES_PER_CLOCK
    regs = (n_registers + 7) // 8 * 8
    warps = min(WARPS_MAX, REGISTERS // (regs * 32 * BLOCK_WARPS) * BLOCK_WARPS)
    flight = in_flight(body) * 32 * warps / (LATENCY_S * BANDWIDTH / SMS)
    of_stores, of_sectors = stored(body)
    l2 = L2_BANDWIDTH / BANDWIDTH * n_bytes / (n_bytes - of_stores + of_sectors)
    bound = min(1, issue, flight, l2)
    print(f"{short(name):38} {regs:4} {n_bytes:5} {n:5} {n_mufu:4} {issue:6.0%} {flight:6.0%} "
          f"{of_stores / max(of_sectors, 1):6.0%} {bound:6.0%}")
    return bound


def main():
    bounds = {}
    print(f"{'kernel':38} {'regs':>4} {'bytes':>5} {'instr':>5} {'MUFU':>4} {'issue':>6} {'flight':>6} {'fill':>6} {'bound':>6}")
    for cubin in sys.argv[1:]:
        used = registers(cubin)
        for name, code in kernels(cubin):
            bodies = [b for b in loops(code) if moved(b)]
            if not bodies:
                continue
            best = max(bodies, key=lambda b: moved(b) / len(b) if moved(b) >= 16 else 0)
            for body in [b for b in bodies if b is not best and is_whole(b)] + [best]:
                bounds[short(name)] = put(name, body, used.get(name, 32))
    put_layer(bounds)


main()
