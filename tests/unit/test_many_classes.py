"""More than 256 classes: 255 is an ordinary class, and 299 differs from 43 (299 mod 256)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import NO_CLASS
from driftlab.datasets.labelled import open_set
from driftlab.datasets.sheet import PALETTE
from driftlab.errors import RequestError
from driftlab.platform.core.metrics import confusions
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import predict
from driftlab.platform.networks.pruning import ranking
from driftlab.platform.networks.pruning.surgery import groups
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION
from driftlab.platform.networks.training.training_loop import (
    DataSplits,
    LabelledFrames,
    TrainingSchedule,
    convert_set,
    grade,
    train_best,
)
from driftlab.platform.sim.nodes.teacher import TeacherNode
from driftlab.platform.sim.setting import TeacherSpec

CLASSES = 300


def signs(count: int = CLASSES) -> DataSplits:
    return convert_set(open_set("signs/vc", classes=CLASSES, size=16, counts=(count, count, count)))


def only(frames: LabelledFrames, kind: int) -> LabelledFrames:
    rows = np.flatnonzero(frames.labels == kind)
    return LabelledFrames(frames.images[rows], frames.labels[rows])


def test_a_labelled_set_keeps_all_its_classes():
    data = signs()
    assert data.train.labels.tolist() == list(range(CLASSES)) and data.train.labels.dtype == np.int64


@pytest.mark.parametrize("kind", [255, 299])
def test_a_class_beyond_a_byte_is_trained_predicted_and_scored(kind):
    whole = signs()
    frames = only(whole.train, kind)
    data = DataSplits(CLASSIFICATION, CLASSES, frames, frames, frames)
    model = build("tiny_classifier", CLASSES, seed=0)
    assert grade(model, data, frames) == 0.0
    assert train_best(model, data, TrainingSchedule(1, 1.0), np.random.default_rng(0)) == 1.0
    assert predict(model, frames.images, task=CLASSIFICATION).tolist() == [kind]
    assert grade(model, data, only(whole.train, kind - 256 if kind > 255 else 0)) == 0.0


def test_the_loss_covers_every_class_and_ignores_unlisted_labels():
    output = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(0))
    truth = np.array([255, 299, NO_CLASS, CLASSES])
    wanted = torch.nn.functional.cross_entropy(output[:2], torch.tensor([255, 299]))
    assert float(CLASSIFICATION.loss(output, truth)) == pytest.approx(float(wanted))
    assert CLASSIFICATION.usable(truth, CLASSES).tolist() == [True, True, False, False]
    assert CLASSIFICATION.count_unlisted(truth, CLASSES) == 2
    assert CLASSIFICATION.drop_unlisted(truth, CLASSES).tolist() == [255, 299, NO_CLASS, NO_CLASS]
    predicted = np.array([255, 43, 0, 0])
    counts = CLASSIFICATION.counts(predicted, truth, CLASSES).sum(axis=0)
    assert float(CLASSIFICATION.score(counts)) == 0.5


@pytest.mark.parametrize("kind", [0, 255, 256, 299, NO_CLASS])
def test_a_class_crosses_the_link_and_one_below_256_takes_a_byte(kind):
    packed = CLASSIFICATION.pack(np.int64(kind))
    assert CLASSIFICATION.unpack(packed, 16, 16) == kind
    assert (len(packed) == len(CLASSIFICATION.pack(np.int64(7)))) == (0 <= kind < 256)


@pytest.mark.slow
def test_slides_of_many_classes_are_shown_and_a_teacher_names_them(tmp_path, torchvision):
    for part in ("train", "test"):
        for kind in range(CLASSES):
            (tmp_path / part / f"{kind:03}").mkdir(parents=True)
            Image.new("RGB", (8, 8), (kind % 256, 0, 0)).save(tmp_path / part / f"{kind:03}" / "a.png")
    stream = open_stream(f"set:images:{tmp_path}", seed=0, height=16, width=16, fps=1.0, duration_s=float(CLASSES))
    assert len(stream.classes) == CLASSES
    frames = stream.at(np.arange(float(CLASSES)))
    named = TeacherNode(TeacherSpec(task="classification")).label(frames).payload
    assert sorted(named.tolist()) == list(range(CLASSES))
    assert np.array_equal(named % 256, frames.images[:, 0, 0, 0])


@pytest.mark.slow
def test_filters_are_ranked_by_the_available_classes():
    data, model = signs(), build("tiny_classifier", CLASSES, seed=0)
    rows = np.isin(data.train.labels, [43, 255, 299]).nonzero()[0].repeat(2)
    given = {"images": data.train.images[rows], "rng": np.random.default_rng(0)}
    found = groups(model, torch.zeros(1, 3, 16, 16))
    named = ranking.rank(model, found, "trr", labels=data.train.labels[rows], **given)
    again = ranking.rank(model, found, "trr", labels=np.searchsorted([43, 255, 299], data.train.labels[rows]), **given)
    assert all(torch.allclose(named[name], again[name]) for name in found.sizes)


def test_colours_repeat_and_an_unknown_class_is_black():
    image = np.zeros((4, 4, 3), np.uint8)
    seen = [CLASSIFICATION.draw(kind, image)[0, 0].tolist() for kind in (7, 262, NO_CLASS)]
    assert seen == [PALETTE[7].tolist(), PALETTE[7].tolist(), [0, 0, 0]]
    found = np.array([[262, 0, 0, 3, 3]], np.float32)
    assert (DETECTION.draw(found, image) == PALETTE[7]).all(-1).any()


def test_label_maps_are_refused_more_classes_than_a_byte_can_name():
    assert build("half", 254, seed=0).head.out_channels == 254
    with pytest.raises(RequestError, match="at most 254 classes, given 255"):
        build("half", 255, seed=0)
    assert build("tiny_detector", CLASSES, seed=0).head.out_channels == CLASSES + 4
    with pytest.raises(ValueError, match="256 classes"):
        confusions(np.zeros((1, 2, 2), int), np.zeros((1, 2, 2), int), 256)
