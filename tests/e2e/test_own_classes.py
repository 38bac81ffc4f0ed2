"""Videos with label maps of nineteen classes, and networks with these classes from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from driftlab.datasets.catalogue import open_stream
from driftlab.errors import RequestError
from driftlab.platform.core.metrics import confusions, miou
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.results.tables.read import open_run

CLASSES, HEIGHT, WIDTH, FPS, COUNT = 19, 32, 48, 4, 48
COLOURS = np.random.default_rng(5).integers(60, 200, (CLASSES, 3)).astype(np.uint8)
TINT = np.array([40, -30, 10])  # of the video: its colours are not those that the network of the file was trained on
NAMES = [f"class{number}" for number in range(CLASSES)]


def tiles(number: int) -> npt.NDArray[np.uint8]:
    """Label the tiles of a frame with eighteen of the classes, which move on every second."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    return ((rows // 11 * 6 + columns // 8 + number // FPS) % CLASSES).astype(np.uint8)


def write_video(folder: Path) -> Path:
    path = folder / "video.mp4"
    with av.open(str(path), "w") as container:
        track = container.add_stream("libx264", rate=FPS, options={"crf": "10", "threads": "1"})
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(COUNT):
            image = (COLOURS[tiles(number)].astype(int) + TINT).clip(0, 255).astype(np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(track.encode())
    return path


def write_maps(video: Path, *, maps: bool = True) -> None:
    folder = video.with_name(f"{video.name}.labels")
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(NAMES), encoding="utf-8")
    for number in range(COUNT if maps else 0):
        Image.fromarray(tiles(number)).save(folder / f"gt_{number:06d}.png")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a network of nineteen classes on other colours, and keep it in a file."""
    model = build("half", CLASSES, seed=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    rng = np.random.default_rng(2)
    for _ in range(120):
        labels = np.stack([tiles(int(number)) for number in rng.integers(0, COUNT, 4)])
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(to_input(COLOURS[labels])), torch.tensor(labels).long())
        loss.backward()
        optimiser.step()
    path = tmp_path_factory.mktemp("weights") / "nineteen.safetensors"
    save_file(model.state_dict(), path)
    return path


def document(video: Path, weights: Path, **changes: Any) -> dict[str, Any]:
    systems = [
        "no_custom",
        {
            "name": "ams",
            "streaming": {"name": "ams", "interval_s": 3},
            "adaptation": {"name": "distill", "learning_rate": 0.01, "fraction": 0.5},
        },
    ]
    workload = {"name": f"video:{video}", "duration_s": None, "fps": FPS, "height": HEIGHT, "width": WIDTH}
    student = {"network": "half", "weights": str(weights)}
    return {
        "name": "nineteen", "systems": systems, "workloads": [workload], "bounds": False, "student": student, **changes,
    }  # fmt: skip


def test_a_student_of_nineteen_classes_is_scored_as_it_is_and_learns(weights: Path, tmp_path: Path):
    video = write_video(tmp_path)
    write_maps(video)
    made = open_run(run(document(video, weights), out=tmp_path / "run").directory)
    model = build("half", CLASSES, seed=1)
    model.load_state_dict(load_file(weights))
    frames = open_stream(f"video:{video}", seed=0, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=None).at([5.0, 9.0])
    expected = miou(confusions(predict(model, frames.images), frames.labels, CLASSES))
    rows = made.sql("select time_s, frames.score_frame from frames join runs using (cell) where system = 'no_custom'")
    found = dict(zip(rows["time_s"].to_pylist(), rows["score_frame"].to_pylist(), strict=True))
    assert [found[5.0], found[9.0]] == pytest.approx(expected.tolist())
    scores = made.frame("runs").set_index("system")["score"]
    assert 0.1 < scores["no_custom"] < scores["ams"] - 0.04


def test_without_weights_the_head_is_random(tmp_path: Path):
    video = write_video(tmp_path)
    write_maps(video)
    own = document(video, tmp_path, systems=["no_custom"], student={"network": "half", "pretrain_steps": 5})
    assert open_run(run(own, out=tmp_path / "run").directory).frame("runs")["score"][0] < 0.1


def test_classes_that_are_not_scored_count_for_nothing(weights: Path, tmp_path: Path):
    video = write_video(tmp_path)
    write_maps(video)
    own = document(video, weights, systems=["no_custom"])
    own["workloads"][0]["scored"] = ["class3", "class5"]
    made = open_run(run(own, out=tmp_path / "run").directory)
    counted = made.frame("classes").set_index("class")["truth"]
    assert set(counted[counted > 0].index) == {3, 5}
    own["workloads"][0]["scored"] = ["class33"]
    with pytest.raises(RequestError, match=r"Unknown class 'class33'\. Did you mean 'class3'"):
        parse(own)


def test_a_teacher_labels_a_video_without_label_maps(weights: Path, tmp_path: Path):
    video = write_video(tmp_path)
    write_maps(video, maps=False)
    teacher = {"kind": "network", "network": "half", "weights": str(weights)}
    made = open_run(run(document(video, weights, teacher=teacher), out=tmp_path / "run").directory)
    scores = made.frame("runs").set_index("system")["score"]
    assert scores["no_custom"] == 1.0  # the same network judges itself, which is agreement and no truth
    assert made.info["agreement"] == {"video": "half"}
    with pytest.raises(RequestError, match="no label maps to train on"):
        parse(document(video, weights, teacher={"kind": "network", "network": "half"}))


def test_a_file_of_other_classes_is_refused_before_the_run(tmp_path: Path):
    video = write_video(tmp_path)
    write_maps(video)
    save_file(build("half", 8, seed=0).state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(RequestError, match=r"another network: without or with another shape of head\.weight"):
        parse(document(video, tmp_path / "w.safetensors"))
