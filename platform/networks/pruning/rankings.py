"""The ways to rank filters, by name. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Ranking = Literal["trr", "trr_ratio", "trr_linear", "trr_linear_ratio", "l1", "bn_gamma", "random"]


@dataclass(frozen=True)
class Response:
    """How the response of a filter is read."""

    linear: bool = False  # before the activation, not after it
    ratio: bool = False  # distances between classes over those within them, so that a filter's energy does not count


RESPONSES: Mapping[Ranking, Response] = {
    "trr": Response(),
    "trr_ratio": Response(ratio=True),
    "trr_linear": Response(linear=True),
    "trr_linear_ratio": Response(linear=True, ratio=True),
}
