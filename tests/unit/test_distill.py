"""Masked Adam and the choice of coordinates, against torch's own optimisers and brute force."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from driftlab.datasets.frames import IGNORE
from driftlab.errors import RequestError
from driftlab.platform.adaptation import masks
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.distill import Distill, draw_rows
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.training.descent import Adam, Descent, Momentum

STRATEGIES = ("gradient_guided", "random", "first", "last", "first_last", "probe", "full")


def batch(seed: int = 0, frames: int = 5) -> Batch:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (frames, 16, 24, 3), dtype=np.uint8)
    return Batch(images, rng.integers(0, 4, (frames, 16, 24), dtype=np.uint8), rng)


def walk(rule, size: int, mask=None, weights=None) -> Descent:
    weights = torch.zeros(size) if weights is None else weights
    made = Descent(rule, weights, tuple(np.zeros(size, dtype=np.float32) for _ in range(rule.moments)), 0)
    if mask is not None:
        made.restrict(mask)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [True, False])
def test_adam_is_torch_adam_bit_for_bit_over_two_phases(foreach):
    """Odd sizes on purpose: no tensor begins or ends where the processor's vectors do."""
    torch.manual_seed(0)
    shapes = [(7, 3), (13,), (5, 5, 3), (1,), (101,), (311, 233)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    theirs = torch.optim.Adam(parameters, lr=3e-3, foreach=foreach)
    rule = Adam(3e-3)
    ours = walk(rule, len(flat), np.ones(len(flat), dtype=bool), flat)
    for step in range(200):
        if step == 100:  # the state goes through a checkpoint between the phases
            moments, steps = pickle.loads(pickle.dumps((ours.moments(), ours.steps)))
            ours = Descent(rule, flat, moments, steps)
        gradients = [torch.randn_like(p) * 10.0 ** (step % 5 - 3) for p in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        theirs.step()
        ours.step(torch.cat([g.reshape(-1) for g in gradients]))
        assert torch.equal(torch.cat([p.detach().reshape(-1) for p in parameters]), flat), step


@pytest.mark.slow
def test_momentum_is_torch_sgd_bit_for_bit():
    parameter = nn.Parameter(torch.randn(1003))
    flat = parameter.detach().clone()
    theirs = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
    ours = walk(Momentum(0.01), 1003, weights=flat)
    for _ in range(50):
        parameter.grad = torch.randn(1003)
        theirs.step()
        ours.step(parameter.grad)
    assert torch.equal(parameter.detach(), flat)


@pytest.mark.parametrize("phases", [1, 2])
def test_a_phase_at_fraction_1_is_torch_adam_on_the_model(phases):
    ours, theirs = build("half", 4, seed=0).eval(), build("half", 4, seed=0).eval()
    member = Distill(fraction=1.0, iterations=6)
    state = member.prepare(ours)
    optimiser = torch.optim.Adam(theirs.parameters(), lr=3e-3)
    for number in range(phases):
        given = batch(number)
        state = member.adapt(ours, state, given, Phase()).state
        mirror = batch(number)
        for _ in range(6):
            rows = draw_rows(mirror, 4)
            images, labels = mirror.images[rows], mirror.labels[rows]
            optimiser.zero_grad()
            F.cross_entropy(theirs(to_input(images)), torch.tensor(labels).long(), ignore_index=IGNORE).backward()
            optimiser.step()
    assert vector.read(ours).tobytes() == vector.read(theirs).tobytes()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_chosen_weights_change_while_moments_cover_all(strategy):
    model = build("half", 4, seed=0)
    member = Distill(fraction=0.05, strategy=strategy, iterations=3)
    state, size = member.prepare(model), vector.layout_of(model).size
    for number in range(2):
        before = vector.read(model)
        done = member.adapt(model, state, batch(number), Phase())
        after = vector.read(model)
        assert (after[~done.changed].tobytes()) == before[~done.changed].tobytes()
        assert np.any(after != before)
        if strategy not in ("probe", "full"):
            assert done.changed.sum() == round(0.05 * size)
            for old, new in zip(state.moments, done.state.moments, strict=True):
                assert np.mean(old[~done.changed] != new[~done.changed]) > 0.9
        state = done.state


def test_the_update_equals_that_of_full_adam():
    torch.manual_seed(0)
    free, held = torch.zeros(500), torch.zeros(500)
    mask = masks.uniform(500, 25, np.random.default_rng(0))
    full, masked = walk(Adam(1e-3), 500, weights=free), walk(Adam(1e-3), 500, mask, held)
    for _ in range(10):
        before = free.clone()
        gradient = torch.randn(500)
        full.step(gradient)
        masked.step(gradient)
    assert np.allclose(masked.update(), (before - free).numpy(), atol=1e-9)
    assert torch.equal(held[torch.from_numpy(mask)], free[torch.from_numpy(mask)])
    assert held[torch.from_numpy(~mask)].abs().max() == 0


def test_a_constant_gradient_hides_its_size_from_adam_but_not_from_momentum():
    """Adam moves each coordinate by about one step size here: only the count of changes is certain."""
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    gradient[:900] *= 0  # dead coordinates
    chosen = {}
    for name, rule in (("adam", Adam(1e-3)), ("momentum", Momentum(1e-3, momentum=0.0))):
        walks = [walk(rule, 1000) for _ in range(2)]
        for made in walks:
            for _ in range(20):
                made.step(gradient)
        chosen[name], again = (masks.largest(made.update(), 50) for made in walks)
        assert np.array_equal(chosen[name], again)
    assert chosen["adam"].sum() == 50
    assert not chosen["adam"][:900].any()
    assert np.array_equal(np.flatnonzero(chosen["momentum"]), np.sort(np.argsort(-gradient.abs().numpy())[:50]))


def test_blocks_are_chosen_whole_by_their_sum():
    values = np.array([3.0, 0.0, -2.0, 2.0, 1.0, -1.0, 9.0])
    assert np.flatnonzero(masks.largest_blocks(values, 0.5, 2)).tolist() == [2, 3, 6]  # sums 3, 4, 2, 9
    assert np.array_equal(masks.largest_blocks(values, 3 / 7, 1), masks.largest(values, 3))
    one = masks.uniform_blocks(500, 0.05, 1, np.random.default_rng(0))
    assert np.array_equal(one, masks.uniform(500, 25, np.random.default_rng(0)))
    eight = masks.uniform_blocks(500, 0.05, 8, np.random.default_rng(0))
    assert len(np.flatnonzero(np.add.reduceat(eight, np.arange(0, 500, 8)) == 8)) == 3


def test_largest_is_a_stable_sort():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.integers(-4, 5, 30).astype(np.float32)
        count = int(rng.integers(1, 31))
        expected = np.sort(np.argsort(-np.abs(values), kind="stable")[:count])
        assert np.array_equal(np.flatnonzero(masks.largest(values, count)), expected)


def test_ends_follow_the_order_in_which_layers_run():
    order = np.array([4, 5, 0, 1, 2, 3])
    chosen = {where: np.flatnonzero(masks.ends(order, 3, where)).tolist() for where in ("first", "last", "first_last")}
    assert chosen == {"first": [0, 4, 5], "last": [1, 2, 3], "first_last": [3, 4, 5]}
    assert masks.budget(0.05, 10) == 1
    assert masks.budget(0.001, 10) == 1
    assert masks.budget(1.0, 10) == 10


def test_the_place_of_epsilon_matters():
    def weights(mode: str, epsilon: float) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        made = walk(Adam(1e-3, epsilon=epsilon, epsilon_mode=mode), 200)
        for _ in range(50):
            made.step(torch.randn(200, generator=generator) * torch.logspace(-3, 0, 200))
        return made.weights

    reference = weights("torch", 1e-8)
    assert (weights("paper", 1e-16) - reference).abs().max() < 1e-6
    assert (weights("paper", 1e-8) - reference).abs().max() > 1e-4
    assert 1e-6 < (weights("tf", 1e-8) - reference).abs().max() < 1e-2


def test_ignored_pixels_and_labels_outside_the_class_list_do_not_count():
    learned = []
    for hidden in (IGNORE, 77):
        model, given = build("half", 4, seed=0), batch()
        given.labels[:, :8] = hidden
        member = Distill(iterations=3)
        member.adapt(model, member.prepare(model), given, Phase())
        learned.append(vector.read(model))
    assert learned[0].tobytes() == learned[1].tobytes()


def test_a_phase_without_a_single_label_is_skipped():
    model, given = build("half", 4, seed=0), batch()
    given.labels[:] = IGNORE
    before, member = vector.read(model), Distill(iterations=3)
    state = member.prepare(model)
    done = member.adapt(model, state, given, Phase())
    assert (done.skipped, done.iterations, done.changed) == ("no label counts", 0, None)
    assert done.state.steps == 0
    assert vector.read(model).tobytes() == before.tobytes()
    empty = Batch(given.images[:0], given.labels[:0], given.rng)
    assert member.adapt(model, state, empty, Phase()).skipped == "no frames"
    assert member.adapt(model, state, Batch(given.images, None, given.rng), Phase()).skipped == "no labels"


def test_a_batch_without_a_label_that_counts_is_no_step():
    """Half of the frames have no label; Adam's step count increases with the others only."""
    model, given = build("half", 4, seed=0), batch()
    given.labels[::2] = IGNORE
    member = Distill(iterations=40, batch=1)
    done = member.adapt(model, member.prepare(model), given, Phase())
    assert 5 < done.iterations < 35
    assert done.state.steps == len(done.losses) == done.iterations


class TestRestart:
    """Phases that begin at the generic weights, as those of the released code do."""

    def phases(self, **params):
        model = build("half", 4, seed=0)
        member = Distill(fraction=0.05, iterations=3, **params)
        state, start, found = member.prepare(model), vector.read(model), []
        for number in range(3):
            done = member.adapt(model, state, batch(number), Phase())
            found.append((done, vector.read(model)))
            state = done.state
        return start, found

    def test_only_the_weights_of_the_phase_differ_from_the_start(self):
        start, found = self.phases(restart_each_phase=True)
        for done, after in found:
            assert np.array_equal(after[~done.state.trained], start[~done.state.trained])
        assert np.any(self.phases()[1][1][1][~found[1][0].state.trained] != start[~found[1][0].state.trained])

    def test_restored_weights_are_sent_with_the_update(self):
        """A device that takes every update has the learner's weights."""
        held, found = self.phases(restart_each_phase=True)
        sizes = []
        for done, after in found:
            held = np.where(done.changed, after, held)
            assert np.array_equal(held, after)
            sizes.append(int(done.changed.sum()))
        assert sizes[0] < sizes[1] <= 2 * sizes[0]

    def test_a_phase_without_training_restores_no_weight(self):
        model, member = build("half", 4, seed=0), Distill(iterations=3, restart_each_phase=True)
        done = member.adapt(model, member.prepare(model), batch(), Phase())
        before, blind = vector.read(model), batch(1)
        blind.labels[:] = IGNORE
        assert member.adapt(model, done.state, blind, Phase()).skipped
        assert np.array_equal(vector.read(model), before)


def test_a_phase_that_leaves_the_finite_numbers_is_undone():
    model = build("half", 4, seed=0)
    before, member = vector.read(model), Distill(fraction=1.0, learning_rate=1e30, iterations=20)
    state = member.prepare(model)
    done = member.adapt(model, state, batch(), Phase())
    assert "not finite" in done.skipped
    assert done.state is state
    assert done.changed is None
    assert vector.read(model).tobytes() == before.tobytes()


def test_a_nan_in_the_model_is_noticed_and_not_made_worse():
    model, member = build("half", 4, seed=0), Distill(iterations=3)
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    before = vector.read(model)
    done = member.adapt(model, member.prepare(model), batch(), Phase())
    assert "loss nan" in done.skipped
    assert vector.read(model).tobytes() == before.tobytes()


def test_a_phase_stops_at_its_score():
    model, member = build("half", 4, seed=0), Distill(fraction=1.0, batch=1, learning_rate=0.01)
    given = batch(frames=1)
    given.labels[:] = 1
    state = member.prepare(model)
    reached = member.adapt(model, state, given, Phase(iterations=100, stop_score=0.9))
    assert 0 < reached.iterations < 100
    assert reached.score >= 0.9
    again = member.adapt(model, reached.state, given, Phase(iterations=100, stop_score=0.9))
    assert (again.iterations, again.skipped, again.state) == (0, "good enough", reached.state)
    assert member.adapt(model, state, given, Phase(iterations=4, stop_score=1.01)).iterations == 4
    assert member.adapt(model, state, given, Phase(iterations=4, stop_score=0.0)).iterations == 0


def test_a_phase_with_a_score_trains_on_every_frame_of_the_score():
    model, member, given = build("half", 4, seed=0).eval(), Distill(fraction=1.0, batch=1), batch(frames=5)
    expected = float(given.task.loss(model(to_input(given.images)), given.labels).detach())
    score = np.nan_to_num(
        given.task.score(given.task.counts(predict(model, given.images), given.labels, 4).sum(axis=0))
    )
    done = member.adapt(model, member.prepare(model), given, Phase(iterations=1, stop_score=1.01))
    assert done.losses == (pytest.approx(expected),)
    assert done.score != pytest.approx(float(score))  # it is that after the step
    idle = member.adapt(model, done.state, given, Phase(iterations=0, stop_score=1.01))
    assert idle.score == pytest.approx(done.score)


def test_the_state_of_another_model_is_refused():
    member = Distill(iterations=1)
    with pytest.raises(RequestError, match="another model"):
        member.adapt(build("tiny", 4, seed=0), member.prepare(build("half", 4, seed=0)), batch(), Phase())
