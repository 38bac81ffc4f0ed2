"""Members against a second implementation of the methods: equal outputs over twenty batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tta_policies
import tta_reference as reference
from torch import nn
from tta_factory import STREAM

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import Batch
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.architectures import Classifier
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, Classification
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames

BATCHES, FRAMES, CLASSES = 20, 12, 4
SEEDS = range(100, 100 + BATCHES)


class RecordingNetwork(nn.Module):
    """A classifier in double precision that keeps its outputs."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)
            self.net = Classifier(CLASSES, 4).double()
        with torch.no_grad():
            self.net.head.weight.mul_(12)
        self.seen: list[torch.Tensor] = []

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.net(frames.double())
        self.seen.append(outputs.detach().clone())
        return outputs


class RecordingTask(Classification):
    """Classification that keeps the outputs that it decodes."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def predictions(self, output, height, width):
        self.seen.append(output.detach().clone())
        return super().predictions(output, height, width)


def pictures(seed: int, count: int = FRAMES) -> np.ndarray:
    """Flat colours with noise, so that classes differ, in a light that falls."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 216, (count, 1, 1, 3))
    noise = rng.normal(0, 30, (count, 8, 8, 3))
    return np.clip(colours * (1 - 0.02 * (seed - 100)) + noise, 0, 255).astype(np.uint8)


IMAGES = [pictures(seed) for seed in SEEDS]
INPUTS = [to_input(images) for images in IMAGES]
SOURCE = pictures(1, 24)


def source_data() -> DataSplits:
    labelled = LabelledFrames(SOURCE, np.zeros(len(SOURCE), dtype=np.int64))
    return DataSplits(CLASSIFICATION, CLASSES, labelled, labelled, labelled)


def stream(name: str, **params):
    """Train a member on all batches; return its predictions, the first outputs per call, the results."""
    member, model = Member("adaptation", name, tuple(params.items())).make(), RecordingNetwork().eval()
    state = member.prepare(model, member.summarise_source(model, source_data()) if member.has_source_summary else {})
    answered, first, results = [], [], []
    for images, seed in zip(IMAGES, SEEDS, strict=True):
        task = RecordingTask()
        before = len(model.seen)
        done = member.adapt(model, state, Batch(images, None, np.random.default_rng(seed), task), STREAM)
        state = done.state
        first.append(model.seen[before])
        answered += task.seen
        results.append(done)
    return answered, first, results


def after_each(name: str, **params):
    """Return the outputs for each batch after the step on it, by stored statistics."""
    member, model = Member("adaptation", name, tuple(params.items())).make(), RecordingNetwork().eval()
    state, found = (
        member.prepare(model, member.summarise_source(model, source_data()) if member.has_source_summary else {}),
        [],
    )
    for images, seed in zip(IMAGES, SEEDS, strict=True):
        state = member.adapt(
            model, state, Batch(images, None, np.random.default_rng(seed), CLASSIFICATION), STREAM
        ).state
        with torch.no_grad():
            found.append(model(to_input(images)))
    return found


def agree(found, expected, tolerance: float = 1e-5) -> None:
    """Compare outputs batch by batch."""
    expected = [outputs.detach() for outputs in expected]
    assert len(found) == len(expected) == BATCHES
    gaps = [float((ours - theirs).abs().max()) for ours, theirs in zip(found, expected, strict=True)]
    assert max(gaps) < tolerance, gaps


def features(model, x):
    kept = []
    handle = model.net.head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    outputs = model(x)
    handle.remove()
    return kept[0], outputs


def test_tent():
    agree(stream("tent")[0], reference.tent(RecordingNetwork(), INPUTS))


def test_tent_with_several_steps():
    found, _, results = stream("tent", steps=3)
    agree(found, reference.tent(RecordingNetwork(), INPUTS, steps=3))
    assert {(done.iterations, done.predicted_by) for done in results} == {(3, (3, 2))}


@pytest.mark.slow
def test_asr():
    found, _, results = stream("asr", member="tent", start=0.8)
    expected = list(tta_policies.asr(RecordingNetwork(), INPUTS, start=0.8))
    agree(found, [outputs for outputs, _ in expected])
    returned = [done.state.inner.steps == 0 for done in results]
    assert returned == [collapsed for _, collapsed in expected]
    assert 0 < sum(returned) < BATCHES


@pytest.mark.slow
def test_snap():
    params = {"member": "tent", "capacity": 14, "every_batches": 3, "confidence": 0.4, "width": 1.0}
    _, first, results = stream("snap", member_params=("learning_rate=0.01",), **params)
    agree(first, tta_policies.snap(RecordingNetwork(), INPUTS, size=14, every=3, confidence=0.4, width=1.0, rate=0.01))
    assert sum(done.iterations for done in results) == BATCHES // 3


@pytest.mark.slow
def test_eata():
    fisher = reference.fisher_of(RecordingNetwork(), to_input(SOURCE), 12)
    found, _, results = stream("eata", entropy_margin=0.8, redundancy_margin=0.9, fisher_weight=50.0, fisher_batch=12)
    agree(found, reference.eata(RecordingNetwork(), INPUTS, fisher))
    shares = [done.accepted for done in results]
    assert 0 < min(shares) < max(shares) <= 1


@pytest.mark.slow
def test_sar():
    found, _, results = stream("sar", entropy_margin=0.8, learning_rate=1e-2, reset_threshold=0.0)
    agree(found, reference.sar(RecordingNetwork(), INPUTS, spared=["net.deep.2.1"]))
    assert all(done.iterations == 1 for done in results)


def dimmed(inputs, *_):
    """A fixed view for both sides; without one, student and teacher agree and only rounding is trained."""
    return 0.7 * inputs - 0.3


@pytest.mark.slow
def test_cotta(monkeypatch):
    monkeypatch.setattr("driftlab.platform.adaptation.cotta.augment", dimmed)
    found, _, results = stream("cotta", ema_decay=0.9, restore_prob=0.1, confidence_threshold=1.0, augmentations=1)
    agree(found, reference.cotta(RecordingNetwork(), INPUTS, SEEDS, dimmed))
    assert results[0].passes.forward == (FRAMES,) * 4  # teacher, source, one view, student


@pytest.mark.slow
def test_cotta_as_released(monkeypatch):
    """The target predicts, with the steps that the authors use on large pictures."""
    monkeypatch.setattr("driftlab.platform.adaptation.cotta.augment", dimmed)
    params = {"ema_decay": 0.9, "restore_prob": 0.1, "confidence_threshold": 1.0, "augmentations": 1}
    found, _, results = stream("cotta", predicts="target", optimiser="sgd", **params)
    agree(found, reference.cotta(RecordingNetwork(), INPUTS, SEEDS, dimmed, released=True))
    assert {done.predicted_by for done in results} == {(3, 0)}  # teacher, source and the view


def test_adabn_may_predict_after_its_update():
    found, _, results = stream("adabn", predict_on="batch", update_first=True)
    agree(found, after_each("adabn"))
    assert {(done.passes.forward, done.predicted_by) for done in results} == {((FRAMES, FRAMES), (2, 0))}
    with pytest.raises(RequestError, match="update_first"):
        Member("adaptation", "adabn", (("update_first", True),)).make()


@pytest.mark.parametrize("name", ["rotta", "note"])
def test_a_member_with_a_memory_runs_a_batch_once(name):
    found, first, results = stream(name, predict_on="batch", every_frames=16)
    agree(found, first)
    assert all(done.passes.forward[0] == FRAMES and done.predictions is not None for done in results)


@pytest.mark.slow
def test_rotta(monkeypatch):
    monkeypatch.setattr("driftlab.platform.adaptation.rotta.augment", dimmed)
    _, first, results = stream("rotta", capacity=10, every_frames=16, ema_rate=0.2)
    agree(first, reference.rotta(RecordingNetwork(), INPUTS, dimmed, size=10, every=16))
    assert sum(done.iterations for done in results) == BATCHES * FRAMES // 16
    assert min(done.accepted for done in results) < 1


@pytest.mark.slow
def test_note():
    _, first, results = stream("note", capacity=10, every_frames=16, learning_rate=1e-3)
    agree(first, reference.note(RecordingNetwork(), INPUTS, SEEDS, size=10, every=16))
    assert min(done.accepted for done in results) < 1


def test_lame():
    found, model = stream("lame", neighbours=3)[0], RecordingNetwork().eval()
    with torch.no_grad():
        agree(found, [reference.lame(*features(model, x), nearest=3) for x in INPUTS])
        assert any((ours.argmax(1) != model(x).argmax(1)).any() for ours, x in zip(found, INPUTS, strict=True))


def test_t3a():
    found, model = stream("t3a", features_per_class=3)[0], RecordingNetwork().eval()
    with torch.no_grad():
        seen = [features(model, x)[0] for x in INPUTS]
        agree(found, reference.t3a(model.net.head.weight, model.net.head.bias, seen, keep=3))


@pytest.mark.slow
def test_shot():
    agree(after_each("shot", learning_rate=1e-2), reference.shot(RecordingNetwork(), INPUTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"optimiser": "adam", "learning_rate": 1e-3}, {"adam": True, "rate": 1e-3}),
        ({"norms": "source"}, {"frozen": True}),
        ({"decay_steps": 8}, {"over": 8}),
    ],
)
def test_shot_with_other_steps(params, expected):
    found = after_each("shot", **{"learning_rate": 1e-2, **params})
    agree(found, reference.shot(RecordingNetwork(), INPUTS, **expected))


@pytest.mark.slow
def test_bufr():
    found = after_each("bufr", no_stabilisation=True, learning_rate=1e-5, temperature=1.0)
    agree(found, reference.bufr(RecordingNetwork().eval(), to_input(SOURCE), INPUTS, features, softness=1.0, rate=1e-5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tent", "eata", "sar", "rotta", "note", "shot", "bufr"])
def test_the_comparison_would_see_another_rate(name):
    """The network moves by far more than the tolerance."""
    banks, margins = {"every_frames": 16}, {"entropy_margin": 0.8}
    params = {"rotta": banks, "note": banks, "eata": margins, "sar": margins}.get(name, {})
    moved, still = (after_each(name, **params, learning_rate=rate)[-1] for rate in (3e-2, 1e-9))
    assert float((moved - still).abs().max()) > 1e-3
