"""The rankings of filters, by name. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Ranking = Literal["trr", "trr_ratio", "trr_linear", "trr_linear_ratio", "l1", "bn_gamma", "random"]


@dataclass(frozen=True)
class Response:
    """The variant of a ranking by response."""

    linear: bool = False  # maps before the activation, not after it
    ratio: bool = False  # residual divided by the distances within classes: independent of the energy of a filter


RESPONSES: Mapping[Ranking, Response] = {
    "trr": Response(),
    "trr_ratio": Response(ratio=True),
    "trr_linear": Response(linear=True),
    "trr_linear_ratio": Response(linear=True, ratio=True),
}
