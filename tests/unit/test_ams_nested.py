"""Updates of nested networks: server and device follow the scheduler's choice of network."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.sim.inline import InlineBackend

pytestmark = pytest.mark.slow  # one run, which all of them read

PERIOD_S = 20  # between two switches
SCALING = {"name": "nested", "keep_ratios": [0.75, 0.5], "accuracy_loss": 1.0, "prune_epochs": 0, "grow_epochs": 0}
IN_TURN = f"""
from dataclasses import dataclass
from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling

@dataclass(frozen=True)
class InTurn(Scheduling):
    def allocate(self, window):
        which = int(window.start_s // {PERIOD_S}) % len(window.demands[0].variants)
        return Allocation((Grant(1.0, variant=which),))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder: Path = tmp_path_factory.mktemp("runs")
    (folder / "in_turn.py").write_text(IN_TURN)
    document = {
        "name": "composed",
        "systems": [
            {
                "name": "ams+nested",
                "adaptation": {"name": "distill", "iterations": 10},
                "scaling": SCALING,
                "scheduling": f"{folder / 'in_turn.py'}:InTurn",
            }
        ],
        "bounds": False,
        "snapshots": 0,
        "window_s": 5,
        "student": {"network": "half", "pretrain_steps": 5},
        "workloads": [{"name": "streets/running", "duration_s": 80, "fps": 2, "height": 32, "width": 48}],
    }
    outcome = run(document, out=folder / "run", open_backend=InlineBackend)
    assert not outcome.failed, outcome.failed
    return open_run(outcome.directory)


def test_the_device_runs_the_chosen_network(ran):
    shares = ran.frame("shares")
    assert shares["variant"].tolist() == [int(at // PERIOD_S) % 2 for at in shares["time_s"]]
    latencies = ran.frame("frames").groupby("time_s")["latency_ms"].first()
    first, second = (latencies[(latencies.index % 40 > at) & (latencies.index % 40 < at + 20)] for at in (0, 20))
    assert first.nunique() == second.nunique() == 1
    assert first.iloc[0] < second.iloc[0]


def test_updates_are_taken_before_and_after_every_switch(ran):
    updates = ran.frame("updates")
    taken = updates[updates["accepted"].fillna(False).astype(bool)]
    assert {int(at // PERIOD_S) for at in taken["arrive_s"]} == {0, 1, 2, 3}


def test_the_first_update_after_a_switch_has_every_weight(ran):
    taken = ran.frame("updates").dropna(subset=["arrive_s"]).query("values > 0")
    taken = taken.assign(period=taken["arrive_s"] // PERIOD_S)
    accepted = taken[taken["accepted"] == True]  # noqa: E712
    for _, updates in accepted.groupby("period"):
        values = updates["values"].tolist()
        assert values[0] > 5 * max(values[1:], default=0)
