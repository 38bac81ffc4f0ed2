"""AMS from experiment to claims: it improves every city stream, and a rerun gives equal tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiments_factory import loaded

from driftlab.platform.lab.read import document_of, find, names
from driftlab.platform.lab.seal import run
from driftlab.platform.results import stats
from driftlab.platform.results.claims.base import evaluate
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import open_run

STREETS = ("interview", "street_comedian", "driving_la", "drift")  # a still one, passers, a drive, a look that drifts
OURS = [name for name in names() if name.startswith("ams-")]


def experiment(streets: tuple[str, ...], **more: Any) -> dict[str, Any]:
    return {
        "name": "ams-test",
        "systems": ["no_custom", "ams"],
        "workloads": [
            {"name": f"streets/{street}", "duration_s": 20.0, "fps": 1.0, "height": 32, "width": 48}
            for street in streets
        ],
        "seeds": [0, 1],
        "bounds": False,
        "snapshots": 0,
        "student": {"network": "half", "pretrain_steps": 50},
        **more,
    }


def sizes() -> list[tuple[str, str]]:
    """List the small and full sizes of our experiments that there are."""
    known = {name: document_of(find(name)).get("sizes", {}) for name in OURS}
    return [(name, size) for name, found in known.items() for size in ("small", "full") if size in found]


@pytest.mark.parametrize(("name", "size"), sizes())
def test_every_experiment_is_sound_in_both_sizes(name, size):
    made = loaded(name, size)
    assert made.name == name
    assert len(made.seeds) >= (5 if size == "full" else 2)


@pytest.mark.slow
def test_training_all_weights_at_the_highest_rate_never_lowers_the_score(tmp_path):
    """On each stream, and clearly on average, though the student was pre-trained on such streams."""
    everything = {
        "name": "ams",
        "streaming": {"name": "ams", "control": "fixed", "codec": "jpeg", "interval_s": 5},
        "adaptation": {"name": "distill", "fraction": 1.0, "iterations": 20},
    }
    asked = experiment(
        STREETS, systems=["no_custom", everything], seeds=[0], student={"network": "half", "pretrain_steps": 500}
    )
    outcome = run(asked, out=tmp_path / "run")
    assert not outcome.failed
    runs = open_run(outcome.directory).frame("runs")
    assert runs[runs["system"] == "no_custom"]["score"].mean() > 0.25  # one that was taught for 50 steps: 0.17
    gains = {}
    for street, cells in runs.groupby("workload"):
        both = stats.pairs(cells, "ams", "no_custom", "score", ["seed"], "system")
        gains[street] = stats.paired_difference(both).mean
    assert len(gains) == len(STREETS)
    assert min(gains.values()) >= 0, gains
    assert sum(gains.values()) / len(gains) > 0.05, gains


@pytest.mark.slow
def test_a_run_yields_verdicts_and_repeats_itself(tmp_path):
    quick = {"name": "ams", "adaptation": {"name": "distill", "iterations": 4}}
    asked = experiment(("interview",), systems=["no_custom", quick])
    first, second = (Path(run(asked, out=tmp_path / name).directory) for name in ("a", "b"))
    assert differences(first, second) == []
    words = {verdict.claim.id: verdict.result for verdict in evaluate(open_run(first))}
    assert words["AMS-1"] == "not testable here"  # so short a stream has too few updates
    assert words["AMS-19"] == "reproduced"
    assert words["AMS-5"] == "not testable here"
