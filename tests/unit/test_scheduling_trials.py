"""Schedulers of training on published trials, if these are on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ekya_reference as reference
import learners_factory as factory
import numpy as np
import pandas as pd
import pytest

from driftlab.platform.core.records import TaskCost, Variant
from driftlab.platform.core.registry import Member
from driftlab.platform.scheduling.base import Demand, TrainingConfig, TrainingOffer
from driftlab.platform.scheduling.candidates import LearningApp, read_apps
from driftlab.platform.scheduling.ekya import run_thief

MEASURED = os.environ.get("DRIFTLAB_MEASURED")  # a folder of profiles measured on real devices
PERIOD_S = 200.0
BEST = (("config_choice", "best"),)
MEMBERS = {
    **{name: (name, BEST) for name in ("uniform_learning", "recl", "afs", "synergy", "muri")},
    "fair": ("ekya", (("start", "fair"),)),
    **{name: (name, ()) for name in ("ekya", "elasticdnn")},
    "joint": ("joint", (("skipped_frames", "stale"),)),  # as all predictions are scored here
}


def trials() -> pd.DataFrame:
    return pd.read_csv(Path(MEASURED or ".") / "ekya_sweep.csv")


def contended_s(count: int) -> float:
    """Return the published time of an image with `count` networks on one GPU."""
    table = pd.read_csv(Path(MEASURED or ".") / "ekya_infer_contention.csv")
    return 1 / float(table.set_index("models")["images_per_sec_total"][count])


def cameras(seed: int, count: int, configs: int = 4, picture_s: float = 0.025) -> tuple[Demand, ...]:
    """Draw cameras with four of the published configurations each; a share of 0.25 predicts every frame."""
    rng, table = np.random.default_rng(seed), trials()
    found = []
    for i in range(count):
        rows = table.iloc[rng.choice(len(table), configs, replace=False)].sort_values("train_sec")
        now = float(rng.uniform(0.3, 0.6))
        offers = tuple(
            TrainingConfig(str(k), TaskCost({"accelerator": float(row.train_sec)}), float(row.test_acc))
            for k, row in enumerate(rows.itertuples())
        )
        network = Variant("net", now, 10**6, picture_s)
        found.append(
            Demand(
                f"camera{i:02}", factory.FPS, (network,), learning=TrainingOffer("offered", offers, accuracy_before=now)
            )
        )
    return tuple(found)


def as_plain(apps: Sequence[LearningApp]) -> dict[int, tuple[float, float, list[tuple[float, float | None]]]]:
    """Return the applications as the reference reads them."""
    return {
        i: (app.now, app.full_share, [(one.seconds, one.accuracy_after) for one in app.candidates])
        for i, app in enumerate(apps)
    }


def processor_s(decide: Callable[[], object]) -> float:
    started = time.process_time()
    decide()
    return time.process_time() - started


@pytest.mark.skipif(MEASURED is None, reason="DRIFTLAB_MEASURED names no folder of measured profiles")
class TestPublishedTrials:
    @pytest.mark.parametrize("contended", [False, True])
    @pytest.mark.parametrize("count", [2, 4, 6, 8, 10])
    def test_joint_is_at_least_as_accurate_as_every_other_scheduler(self, count, contended):
        found: dict[str, list[float]] = {name: [] for name in MEMBERS}
        for seed in range(3):
            demands = cameras(seed, count, picture_s=contended_s(count) if contended else 0.025)
            for name, (member, params) in MEMBERS.items():
                made = Member("scheduling", member, params).make()
                found[name].append(factory.carried_out(made, demands, PERIOD_S))
        for others in found.values():
            assert all(ours >= other - 1e-4 for ours, other in zip(found["joint"], others, strict=True))
        assert np.mean(found["ekya"]) > np.mean(found["fair"])

    @pytest.mark.parametrize(
        ("count", "seed", "picture_s"),
        [(3, 1, 0.005), (6, 0, 0.005), (6, 1, 0.005), (3, 1, 0.0125), (6, 1, 0.0125), (3, 1, 0.1)],
    )
    def test_thief_decides_as_published(self, count, seed, picture_s):
        """Eighteen configurations per camera, where some inference begins without a share."""
        apps = read_apps(factory.window(*cameras(seed, count, configs=18, picture_s=picture_s)))
        chosen, shares = reference.thief(as_plain(apps), PERIOD_S)
        found = run_thief(apps, PERIOD_S)
        assert found.chosen == chosen
        assert [*found.training, *found.inference] == pytest.approx(shares, abs=1e-9)

    @pytest.mark.parametrize(("count", "part"), [(2, 1 / 3), (10, 1 / 8)])
    def test_thief_takes_a_part_of_the_time_of_plain_loops(self, count, part):
        """Both are measured in turn, so that the speed and load of this host have no effect."""
        apps, plain_s, taken_s = read_apps(factory.window(*cameras(0, count))), [], []
        for _ in range(5):
            plain_s.append(processor_s(lambda: reference.thief(as_plain(apps), PERIOD_S)))
            taken_s += [processor_s(lambda: run_thief(apps, PERIOD_S, step=0.1)) for _ in range(4)]
        assert min(taken_s) <= part * min(plain_s)
