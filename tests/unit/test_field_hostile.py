"""Devices of hostile servers predict every frame, end, and raise one sentence at most."""

from __future__ import annotations

import pytest
from served_factory import TOKEN, served

from benchmarks.field.hostile import MODES, Hostile, play

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
