"""Networks use the memory format that is faster for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.memory_format import CONTIGUOUS
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.zoo import ZOO

IMAGES = to_input(np.zeros((2, 32, 32, 3), np.uint8))


def seen(name: str) -> torch.Tensor:
    """Return the input of the first convolution."""
    model, found = build(name, 5, seed=0).eval(), []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    with torch.inference_mode():
        model(IMAGES)
    return found[0]


@pytest.mark.parametrize("name", ["resnet18", "senet18", "tiny", "tiny_classifier"])
def test_the_first_convolution_reads_the_chosen_format(name: str):
    assert seen(name).is_contiguous() == (name in CONTIGUOUS)


def test_every_name_is_a_network():
    assert set(ZOO) >= CONTIGUOUS
