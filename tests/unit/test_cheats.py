"""Plug-ins that use the future or claim to be bounds are refused by name, value and next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import documents_factory as documents
import pytest
import yaml
from command_factory import run_command

from driftlab.errors import RequestError
from driftlab.platform.core.registry import member_class
from driftlab.platform.field.request import cell_of, experiment_of, parse_session_request
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run

CHEATS = """
from __future__ import annotations

import math
from dataclasses import dataclass

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.scaling.clairvoyant import Clairvoyant
from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling
from driftlab.platform.streaming.base import DownlinkPlan, Sampling, Streaming


@dataclass(frozen=True)
class Ahead(Streaming):
    early_s: float = 3.0
    wait_s: float = 1.0

    feeds_learner = True

    def start(self, session):
        return None

    def plan_uplink(self, state, session, now_s, seen):
        return Sampling((now_s + self.wait_s + self.early_s,), now_s + self.wait_s, now_s + 2)

    def plan_downlink(self, state, session, stored, now_s):
        return DownlinkPlan(state, Phase(1))


@dataclass(frozen=True)
class NoTime(Ahead):
    early_s: float = math.nan


@dataclass(frozen=True)
class Late(Ahead):
    wait_s: float = -1.0


@dataclass(frozen=True)
class Free(Ahead):
    free = True


@dataclass(frozen=True)
class Again(Scheduling):
    again_s: float = -1.0

    def allocate(self, window):
        return Allocation(tuple(Grant(1 / len(window.demands)) for _ in window.demands), again_s=self.again_s)


@dataclass(frozen=True)
class Never(Again):
    again_s: float = math.nan


@dataclass(frozen=True)
class Prophet(Clairvoyant):
    exits: int = 2
"""


@pytest.fixture
def plug_in(tmp_path: Path) -> Path:
    path = tmp_path / "cheats.py"
    path.write_text(CHEATS)
    return path


def document(family: str, member: str, **more: Any) -> dict[str, Any]:
    base = "ams" if family == "streaming" else "no_custom"
    return {**documents.TINY, "snapshots": 0, "systems": [{"name": "cheat", "base": base, family: member, **more}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name", "sentence"),
    [
        (
            "streaming",
            "Ahead",
            "planned at 0 s to send the frame of 4 s at 1 s: times_s must be finite, at least 0, and",
        ),
        ("streaming", "NoTime", "planned at 0 s to send the frame of nan s at 1 s: times_s must be finite"),
        (
            "streaming",
            "Late",
            "planned at 0 s to send at -1 s: send_s must be finite and at least the time of the plan",
        ),
        ("scheduling", "Again", "requested a call after -1 s, which would never end: again_s must be above 0"),
        ("scheduling", "Never", "requested a call after nan s, which would never end: again_s must be above 0"),
    ],
)
def test_a_member_that_returns_an_impossible_time_fails_the_cell_with_a_reason(
    plug_in, tmp_path, family, name, sentence
):
    found = open_run(run(document(family, f"{plug_in}:{name}"), out=tmp_path / "run").directory)
    (row,) = found.frame("runs").to_dict("records")
    assert row["status"] == "failed"
    assert row["error"].count(f"cheats.py:{name} (device=device-0") == 1
    assert sentence in row["error"]


REFUSED = [
    ("streaming", "Free", "is free: it may send frames before they are shown", "or the system 'oracle'"),
    ("scaling", "Prophet", "uses_true_load: it gets loads before their time", "or the system 'clairvoyant'"),
]


@pytest.mark.parametrize(("family", "name", "fault", "step"), REFUSED)
@pytest.mark.parametrize("more", [{}, {"base": "oracle"}, {"base": "clairvoyant"}, {"zero_delay_link": True}])
def test_a_member_that_claims_to_be_a_bound_is_refused_before_the_run(plug_in, family, name, fault, step, more):
    with pytest.raises(RequestError) as error:
        parse(document(family, f"{plug_in}:{name}", **more))
    for part in ("system 'cheat'", f"{family} '", f":{name}'", fault, step):
        assert part in str(error.value)


@pytest.mark.parametrize("more", [{"adaptation": "tent"}, {"scheduling": "joint"}])
def test_the_members_of_a_bound_in_another_system_are_refused(more):
    with pytest.raises(RequestError, match="streaming 'foresight' is free"):
        parse({**documents.TINY, "systems": [{"name": "mine", "base": "oracle", **more}]})


def test_true_gains_are_refused_except_in_the_bound_of_the_table():
    bound = {"name": "joint", "gains": "true"}
    with pytest.raises(RequestError, match="scheduling 'joint' uses_true_gains: it gets accuracies on later frames"):
        parse({**documents.TINY, "systems": [{"name": "mine", "base": "joint", "scheduling": bound}]})
    assert parse({**documents.TINY, "systems": [{"name": "mine", "base": "optimum", "scheduling": bound}]})


def test_the_command_refuses_it_with_the_sentence(plug_in, tmp_path):
    file = tmp_path / "cheat.yaml"
    file.write_text(yaml.safe_dump(document("streaming", f"{plug_in}:Free")))
    done = run_command(["run", str(file), "--dry-run"])
    assert isinstance(done.exception, RequestError)
    assert "is free: it may send frames before they are shown" in str(done.exception)


@pytest.mark.parametrize("name", ["oracle", "best_static", "clairvoyant"])
def test_a_bound_that_uses_the_future_is_refused_in_the_field(name):
    given = {"system": name, "workload": {"name": "signs/depot"}, "student": {"network": "tiny_staged"}}
    with pytest.raises(RequestError, match=f"'{name}' is a bound: it uses frames or loads before their time"):
        cell_of(experiment_of(parse_session_request(given)))


def test_a_bound_over_a_zero_delay_link_keeps_its_bound():
    rows = [{"name": "no_custom", "zero_delay_link": True}, {"name": "oracle", "zero_delay_link": True}]
    cells = cells_of(parse({**documents.TINY, "systems": rows}))
    assert [cell.system.bound for cell in cells] == ["no_adaptation", "oracle"]


def test_a_flag_alone_makes_no_member_free(plug_in):
    """The simulator reads the bound of the system: a flag that changes after the request has no effect."""
    from loop_factory import ScriptedStreaming, rows, uploads
    from loop_factory import run as run_loop

    _, loop = run_loop(ScriptedStreaming(uploads(5.0), free=True))
    (update,) = rows(loop, "updates")
    assert update["arrive_s"] > 5.0
    assert member_class("streaming", f"{plug_in}:Free").free
