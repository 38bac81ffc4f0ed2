"""Adaptations that change buffers and no weights, as methods on batch-norm statistics do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.core.registry import Member
from driftlab.platform.networks.predict import to_input

HEIGHT, WIDTH, CLASSES = 24, 32, 8


@dataclass(frozen=True)
class OnTheServer(Adaptation):
    """Measure the statistics of every batch norm on the batch."""

    labels = "teacher"

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> None:
        model.eval()

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        model.train()
        with torch.no_grad():
            model(to_input(batch.images))
        model.eval()
        return Adapted(state, iterations=1, passes=Passes((len(batch.images),)))

    def reset(self, model: nn.Module, state: Any) -> Any:
        return state


@dataclass(frozen=True)
class OnTheDevice(OnTheServer):
    """Measure the statistics on every three frames, on the device."""

    stream_batch: int = 3

    labels = "none"


SERVER, DEVICE = (Member("adaptation", f"state_factory:{name}") for name in ("OnTheServer", "OnTheDevice"))


def frames(start_s: float) -> Frames:
    rng = np.random.default_rng(round(start_s))
    labels = rng.integers(0, CLASSES, (3, HEIGHT, WIDTH), dtype=np.uint8)
    images = rng.integers(0, 256, (3, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Frames(start_s + np.arange(3.0), images, np.zeros(3, np.int32), labels)
