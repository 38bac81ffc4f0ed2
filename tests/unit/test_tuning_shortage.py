"""The warning of a search that waits for a computer with room for a trial."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from driftlab.tune_spaces import run
from driftlab.tune_spaces.run import GIB, ShortageWarning

RUNNING, PENDING = (SimpleNamespace(status=status, RUNNING="RUNNING") for status in ("RUNNING", "PENDING"))


@pytest.fixture
def clock(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(run.ray, "available_resources", lambda: {"CPU": 4.0, "memory": 0.5 * GIB})
    return now_s


def steps(warning, clock, *timed_trials):
    for at_s, trials in timed_trials:
        clock[0] = at_s
        warning.on_step_begin(0, trials)


def test_it_names_what_a_trial_requires_and_what_is_free_once(clock, caplog):
    warning = ShortageWarning({"cpu": 1.0, "memory": 0.6 * GIB}, after_s=60)
    with caplog.at_level(logging.WARNING):
        steps(warning, clock, (59, [PENDING]), (61, []), (200, [PENDING]))
    (record,) = caplog.records
    assert "No trial has run for 60 s. A trial requires 1 CPU, 0.6 GiB of memory" in record.getMessage()
    assert "free in the whole cluster are 4 CPU, 0.5 GiB of memory." in record.getMessage()


def test_a_search_whose_trials_run_is_not_warned_about(clock, caplog):
    warning = ShortageWarning({"cpu": 1.0, "gpu": 0.5}, after_s=60)
    with caplog.at_level(logging.WARNING):
        steps(warning, clock, (50, [PENDING, RUNNING]), (109, [PENDING]), (110, [RUNNING]), (169, []))
        assert caplog.records == []
        steps(warning, clock, (171, [PENDING]))
    assert "1 CPU, 0.5 GPU on one computer" in caplog.text
    assert "free in the whole cluster are 4 CPU, 0 GPU" in caplog.text
