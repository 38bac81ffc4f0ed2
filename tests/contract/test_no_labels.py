"""No labels reach a label-free member: labels that raise and scrambled truth change no result."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from adaptation_factory import BRIEF, NETWORKS, state_of
from stream_factory import (
    CLASSES,
    FIXED,
    FPS,
    HEIGHT,
    WIDTH,
    member,
    real_app,
    run_app,
    stream,
    weights,
)

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import EMPTY_PACK, Batch, Phase
from driftlab.platform.core.records import Weights
from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import load
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.setting import StudentSpec
from driftlab.platform.streaming.base import DownlinkPlan

LABEL_FREE = [name for name in sorted(FAMILIES["adaptation"]) if member_class("adaptation", name).labels == "none"]
NETWORK = "tiny_classifier"
SCORES = ("frames.score_window", "frames.score_live", "frames.score_frame", "frames.pixel_accuracy", "facts")


class PoisonedBatch(Batch):
    """A batch that raises if its labels are read."""

    def __getattribute__(self, name: str) -> Any:
        assert name != "labels", "a member that learns without labels has read them"
        return super().__getattribute__(name)


class PoisonedFrames(Frames):
    """Frames that raise if their ground truth is read."""

    def __getattribute__(self, name: str) -> Any:
        assert name not in ("labels", "boxes", "classes"), "a learner without labels has read the truth"
        return super().__getattribute__(name)


@cache
def pack_of(name: str) -> Weights:
    """Summarise a source that is not the stream."""
    made = member(name, **BRIEF.get(name, {})).make()
    if not made.has_source_summary:
        return EMPTY_PACK
    rng, model = np.random.default_rng(3), build(NETWORK, CLASSES, seed=1)
    load(model, weights(NETWORK))
    images, labels = rng.integers(0, 256, (64, HEIGHT, WIDTH, 3), dtype=np.uint8), np.arange(64) % CLASSES
    parts = [LabelledFrames(images, labels)] * 3
    return made.summarise_source(model, DataSplits(CLASSIFICATION, CLASSES, *parts, 0))


def in_fours(name: str) -> Member:
    """Make a member train on four frames at a time; if a policy wraps one, set it there."""
    made = member(name).make()
    if not made.learns_on_stream:
        return member(name)
    if hasattr(made, "member_params"):
        return member(name, member_params=("stream_batch=4",))
    return member(name, stream_batch=4)


def scrambled(frames: Frames) -> Frames:
    """Replace all truth by other truth."""
    rng = np.random.default_rng(9)
    return replace(
        frames,
        labels=rng.integers(0, CLASSES, frames.labels.shape, dtype=np.uint8),
        boxes=tuple(np.array([[1, 0, 0, 5, 5]], np.float32) for _ in frames.boxes),
        classes=(frames.classes + 1) % CLASSES,
    )


def test_there_are_label_free_members():
    assert {"adabn", "onda", "tent", "shot", "frozen"} <= set(LABEL_FREE)


@pytest.mark.parametrize("name", LABEL_FREE)
class TestLabelFree:
    def test_a_member_never_reads_the_labels_of_a_batch(self, name):
        task, built = NETWORKS[NETWORK]
        made, rng, model = member(name).make(), np.random.default_rng(0), built().eval()
        images = rng.integers(0, 256, (8, HEIGHT, WIDTH, 3), dtype=np.uint8)
        batch = PoisonedBatch(images, None, rng, task)
        state = made.prepare(model, pack_of(name))
        state = made.predict(model, state, batch).state
        for phase in (Phase(iterations=2), Phase(on_stream=True)):
            state = made.adapt(model, state, batch, phase).state
        made.reset(model, state)
        assert state_of(model)

    def test_scrambled_truth_changes_scores_only(self, name):
        seen, found = stream(12.0), []
        for frames in (seen, scrambled(seen)):
            node = real_app(in_fours(name), network=NETWORK, pack=pack_of(name), detects_domains=True)
            found.append(run_app(node, frames, np.arange(0, 13, 4.0)))
        kept = [{key: value for key, value in one.items() if key not in SCORES} for one in found]
        assert kept[0] == kept[1] and len(kept[0]["frames.processed"]) == 12 * FPS

    def test_a_learner_never_reads_the_truth_of_its_samples(self, name):
        seen = stream(8.0)
        truth = (seen.labels, seen.boxes, seen.classes)
        spec = StudentSpec(NETWORK, CLASSES, HEIGHT, WIDTH, member(name), FIXED, 0)
        node = LearnerNode(spec, weights(NETWORK), 600.0, True, pack_of(name))
        node.store(PoisonedFrames(seen.times_s, seen.images, seen.scenes, *truth), None)
        assert node.train(DownlinkPlan(None, Phase(2))).facts is not None
