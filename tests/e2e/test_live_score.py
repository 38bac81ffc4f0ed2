"""Predictions in large batches come too late: a live score says so, whatever the windows of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import driftlab
from driftlab.platform.lab.seal import run

FPS = 10.0


def batches(frames: int) -> dict[str, Any]:
    adaptation = {"name": "adabn", "variant": "batch", "predict_on": "batch", "stream_batch": frames}
    return {"name": f"batches-{frames}", "base": "adabn", "adaptation": adaptation}


DOCUMENT: dict[str, Any] = {
    "name": "late",
    "bounds": False,
    "snapshots": 0,
    "systems": ["no_custom", batches(16), batches(200)],
    "student": {"network": "tiny_classifier", "pretrain_steps": 300},
    "workloads": [{"name": "signs/seasons", "duration_s": 60, "fps": FPS, "height": 24, "width": 24}],
}


def ran(folder: Path, **changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of the runs by system, and all frames."""
    made = driftlab.open_run(run({**DOCUMENT, **changes}, out=folder / "run").directory)
    return made.frame("runs").set_index("system"), made.frame("scores")


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, pd.DataFrame]:
    return ran(tmp_path_factory.mktemp("usual"))


@pytest.mark.slow
def test_batches_of_200_frames_score_higher_than_those_of_16_and_lower_live(usual):
    runs, frames = usual
    assert runs.loc["batches-200", "score"] > runs.loc["batches-16", "score"] + 0.1
    assert runs.loc["batches-200", "score_live"] < runs.loc["batches-16", "score_live"] - 0.1
    assert runs.loc["no_custom", "score_live"] == runs.loc["no_custom", "score"]  # each prediction takes milliseconds
    assert (runs["grace_s"] == 1 / FPS).all()
    means = frames.groupby("system")["score_live"].mean()
    assert np.allclose(means, runs["score_live"].reindex(means.index), atol=1e-12)


@pytest.mark.slow
def test_before_the_first_batch_is_predicted_every_frame_is_wrong(usual):
    """Which predictions are live follows from the rows: times, latencies and the grace."""
    runs, frames = usual
    for system, own in frames.groupby("system"):
        until_s = own["time_s"] + runs.loc[system, "grace_s"] + 1e-9
        first_s = (own["time_s"] + own["latency_ms"] / 1e3).min()
        assert (own["score_live"][until_s < first_s] == 0).all()
        assert (own["score_live"][until_s >= first_s + 20] > 0).any()


@pytest.mark.slow
def test_it_does_not_depend_on_the_windows_of_the_run(usual, tmp_path):
    runs, frames = ran(tmp_path, window_s=2.3)
    assert np.array_equal(frames["score_live"], usual[1]["score_live"])
    assert np.allclose(runs["score_live"], usual[0]["score_live"], atol=1e-12)


@pytest.mark.slow
def test_it_is_the_score_where_the_grace_is_longer_than_every_latency(tmp_path):
    runs, frames = ran(tmp_path, grace_s=30.0)
    assert (runs["grace_s"] == 30.0).all()
    assert np.array_equal(frames["score_live"], frames["score_window"])
    assert runs["score_live"].tolist() == runs["score"].tolist()
