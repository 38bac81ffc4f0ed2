"""Applications that learn on one device, from the request to the tables."""

from __future__ import annotations

import shutil

import pytest
from documents_factory import LEARNING

import driftlab
from driftlab.platform.lab.seal import resume, run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.recorder import table_file


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    outcome = run(LEARNING, out=tmp_path_factory.mktemp("runs") / "reference")
    assert outcome.failed == ()
    return outcome.directory


def test_both_applications_are_offered_together_and_train(reference):
    tables = driftlab.open_run(reference)
    rounds, shares = tables.frame("updates"), tables.frame("shares")
    assert set(rounds["app"]) == {"front", "side"}
    chosen = rounds[
        rounds["training_config"].notna() | rounds["reason"].eq("the scheduler chose no training configuration")
    ]
    assert len(chosen) >= 2
    assert shares.groupby("app")["window_s"].sum().to_dict() == pytest.approx({"front": 12.0, "side": 12.0})
    assert shares["training_share"].gt(0).any()


def test_a_cell_that_was_cut_off_is_resumed_to_the_same_tables(reference, tmp_path):
    again = shutil.copytree(reference, tmp_path / "again")
    (cell,) = driftlab.open_run(reference).frame("runs")["cell"]
    table_file(again / "tables", "runs", cell).unlink()
    assert resume(again).failed == ()
    assert differences(reference, again) == []


ESTIMATING = {  # two applications without labels, whose accuracies are estimated once; no phase is undone
    **LEARNING,
    "name": "estimating",
    "workloads": [
        {
            **LEARNING["workloads"][0],
            "duration_s": 5,
            "height": 16,
            "width": 16,
            "apps": [{"name": "front"}, {"name": "side"}],
        }
    ],
    "systems": [
        {
            "name": "elasticdnn",
            "streaming": {"name": "on_device", "period_s": 3},
            "adaptation": {"name": "elasticdnn", "estimates": 1, "iterations": 2, "batch": 4, "guard": False},
            "scaling": {"name": "surrogate", "keep_ratios": [0.8, 0.5], "stages": [0.5], "epochs": 1, "sources": []},
            "scheduling": "elasticdnn",
        }
    ],
}


@pytest.mark.slow
def test_estimates_are_the_same_after_a_resumption(tmp_path):
    first = run(ESTIMATING, out=tmp_path / "first")
    assert first.failed == ()
    rows = driftlab.open_run(first.directory).frame("estimates")
    assert set(rows["app"]) == {"front", "side"} and set(rows["method"]) == {"estimator"}
    assert rows.groupby("app")["chosen"].sum().tolist() == [1, 1]
    trained = rows[rows["chosen"]]
    assert trained["true_after"].notna().any() and trained["observed_after"].notna().any()
    again = shutil.copytree(first.directory, tmp_path / "again")
    (cell,) = driftlab.open_run(again).frame("runs")["cell"]
    table_file(again / "tables", "runs", cell).unlink()
    assert resume(again).failed == ()
    assert differences(first.directory, again) == []
