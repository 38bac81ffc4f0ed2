"""States of members, and the arrays in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.records import Weights

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class StreamState:
    """The state of a member: the source values of the entries that it changes, and its optimiser."""

    digest_name: ClassVar[str] = "Memory"  # its name in digests, which a new name of the class must not change

    source: Weights
    moments: tuple[Weights, ...] = ()  # by parameter, so that another network can continue with those that fit
    steps: int = 0  # since the beginning
    head: str | None = None  # the network's last layer, where the member needs it

    @property
    def kept_bytes(self) -> int:
        """Count the bytes of the source's copy, of the copy before the update, and of the moments."""
        return sum(
            times * value.nbytes
            for times, part in ((2, self.source), *((1, moment) for moment in self.moments))
            for value in part.values()
        )


@dataclass(frozen=True, eq=False)
class MethodState(StreamState):
    """The state of a member with further arrays."""

    digest_name = "MethodMemory"

    pack: Weights = field(default_factory=dict)  # the summary of the source
    held: Weights = field(default_factory=dict)  # the member's arrays by name

    @property
    def kept_bytes(self) -> int:
        """Count the pack and the member's arrays as well."""
        return super().kept_bytes + sum(value.nbytes for part in (self.pack, self.held) for value in part.values())


@dataclass(frozen=True, eq=False)
class ElasticState:
    """The state: the network as it was cut, and the samples that are replayed."""

    digest_name: ClassVar[str] = "ElasticMemory"

    source: Weights
    images: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 0, 0, 3), dtype=np.uint8))
    labels: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    of_source: int = 0  # of these samples, the first

    @property
    def kept_bytes(self) -> int:
        """Count the bytes of the network as it was cut, of the copy before the phase, and of the samples."""
        return sum(2 * value.nbytes for value in self.source.values()) + self.images.nbytes


def own_arrays(found: Mapping[str, Any]) -> dict[str, Array]:
    """Return plain arrays; tensors are copied into arrays that own their numbers."""
    return {name: value if isinstance(value, np.ndarray) else _copied(value) for name, value in found.items()}


def as_tensors(arrays: Mapping[str, Array], device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Copy arrays into tensors."""
    import torch

    return {name: torch.tensor(value, device=device) for name, value in arrays.items()}


def under(name: str, arrays: Mapping[str, Any]) -> dict[str, Array]:
    """Return arrays with a name before each of theirs."""
    return {f"{name}/{key}": value for key, value in own_arrays(arrays).items()}


def below(name: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays that `under` put below a name."""
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in held.items() if key.startswith(start)}


def _copied(value: torch.Tensor) -> Array:
    return np.array(value.detach().cpu().numpy(), order="C")
