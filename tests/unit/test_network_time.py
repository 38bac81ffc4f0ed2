"""Estimated times of networks: measured ones within a factor of 1.6, and large images by their area."""

from __future__ import annotations

import pytest

from driftlab.platform.lab.network_time import COUNTED, reference, time_of
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.training.artifacts import Recipe

MEASURED = [  # milliseconds of processor time on the reference host: of a training step, and of inference on an image
    ("tiny", 32, 48, 4, 5.7, 0.56),
    ("half", 64, 96, 4, 9.0, 0.73),
    ("tiny_classifier", 16, 16, 32, 6.3, 0.38),
    ("wide_classifier", 32, 32, 16, 33.5, 1.26),
    ("deep_classifier", 32, 32, 16, 17.0, 1.26),
    ("resnet18", 32, 32, 4, 134.3, 7.3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "height", "width", "batch", "step_ms", "frame_ms"), MEASURED)
def test_estimates_are_near_measured_times(network, height, width, batch, step_ms, frame_ms):
    found = time_of(Recipe(network=network, height=height, width=width))
    assert 1 / 1.6 < 1e3 * found.training_s(batch, batch) / step_ms < 1.6
    assert 1 / 1.6 < 1e3 * found.frame_s / frame_ms < 1.6


def test_the_reference_is_the_network_tiny_without_torch():
    for height, width in ((32, 48), (64, 96)):
        found, known = time_of(Recipe(network="tiny", height=height, width=width)), reference(height * width)
        assert found.training_s(8, 8) == pytest.approx(known.training_s(8, 8), rel=0.02)
        assert found.frame_s == pytest.approx(known.frame_s, rel=0.02)


def test_large_images_are_counted_by_their_area():
    small, large = (time_of(Recipe(network="tiny", height=side, width=side)) for side in (128, 512))
    assert large.image_s == pytest.approx(16 * small.image_s, rel=0.01)
    assert large.step_s == small.step_s


@pytest.mark.slow
@pytest.mark.parametrize("network", COUNTED)
def test_recorded_counts_are_those_of_the_network(network):
    """They spare a dry run torch, and hold within 6 % for any number of classes and pixels."""
    side = 64 if "deeplab" in network else 32
    cost = count_cost(build(network, 10, seed=0, size=(side, side)), side, side)
    layers, *recorded = COUNTED[network]
    assert sum(1 for layer in cost.layers if layer.macs) == layers
    counted = (cost.parameters, cost.activation_bytes / side**2, cost.macs / side**2)
    assert counted == pytest.approx(recorded, rel=0.06)
