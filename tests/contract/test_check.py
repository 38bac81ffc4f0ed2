"""`driftlab check`: members of driftlab pass, and each broken member fails one check with the reason."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
from command_factory import run_command
from quick_factory import QUICK

from driftlab.platform.core.records import ModelCost
from driftlab.platform.lab import contract
from driftlab.platform.lab.contract import PricedCall, check_member, cost_fault

TICK_S = 1e-4  # of the fake clock, at each reading
SOUND = """
from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.adabn import AdaBn
from driftlab.platform.adaptation.base import Adapted
from driftlab.platform.core.records import Passes
from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling
from driftlab.platform.streaming.on_device import OnDevice

CALLS = []


class Plain:
    def __init__(self, stream_batch_share: float = 1.0):
        self.calls = 0

    def adapt(self, model, frames):
        with torch.no_grad():
            outputs = model(frames)
            self.change(model, frames)
        return outputs[: self.answers(frames)]

    def change(self, model, frames):
        next(iter(model.parameters())).mul_(1.001)

    def answers(self, frames):
        return len(frames)


@dataclass(frozen=True)
class Counting(AdaBn):
    stream_batch: int = 16

    def prepare(self, model, pack=None, *, go_on=None):
        return {"of": super().prepare(model), "calls": self.first()}

    def first(self):
        return [0]

    def reset(self, model, state):
        return {**state, "of": super().reset(model, state["of"])}

    def predict(self, model, state, batch):
        return replace(super().predict(model, state["of"], batch), state=state)

    def adapt(self, model, state, batch, phase):
        done = super().adapt(model, state["of"], batch, phase)
        return replace(done, state={"of": done.state, "calls": self.more(state["calls"])})

    def more(self, calls):
        return [calls[0] + 1]


@dataclass(frozen=True)
class Equal(Scheduling):
    share: float = 1.0
    again_s: float = 1.0

    def allocate(self, window):
        count = len(window.demands)
        return Allocation(tuple(Grant(self.share / count) for _ in window.demands), again_s=self.again_s)
"""
BROKEN = {  # class -> its code, the check that fails, and words of the sentence
    "Ahead": (
        "class Ahead(OnDevice):\n    period_s: float = 2.0\n"
        "    def plan_uplink(self, state, session, now_s, seen):\n"
        "        plan = super().plan_uplink(state, session, now_s, seen)\n"
        "        return replace(plan, times_s=(plan.send_s + 1,))",
        "runs",
        ["to send the frame of 3 s at 2 s", "times_s must be finite"],
    ),
    "Clock": (
        "class Clock(Plain):\n"
        "    def change(self, model, frames):\n"
        "        next(iter(model.parameters())).mul_(1 + (time.time_ns() % 1000) / 10000)",
        "repeatable",
        ["an equal cell differs", "no clock"],
    ),
    "Shape": (
        "class Shape(Plain):\n    def answers(self, frames):\n        return len(frames) - 1",
        "runs",
        ["7 predictions for 8 frames", "at "],
    ),
    "Nan": (
        "class Nan(Plain):\n"
        "    def change(self, model, frames):\n"
        "        next(iter(model.parameters())).mul_(float('nan'))",
        "runs",
        ["not finite"],
    ),
    "Slow": (  # the fake clock advances at each reading
        "class Slow(Plain):\n    def change(self, model, frames):\n        [time.process_time() for _ in range(1000)]",
        "cost",
        [
            "adapt takes ",
            " x the processor time of the work that is charged: use torch operators",
            "functions of driftlab.platform.core.counted",
        ],
    ),
    "Unpicklable": (
        "class Unpicklable(OnDevice):\n    period_s: float = 2.0\n"
        "    def start(self, session):\n        return (item for item in ())",
        "resumes",
        ["cannot be pickled", "generator", "dataclasses at the top level"],
    ),
    "Signature": (
        "class Signature(Equal):\n    def allocate(self, window, now_s):\n        return Allocation(())",
        "loads",
        ["allocate(self, window, now_s) must be allocate(self, window)"],
    ),
    "InPlace": (
        "class InPlace(Counting):\n    def more(self, calls):\n        calls[0] += 1\n        return calls",
        "resumes",
        ["adapt changes its state in place", "return a new state"],
    ),
    "Shares": (
        "class Shares(Equal):\n    share: float = 3.0",
        "runs",
        ["1.5"],
    ),
    "Again": (
        "class Again(Equal):\n    again_s: float = -1.0",
        "runs",
        ["requested a call after -1 s", "again_s must be above 0"],
    ),
    "Global": (
        "class Global(Plain):\n"
        "    def change(self, model, frames):\n"
        "        CALLS.append(0)\n"
        "        next(iter(model.parameters())).mul_(1 + len(CALLS) / 1000)",
        "repeatable",
        ["an equal cell differs", "no state in a module"],
    ),
    "Peeks": (
        "class Peeks(Plain):\n"
        "    def change(self, model, frames):\n"
        "        calls = [one.frame for one in inspect.stack(0)]\n"
        "        found = [one for call in calls for one in call.f_locals.values() if isinstance(one, Frames)]\n"
        "        for _ in range(int(found[0].images[-1].sum()) % 7):\n            model(frames)",
        "causal",
        ["its past depends on frames, labels or loads after 7.7 s", "arguments only"],
    ),
    "Member": (
        "class Member(OnDevice):\n    period_s: float = 2.0\n"
        "    def plan_downlink(self, state, session, stored, now_s):\n"
        "        object.__setattr__(self, '_calls', getattr(self, '_calls', 0) + 1)\n"
        "        plan = super().plan_downlink(state, session, stored, now_s)\n"
        "        return replace(plan, phase=replace(plan.phase, iterations=self._calls))",
        "resumes",
        ["pickled and read again, it continues differently"],
    ),
    "Never": (
        "class Never(OnDevice):\n    period_s: float = 60.0",
        "runs",
        ["it never learned within 8 s", "--set period_s=2"],
    ),
    "Default": (
        "class Default(OnDevice):\n    period_s: Annotated[float, Gt(0)] = -1.0",
        "loads",
        ["a default is invalid", "period_s"],
    ),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the processor's time: no test depends on measured time."""
    readings = itertools.count()
    monkeypatch.setattr(time, "process_time", lambda: TICK_S * next(readings))


@pytest.fixture
def short_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """End cells soon after the poison: their past is as in those of users."""
    monkeypatch.setattr(contract, "LENGTH_S", 8.0)


def written(folder: Path, name: str) -> str:
    code = BROKEN[name][0]
    file = folder / "mine.py"
    plain = "(Plain)" in code
    text = SOUND + "\n\nfrom typing import Annotated\n\nfrom annotated_types import Gt\n\n\n"
    file.write_text(text + ("" if plain else "@dataclass(frozen=True)\n") + code + "\n")
    return f"{file}:{name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_member_fails_one_check_with_the_reason(clock, short_cells, tmp_path, name):
    _, check, words = BROKEN[name]
    (found,) = [one for one in check_member(written(tmp_path, name)) if one.fault]
    assert found.check == check
    assert [word for word in words if word not in found.fault] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.py:Mine", ["there is no file", "none.py"]),
        ("sys:Mine", ["Unknown class 'Mine'"]),
        ("mine.py", ["name the class in it too"]),
        ("tent", ["give FILE.py:Class, or FAMILY/NAME"]),
        ("adaption/tent", ["Unknown family 'adaption'", "Did you mean 'adaptation'?"]),
        ("adaptation/tint", ["Unknown adaptation member 'tint'", "Did you mean 'tent'?"]),
        ("streaming/foresight", ["is a bound"]),
        ("datetime:date", ["it must be a subclass of"]),
    ],
)
def test_an_unknown_or_unfit_name_fails_at_once(name, words):
    (found,) = check_member(name)
    assert found.check == "loads"
    assert [word for word in words if word not in found.fault] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "adaptation/frozen",
        "adaptation/shot",
        "streaming/ams",
        "scaling/adascale",
        "scheduling/ekya",
    ],
)
def test_members_of_driftlab_pass(clock, name):
    found = check_member(name, QUICK.get(name.partition("/")[2], {}) if not name.startswith("scheduling") else {})
    assert [one for one in found if one.fault] == []
    assert [one.check for one in found][:4] == ["loads", "runs", "repeatable", "causal"]


def test_cost_has_a_floor_and_a_factor():
    def fault(seconds: float, macs: float = 1e4) -> str:
        calls = [PricedCall("adapt", 4, ModelCost(1000, 0, 0, 0), macs, took) for took in (0.0, seconds, 9.0)]
        return cost_fault(calls, "tiny", step_s=lambda _, batch: 0.012 if batch == 4 else 0.001)

    assert fault(0.023) == ""  # twice .011 s, and .002 s
    assert fault(0.025).startswith("adapt takes 2.5 x the processor time of the work that is charged")
    assert fault(0.003, macs=0.0) == ""
    assert fault(0.01, macs=0.0).startswith("adapt takes 10 ms of processor time of the work that is charged")


def test_the_command_prints_a_line_per_check(tmp_path):
    done = run_command(["check", "none.py:Mine"])
    assert done.exit_code == 1
    assert done.output.startswith("loads  member '")
    done = run_command(["check", "none.py:Mine", "--json"])
    assert json.loads(done.output)["checks"][0]["check"] == "loads"
    assert not json.loads(done.output)["ok"]
    done = run_command(["check", "none.py:Mine", "--set", "rate"])
    assert "has no '='" in str(done.exception)
