"""Devices of hostile servers predict every frame, end, and raise one sentence at most."""

from __future__ import annotations

import json
import random
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
from served_factory import TOKEN, served

from benchmarks.field.hostile import ASKED, MODES, Hostile, drawn_mode, play
from driftlab.cli.field import _run_device
from driftlab.errors import RunError
from driftlab.platform.field import tables
from driftlab.platform.field.agent import DeviceReport
from driftlab.platform.field.sending import Traffic

pytestmark = pytest.mark.real_time

QUICK = (
    "weights without an end",
    "weights that are not numbers",
    "weights of another shape",
    "a session of another version",
    "a plan out of range",
    "rounds with a new column",
    "rounds without a row",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    few_steps = mock.patch.dict(ASKED["system"], adaptation={"name": "distill", "iterations": 10})
    place = tmp_path_factory.mktemp("served")
    with few_steps, served(place) as honest, Hostile(honest.port, TOKEN).running() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("mode", QUICK)
def test_a_device_survives_a_hostile_server(hostile, mode, tmp_path):
    assert mode in MODES
    assert play(hostile, mode, tmp_path / "run") == []


@pytest.mark.slow
def test_a_device_survives_drawn_changes_of_replies(hostile, tmp_path):
    dice = random.Random(4)
    hostile.path, hostile.change = "uploads|updates|rounds|report", drawn_mode(dice)[1]
    assert play(hostile, "drawn", tmp_path / "run") == []
    assert hostile.changed > 0


def test_the_death_of_a_thread_ends_the_program_with_its_reason(monkeypatch, tmp_path, capsys):
    traffic = SimpleNamespace(failed="")
    traffic.fail = partial(Traffic.fail, traffic)
    sender = SimpleNamespace(run=lambda: {}["plan"])
    last = DeviceReport(1.0, 4.0, None, 0.0, 0.0, 0, None, "")
    agent = SimpleNamespace(traffic=traffic, resumed_by="", missing="", report=lambda: last, seal=lambda: None)
    agent.begin, agent.run = lambda folder: None, lambda tell: Traffic.guard(traffic, sender)
    monkeypatch.setattr(tables, "write_run", lambda agent, directory: None)
    with pytest.raises(RunError, match="went on without it: SimpleNamespace failed with KeyError: 'plan'"):
        _run_device(agent, tmp_path, True)
    assert json.loads(capsys.readouterr().out)["time_s"] == 1.0
