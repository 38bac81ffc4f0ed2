"""Damage: what a link does to a message that no checksum of its own caught, so that receivers can be tried out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

MOST_BITS = 8


@dataclass(frozen=True)
class Damage:
    """A message arrives cut off, or with some bits turned; `seed` says where."""

    kind: Literal["cut", "bits"]
    seed: int

    def of(self, message: bytes) -> bytes:
        """Return what arrives; never the message itself, unless there is nothing to damage."""
        if not message:
            return message
        rng = np.random.default_rng(self.seed)
        if self.kind == "cut":
            return message[: int(rng.integers(len(message)))]
        bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8))
        bits[rng.choice(len(bits), size=int(rng.integers(1, MOST_BITS + 1)), replace=False)] ^= 1
        return np.packbits(bits).tobytes()


def draw(rng: np.random.Generator, share: float) -> Damage | None:
    """Draw whether the next message is damaged, and how; where none ever is, nothing is drawn."""
    if share == 0 or rng.random() >= share:
        return None
    return Damage("cut" if rng.random() < 0.5 else "bits", int(rng.integers(2**32)))


def received(message: bytes, damage: Damage | None) -> bytes:
    """Return what a receiver gets of a message."""
    return message if damage is None else damage.of(message)
