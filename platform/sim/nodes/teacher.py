"""A teacher: labels frames."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import IGNORE, Frames
from driftlab.errors import RequestError
from driftlab.platform.core.kept import content_key, kept
from driftlab.platform.core.records import Labelled, Packed, Reply, Weights
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.digest import digest
from driftlab.platform.networks.tasks import tasks
from driftlab.platform.networks.tasks.tasks import TaskLabels
from driftlab.platform.sim.setting import TeacherSpec
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import receive
from driftlab.platform.world.link import MessageDamage

if TYPE_CHECKING:
    from torch import nn

Labels = npt.NDArray[np.uint8]
WOBBLES = (6, 9)  # ways that are drawn for a frame, down and across; between them they are smooth


class TeacherNode:
    """Labels batches; the same frames always get the same labels."""

    def __init__(self, spec: TeacherSpec, weights: Weights | None = None) -> None:
        self._spec, self._task = spec, tasks.find(spec.task)
        self._network = None if weights is None else _network(spec, weights)
        self._name = "" if weights is None else f"{spec} {digest(weights)}"

    def receive(
        self, payload: bytes, sampling: Sampling, size: tuple[int, int], damage: MessageDamage | None = None
    ) -> Reply:
        """Decode samples from the link."""
        return receive(payload, sampling, size, damage)

    def label(self, frames: Frames) -> Reply:
        """Label every frame."""
        if self._network is None:
            labels = self._truth(frames)
        else:  # whole batches: the rounding of a frame's scores may depend on its batch
            labels = kept().once(content_key(self._name, frames.images), partial(self._predict, frames))
        return Reply(Labelled(len(frames)), payload=labels)

    def _predict(self, frames: Frames) -> TaskLabels:
        from driftlab.platform.networks.predict import predict

        assert self._network is not None
        return predict(self._network, frames.images, task=self._task, device=self._spec.torch_device)

    def pack(self, labels: TaskLabels) -> Reply:
        """Encode the labels of one frame."""
        packed = self._task.pack(labels[0])
        return Reply(Packed(len(packed)), payload=packed)

    def _truth(self, frames: Frames) -> TaskLabels:
        truth = self._task.truth(frames)
        if truth is None:
            raise RequestError(
                f"The oracle teacher received frames without truth for {self._task.name}; "
                "set teacher.kind=network or give label maps."
            )
        chance, reach_px = self._spec.border_noise, self._spec.label_jitter_px
        if reach_px:
            seeds = [zlib.crc32(image.tobytes()) for image in frames.images]
            truth = np.stack([wobble(labels, reach_px, seed=one) for labels, one in zip(truth, seeds, strict=True)])
        if chance:
            truth = np.stack([blur_borders(labels, chance, seed=zlib.crc32(labels.tobytes())) for labels in truth])
        return truth


def wobble(labels: Labels, reach_px: float, *, seed: int) -> Labels:
    """Shift labels by smooth random offsets of some pixels, like the outlines that networks predict."""
    from scipy.ndimage import zoom

    height, width = labels.shape
    coarse = rng_for(seed, "wobble").normal(0.0, reach_px, (2, *WOBBLES))
    offsets = zoom(coarse, (1, height / WOBBLES[0], width / WOBBLES[1]), order=1, grid_mode=True, mode="nearest")
    rows, columns = np.indices(labels.shape) + np.rint(offsets).astype(np.int64)
    moved: Labels = labels[rows.clip(0, height - 1), columns.clip(0, width - 1)]
    return moved


def blur_borders(labels: Labels, chance: float, *, seed: int) -> Labels:
    """Replace labels at class borders by a neighbour's with some probability, like human annotators."""
    rng = rng_for(seed, "border")
    height, width = labels.shape
    top, left = ((1, 0), (0, 1), (1, 2), (2, 1))[int(rng.integers(4))]
    neighbour = np.pad(labels, 1, mode="edge")[top : top + height, left : left + width]
    flip = (neighbour != labels) & (neighbour != IGNORE) & (labels != IGNORE) & (rng.random(labels.shape) < chance)
    return np.where(flip, neighbour, labels).astype(np.uint8)


def _network(spec: TeacherSpec, weights: Weights) -> nn.Module:
    from driftlab.platform.networks.architectures import build
    from driftlab.platform.networks.predict import load

    model = build(spec.network, spec.classes, seed=0, size=(spec.height, spec.width))
    load(model, weights)
    return model.eval().to(spec.torch_device)
