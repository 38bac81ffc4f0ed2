"""The recipe for LVS, Cityscapes and A2D2, on tiny archives in their layouts."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from video_factory import COUNT, HEIGHT, WIDTH, write_video

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import IGNORE, Frames
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.results.tables.read import open_run

SCRIPT = Path(__file__).parents[2] / "docs/examples/label_maps.py"


@pytest.fixture(scope="module")
def recipe() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(SCRIPT), run_name="label_maps"))


def frames_of(video: Path, times_s: list[float], fps: float) -> tuple[tuple[str, ...], Frames]:
    stream = open_stream(f"video:{video}", seed=0, height=32, width=48, fps=fps, duration_s=None)
    return stream.classes, stream.at(times_s)


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def test_a_city_of_cityscapes_has_nineteen_classes_where_it_is_labelled(recipe: SimpleNamespace, tmp_path: Path):
    archive, video = tmp_path / "cityscapes", tmp_path / "frankfurt.mp4"
    for number in range(6):
        stem = f"frankfurt_000000_{number:06d}"
        picture = np.full((32, 48, 3), 30 * number, np.uint8)
        save(archive / "leftImg8bit_sequence/val/frankfurt" / f"{stem}_leftImg8bit.png", picture)
    ids = np.repeat(np.array([7, 24, 33, 6], np.uint8), 12)[None].repeat(32, 0)  # 6: not one of the nineteen
    save(archive / "gtFine/val/frankfurt/frankfurt_000000_000002_gtFine_labelIds.png", ids)
    recipe.cityscapes(archive, "frankfurt", video)
    names, frames = frames_of(video, [2 / 17, 3 / 17], 17.0)
    assert len(names) == 19 and frames.labels is not None
    assert [names[one] for one in frames.labels[0, 0, [0, 12, 24]]] == ["road", "person", "bicycle"]
    assert frames.labels[0, 0, 36] == IGNORE and (frames.labels[1] == IGNORE).all()
    assert abs(frames.images.mean((1, 2, 3)) - [60, 90]).max() < 6
    weights = tmp_path / "w.safetensors"
    save_file(build("half", 19, seed=0).state_dict(), weights)
    workload = {"name": f"video:{video}", "duration_s": None, "fps": 17, "height": 32, "width": 48, "scored": ["road"]}
    student = {"network": "half", "weights": str(weights)}
    document = {"name": "city", "systems": ["no_custom"], "workloads": [workload], "bounds": False, "student": student}
    runs = open_run(run(document, out=tmp_path / "run").directory).frame("runs")
    assert 0 <= runs["score"][0] <= 1 and runs["status"][0] == "done"


def test_colours_of_a2d2_become_classes_and_instances_are_joined(recipe: SimpleNamespace, tmp_path: Path):
    scene, video = tmp_path / "a2d2/20181107_132300", tmp_path / "a2d2.mp4"
    colours = {"#ff0000": "Car 1", "#c80000": "Car 2", "#b432b4": "RD normal street"}
    scene.mkdir(parents=True)
    (scene.parent / "class_list.json").write_text(json.dumps(colours), encoding="utf-8")
    painted = np.zeros((32, 48, 3), np.uint8)
    painted[:, :12], painted[:, 12:24], painted[:, 24:36] = (255, 0, 0), (200, 0, 0), (180, 50, 180)
    for number in range(3):
        name = f"20181107132300_{{}}_frontcenter_{number:09d}.png"
        save(scene / "camera/cam_front_center" / name.format("camera"), painted)
        if number != 1:
            save(scene / "label/cam_front_center" / name.format("label"), painted)
    recipe.a2d2(scene, video)
    names, frames = frames_of(video, [0.0, 0.1, 0.2], 10.0)
    assert names == ("Car", "RD normal street") and frames.labels is not None
    assert frames.labels[0, 0, [0, 12, 24, 36]].tolist() == frames.labels[2, 5, [0, 12, 24, 36]].tolist()
    assert frames.labels[0, 0, [0, 12, 24, 36]].tolist() == [0, 0, 1, IGNORE] and (frames.labels[1] == IGNORE).all()


def test_objects_of_lvs_are_drawn_on_the_background_by_their_groups(recipe: SimpleNamespace, tmp_path: Path):
    video = write_video(tmp_path / "lvs.mp4")
    boxes = np.array([[0, 0, 0.5, 0.5], [0, 0, 0.25, 0.25], [0.5, 0.5, 1, 1], [0, 0.5, 0.5, 1]], np.float32)
    scores, classes = np.array([0.8, 0.9, 0.3, 0.9], np.float32), np.array([3, 1, 1, 44])
    masks = np.ones((4, 28, 28), np.float32)
    masks[0, :, :14] = 0.1
    found = dict.fromkeys(range(0, COUNT, 8), (boxes, classes, scores, masks))
    np.save(tmp_path / "found.npy", np.array(found, dtype=object), allow_pickle=True)
    recipe.lvs(video, tmp_path / "found.npy", "person=1", "vehicle=3,6,7,8")
    names, frames = frames_of(video, [0.0, 0.25], 4.0)
    assert names == ("background", "person", "vehicle") and frames.labels is not None
    expected = np.zeros((HEIGHT, WIDTH), np.uint8)
    expected[:16, 12:24] = 2  # the left half of its mask is below the limit
    expected[:8, :12] = 1
    assert (frames.labels[0] == expected).mean() > 0.98 and frames.labels[0, 20, 40] == 0  # the third is uncertain
    assert (frames.labels[1] == IGNORE).all()
    parse({
        "name": "lvs", "systems": ["no_custom"], "student": {"network": "half"},
        "workloads": [{"name": f"video:{video}", "duration_s": None, "height": 32, "width": 48, "scored": ["person"]}],
    })  # fmt: skip


@pytest.mark.parametrize("words", [("cityscapes", "none", "bern", "f.mp4"), ("a2d2", "none", "f.mp4")])
def test_a_missing_archive_is_named(recipe: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"There (are no pictures|is no class_list.json) in none"):
        getattr(recipe, words[0])(*[Path(word) if word != "bern" else word for word in words[1:]])
