"""Labelled sets as workloads: training, validation and scoring use different parts of a set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from driftlab.datasets.catalogue import find_workload, folder_digest_of, open_stream
from driftlab.datasets.labelled import open_set
from driftlab.errors import RequestError
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.training import pretrain
from driftlab.platform.networks.training.artifacts import Recipe
from driftlab.platform.results.tables.read import open_run

SIZE: dict[str, Any] = {"height": 16, "width": 16, "fps": 4.0}
NESTED = {"name": "nested", "keep_ratios": [0.75, 0.5], "accuracy_loss": 0.5, "prune_epochs": 1, "grow_epochs": 1}


def document(**changes: Any) -> dict[str, Any]:
    own = {
        "name": "slides",
        "systems": [{"name": "nestdnn", "scaling": NESTED}],
        "workloads": [{"name": "set:digits", "duration_s": 20, **SIZE}],
        "bounds": False,
        "snapshots": 1,
        "student": {"network": "tiny_classifier", "pretrain_steps": 150},
    }
    return {**own, **changes}


def refusal(name: str) -> str:
    with pytest.raises(RequestError) as caught:
        parse(document(workloads=[{"name": name, **SIZE}]))
    return str(caught.value)


def bytes_of(images: np.ndarray) -> list[bytes]:
    return [image.tobytes() for image in images]


def test_every_image_appears_once_before_any_repeats():
    judged = open_set("digits", size=(16, 24)).test
    stream = open_stream("set:digits", seed=5, height=16, width=24, fps=10.0, duration_s=50.0)
    shown = stream.at(np.arange(500) / 10)
    seen = bytes_of(shown.images)
    assert set(seen[:360]) == set(bytes_of(judged.images)) and seen[360:] == seen[:140]
    classes = dict(zip(bytes_of(judged.images), judged.classes, strict=True))
    assert [classes[image] for image in seen] == shown.classes.tolist()


@pytest.mark.slow
def test_training_images_are_not_in_the_stream():
    recipe = Recipe("tiny_classifier", 10, 16, 16, "set:digits", steps=1000, seed=7)
    data = pretrain.draw_data(recipe)
    assert [len(part) for part in (data.train, data.val, data.test)] == [1077, 360, 360]
    shown = {image for seed in (0, 1) for image in bytes_of(digits_shown(seed))}
    assert shown == set(bytes_of(data.test.images)) and not shown & set(bytes_of(data.train.images))


def digits_shown(seed: int) -> np.ndarray:
    return open_stream("set:digits", seed=seed, duration_s=90.0, **SIZE).at(np.arange(360) / 4).images


@pytest.mark.slow
def test_short_training_reads_few_images():
    data = pretrain.draw_data(Recipe("tiny_classifier", 16, 16, 16, "set:signs/vs", steps=20))
    whole = open_set("signs/vs", size=16)
    for few, many in ((data.train, whole.train), (data.val, whole.val), (data.test, whole.test)):
        assert np.array_equal(few.images, many.images[:80]) and np.array_equal(few.labels, many.classes[:80])


@pytest.mark.slow
def test_nested_networks_are_trained_and_scored_on_different_digits(tmp_path: Path):
    found = open_run(run(document(), out=tmp_path / "run").directory)
    assert set(found.frame("runs")["workload"]) == {"digits"}
    accuracies = found.frame("variants")["accuracy"]
    assert len(accuracies) == 2 and accuracies.min() > 0.6  # chance is 0.1
    assert found.frame("frames")["score_frame"].mean() > 0.6


def test_a_missing_set_names_the_folder_and_a_wrong_name_suggests_another(tmp_path: Path, torchvision):
    assert "Unknown workload 'set:digit'. Did you mean 'set:digits'?" in refusal("set:digit")
    for name in ("set:gtsrb", f"set:gtsrb:{tmp_path}"):
        assert "FOLDER holds gtsrb/GTSRB/Training" in refusal(name)


def test_networks_are_cached_by_the_contents_of_the_folder(tmp_path: Path, torchvision):
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir(parents=True)
            Image.fromarray(np.full((20, 30, 3), 90, np.uint8)).save(tmp_path / part / kind / "0.png")
    name = f"set:images:{tmp_path}"
    stream = open_stream(name, seed=0, duration_s=1.0, **SIZE)
    assert (find_workload(name).family, stream.classes) == (name, ("cat", "dog"))
    before = folder_digest_of(name)
    assert before == folder_digest_of(name) != ""
    (tmp_path / "train" / "dog" / "0.png").write_bytes(b"another")
    assert folder_digest_of(name) not in (before, "")
    assert (
        folder_digest_of("set:digits") == folder_digest_of("streets/dance") == folder_digest_of("video:a:b.mp4") == ""
    )
