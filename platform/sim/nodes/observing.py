"""A device's own observations: the entropy of its predictions, and the distance of its frames from earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Noticed
from driftlab.platform.networks.tasks.tasks import DETECTION, Task
from driftlab.platform.sim.nodes.frame_results import FrameResult

if TYPE_CHECKING:
    from torch import nn

MAX_FRAMES = 64  # the newest ones represent all


@dataclass
class StreamObserver:
    """Keeps the newest predicted frames, and the feature statistics at the last phase."""

    task: Task
    frames: int = 0
    images: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    scene: int | None = None
    known: tuple[npt.NDArray[np.float64], float] | None = None  # mean and deviation of the features at the last phase
    anew: bool = True  # whether the next frames become the reference of later ones

    def add(self, sights: Sequence[FrameResult]) -> None:
        """Take frames into account."""
        answered = [sight.image for sight in sights if sight.processed]
        self.frames += len(answered)
        self.images = [*self.images, *answered][-MAX_FRAMES:]
        self.scene = sights[-1].scene if sights else self.scene

    def learned(self) -> None:
        """Use the next frames as the new reference: the network has just adapted to them."""
        self.anew = True

    def summarise(self, model: nn.Module, domain: int | None) -> Noticed:
        """Summarise the frames since the last call; their predictions exist, so this costs no machine time."""
        frames, images = self.frames, self.images
        self.frames, self.images = 0, []
        if not images:
            return Noticed(frames, None, None, domain)
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import device_of, evaluating, to_input

        with evaluating(model), torch.inference_mode():
            looked = features(model, to_input(np.stack(images)).to(device_of(model)))
        output, found = looked.outputs.cpu().numpy(), looked.features.cpu().numpy()
        return Noticed(frames, entropy_share(output, self.task), self._distance(found), domain)

    def _distance(self, found: npt.NDArray[np.float32]) -> float:
        """Return the distance of the feature mean from the reference, in standard deviations of the reference."""
        mean, spread = found.mean(axis=0, dtype=np.float64), float(np.sqrt(found.var(axis=0, dtype=np.float64).mean()))
        if self.anew or self.known is None:
            self.known, self.anew = (mean, spread), False
        then, unit = self.known
        return float(np.linalg.norm(mean - then) / unit) if unit else 0.0


def entropy_share(output: npt.NDArray[np.float32], task: Task) -> float | None:
    """Return the mean entropy of the predictions, as a share of the maximum; None where outputs are no distribution."""
    classes = output.shape[1]
    if classes < 2 or task is DETECTION:
        return None
    shifted = output.astype(np.float64) - output.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-(np.exp(log_p) * log_p).sum(axis=1).mean() / np.log(classes))


def mean_confidence(model: nn.Module, images: npt.NDArray[np.uint8], task: Task) -> float | None:
    """Return the mean probability of the predicted classes; None where outputs are no distribution."""
    import torch

    from driftlab.platform.networks.predict import device_of, evaluating, to_input

    if task is DETECTION:
        return None
    with evaluating(model), torch.inference_mode():
        outputs = model(to_input(images).to(device_of(model)))
    return float(outputs.softmax(dim=1).amax(dim=1).mean())
