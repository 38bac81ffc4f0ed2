"""The estimator of accuracy: distances, calibration, and its training."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.platform.adaptation import estimator
from driftlab.platform.adaptation.estimator import Observation, calibrate, distance, similarity, summarise

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
