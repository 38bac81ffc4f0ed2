"""Channel surgery: find groups of dependent channels in a network; cut, reorder and expand them.

channels = groups(model, example)                                  once per architecture
keep = {name: range(n // 2) for name, n in channels.sizes.items()}
small = cut(model, channels, keep)                                 a dense model of half the width
big = expand(small, model, channels, keep)                         the small model's weights in the big model
"""

from __future__ import annotations

from driftlab.platform.networks.pruning.surgery.edit import (
    coordinates,
    cut,
    expand,
    lift,
    mask,
    permute,
    restrict,
    silence,
)
from driftlab.platform.networks.pruning.surgery.grouping import Group, Groups, groups
from driftlab.platform.networks.pruning.surgery.rules import Lost, Rule, TorchCall

__all__ = [
    "Group",
    "Groups",
    "Lost",
    "Rule",
    "TorchCall",
    "coordinates",
    "cut",
    "expand",
    "groups",
    "lift",
    "mask",
    "permute",
    "restrict",
    "silence",
]
