"""Ekya's thief scheduler as plain loops over jobs; it shares nothing with the member."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

EQUAL = 1e-12


def timeline(work, shares):
    """Return the shares of all jobs by time; a training that ends leaves its share to all that run."""
    now, times, left = dict(shares), {0.0: dict(shares)}, {job: work[job] for job in work if shares[job] > 0}
    clock = 0.0
    while left:
        ends = {job: clock + left[job] / now[job] for job in left}
        stop = min(ends.values())
        for job in left:
            left[job] -= now[job] * (stop - clock)
        ended = [job for job in left if ends[job] <= stop * (1 + EQUAL)]
        freed = sum(now[job] for job in ended)
        for job in ended:
            del left[job]
            now[job] = 0.0
        running = [job for job in now if job in left or job not in work]
        for job in running:
            now[job] += freed / len(running)
        clock = stop
        times[clock] = dict(now)
    return times


def score(cameras, chosen, shares, window):
    """Return the integral of all cameras' accuracies over a window, divided by both."""
    jobs = {("train", i): cameras[i][2][k][0] for i, k in chosen.items() if k is not None}
    times, total = timeline(jobs, shares), 0.0
    for i, (start, full, configs) in cameras.items():
        ends = [t for t, now in times.items() if ("train", i) in jobs and t > 0 and now["train", i] == 0]
        end = min(ends) if ends and shares["train", i] > 0 else window
        after = configs[chosen[i]][1] if chosen[i] is not None else start
        for begin, stop in pairwise(sorted({*(t for t in times if t < window), window})):
            share = max(times[begin]["infer", i], 1e-12)
            scale = float(np.interp(full / share, [1, 2, 4, 8], [1, 0.95, 0.85, 0.7], right=0))
            total += (stop - begin) * scale * (after if begin >= end else start)
    return total / window / len(cameras)


def first_best(scored):
    best = max(value for _, value in scored)
    return next((option, value) for option, value in scored if value >= best - EQUAL)


def thief(cameras, window, step=0.1, rounds=3):
    """Return configurations and shares; cameras have accuracy, full share and configurations."""
    train = infer = dict.fromkeys(cameras, 0.5 / len(cameras))
    for _ in range(rounds):
        chosen = {}
        for i, (start, _, configs) in cameras.items():
            alone = {("train", i): train[i], ("infer", i): infer[i]}
            options = [k for k, (_, after) in enumerate(configs) if after >= start]
            scored = [(k, score({i: cameras[i]}, {i: k}, alone, window)) for k in options]
            chosen[i] = first_best(scored)[0] if scored else None
        jobs = [("train", i) for i in cameras if chosen[i] is not None] + [("infer", i) for i in cameras]
        best = dict.fromkeys(jobs, 1 / len(jobs))
        value = score(cameras, chosen, best, window)
        for robber in jobs:
            for victim in [job for job in jobs if job != robber]:
                scored = [(best, value)]
                for nth in range(1, int(np.ceil(best[victim] / step - EQUAL)) + 1):
                    taken = min(nth * step, best[victim])
                    other = {**best, victim: best[victim] - taken, robber: best[robber] + taken}
                    scored.append((other, score(cameras, chosen, other, window)))
                best, value = first_best(scored)
        train = {i: best.get(("train", i), 0.0) for i in cameras}
        infer = {i: best["infer", i] for i in cameras}
    return tuple(chosen.values()), [*train.values(), *infer.values()]
