"""A poisoned future changes nothing before it: no member receives frames, labels or loads early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from quick_factory import QUICK

from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System
from driftlab.platform.lab.contract import STAGED, STUDENTS, world_of
from driftlab.platform.lab.poison import ENDS, past_of, poisoned
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import table_differences
from driftlab.platform.results.tables.read import Run, open_run

FPS, LENGTH_S, POISON_S = 4.0, 5.25, 4.2  # after two windows and a change of the domain, when all have learned
NEVER_LEARN = {"lame"}  # on the stream: it corrects predictions
STUDENT = {"pretrain_steps": 16, "pretrain_batch": 4}  # of 64 frames at most


def system_part(name: str) -> dict[str, Any]:
    """Return the row of a system with the quick parameters of its members."""
    slots = {
        one.family: {"name": one.name, **{key: list(v) if isinstance(v, tuple) else v for key, v in one.params}}
        for one in SYSTEMS[name].members
    }
    for family in ("streaming", "adaptation", "scaling"):
        slots[family] |= QUICK.get(slots[family]["name"], {})
    return {"name": name, **slots}


def kind_of(system: System) -> str:
    """Return the group of a system: scaling, scaling by plan, several trainings, phases, or on the stream."""
    if system.scaling.name not in ("fixed", "surrogate"):
        return "scaling" if system.scheduling.name == "uniform" else "planned"
    if system.scheduling.name != "uniform":
        return "several"
    return "phases" if system.streaming.name == "on_device" else "stream"


@cache
def table_of(folder: Path, name: str) -> pa.Table:
    return open_run(folder).table(name)


@cache
def frame_of(folder: Path, name: str) -> pd.DataFrame:
    return table_of(folder, name).to_pandas()


class ReadOnce(Run):
    """A run of many systems, whose tables are not read again for each of them."""

    @classmethod
    def open(cls, folder: Path) -> ReadOnce:
        found = open_run(folder)
        return cls(found.path, found.spec, found.info)

    def table(self, name: str) -> pa.Table:
        return table_of(self.path, name)

    def frame(self, name: str) -> pd.DataFrame:
        return frame_of(self.path, name)


def run_twice(kind: str, names: Sequence[str], folder: Path) -> list[Run]:
    """Run the systems of a kind in a world, and in the same world with another future."""
    world = world_of(FPS, STAGED if kind in ("scaling", "planned") else STUDENTS["classification"])
    (workload,) = world["workloads"]
    apps = workload["apps"][: 2 if kind in ("several", "planned") else 1]  # others share a processor equally
    workloads = [{**workload, "apps": apps, "duration_s": LENGTH_S}]
    document = {**world, "student": {**world["student"], **STUDENT}, "workloads": workloads}
    document["systems"] = [system_part(name) for name in names]
    runs = [ReadOnce.open(run(document, out=folder / "clean").directory)]
    with poisoned(POISON_S):
        runs.append(ReadOnce.open(run(document, out=folder / "poisoned").directory))
    return runs


def check(runs: Sequence[Run], name: str) -> None:
    """Check that the past of a method is the same, and that the past of a bound differs."""
    assert [set(one.frame("runs").query(f"system == '{name}'")["status"]) for one in runs] == [{"done"}] * 2
    clean, other = ({table: past_of(one, table, name, POISON_S) for table in ENDS} for one in runs)
    assert all(len(clean[table]) for table in ("frames", "shares", "loads"))
    # Trials of several applications end later
    if SYSTEMS[name].streaming.make().feeds_learner and SYSTEMS[name].scheduling.name == "uniform":
        assert len(clean["updates"])
    learned = clean["adaptations"]["skipped"]
    assert name in NEVER_LEARN or not len(learned) or learned.null_count  # without a step nothing could differ
    differing = [table for table in ENDS if list(table_differences(clean[table], other[table]))]
    if SYSTEMS[name].streaming.make().free:
        assert differing
    elif not SYSTEMS[name].uses_future:  # of true loads and gains it may differ: here networks are equally accurate
        assert not differing


FEW = ("tent", "ams", "shot", "ekya", "adascale", "oracle")  # one of each kind, and a bound


def shown_by(system: System) -> set[Any]:
    """Return the members of a system, their choices by word, and where its parts work together."""
    members = system.members
    together = (system.streaming.name, system.scaling.name == "fixed", system.scheduling.name == "uniform")
    choices = {(key, value) for one in members for key, value in one.params if isinstance(value, str | bool)}
    return {(one.family, one.name) for one in members} | choices | {together}


def that_differ() -> list[str]:
    """List the bounds, and the systems that differ from those before them by more than numbers."""
    kept, shown = list[str](), set[Any]()
    for name in dict.fromkeys((*FEW, *SYSTEMS)):
        own = shown_by(SYSTEMS[name])
        if own - shown or SYSTEMS[name].streaming.make().free:
            kept.append(name)
        shown |= own
    return kept


SHOWN = {  # by kind, as each group is run at once
    kind: [name for name in that_differ() if kind == kind_of(SYSTEMS[name])]
    for kind in ("stream", "phases", "several", "scaling", "planned")
}
OTHERS = [(kind, name) for kind, names in SHOWN.items() for name in names if name not in FEW]


@pytest.fixture(scope="module")
def by_kind(
    frames_drawn_once: None, channels_found_once: None, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Run]]:
    """Run the systems of a kind once; their networks share drawn frames and channel groups."""
    return cache(lambda kind: run_twice(kind, SHOWN[kind], tmp_path_factory.mktemp(kind)))


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first test of a kind runs all its systems
@pytest.mark.parametrize("name", FEW)
def test_a_poisoned_future_changes_no_past_of_a_system_of_each_kind(by_kind, name):
    check(by_kind(kind_of(SYSTEMS[name])), name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "name"), OTHERS)
def test_a_poisoned_future_changes_no_past_of_any_other_system(by_kind, kind, name):
    check(by_kind(kind), name)
