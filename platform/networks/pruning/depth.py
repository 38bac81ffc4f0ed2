"""Removable blocks: residual blocks whose output has the shape of their input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

Value = TypeVar("Value")
SHORTCUTS = ("shortcut", "downsample")  # of blocks of this project, and of torchvision


def removable_blocks(model: nn.Module) -> tuple[str, ...]:
    """Return the names of blocks with an identity shortcut.

    The layers before and behind them fit together.
    """
    return tuple(name for name, module in model.named_modules() if _adds_its_input(module))


def without_blocks(model: nn.Module, blocks: Iterable[str]) -> nn.Module:
    """Replace blocks by the identity, in place, and return the network."""
    for name in blocks:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Identity())
    return model


def outside_blocks(values: Mapping[str, Value], blocks: Iterable[str]) -> dict[str, Value]:
    """Return the entries whose names are outside these blocks."""
    inside = tuple(f"{name}." for name in blocks)
    return {name: value for name, value in values.items() if not name.startswith(inside)}


def _adds_its_input(module: nn.Module) -> bool:
    shortcuts = [getattr(module, name) for name in SHORTCUTS if hasattr(module, name)]
    return bool(shortcuts) and all(one is None or not list(one.parameters()) for one in shortcuts)
