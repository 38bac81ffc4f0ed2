"""A family of nested networks, built while its steps are recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import scaling_factory as factory
from torch import nn

from driftlab.platform.networks.pruning.surgery import groups
from driftlab.platform.scaling import growing
from driftlab.platform.scaling.growing import Growth, PruningContext
from driftlab.platform.scaling.nested import Nested

KEEP, SIZE, networks, numbers, problem = (
    factory.KEEP, factory.SIZE, factory.networks, factory.numbers, factory.problem
)  # fmt: skip


MEMBER = Nested(keep_ratios=KEEP, accuracy_loss=1.0, prune_epochs=1, grow_epochs=2, ranked_on=100)


EXAMPLE = factory.some_images()


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in numbers(model).values())).hexdigest()


class RecordingBuilder:
    """Builds a family and records every descendant as soon as it is finished."""

    def __init__(self, name: str, member: Nested = MEMBER) -> None:
        self.name, self.vanilla = name, networks()[name]
        before = digest(self.vanilla)
        self.context = PruningContext(self.vanilla, groups(self.vanilla, EXAMPLE), problem())
        self.roadmap = member._prune(self.context)
        self.order = growing.nested_order(self.context.groups, self.roadmap)
        how = growing.plan_growth(self.context, member.initial, member.batch_norm, causal=member.causal)
        self.digests: list[str] = []  # of each descendant when it was finished
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(growing, "grow", self._noting(growing.grow))
            self.descendants = member._freeze_and_grow(self.context, how, self.roadmap)
        self.digests.append(digest(self.descendants[-1]))
        self.family = growing.store_descendants(self.context, how, self.roadmap, self.descendants)
        assert digest(self.vanilla) == before

    def _noting(self, grow: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        def noted(context: PruningContext, how: Growth, descendant: nn.Module, *footprints: Any) -> nn.Module:
            self.digests.append(digest(descendant))
            return grow(context, how, descendant, *footprints)

        return noted
