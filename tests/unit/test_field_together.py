"""Networks that train as one batch: each result is that of training alone, up to the order of sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill
from driftlab.platform.field import together
from driftlab.platform.field.together import adapt_together, key_of
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.taps import counting, tap
from driftlab.platform.networks.tasks.tasks import TASKS
from driftlab.platform.networks.training.descent import Descent

CLASSES = 4


def samples(seed, network="half", frames=5):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (frames, 16, 24, 3), dtype=np.uint8)
    if task_of(network) is TASKS["classification"]:
        return Batch(images, rng.integers(-1, CLASSES, frames), rng, TASKS["classification"])
    labels = rng.integers(0, CLASSES + 2, (frames, 16, 24)).astype(np.uint8)  # some are of no class
    labels[0] = 255  # a frame without any
    return Batch(images, labels, rng)


def models(count, network="half"):
    """Networks of one architecture with other weights and, as after other sources, other norms."""
    found = [build(network, CLASSES, seed=seed) for seed in range(count)]
    for number, model in enumerate(found):
        for name, held in model.named_buffers():
            if name.endswith("running_mean"):
                held += 0.1 * number
    return found


def trained(member, count, network, phases, how):
    """Train several networks for two phases; return their weights and results."""
    nets = models(count, network)
    states, results = [member.prepare(net) for net in nets], []
    for number in range(2):
        batches = [samples(10 * number + seed, network, frames=3 + seed) for seed in range(count)]
        results = how([member] * count, nets, states, batches, phases)
        states = [one.state for one in results]
    return [vector.read(net) for net in nets], results, batches


def one_after_another(*given):
    return [member.adapt(*others) for member, *others in zip(*given, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("half", {}),
        ("half", {"optimiser": "momentum", "strategy": "random", "fraction": 0.5}),
        ("half", {"strategy": "full", "batch": 1}),  # some mini-batches have no label that counts
        ("half", {"restart_each_phase": True, "fraction": 0.2}),
        ("tiny", {}),
        ("tiny_residual_gn", {}),
        ("tiny_classifier", {"batch": 2}),
    ],
)
def test_each_network_is_as_after_training_alone(network, settings):
    member = Distill(iterations=6, epsilon=1e-3, **settings)
    given = (member, 3, network, [Phase()] * 3)
    theirs, alone, drawn = trained(*given, one_after_another)
    ours, joint, drawn_too = trained(*given, adapt_together)
    for number in range(3):
        here, there = joint[number], alone[number]
        assert np.allclose(ours[number], theirs[number], atol=1e-6)
        assert not np.allclose(ours[number], ours[number - 1], atol=1e-3)
        assert np.array_equal(here.changed, there.changed)
        assert np.array_equal(here.state.trained, there.state.trained)
        assert np.allclose(here.losses, there.losses, rtol=1e-5)
        assert (here.iterations, here.passes, here.skipped) == (there.iterations, there.passes, there.skipped)
        assert here.state.steps == there.state.steps
        assert all(map(np.allclose, here.state.moments, there.state.moments, [1e-4] * 2, [1e-6] * 2))
        assert drawn[number].rng.bit_generator.state == drawn_too[number].rng.bit_generator.state


@pytest.mark.slow
def test_a_loss_that_is_not_finite_affects_no_other_network():
    member, expected = Distill(iterations=4), []
    for broken in (False, True):
        nets = models(3)
        if broken:
            with torch.no_grad():
                next(nets[1].parameters()).fill_(float("inf"))
        before = vector.read(nets[1])
        states = [member.prepare(net) for net in nets]
        batches = [samples(seed) for seed in range(3)]
        results = adapt_together([member] * 3, nets, states, batches, [Phase()] * 3)
        expected.append([vector.read(nets[number]) for number in (0, 2)])
    assert results[1].skipped.startswith("not finite after 1 iterations, loss ")
    assert results[1].state is states[1]
    assert vector.read(nets[1]).tobytes() == before.tobytes()
    assert all(np.allclose(*pair, atol=1e-6) for pair in zip(*expected, strict=True))


@pytest.mark.slow
def test_a_network_without_a_label_that_counts_stays():
    member, nets = Distill(iterations=3, restart_each_phase=True), models(2)
    states = list(map(member.prepare, nets))
    states = [one.state for one in adapt_together([member] * 2, nets, states, [samples(2), samples(3)], [Phase()] * 2)]
    before, batches = vector.read(nets[0]), [samples(0), samples(1)]
    batches[0].labels[:] = 255
    results = adapt_together([member] * 2, nets, states, batches, [Phase()] * 2)
    assert [one.skipped for one in results] == ["no label counts", ""]
    assert vector.read(nets[0]).tobytes() == before.tobytes()
    assert results[0].passes.forward == (4, 4, 4)


@pytest.mark.slow
def test_a_failure_restores_every_network(monkeypatch):
    member, nets = Distill(iterations=3, restart_each_phase=True), models(2)
    states = [member.prepare(net) for net in nets]
    states = [one.state for one in adapt_together([member] * 2, nets, states, [samples(0), samples(1)], [Phase()] * 2)]
    before, ends = [vector.read(net) for net in nets], []

    def end(walk):
        ends.append(walk)
        if len(ends) > 1:
            raise RuntimeError("out of memory")
        return together_end(walk)

    together_end = together._Walk.end
    monkeypatch.setattr(together._Walk, "end", end)
    with pytest.raises(RuntimeError):
        adapt_together([member] * 2, nets, states, [samples(2), samples(3)], [Phase()] * 2)
    assert [vector.read(net).tobytes() for net in nets] == [each.tobytes() for each in before]
    assert all(parameter.grad is None for net in nets for parameter in net.parameters())


@pytest.mark.slow
def test_the_steps_read_nothing_from_the_device(monkeypatch):
    """The losses of each network are read once, after the last step."""
    nets, member, read = models(2), Distill(iterations=3, batch=2), []
    states = [member.prepare(net) for net in nets]
    monkeypatch.setattr(together, "read_losses", lambda losses: read.append(len(losses)) or [1.0] * len(losses))
    for name in ("is_finite", "moments", "update"):  # of the whole phase, at its end
        monkeypatch.setattr(Descent, name, lambda self: True)
    batches = [samples(0), samples(1)]
    for batch in batches:
        batch.labels[0] = 0
    given = ([member] * 2, [net.to("meta") for net in nets], states, batches, [Phase()] * 2)
    results = adapt_together(*given)
    assert (read, [one.iterations for one in results]) == ([3, 3], [3, 3])
    step = together._Walk.step
    monkeypatch.setattr(together._Walk, "step", lambda walk, loss, gradient: step(walk, loss, gradient) or float(loss))
    with pytest.raises((RuntimeError, NotImplementedError)):
        adapt_together(*given)


@pytest.mark.slow
def test_a_step_has_one_forward_and_one_backward_pass_for_all(monkeypatch):
    passes = []
    backward, forward = torch.autograd.backward, together._Stack.__call__
    monkeypatch.setattr(torch.autograd, "backward", lambda *given: passes.append("backward") or backward(*given))
    monkeypatch.setattr(together._Stack, "__call__", lambda *given: passes.append("forward") or forward(*given))
    member, nets = Distill(iterations=2, batch=2), models(3)
    batches = [samples(seed) for seed in range(3)]
    adapt_together([member] * 3, nets, [member.prepare(net) for net in nets], batches, [Phase()] * 3)
    assert passes == ["forward", "backward"] * 2


@pytest.mark.slow
def test_passes_are_not_counted_for_the_session_whose_thread_trains():
    member, nets = Distill(iterations=2), models(2)
    for net in nets:
        tap(net, count_cost(net, 16, 24))
    with counting() as counts:
        adapt_together([member] * 2, nets, list(map(member.prepare, nets)), [samples(0), samples(1)], [Phase()] * 2)
    assert counts.frames() == {}
    with counting() as counts:
        nets[0](torch.zeros(1, 3, 16, 24))
    assert counts.frames() != {}


def test_only_equal_networks_settings_and_phases_have_equal_keys():
    member, batch = Distill(), samples(0)
    key = key_of(member, build("half", CLASSES, seed=0), batch, Phase())
    assert key is not None
    assert key == key_of(Distill(), build("half", CLASSES, seed=1), samples(1, frames=9), Phase())
    others = [
        (Distill(iterations=3), build("half", CLASSES, seed=0), batch, Phase()),
        (member, build("half", CLASSES + 1, seed=0), batch, Phase()),
        (member, build("tiny", CLASSES, seed=0), batch, Phase()),
        (member, build("half", CLASSES, seed=0).to("meta"), batch, Phase()),
        (member, build("half", CLASSES, seed=0), Batch(batch.images[:, :8], batch.labels, batch.rng), Phase()),
        (member, build("half", CLASSES, seed=0), batch, Phase(iterations=3)),
    ]
    assert len({key, *(key_of(*given) for given in others)}) == len(others) + 1


def test_networks_with_equal_weights_and_other_layers_have_other_keys():
    batch = samples(0)
    strided = [torch.nn.Sequential(torch.nn.Conv2d(3, CLASSES, 1, stride=stride)) for stride in (1, 2)]
    assert len({key_of(Distill(), model, batch, Phase()) for model in strided}) == 2


def test_others_have_no_key():
    class Own(Distill):
        """A member of a user."""

    model, batch = build("half", CLASSES, seed=0), samples(0)
    for given in (
        (Own(), model, batch, Phase()),
        (object(), model, batch, Phase()),
        (Distill(strategy="probe"), model, batch, Phase()),
        (Distill(strategy="last"), model, batch, Phase()),
        (Distill(), model, batch, Phase(stop_score=0.5)),
        (Distill(), model, batch.showing(batch.images), Phase()),
        (Distill(), model, samples(0, frames=1).showing(batch.images[:0]), Phase()),
        (Distill(), model, Batch(batch.images, batch.labels, batch.rng, TASKS["detection"]), Phase()),
    ):
        assert key_of(*given) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this computer")
def test_networks_on_a_gpu_train_together_as_alone():
    member, found = Distill(iterations=5, epsilon=1e-3), []
    for how in (one_after_another, adapt_together):
        nets = [net.to("cuda") for net in models(3)]
        batches = [samples(seed) for seed in range(3)]
        how([member] * 3, nets, [member.prepare(net) for net in nets], batches, [Phase()] * 3)
        found.append([vector.read(net) for net in nets])
    assert all(np.allclose(*pair, atol=1e-4) for pair in zip(*found, strict=True))
