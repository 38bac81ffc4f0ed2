"""Devices of hostile servers predict every frame, end, and raise one sentence at most."""

from __future__ import annotations

import random

import pytest
from served_factory import TOKEN, served

from benchmarks.field.hostile import MODES, Hostile, drawn_mode, play

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
    with served(tmp_path_factory.mktemp("served")) as honest, Hostile(honest.port, TOKEN).running() as server:
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
