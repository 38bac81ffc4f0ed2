"""The networks that a learner stores after its phases, ranked for new samples (RECL's model zoo)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from driftlab.platform.networks import state
from driftlab.platform.scheduling.zoo import Zoo

if TYPE_CHECKING:
    from torch import nn

SOURCE = 0  # number of the network as built; a phase stores its network under its own number, from 1 on
MAX_SCORED_SAMPLES = 32  # samples on which a stored network is scored


class ExpertStore:
    """Stored networks of one architecture, which a zoo ranks by the mean features of their samples."""

    def __init__(self, source: nn.Module, device: str) -> None:
        self._source, self._device = source, device
        self._stored = {SOURCE: state.read(source)}
        self._zoo = Zoo()
        self._signature: npt.NDArray[np.float64] | None = None  # of the newest samples

    def rank(self, images: npt.NDArray[np.uint8]) -> list[int]:
        """Return the numbers of the networks that suit some images best, and of the network as built."""
        import torch

        from driftlab.platform.networks.features import features
        from driftlab.platform.networks.predict import evaluating, to_input

        with evaluating(self._source), torch.inference_mode():
            found = features(self._source, to_input(images).to(self._device)).features
        self._signature = found.mean(dim=0).double().cpu().numpy()
        return [SOURCE, *self._zoo.rank(self._signature)]

    def begin(self, number: int) -> state.State:
        """Return a stored network, and record that it was selected."""
        self._zoo = self._zoo.select(number)
        return self._stored[number]

    def stored(self, number: int) -> state.State:
        return self._stored[number]

    def store_expert(self, number: int, held: state.State) -> int:
        """Store a network that was trained on the newest samples; return how many there are."""
        assert self._signature is not None, "samples are ranked before a phase trains on them"
        self._zoo = self._zoo.remember(number, self._signature)
        stay = {SOURCE, *(one.number for one in self._zoo.experts)}
        self._stored = {key: one for key, one in {**self._stored, number: held}.items() if key in stay}
        return len(self._stored)
