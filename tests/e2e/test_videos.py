"""The user's videos: label maps of any classes train a student, or a network labels the frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from video_factory import COUNT, FPS, HEIGHT, WIDTH, write_label_maps, write_video

from driftlab.errors import RequestError
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.claims.base import evaluate
from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.tables.read import open_run

AMS = {
    "name": "ams",
    "streaming": {"name": "ams", "interval_s": 3},
    "adaptation": {"name": "distill", "learning_rate": 0.01, "fraction": 0.5, "iterations": 20},
}


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "boat.mp4")


def document(video: Path, **changes: Any) -> dict[str, Any]:
    own = {
        "name": "film",
        "systems": ["no_custom", AMS],
        "workloads": [{"name": f"video:{video}", "duration_s": None, "fps": FPS, "height": HEIGHT, "width": WIDTH}],
        "bounds": False,
        "student": {"network": "half", "pretrain_steps": 10},
        "teacher": {"pretrain_steps": 2},
    }
    return {**own, **changes}


@pytest.mark.usefixtures("few_claims")
def test_label_maps_train_the_user_s_classes(video: Path, tmp_path: Path):
    write_label_maps(video)
    made = run(document(video), out=tmp_path / "run").directory
    scores = open_run(made).frame("runs").set_index("system")["score"]
    assert scores["ams"] > scores["no_custom"] + 0.2  # the generic student was trained on other classes
    page = write_report(made).read_text(encoding="utf-8")
    assert "The same moments" in page and "sidewalk" not in page


def spoil_map(labels: Path) -> str:
    (labels / "gt_000003.png").write_bytes((labels / "gt_000003.png").read_bytes()[:40])
    return "gt_000003.png' cannot be read"


def name_too_few(labels: Path) -> str:
    (labels / "classes.txt").write_text("sea\nbeach\n", encoding="utf-8")
    return "holds the values [2], known are 0 to 1"


@pytest.mark.parametrize("spoil", [spoil_map, name_too_few])
def test_a_damaged_file_is_refused_before_anything_starts(video: Path, tmp_path: Path, spoil: Callable[[Path], str]):
    write_label_maps(video)
    message = spoil(video.with_name(f"{video.name}.labels"))
    with pytest.raises(RequestError) as caught:
        run(document(video), out=tmp_path / "run")
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_damaged_image_of_a_set_is_refused_before_the_run_starts(tmp_path: Path):
    for part, kind in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")):
        folder = tmp_path / "set" / part / kind
        folder.mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (16, 16), (40 * number, 0, 90)).save(folder / f"{number}.png")
    (tmp_path / "set" / "test" / "b" / "2.png").write_bytes(b"\x89PNG")
    own = {"name": f"set:images:{tmp_path / 'set'}", "duration_s": 12, "fps": 1, "height": 16, "width": 16}
    asked = {"name": "set", "systems": ["no_custom"], "workloads": [own], "bounds": False}
    student = {"network": "tiny_classifier", "pretrain_steps": 0}
    with pytest.raises(RequestError, match=r"2\.png"):
        run({**asked, "student": student}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_label_maps_a_network_labels_the_frames(video: Path, tmp_path: Path):
    made = run(document(video, teacher={"kind": "network", "pretrain_steps": 2}), out=tmp_path / "run").directory
    runs = open_run(made).frame("runs").set_index("system")
    assert runs["score"].between(0, 1).all()
    assert (runs.loc["ams", "updates"], runs.loc["ams", "teacher"]) == (pytest.approx(4, abs=1), "teacher")
    page = write_report(made).read_text(encoding="utf-8")
    assert "live agreement with the teacher teacher" in page and "trained on other pictures" in page
    assert ">live mIoU" not in page and ">truth<" not in page
    assert {one.result for one in evaluate(open_run(made)) if one.claim.score} == {"not testable here"}


def test_a_longer_duration_than_the_video_plays_the_video_once(video: Path, tmp_path: Path):
    write_label_maps(video)
    own = document(video, systems=["no_custom"])
    own["workloads"][0]["duration_s"] = 24.0
    made = open_run(run(own, out=tmp_path / "run").directory)
    assert len(made.frame("frames")) == COUNT and "agreement" not in made.info


def test_a_network_labels_only_for_tasks_that_it_was_trained_for(video: Path):
    teacher = {"kind": "network", "network": "wide_classifier"}
    with pytest.raises(RequestError) as caught:
        parse(document(video, teacher=teacher, student={"network": "tiny_classifier"}))
    assert (
        "has no truth, pre-training frames have labels for segmentation and detection, and student.network=tiny_cl"
        in str(caught.value)
    )


def test_custom_classes_require_oracle_teacher_and_fixed_scaling(video: Path):
    def refusal(**changes: Any) -> str:
        with pytest.raises(RequestError) as caught:
            parse(document(video, **changes))
        return str(caught.value)

    write_label_maps(video)
    said = refusal(teacher={"kind": "network"})
    assert "defines its own classes (sea, beach, boat), and teacher.kind=network predicts road, " in said
    assert "set teacher.kind=oracle to train on the label maps, or teacher.weights to a file" in said
    said = refusal(systems=[{"name": "no_custom", "scaling": "nested"}])
    assert "scaling=nested builds its networks on pictures of road, " in said and "take scaling=fixed" in said
    for file in video.with_name(f"{video.name}.labels").glob("gt_*.png"):
        file.unlink()
    assert "no label maps to train on; put label maps next to the file, or remove its classes.txt" in refusal()
