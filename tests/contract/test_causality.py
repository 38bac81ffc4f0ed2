"""A poisoned future changes nothing before it: no member receives frames, labels or loads early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from driftlab.datasets.frames import Frames
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.sim.nodes.camera import CameraNode
from driftlab.platform.world import load_csv
from driftlab.platform.world.load import Load

POISON_S, LENGTH_S, FPS, SENSE_HZ = 7.3, 12.0, 4.0, 2.0
ON_EATA = {"member_params": ["entropy_margin=0.9", "stream_batch=4"]}
QUICK: dict[tuple[str, ...], dict[str, Any]] = {  # by members: few steps, and batches that fill before the poison
    ("one_time",): {"sample_s": 3, "iterations": 2},
    ("just_in_time",): {"max_steps": 2},
    ("ams",): {"interval_s": 2},
    ("remote_tracking",): {"every_s": 1},
    ("on_device",): {"period_s": 2, "rate_fps": 4, "horizon_s": 4},
    ("foresight",): {"iterations": 2},
    ("distill",): {"iterations": 2, "batch": 4, "step_choices": [1, 2]},
    ("adabn", "onda", "tent", "lame", "t3a", "neo"): {"stream_batch": 4},
    ("eata", "sar"): {"stream_batch": 4, "entropy_margin": 0.9},
    ("cotta",): {"stream_batch": 4, "augmentations": 0},
    ("rotta", "note"): {"stream_batch": 4, "capacity": 8, "every_frames": 4},
    ("rdumb",): {"reset_steps": 2, "member_params": ["fisher_weight=0", *ON_EATA["member_params"]]},
    ("asr",): ON_EATA,
    ("sparse", "snap"): {"every_batches": 2, **ON_EATA},
    ("shot", "bufr", "conda", "cua", "ace"): {"iterations": 1, "batch": 4},
    ("iada",): {"iterations": 1, "batch": 4, "source_steps": 5},
    ("elasticdnn", "elasticdnn_cua", "elasticdnn_teacher"): {"iterations": 1},
    ("nested",): {"accuracy_loss": 1.0, "keep_ratios": [1.0, 0.5], "prune_epochs": 1, "grow_epochs": 1},
    ("independent", "usnet", "once_for_all"): {"keep_ratios": [1.0, 0.5], "epochs": 1},
    ("surrogate",): {"keep_ratios": [0.5], "epochs": 1},
    ("branches", "adascale", "legodnn", "adaptivenet", "adaspring", "adadeep", "nas", "clairvoyant"): {
        "exits": 2,
        "stage_epochs": 1,
        "operator_epochs": 1,
        "path_epochs": 1,
    },
    ("early_exit",): {"exits": 2, "stage_epochs": 1},
    ("darts", "enas"): {"space": "tiny", "search_epochs": 1, "epochs": 1},
    ("light",): {"network": "mobilenet_v3_small", "epochs": 1},
}
BOARD = {
    "name": "board",
    "macs_per_s": 2.4e9,
    "bytes_per_s": 4.8e9,
    "overhead_s": 15e-6,
    "memory_bytes": 100_000_000,
    "idle_w": 0.4,
    "busy_w": 2.5,
}
WORLD: dict[str, Any] = {
    "name": "causality",
    "bounds": False,
    "snapshots": 0,
    "window_s": 2,
    "student": {"network": "tiny_staged", "pretrain_steps": 10, "pretrain_batch": 16},
    "server": {"label_s": 1e-7, "step_s": 0.01},
    "fleets": [{"name": "user", "devices": [{"hardware": BOARD, "load": {"preset": "random", "sense_hz": SENSE_HZ}}]}],
    "workloads": [
        {
            "name": "domains:signs/depot",
            "alias": "depot",
            "duration_s": LENGTH_S,
            "fps": FPS,
            "height": 32,
            "width": 32,
            "domain_labels": "oracle",
            "params": {"domain_s": 3, "severities": [5]},
            "apps": [{"name": "left", "latency_goal_s": 0.02}, {"name": "right", "latency_goal_s": 0.02}],
        }
    ],
}


def system_part(name: str) -> dict[str, Any]:
    """Return the row of a system with the quick parameters of its members."""
    slots = {
        one.family: {"name": one.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in one.params}}
        for one in SYSTEMS[name].members
    }
    quick = {member: given for members, given in QUICK.items() for member in members}
    for family in ("streaming", "adaptation", "scaling"):
        slots[family] |= quick.get(slots[family]["name"], {})
    return {"name": name, **slots}


def kind_of(system: System) -> str:
    """Return the group of a system: scaling, several trainings, phases, or on the stream."""
    if system.scaling.name not in ("fixed", "surrogate"):
        return "scaling"
    if system.scheduling.name != "uniform":
        return "several"
    return "phases" if system.streaming.name == "on_device" else "stream"


class PoisonedStream:
    """A stream that shows noise, other truth and other domains from a time on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def at(self, times_s: Any) -> Frames:
        frames = self._stream.at(times_s)
        late = frames.times_s >= POISON_S
        images, scenes, classes = frames.images.copy(), frames.scenes.copy(), frames.classes.copy()
        rng = np.random.default_rng(np.round(frames.times_s[late] * FPS).astype(int))
        images[late] = rng.integers(0, 256, images[late].shape, np.uint8)
        scenes[late] += 50
        classes[late] = (classes[late] + 1) % len(self._stream.classes)
        return replace(frames, images=images, scenes=scenes, classes=classes)


@contextmanager
def poisoned() -> Iterator[None]:
    """Poison the frames of cameras and the load of other programs from a time on."""
    open_stream, load_of = CameraNode._open, load_csv.load_of

    def poisoned_load(*args: Any) -> Load | None:
        load = load_of(*args)
        assert load is not None
        before = [step for step in load.steps if step.time_s < POISON_S]
        last = replace(before[-1], time_s=POISON_S, cpu=1 - before[-1].cpu, memory=0.9 - before[-1].memory / 2)
        return replace(load, steps=(*before, last))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CameraNode, "_open", lambda self, scale: PoisonedStream(open_stream(self, scale)))
        patch.setattr(load_csv, "load_of", poisoned_load)
        yield


Tables = dict[str, pd.DataFrame]


def run_twice(names: Sequence[str], folder: Path) -> list[Tables]:
    """Return the tables of systems in a world, and in the same world with another future."""
    document = {**WORLD, "systems": [system_part(name) for name in names]}
    runs = [open_run(run(document, out=folder / "clean").directory)]
    with poisoned():
        runs.append(open_run(run(document, out=folder / "poisoned").directory))
    return [{table: found.frame(table) for table in ("runs", *ENDS)} for found in runs]


ENDS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {  # by table: when the content of a row was complete
    "frames": lambda rows: rows["time_s"] + rows["latency_ms"] / 1000,
    "transfers": lambda rows: rows["arrive_s"],
    "updates": lambda rows: rows["arrive_s"],
    "adaptations": lambda rows: rows["end_s"],
    "shares": lambda rows: rows["time_s"] + rows["window_s"],
    "loads": lambda rows: rows["time_s"] + 1 / SENSE_HZ,  # with the true load until the next reading
}


def past_of(tables: Tables, name: str) -> Tables:
    """Return the rows of a system that were complete before the poison."""
    past = {}
    for table, end_of in ENDS.items():
        rows = tables[table]
        rows = rows[(rows["cell"].str.split("/").str[0] == name) & (end_of(rows) < POISON_S)] if len(rows) else rows
        past[table] = rows[[one for one in rows if not one.startswith("host_")]].reset_index(drop=True)
    return past


def check(runs: Sequence[Tables], name: str) -> None:
    """Check that the past of a method is the same, and that the past of a bound differs."""
    assert [set(tables["runs"].query(f"system == '{name}'")["status"]) for tables in runs] == [{"done"}] * 2
    clean, other = (past_of(tables, name) for tables in runs)
    assert all(len(clean[table]) for table in ("frames", "shares", "loads"))
    # Trials of several applications end later
    if SYSTEMS[name].streaming.make().feeds_learner and SYSTEMS[name].scheduling.name == "uniform":
        assert len(clean["updates"])
    differing = [table for table in ENDS if not clean[table].equals(other[table])]
    if SYSTEMS[name].streaming.make().free:
        assert differing
    elif name != "clairvoyant":  # it may differ: here its networks are equally accurate, and it runs the fastest
        assert not differing


FEW = ("tent", "ams", "elasticdnn", "ekya", "adascale", "oracle")  # one of each kind, and a bound
OTHERS = {  # by kind, as each group is run at once
    kind: [name for name, one in SYSTEMS.items() if name not in FEW and kind == kind_of(one)]
    for kind in ("stream", "phases", "several", "scaling")
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> list[Tables]:
    return run_twice(FEW, tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="module")
def by_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Tables]]:
    return cache(lambda kind: run_twice(OTHERS[kind], tmp_path_factory.mktemp(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_a_poisoned_future_changes_no_past_of_a_system_of_each_kind(few, name):
    check(few, name)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test of a kind runs all its systems
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in OTHERS.items() for name in names])
def test_a_poisoned_future_changes_no_past_of_any_other_system(by_kind, kind, name):
    check(by_kind(kind), name)
