"""Small whole runs of every task: rows with the right contents, and refused combinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from driftlab.errors import RequestError
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.tables.read import open_run

STREAM = {"duration_s": 12, "fps": 2, "height": 32, "width": 48}
FEW_STEPS = {"name": "distill", "batch": 2, "iterations": 20}
DOCUMENT: dict[str, Any] = {
    "name": "tiny",
    "systems": [
        "no_custom",
        {"name": "one_time", "streaming": {"name": "one_time", "sample_s": 4, "iterations": 10}},
        {"name": "ams", "streaming": {"name": "ams", "interval_s": 4}, "adaptation": FEW_STEPS},
        "remote_tracking",
        {"name": "just_in_time", "adaptation": FEW_STEPS},
    ],
    "window_s": 4,
    "snapshots": 2,
    "bounds": False,
}
CASES = {
    "classification": ("signs/motorway", "tiny_classifier"),
    "detection": ("streets/running", "tiny_detector"),
}


def document(task: str, **changes: Any) -> dict[str, Any]:
    workload, network = CASES[task]
    student = {"network": network, "pretrain_steps": 20}
    return {**DOCUMENT, "workloads": [{"name": workload, **STREAM}], "student": student, **changes}


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory):
    """Run every system on one stream, in this process."""
    outcome = run(document(request.param), out=tmp_path_factory.mktemp("run") / "run")
    assert outcome.failed == ()
    return request.param, open_run(outcome.directory)


@pytest.mark.slow
def test_the_application_is_called_after_its_task_and_every_frame_has_a_score(made):
    task, found = made
    frames = found.frame("frames")
    assert set(frames["app"]) == {task}
    for column in ("score_frame", "score_window"):
        assert frames[column].between(0, 1).all()
    assert frames["pixel_accuracy"].isna().all()
    assert set(found.frame("runs")["student"]) == {CASES[task][1]}


@pytest.mark.slow
def test_a_run_s_scores_are_the_means_of_its_frames(made):
    _, found = made
    for row in found.frame("runs").itertuples():
        mine = found.sql(f"select * from frames where cell = '{row.cell}'").to_pandas()
        assert row.score == pytest.approx(mine["score_window"].mean())
        assert row.score_frame == pytest.approx(mine["score_frame"].mean())


@pytest.mark.slow
def test_accuracy_is_the_share_of_frames_that_are_right(made):
    task, found = made
    if task != "classification":
        pytest.skip("accuracy is of classes")
    frames = found.frame("frames")
    assert set(frames["score_frame"]) == {0.0, 1.0}
    for cell, mine in frames.groupby("cell"):
        right, times_s = mine["score_frame"].to_numpy(), mine["time_s"].to_numpy()
        last = [right[(times_s > now_s - 10 + 1e-9) & (times_s <= now_s)].mean() for now_s in times_s]
        assert np.allclose(mine["score_window"], last)
        whole = found.frame("runs").set_index("cell").loc[cell]
        assert whole["score_global"] == pytest.approx(right.mean())


@pytest.mark.slow
def test_systems_update_track_and_score(made):
    """Updates arrive and change predictions; the φ-score is the task's; labels are tracked."""
    _, found = made
    runs = found.frame("runs").set_index("system")
    assert (runs.loc[["one_time", "ams", "just_in_time"], "updates"] > 0).all()
    assert runs["weights_digest"].nunique() == 4  # remote_tracking and no_custom keep the student as it is
    phis = found.frame("updates")["phi"].dropna()
    assert len(phis) and phis.between(0, 1).all() and phis.max() > 0
    frames = found.frame("frames")
    by_system = {cell.partition("/")[0]: mine["score_frame"].to_numpy() for cell, mine in frames.groupby("cell")}
    assert by_system["remote_tracking"].mean() > by_system["no_custom"].mean() + 0.1
    assert set(found.frame("transfers")["kind"]) >= {"samples", "labels", "update"}
    assert set(found.frame("transfers")["refused"].dropna()) <= {"it did not arrive in the session"}


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims", "few_figures")
def test_a_report_is_drawn(made):
    task, found = made
    page = write_report(found.path).read_text(encoding="utf-8")
    measure = {"classification": "accuracy", "detection": "F1"}[task]
    assert (
        f"{measure}: over the last 10 s" in page.replace("Accuracy", "accuracy")
        and page.count("data:image/png") == 2 * 7
    )


def refusal(changed: dict[str, Any]) -> str:
    with pytest.raises(RequestError) as caught:
        parse(changed)
    return str(caught.value)


def test_a_student_is_refused_on_a_stream_without_truth_for_its_task():
    message = refusal(document("classification", student={"network": "tiny"}))
    assert "'signs/motorway' has truth for classification, and student.network=tiny is for segmentation" in message
    assert "take one of tiny_classifier, half_classifier" in message
    message = refusal(document("detection", student={"network": "tiny_classifier"}))
    assert "'streets/running' has truth for segmentation and detection" in message


def test_a_teacher_of_another_task_and_noise_at_missing_borders_are_refused():
    said = refusal(document("detection", teacher={"kind": "network", "network": "teacher"}))
    assert "teacher.network: 'teacher' is for segmentation, student.network=tiny_detector is for detection" in said
    assert "take one of tiny_mobile_detector, tiny_detector, wide_detector" in said
    said = refusal(document("classification", teacher={"border_noise": 0.2}))
    assert "teacher.border_noise is 0.2; predictions in classification have no borders" in said


@pytest.mark.slow
@pytest.mark.parametrize(("task", "network"), [("classification", "wide_classifier"), ("detection", "wide_detector")])
def test_a_network_of_the_task_may_be_the_teacher(tmp_path, task, network):
    teacher = {"kind": "network", "network": network, "pretrain_steps": 2}
    given = document(task, systems=DOCUMENT["systems"][2:], teacher=teacher)
    outcome = run(given, ["workloads.0.duration_s=8"], out=tmp_path / "run")
    assert outcome.failed == ()
    runs = open_run(outcome.directory).frame("runs").set_index("system")
    assert set(runs["teacher"]) == {network}
    assert runs.loc["ams", "updates"] > 0


@pytest.mark.slow
def test_networks_are_built_for_the_classes_of_the_stream(tmp_path):
    given = document("classification", systems=["no_custom"])
    sizes = []
    for classes in (4, 20):
        overrides = ["workloads.0.duration_s=2", f"workloads.0.params.classes={classes}", "student.pretrain_steps=1"]
        found = open_run(run(given, overrides, out=tmp_path / str(classes)).directory)
        sizes.append(int(found.frame("runs")["parameters"][0]))
    assert sizes[1] - sizes[0] == 16 * (48 + 1)  # a row of the last layer per class
