"""Accuracy without labels by agreement under dropout (AETTA, CVPR 2024), as a control.

Of each frame the head runs again on features of which a part is dropped. The share of these predictions that differ
from the whole network's is its error, divided by the cube of the predictions' relative diversity.

Differs from the paper: one dropout rate for all tasks, and no average over earlier batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import nn

Floats = npt.NDArray[np.floating]
PASSES, DROPPED = 10, 0.3
LEAST_CLASSES = 4  # with fewer, the largest error that can be estimated is too small


def agreement_of(model: nn.Module, images: npt.NDArray[np.uint8], rng: np.random.Generator) -> float | None:
    """Estimate the accuracy of a network with a linear head; None for other networks."""
    import torch

    from driftlab.platform.networks.features import features
    from driftlab.platform.networks.heads import linear_head
    from driftlab.platform.networks.predict import device_of, evaluating, to_input

    name = linear_head(model)
    if not name or not len(images):
        return None
    with evaluating(model), torch.inference_mode():
        found = features(model, to_input(images).to(device_of(model)))
        head = model.get_submodule(name)
        if found.outputs.dim() != 2 or found.outputs.shape[1] < LEAST_CLASSES or found.head != name:
            return None
        kept = torch.from_numpy(rng.random((PASSES, *found.features.shape)) >= DROPPED).to(found.features)
        outputs = head(found.features * kept / (1 - DROPPED))
    predicted = found.outputs.argmax(dim=1)
    agreeing = float((outputs.argmax(dim=2) == predicted).double().mean())
    return accuracy_from(agreeing, outputs.softmax(dim=2).double().mean(dim=(0, 1)).cpu().numpy())


def accuracy_from(agreeing: float, mean_prediction: Floats) -> float:
    """Return the accuracy that an agreement and a mean prediction suggest."""
    classes = len(mean_prediction)
    diversity = -(mean_prediction * np.log(np.maximum(mean_prediction, 1e-30))).sum() / np.log(classes)
    error = (1 - agreeing) / max(float(diversity), 1e-3) ** 3
    return 1 - min(max(error, 0.0), 1 - 1 / classes)
