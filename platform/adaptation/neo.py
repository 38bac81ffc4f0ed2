"""NEO: the head's input is centred by the mean of all features seen so far.

Differs from the paper: `decay` may weigh recent features more; a convolution of one pixel counts as a linear head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import Batch
from driftlab.platform.adaptation.batches import NO_FRAMES, Rows
from driftlab.platform.adaptation.learn import HeadAdaptation, StatefulAdaptation
from driftlab.platform.core.parameters import Means
from driftlab.platform.networks.heads import linear_head

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun

    Held = dict[str, Any]


@dataclass(frozen=True)
class Neo(HeadAdaptation, StatefulAdaptation):
    """Subtract the running mean of features before the head."""

    decay: Annotated[
        float, Ge(0), Le(1), Means("weight of the newest batch in the mean; 0: of all frames the same")
    ] = 0.0

    only_on_stream = True

    def changes(self, model: nn.Module) -> list[str]:
        return []

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if not len(batch.images):
            return NO_FRAMES
        return "" if linear_head(model, per_place=True) else "the network has no linear head"

    def follow(self, run: LearningRun, rows: Rows) -> tuple[Held, torch.Tensor]:
        """Run frames with a mean of the head's input to which they belong."""
        from torch import nn

        head, moved = run.model.get_submodule(linear_head(run.model, per_place=True)), dict[str, Any]()

        def centre(_: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            place = -1 if isinstance(head, nn.Linear) else 1
            held = {"mean": run.array("mean"), "count": run.held["count"]} if run.held else {}
            moved.update(self._moved(held, given[0].movedim(place, -1).flatten(0, -2)))
            shape = [1] * given[0].dim()
            shape[place] = -1
            return (given[0] - moved["mean"].to(given[0].dtype).view(shape), *given[1:])

        handle = head.register_forward_pre_hook(centre)
        try:
            return moved, run.outputs(rows)
        finally:
            handle.remove()

    def _moved(self, held: Held, found: torch.Tensor) -> Held:
        """Return the mean of all features so far, and how many they are."""
        import torch

        before = float(held["count"]) if held else 0.0
        total = torch.tensor(before + len(found), dtype=torch.float64)
        newest = found.double().mean(dim=0)
        weight = self.decay if held and self.decay else len(found) / float(total)
        mean = torch.lerp(held["mean"], newest, weight) if held else newest
        return {"mean": mean, "count": total}
