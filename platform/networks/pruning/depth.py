"""Blocks that a network can go without: residual ones whose output has the shape of their input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torch import nn

Value = TypeVar("Value")
SHORTCUTS = ("shortcut", "downsample")  # of a block in the networks here, and in torchvision's


def removable_blocks(model: nn.Module) -> tuple[str, ...]:
    """Name the blocks that add their input as it is: what comes before them fits what comes behind."""
    return tuple(name for name, module in model.named_modules() if _adds_its_input(module))


def without_blocks(model: nn.Module, blocks: Iterable[str]) -> nn.Module:
    """Let these blocks of a network pass their input on; return the network."""
    for name in blocks:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, nn.Identity())
    return model


def outside_blocks(values: Mapping[str, Value], blocks: Iterable[str]) -> dict[str, Value]:
    """Drop the entries whose names lie in one of the blocks."""
    inside = tuple(f"{name}." for name in blocks)
    return {name: value for name, value in values.items() if not name.startswith(inside)}


def _adds_its_input(module: nn.Module) -> bool:
    found = [getattr(module, name) for name in SHORTCUTS if hasattr(module, name)]
    return bool(found) and all(one is None or not list(one.parameters()) for one in found)
