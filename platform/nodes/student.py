"""The student network as an application and its trainer both make it."""

from __future__ import annotations

from torch import nn

from driftlab.platform.core.records import Weights
from driftlab.platform.models.predict import load
from driftlab.platform.models.zoo import build
from driftlab.platform.nodes.specs import StudentSpec


def make(spec: StudentSpec, weights: Weights) -> nn.Module:
    """Make the network with these weights, on the device where it will run."""
    model = build(spec.network, spec.classes, seed=0)
    load(model, weights)
    return model.eval().to(spec.torch_device)
