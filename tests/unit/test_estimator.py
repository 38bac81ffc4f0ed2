"""The estimator of accuracy: distances, calibration, and its training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from driftlab.platform.adaptation import estimating, estimator
from driftlab.platform.adaptation.base import Batch, Phase
from driftlab.platform.adaptation.elasticdnn import ElasticDnn
from driftlab.platform.adaptation.estimating import DomainHistory, Estimating, EstimatorState
from driftlab.platform.adaptation.estimator import Observation, calibrate, distance, similarity, summarise
from driftlab.platform.core.registry import Member, packer_of
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION

RNG = np.random.default_rng(0)
SOURCE = RNG.normal(1.0, 2.0, (200, 12))


@pytest.mark.parametrize("kind", ["l2mean", "gauss_w2", "sym_kl"])
def test_distances_are_symmetric_and_grow_with_the_shift(kind):
    source = summarise(SOURCE)
    assert distance(source, source, source, kind) == 0
    found = [distance(source, summarise(SOURCE + shift), source, kind) for shift in (0.0, 0.5, 1.0, 2.0)]
    assert found == sorted(found) and found[0] < found[1]
    other = summarise(SOURCE[:50] * 1.5)
    assert distance(source, other, source, kind) == pytest.approx(distance(other, source, source, kind))
    still = summarise(np.concatenate([SOURCE[:, :1] * 0, SOURCE[:, 1:]], axis=1))
    assert np.isfinite(distance(source, still, source, kind))


class TestCalibration:
    SEEN = (Observation(0.5, 0.5, 0.7), Observation(2.0, 0.7, 0.8), Observation(1.0, 0.65, 0.78))

    def test_nearer_domains_count_more(self):
        weights = similarity([0.5, 2.0, 1.0], scaled=False)
        assert weights == pytest.approx([0.628532, 0.140244, 0.231224], abs=1e-6)
        assert similarity([5, 20, 10]) == pytest.approx([0.628532, 0.140244, 0.231224], abs=1e-6)
        assert similarity([5, 20, 10], scaled=False) == pytest.approx([0.362, 0.311, 0.327], abs=1e-3)
        assert np.isfinite(similarity([0.0, 0.0, 1.0])).all()

    def test_the_average_of_predicted_and_measured_accuracies(self):
        found = calibrate(np.array([[0.60, 0.75]]), self.SEEN)
        assert found[0] == pytest.approx([0.581366, 0.741261], abs=1e-6)

    def test_an_observation_at_one_size_moves_all(self):
        predicted = np.array([[0.5, 0.6], [0.7, 0.8]])
        seen = [Observation(1.0, 0.6, 0.6, predicted=(0.5, 0.7))]
        assert calibrate(predicted, seen) == pytest.approx(np.array([[0.55, 0.55], [0.75, 0.75]]))
        assert calibrate(np.array([[0.99, 0.01]]), seen)[0] == pytest.approx([1.0, 0.0])

    def test_the_first_domain_keeps_the_prediction(self):
        predicted = np.array([[0.5, 0.6]])
        assert calibrate(predicted, []) is predicted


def test_components_have_one_sign_and_missing_ones_are_zero():
    found = estimator.fit_projection(SOURCE)
    assert found.axes.shape == (12, 12)
    assert (found.axes[np.arange(12), np.abs(found.axes).argmax(axis=1)] > 0).all()
    assert (found(SOURCE[0])[12:] == 0).all()
    assert found(found.mean) == pytest.approx(np.zeros(16))


@pytest.mark.slow
def test_training_gives_distant_domains_lower_estimates():
    source, projection = summarise(SOURCE), estimator.fit_projection(SOURCE)
    inputs, wanted, domains = [], [], []
    for number in range(20):
        here = summarise(SOURCE + 0.1 * number)
        for size in (0.1, 0.3):
            inputs.append(estimator.describe(size, here, source, projection))
            before = 0.9 - 0.02 * number - (0.1 if size < 0.2 else 0.0)
            wanted.append([before, before + 0.05])
            domains.append(number)
    made = estimator.fit_estimator(np.array(inputs), np.array(wanted), domains, epochs=300)
    assert inputs[0].shape == (34,)
    assert sum(weights.size for weights in made.weights) < 10_000
    assert max(made.errors) < 0.08
    near, far = made(np.array(inputs)[[1, 33]])
    assert near[0] > far[0]


def test_accuracy_is_monitored_by_confidence():
    confidences = np.linspace(0.3, 1.0, 101)
    threshold = estimator.fit_threshold(confidences, 0.8)
    assert np.mean(confidences > threshold) == pytest.approx(0.8, abs=0.01)
    outputs = np.array([[0.9, 0.1], [0.55, 0.45], [0.2, 0.8], [0.5, 0.5]])
    assert estimator.confident_share(outputs, 0.7) == 0.5


class TestEstimating:
    """The estimate for a domain after two others, in which one of two sizes was observed."""

    MEANS = np.stack([SOURCE.mean(axis=0) + 0.5, SOURCE.mean(axis=0) + 2.0])
    SEEN = np.array([[0.5, 0.7, 0.6, 0.6], [0.3, 0.4, 0.5, 0.5]])  # observed before and after, and as estimated
    NOW = np.array([[0.6, 0.75], [0.8, 0.9]])  # of both sizes, by the network alone

    def known(self) -> Estimating:
        source, projection = summarise(SOURCE), estimator.fit_projection(SOURCE)
        sizes = np.array([30.0, 60.0])
        return Estimating(lambda rows: self.NOW, source, projection, sizes, 100.0, np.array([0.5, 0.5]))

    def estimated(self, calibration: str) -> np.ndarray:
        history = DomainHistory(self.MEANS, self.SEEN)
        found, after = self.known().predict(history, SOURCE + 1.0, calibration)
        assert after.predicted is self.NOW
        return found

    def test_as_printed_follows_equations_5_to_7(self):
        here, scale = SOURCE.mean(axis=0) + 1.0, np.sqrt(SOURCE.var(axis=0).mean())
        inverse = 1 / (np.linalg.norm(self.MEANS - here, axis=1) / scale)
        weights = np.exp(inverse) / np.exp(inverse).sum()
        expected = self.NOW / 2 + weights @ self.SEEN[:, :2] / 2
        assert self.estimated("as_printed") == pytest.approx(expected)
        assert self.estimated("difference") != pytest.approx(expected, abs=0.01)

    def test_differences_keep_those_between_sizes_and_none_keeps_all(self):
        found = self.estimated("difference")
        assert found[1] - found[0] == pytest.approx(self.NOW[1] - self.NOW[0])
        assert found[0] != pytest.approx(self.NOW[0], abs=0.01)
        assert (self.estimated("none") == self.NOW).all()

    @pytest.mark.parametrize(("kind", "same"), [("fitted", True), ("drawn", False)])
    def test_a_member_may_draw_its_estimates_as_a_control(self, kind, same, monkeypatch):
        monkeypatch.setattr(estimating, "restore", lambda pack: self.known())
        monkeypatch.setattr(estimating, "source_features", lambda source, batch: SOURCE)
        member = ElasticDnn(estimates=4, iterations=2, estimator=kind)
        images = np.zeros((6, 4, 4, 3), dtype=np.uint8)
        found = []
        for _ in range(2):
            batch = Batch(images, None, np.random.default_rng(3), CLASSIFICATION)
            found.append(member.estimate(None, EstimatorState({}), batch, Phase(2))[0])
        assert found[0] == found[1]  # by the generator of the cell
        assert (np.allclose(found[0].before, self.NOW[:, 0])) == same

    def test_only_an_estimated_phase_is_monitored(self):
        member, observed = ElasticDnn(), DomainHistory(self.MEANS, self.SEEN)
        waiting = replace(observed, here=SOURCE[0])
        states = [EstimatorState({}, history=one) for one in (observed, waiting, DomainHistory())]
        assert [member.monitored(state) for state in states] == [(0.3, 0.4), None, None]


def test_members_that_calibrate_differently_share_an_estimator():
    given = {"estimates": 4, "iterations": 2}
    changed = given | {"calibration": "none", "estimator": "drawn"}
    plain, other = (Member("adaptation", "elasticdnn", tuple(one.items())) for one in (given, changed))
    assert packer_of(other) == packer_of(plain) == plain


def test_one_domain_fits_an_estimator():
    """There is none to hold out."""
    found = estimator.fit_estimator(np.eye(3), np.full((3, 2), 0.6), [0, 0, 0], epochs=3)
    assert np.isfinite(found(np.eye(3))).all() and np.isfinite(found.errors).all()
