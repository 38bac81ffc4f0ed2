"""States of members that keep more than an optimiser: a summary of the source, and arrays of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftlab.platform.adaptation.base import EMPTY_PACK
from driftlab.platform.adaptation.stream import OnStream, StreamMemory
from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch
    from torch import nn

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class MethodMemory(StreamMemory):
    """The state of a member with arrays of its own."""

    digest_name = "MethodMemory"

    pack: Weights = field(default_factory=dict)  # the summary of the source
    held: Weights = field(default_factory=dict)  # the member's arrays by name

    @property
    def kept_bytes(self) -> int:
        """Count the pack and the member's arrays as well."""
        return super().kept_bytes + sum(value.nbytes for part in (self.pack, self.held) for value in part.values())


class Remembering(OnStream):
    """Base of members with a `MethodMemory`."""

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        """Return the member's first arrays."""
        return {}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> MethodMemory:
        """Copy the source, and begin with the member's own arrays; those of another network do not apply."""
        first = super().prepare(model, go_on=go_on)
        kept, own = dict(pack), dict(self.begin(model, pack))
        return MethodMemory(first.source, first.moments, first.steps, None, kept, own)

    def reset(self, model: nn.Module, state: Any) -> MethodMemory:
        """Return to the source network with a fresh optimiser and fresh arrays."""
        super().reset(model, state)
        return self.prepare(model, state.pack)


def own_arrays(found: Mapping[str, Any]) -> Weights:
    """Copy arrays and tensors into arrays that own their numbers."""
    return {name: np.array(_plain(value), order="C") for name, value in found.items()}


def as_tensors(arrays: Mapping[str, Array], device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Copy arrays into tensors."""
    import torch

    return {name: torch.tensor(value, device=device) for name, value in arrays.items()}


def under(name: str, arrays: Mapping[str, Any]) -> Weights:
    """Copy arrays, with a name before each of theirs."""
    return {f"{name}/{key}": value for key, value in own_arrays(arrays).items()}


def below(name: str, held: Weights) -> Weights:
    """Return the arrays that `under` put below a name."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in held.items() if key.startswith(start)}


def _plain(value: Array | torch.Tensor) -> Array:
    return value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()
