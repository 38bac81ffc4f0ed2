"""Members in phases against a second implementation: equal weights after two phases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from adaptation_factory import NETWORKS, prepared
from torch import nn
from torch.nn import functional as F
from tta_factory import frames

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.conda import ConDa
from driftlab.platform.adaptation.cua import Cua
from driftlab.platform.adaptation.iada import Iada
from driftlab.platform.networks.predict import to_input

STEPS, SIZE, FRAMES = 6, 6, 14


class Learner:
    """A network whose batch norms train, and the features before its head."""

    def __init__(self) -> None:
        self.net = NETWORKS["tiny_classifier"][1]()
        self.kept: list[torch.Tensor] = []
        self.net.head.register_forward_pre_hook(lambda _, given: self.kept.append(given[0]))
        self.values = [value for name, value in self.net.named_parameters() if not name.startswith("head.")]

    def features(self, images, *, train: bool) -> tuple[torch.Tensor, torch.Tensor]:
        self.net.train(train)
        return self.after(to_input(images))

    def after(self, inputs) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.net(inputs)
        return self.kept.pop(), outputs


def trained(member):
    """Return the network of a member and its first state after two phases."""
    model = NETWORKS["tiny_classifier"][1]().eval()
    state = first = prepared(member, model)
    for number in range(2):
        done = member.adapt(model, state, frames(FRAMES, number), Phase())
        assert done.iterations == STEPS, done.skipped
        state = done.state
    return model, first, state


def agree(model, learner: Learner, tolerance: float = 2e-5) -> None:
    found, expected = model.state_dict(), learner.net.state_dict()
    gaps = {name: float((found[name] - expected[name]).abs().max()) for name in found if "num_batches" not in name}
    assert max(gaps.values()) < tolerance, gaps
    start = NETWORKS["tiny_classifier"][1]().state_dict()
    assert float((found["deep.0.0.weight"] - start["deep.0.0.weight"]).abs().max()) > 20 * tolerance


def drawn(rng, count: int) -> list[np.ndarray]:
    return [rng.choice(count, SIZE, replace=False) for _ in range(STEPS)]


def kernel_distance(a, b):
    """MMD by sums over pairs, with five widths around the mean squared distance."""
    both = [*a, *b]
    away = [[((x - y) ** 2).sum() for y in both] for x in both]
    mean = sum(float(one.detach()) for row in away for one in row) / (len(both) ** 2 - len(both))
    total = 0.0
    for i in range(len(both)):
        for j in range(len(both)):
            sign = 1 / len(a) ** 2 if (i < len(a)) == (j < len(a)) else -1 / (len(a) * len(b))
            total = total + sign * sum(torch.exp(-away[i][j] / (mean / 4 * 2**k)) for k in range(5))
    return total


@pytest.mark.slow
def test_cua():
    member = Cua(iterations=STEPS, batch=SIZE, learning_rate=1e-2, replay_per_domain=5)
    model, first, last = trained(member)
    learner, source = Learner(), torch.tensor(first.pack["features"])
    images, labels = first.pack["image"], first.pack["label"]
    for number in range(2):
        batch = frames(FRAMES, number)
        optimiser = torch.optim.SGD(learner.values, lr=1e-2, momentum=0.9)
        for rows in drawn(batch.rng, FRAMES):
            found, _ = learner.features(batch.images[rows], train=True)
            theirs = source[batch.rng.choice(len(source), SIZE, replace=False)]
            again = batch.rng.choice(len(labels), min(SIZE, len(labels)), replace=False)
            _, outputs = learner.features(images[again], train=True)
            loss = kernel_distance(theirs, found) + F.cross_entropy(outputs, torch.tensor(labels[again]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        stay = batch.rng.choice(FRAMES, 5, replace=False)
        with torch.no_grad():
            _, outputs = learner.features(batch.images[stay], train=False)
        images = np.concatenate([images, batch.images[stay]])
        labels = np.concatenate([labels, outputs.argmax(1).numpy()])
    agree(model, learner)
    assert np.array_equal(last.held["replay/image"], images)


@pytest.mark.slow
def test_iada():
    member = Iada(iterations=STEPS, batch=SIZE, learning_rate=3e-3, source_steps=20)
    model, first, _ = trained(member)
    arrays = {name: torch.tensor(value) for name, value in first.pack.items() if "/" in name}
    learner, width = Learner(), arrays["tells/0.weight"].shape[1]
    critic = nn.Sequential(nn.Linear(width, 64), nn.LayerNorm(64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    critic.load_state_dict({name[6:]: value for name, value in arrays.items() if name.startswith("tells/")})

    def made(noise):
        hidden = F.leaky_relu(noise @ arrays["makes/0.weight"].T + arrays["makes/0.bias"], 0.2)
        return (hidden @ arrays["makes/2.weight"].T + arrays["makes/2.bias"]).relu()

    for number in range(2):
        batch = frames(FRAMES, number)
        judge, steps = torch.optim.Adam(critic.parameters(), 1e-3), torch.optim.Adam(learner.values, 3e-3)
        for rows in drawn(batch.rng, FRAMES):
            found, _ = learner.features(batch.images[rows], train=True)
            source = made(torch.tensor(batch.rng.standard_normal((SIZE, 32)), dtype=torch.float32))
            right = -torch.log(torch.sigmoid(critic(source))).mean()
            judge.zero_grad()
            (right - torch.log(1 - torch.sigmoid(critic(found.detach()))).mean()).backward()
            judge.step()
            steps.zero_grad()
            (-torch.log(torch.sigmoid(critic(found))).mean()).backward()
            steps.step()
    agree(model, learner, 1e-4)


def nearest_centroids(found, outputs):
    """SHOT's labels: soft centroids, then those of the labels, by cosine."""
    given = [torch.cat([row, torch.ones(1)]) for row in found]
    weights, classes = outputs.softmax(1), outputs.shape[1]
    for _ in range(2):
        present = set(weights.argmax(1).tolist())
        centres = {k: sum(w[k] * f / f.norm() for w, f in zip(weights, given, strict=True)) for k in present}
        labels = [max(present, key=lambda k, f=f: float(F.cosine_similarity(f, centres[k], dim=0))) for f in given]
        weights = torch.eye(classes)[labels]
    return torch.tensor(labels)


@pytest.mark.slow
def test_conda():
    member = ConDa(iterations=STEPS, batch=SIZE, relabel=4, learning_rate=3e-2, min_confidence=0.0, replay_per_class=2)
    model, _, last = trained(member)
    learner, kept = Learner(), np.zeros((0, 16, 24, 3), np.uint8)
    for number in range(2):
        batch = frames(FRAMES, number)
        images = np.concatenate([batch.images, kept])
        optimiser = torch.optim.SGD(learner.values, lr=1.0, momentum=0.9, nesterov=True, weight_decay=1e-3)
        for step, rows in enumerate(drawn(batch.rng, len(images))):
            if step % 4 == 0:
                with torch.no_grad():
                    labels = nearest_centroids(*learner.features(images, train=False))
            optimiser.param_groups[0]["lr"] = 3e-2 * (1 + 10 * (step + 1) / STEPS) ** -0.75
            partner = batch.rng.permutation(SIZE)
            share = torch.tensor(batch.rng.beta(1.0, 1.0, SIZE), dtype=torch.float32)
            inputs, wide = to_input(images[rows]), share.view(-1, 1, 1, 1)
            learner.net.train()
            _, outputs = learner.after(wide * inputs + (1 - wide) * inputs[partner])
            logs, p = outputs.log_softmax(1), outputs.softmax(1).mean(0)
            own, other = (-logs[range(SIZE), labels[rows][order]] for order in (np.arange(SIZE), partner))
            loss = -(logs.exp() * logs).sum(1).mean() + (p * p.log()).sum() + (share * own + (1 - share) * other).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if number == 0:
            with torch.no_grad():
                shares = learner.features(batch.images, train=False)[1].softmax(1)
            best = [
                n
                for k in range(4)
                for n in sorted(
                    (n for n in range(FRAMES) if int(shares[n].argmax()) == k), key=lambda n: -float(shares[n].max())
                )[:2]
            ]
            kept = batch.images[sorted(best)]
    agree(model, learner)
    assert max(np.bincount(last.held["replay/label"])) <= 2
