"""The student network as an application and its learner both make it."""

from __future__ import annotations

from typing import Any

from driftlab.platform.core.records import Weights
from driftlab.platform.models.zoo import build
from driftlab.platform.nodes.specs import StudentSpec


def family_of(spec: StudentSpec, weights: Weights) -> Any:
    """Restore what its scaling member built, on the device where it will run."""
    model = build(spec.network, spec.classes, seed=0).eval().to(spec.torch_device)
    return spec.scaling.make().restore(model, weights, (spec.height, spec.width))
