"""Damage on a link that its own checksums miss, to test receivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

MAX_FLIPPED_BITS = 8


@dataclass(frozen=True)
class Damage:
    """A message arrives truncated or with flipped bits; `seed` determines where."""

    kind: Literal["cut", "bits"]
    seed: int

    def of(self, message: bytes) -> bytes:
        """Return the damaged message, which always differs unless it is empty."""
        if not message:
            return message
        rng = np.random.default_rng(self.seed)
        if self.kind == "cut":
            return message[: int(rng.integers(len(message)))]
        bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8))
        bits[rng.choice(len(bits), size=int(rng.integers(1, MAX_FLIPPED_BITS + 1)), replace=False)] ^= 1
        return np.packbits(bits).tobytes()


def draw_damage(rng: np.random.Generator, share: float) -> Damage | None:
    """Draw whether and how the next message is damaged; a share of 0 draws no random number."""
    if share == 0 or rng.random() >= share:
        return None
    return Damage("cut" if rng.random() < 0.5 else "bits", int(rng.integers(2**32)))


def damaged(message: bytes, damage: Damage | None) -> bytes:
    """Return the message as the receiver gets it."""
    return message if damage is None else damage.of(message)
