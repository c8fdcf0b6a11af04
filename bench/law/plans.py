"""Compares the outputs of bench/law/plans.c of two commits: plans.py OLD NEW"""
import sys


def load(path):
    cases = {}
    for line in open(path):
        words = line.split()
        if len(words) < 2 or words[1] == 'failed':
            cases[words[0]] = None
            continue
        pairs = words[2:]
        cases[words[0]] = {pairs[i]: float(pairs[i + 1]) for i in range(0, len(pairs) - 1, 2)}
    return cases


old, new = load(sys.argv[1]), load(sys.argv[2])
least = float(sys.argv[3]) if len(sys.argv) > 3 else 1e-3
both = [k for k in old if old[k] and new.get(k)]
fits = [k for k in both if 'step' in old[k] and 'step' in new[k]]
ratio = {k: new[k]['step'] / old[k]['step'] for k in fits}
print(f"{len(old)} cases, {len(both)} of both, {len(fits)} fit; lost "
      f"{[k for k in both if 'step' in old[k] and 'step' not in new[k]]}, won "
      f"{[k for k in both if 'step' not in old[k] and 'step' in new[k]]}")
for name, share in (('longer', 1e-9), ('by .01 %', 1e-4), ('by .1 %', 1e-3), ('by 1 %', 1e-2)):
    print(f"{name:10} {sum(r > 1 + share for r in ratio.values()):6} shorter "
          f"{sum(r < 1 - share for r in ratio.values()):6}")
print(f"sum of ratios {sum(ratio.values()) / max(len(ratio), 1):.6f}, worst {max(ratio.values(), default=1):.5f}, "
      f"best {min(ratio.values(), default=1):.5f}")
seconds = [sum(c[k]['cpu'] for k in both) for c in (old, new)]
print(f"processor time {seconds[0]:.1f} -> {seconds[1]:.1f} s, longest {max(old[k]['cpu'] for k in both):.2f} -> "
      f"{max(new[k]['cpu'] for k in both):.2f} s")
for k in sorted((k for k in fits if ratio[k] > 1 + least), key=lambda k: -ratio[k]):
    print(f"case {k}: {old[k]} -> {new[k]}: {ratio[k]:.6f}")
