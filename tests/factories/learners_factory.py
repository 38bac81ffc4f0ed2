"""Applications with inference and training, as schedulers use them and as demands of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import TaskCost, Variant
from driftlab.platform.scheduling.base import Demand, SchedulerInput, Scheduling, TrainingConfig, TrainingOffer
from driftlab.platform.scheduling.candidates import Candidate, LearningApp, read_apps
from driftlab.platform.scheduling.evaluation import AccuracyFactor
from driftlab.platform.scheduling.inference_shares import split_inference_share
from driftlab.platform.scheduling.sequencing import plan_steps
from driftlab.platform.world.processor import accelerator_share

Floats = npt.NDArray[np.float64]
NETWORK = Variant("net", 0.6, 10**6, 0.025)  # a share of 0.25 at ten frames per second
FPS = 10.0


def app(index: int, now: float, *configs: tuple[float, float], full_share: float = 0.25) -> LearningApp:
    """Return an application with (isolated seconds, accuracy afterwards) of each configuration."""
    candidates = tuple(Candidate(k, seconds, now, after) for k, (seconds, after) in enumerate(configs))
    return LearningApp(index, f"app{index}", now, full_share, candidates)


CAMERAS = (app(0, 0.5, (10, 0.65), (60, 0.8)), app(1, 0.7, (10, 0.72), (60, 0.75)))


def apps(seed: int, count: int, configs: int = 3) -> list[LearningApp]:
    """Draw applications whose longer configurations are mostly better."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        now = float(rng.uniform(0.3, 0.7))
        seconds, after = np.sort(rng.uniform(5, 100, configs)), np.sort(rng.uniform(now - 0.05, 0.95, configs))
        pairs = zip(seconds.tolist(), after.tolist(), strict=True)
        found.append(app(i, now, *pairs, full_share=float(rng.uniform(0.05, 0.3))))
    return found


def config(seconds: float, accuracy: float | None, size: float | None = None, **more: object) -> TrainingConfig:
    return TrainingConfig(f"{seconds:g} s", TaskCost({"accelerator": seconds}), accuracy, size=size, **more)


def demand(name: str, learning: TrainingOffer | None) -> Demand:
    return Demand(name, FPS, (NETWORK,), learning=learning)


def offered(name: str, now: float | None, *configs: TrainingConfig) -> Demand:
    return demand(name, TrainingOffer("offered", configs, accuracy_before=now))


def running(name: str, seconds: float, now: float | None = 0.5, then: float | None = 0.7) -> Demand:
    return demand(
        name,
        TrainingOffer("running", left=TaskCost({"accelerator": seconds}), accuracy_before=now, accuracy_after=then),
    )


def window(*demands: Demand, start_s: float = 0.0, window_s: float = 200.0, **more: object) -> SchedulerInput:
    return SchedulerInput(start_s, window_s, 10**9, demands, **more)


def drawn(seed: int) -> SchedulerInput:
    """Draw a window of one to six applications that offer, run or prepare training, or only infer."""
    rng = np.random.default_rng(seed)
    demands = []
    for i in range(int(rng.integers(1, 7))):
        name, now = f"app{i}", float(rng.uniform(0.2, 0.8))
        kind = rng.choice(["offers", "runs", "prepares", "answers"], p=[0.5, 0.25, 0.15, 0.1])
        needs = [TaskCost({e: float(rng.uniform(0, 60)) for e in ("accelerator", "cpu", "storage")}) for _ in range(3)]
        if kind == "offers":
            accuracies, sizes = np.sort(rng.uniform(now - 0.1, 1, 3)).tolist(), np.sort(rng.uniform(0.1, 1, 3)).tolist()
            configs = tuple(TrainingConfig(str(k), needs[k], accuracies[k], size=sizes[k]) for k in range(3))
            demands.append(offered(name, now, *configs))
        elif kind == "answers":
            demands.append(demand(name, None))
        else:
            then = None if kind == "prepares" else min(1.0, now + float(rng.uniform(0, 0.3)))
            demands.append(
                demand(name, TrainingOffer("running", left=needs[0], accuracy_before=now, accuracy_after=then))
            )
    return window(*demands, window_s=float(rng.uniform(20, 400)))


def factors(apps: Sequence[LearningApp], shares: Floats) -> Floats:
    """Return the factors on accuracies at some shares: skipped frames are wrong, or count by Ekya's table."""
    full, wrong = np.array([app.full_share for app in apps]), np.array([app.skipped == "wrong" for app in apps])
    predicted: Floats = 1 / np.ceil(full / np.maximum(shares, 1e-9) - 1e-9)
    return np.where(wrong, predicted, AccuracyFactor(full)(shares))


def overloaded(seed: int) -> list[LearningApp]:
    """Draw two applications of pictures that mostly exceed the processor even without training."""
    rng = np.random.default_rng(seed)
    return [replace(one, full_share=float(rng.uniform(0.4, 1)), skipped="wrong") for one in apps(seed, 2, configs=2)]


def played(apps: Sequence[LearningApp], window_s: float) -> float:
    """Return the mean accuracy of `joint`, which plans again after each phase."""
    now_s, total = 0.0, 0.0
    while now_s < window_s - 1e-9:
        steps = plan_steps(apps, window_s - now_s)
        shares = split_inference_share(apps, 1 - steps.share)
        rate = sum(np.array([app.now for app in apps]) * factors(apps, shares))
        if steps.first is None:
            return (total + rate * (window_s - now_s)) / window_s / len(apps)
        done = apps[steps.first].candidates[steps.chosen[steps.first]]
        passed_s = min(done.seconds / steps.share, window_s - now_s)
        total, now_s = total + rate * passed_s, now_s + passed_s
        apps = [
            replace(app, now=done.accuracy_after, candidates=()) if i == steps.first else app
            for i, app in enumerate(apps)
        ]
    return total / window_s / len(apps)


def carried_out(member: Scheduling, demands: tuple[Demand, ...], window_s: float) -> float:
    """Return the mean accuracy of a member, called at the end of each training and at its `again_s`.

    All demands offer at the start, their costs are on one resource, and their names are in order.
    """
    apps = read_apps(window(*demands))
    asked = window(*demands, window_s=window_s, reason="offer")
    allocation = member.allocate(asked)
    accuracy, scale = np.array([app.now for app in apps]), AccuracyFactor(np.array([app.full_share for app in apps]))
    chosen = [
        one.learning.configs[g.config] if g.config is not None else None
        for one, g in zip(demands, allocation.grants, strict=True)
    ]
    left = np.array([one.cost.isolated_s if one else np.inf for one in chosen])
    now_s, total = 0.0, 0.0
    while now_s < window_s - 1e-9:
        learn = np.array([accelerator_share(grant.training_share or 0.0) for grant in allocation.grants])
        learn = np.where(np.isfinite(left), learn, 0.0)
        ends = np.divide(left, learn, out=np.full(len(left), np.inf), where=learn > 0)
        passed_s = min(
            float(ends.min()), window_s - now_s, np.inf if allocation.again_s is None else allocation.again_s
        )
        reason = "end" if float(ends.min()) <= passed_s else "timer"
        total += passed_s * float(accuracy @ scale(np.array([grant.inference_share for grant in allocation.grants])))
        left, now_s = left - learn * passed_s, now_s + passed_s
        for i in np.flatnonzero(ends <= passed_s * (1 + 1e-12)):
            accuracy[i], left[i] = chosen[i].accuracy, np.inf
        state = [
            replace(one, learning=None, variants=(replace(one.variants[0], accuracy=float(accuracy[i])),))
            if not np.isfinite(left[i])
            else replace(
                one, learning=running(one.app, float(left[i]), float(accuracy[i]), chosen[i].accuracy).learning
            )
            for i, one in enumerate(demands)
        ]
        if now_s < window_s - 1e-9:
            rest_s = window_s - now_s
            asked = window(*state, start_s=now_s, window_s=rest_s, reason=reason, state=allocation.state)
            allocation = member.allocate(asked)
    return total / window_s / len(apps)
