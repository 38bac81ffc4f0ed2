"""Distill: trains a chosen share of the weights on a teacher's labels (AMS, Algorithms 1 and 2).

Coordinates are chosen before a phase begins, by how far Adam moved them at the end of the previous phase. The moments
then follow the steps that were really taken, unlike with a choice afterwards. Batch norm keeps its statistics
and trains its scale and shift, so that a phase is described by the weight vector alone.

Differs from the paper: epsilon stands where PyTorch puts it (`epsilon_mode`), a step size, length and mini-batch that
suit networks of some 20 000 parameters, and a phase that meets a loss which is not finite is undone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from driftlab.platform.adaptation import masks
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import Rows, read_losses
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.networks.tasks.tasks import SEGMENTATION, Task, TaskLabels

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.predict import FramesThere
    from driftlab.platform.networks.training.descent import Descent, Rule
    from driftlab.platform.networks.vector import Flat

Vector = npt.NDArray[np.float32]
Strategy = Literal["gradient_guided", "random", "first", "last", "first_last", "probe", "full"]


@dataclass(frozen=True, eq=False)
class DistillState:
    """The state between phases."""

    digest_name: ClassVar[str] = "Memory"  # its name in digests, which a new name of the class must not change

    moments: tuple[Vector, ...]
    steps: int = 0  # since the beginning; phases do not restart at 0
    update: Vector | None = None  # the last step for every coordinate; None before the first phase
    start: Vector | None = None  # the weights after `prepare`
    trained: masks.Mask | None = None  # coordinates that the last phase changed


@dataclass(frozen=True)
class Distill(Adaptation):
    """Train on a teacher's labels."""

    fraction: Annotated[float, Gt(0), Le(1), Means("share of the weights that a phase changes")] = 0.05
    strategy: Annotated[Strategy, Means("how the weights that change are chosen")] = "gradient_guided"
    block: Annotated[int, Ge(1), Means("consecutive weights that are chosen together", "weights")] = 1
    iterations: Annotated[int, Ge(1), Means("steps of a phase")] = 60
    batch: Annotated[int, Ge(1), Means("frames of a step", "frames")] = 4
    optimiser: Annotated[Literal["adam", "momentum"], Means("rule of the steps")] = "adam"
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size")] = 3e-3
    epsilon: Annotated[float, Gt(0), Means("term that keeps adam's divisor above 0")] = 1e-8
    epsilon_mode: Annotated[Literal["torch", "tf", "paper"], Means("whose formula says where epsilon stands")] = "torch"
    restart_each_phase: Annotated[
        bool, Means("whether every phase begins at the generic weights, as in the released code")
    ] = False
    step_choices: Annotated[
        tuple[int, ...], Ge(1), Means("numbers of steps that a scheduler may choose from; none: iterations only")
    ] = ()

    labels, learns_on_stream = "teacher", False

    def training_configs(self, planned: Phase) -> tuple[Phase, ...]:
        return tuple(replace(planned, iterations=count) for count in self.step_choices) or (planned,)

    def passes_of(self, phase: Phase, frames: int) -> Passes | None:
        """Return the work of a phase, unless a score ends it."""
        if phase.stop_score is not None:
            return None
        count = self.iterations if phase.iterations is None else phase.iterations
        return Passes(count * (self.batch,), count * (self.batch,))

    def _done(self, state: DistillState, frames: int, forward: int, losses: list[float]) -> dict[str, Any]:
        """Return the steps of a phase, and its work with the moments that it kept."""
        kept_bytes = sum(moment.nbytes for moment in state.moments)
        work = Passes(forward * (frames,), len(losses) * (frames,), kept_bytes=kept_bytes)
        return {"iterations": len(losses), "losses": tuple(losses), "passes": work}

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> DistillState:
        """Start without moments: those of a network with other channels do not apply."""
        from driftlab.platform.networks.vector import read

        model.eval()
        vector = read(model)
        return DistillState(tuple(np.zeros_like(vector) for _ in range(self._rule().moments)), start=vector)

    def reset(self, model: nn.Module, state: Any) -> DistillState:
        from driftlab.platform.networks.vector import write

        write(model, state.start)
        return self.prepare(model)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        from driftlab.platform.networks.vector import bind_vector

        if batch.labels is None or not len(batch.images):
            return Adapted(state, skipped="no labels" if batch.labels is None else "no frames")
        model.eval()
        with bind_vector(model) as flat:
            return self._phase(model, flat, state, batch, phase)

    def _phase(self, model: nn.Module, flat: Flat, memory: DistillState, batch: Batch, phase: Phase) -> Adapted:
        """Choose coordinates, then train; a phase that leaves the finite numbers is undone."""
        from driftlab.platform.networks.predict import FramesThere
        from driftlab.platform.networks.training.descent import Descent

        assert batch.labels is not None
        before = flat.weights.clone()
        undone = _restart(flat, memory, restarts=self.restart_each_phase)
        mask = self._select(model, flat, memory, batch)
        walk = Descent(self._rule(), flat.weights, memory.moments, memory.steps)
        walk.restrict(mask)
        found: list[torch.Tensor] = []
        frames, score, looks = FramesThere(batch.images, str(flat.weights.device)), None, 0
        for _ in range(self.iterations if phase.iterations is None else phase.iterations):
            rows = self._draw(batch, phase)
            output, looks = model(frames.rows(rows)), looks + 1
            score = _score(output, batch, phase)
            if _reached(score, phase):
                break
            loss = backpropagate(flat, output, batch.labels[rows], batch.task)
            if loss is None:
                continue
            found.append(loss)
            # To read it from a GPU would stop both at every step.
            if loss.device.type == "cpu" and not math.isfinite(loss):
                break
            walk.step(flat.gradients)
            if self.strategy == "probe" and len(found) == 1:
                mask = _keep_what_moved(walk, before, self.fraction)
        else:
            score, looks = _score_at_end(model, frames, batch, phase), looks + (phase.stop_score is not None)
        losses = read_losses(found)
        done = self._done(memory, self.batch if phase.stop_score is None else len(batch.images), looks, losses)
        if not losses:
            flat.weights.copy_(before)
            why = "good enough" if _reached(score, phase) else "no label counts"
            return Adapted(memory, skipped=why, score=score, passes=done["passes"])
        if not (math.isfinite(losses[-1]) and walk.is_finite()):
            flat.weights.copy_(before)
            why = f"not finite after {len(losses)} iterations, loss {losses[-1]}"
            return Adapted(memory, skipped=why, passes=done["passes"])
        after = DistillState(walk.moments(), walk.steps, walk.update(), memory.start, mask)
        return Adapted(after, changed=mask | undone, score=score, **done)

    def _draw(self, batch: Batch, phase: Phase) -> Rows:
        """Draw a mini-batch; a phase with a stop score trains on all frames, by which it is scored."""
        return draw_rows(batch, self.batch) if phase.stop_score is None else np.arange(len(batch.images))

    def _select(self, model: nn.Module, flat: Flat, memory: DistillState, batch: Batch) -> masks.Mask:
        """Choose the coordinates that this phase may change."""
        size = flat.layout.size
        count = masks.budget(self.fraction, size)
        if count == size or self.strategy in ("full", "probe"):
            return np.ones(size, dtype=bool)
        if self.strategy == "gradient_guided" and memory.update is not None:
            return masks.largest_blocks(memory.update, self.fraction, self.block)
        if self.strategy in ("gradient_guided", "random"):
            return masks.uniform_blocks(size, self.fraction, self.block, batch.rng)
        return masks.ends(_running_order(model, flat, batch), count, self.strategy)

    def _rule(self) -> Rule:
        from driftlab.platform.networks.training.descent import Adam, Momentum

        if self.optimiser == "momentum":
            return Momentum(self.learning_rate)
        return Adam(self.learning_rate, epsilon=self.epsilon, epsilon_mode=self.epsilon_mode)


def _restart(flat: Flat, memory: DistillState, *, restarts: bool) -> masks.Mask:
    """Return to the generic weights if phases restart there, and return the mask of changed weights."""
    import torch

    if not restarts or memory.start is None or memory.trained is None:
        return np.zeros(flat.layout.size, dtype=bool)
    there = torch.from_numpy(np.flatnonzero(memory.trained)).to(flat.weights.device)
    flat.weights[there] = torch.from_numpy(memory.start).to(flat.weights.device)[there]
    return memory.trained


def draw_rows(batch: Batch, count: int) -> Rows:
    """Draw the frames of a mini-batch uniformly, with replacement."""
    return batch.rng.integers(len(batch.images), size=count)


def backpropagate(
    flat: Flat, output: torch.Tensor, labels: TaskLabels, task: Task = SEGMENTATION
) -> torch.Tensor | None:
    """Write the gradient of the mean loss over usable labels to the vector; return the loss, if any."""
    import torch

    loss = task.loss(output, labels)
    if loss is None:
        return None
    flat.gradients.zero_()
    torch.autograd.backward(loss)
    return loss.detach()


def _score(output: torch.Tensor, batch: Batch, phase: Phase) -> float | None:
    """Return the score of the full batch where the phase needs it; 0 if no label is usable."""
    if phase.stop_score is None:
        return None
    assert batch.labels is not None
    predicted = batch.task.predictions(output.detach(), *batch.images.shape[1:3])
    counts = batch.task.counts(predicted, batch.labels, output.shape[1])
    return float(np.nan_to_num(batch.task.score(counts.sum(axis=0))))


def _score_at_end(model: nn.Module, frames: FramesThere, batch: Batch, phase: Phase) -> float | None:
    """Score once more after the last step."""
    import torch

    if phase.stop_score is None:
        return None
    with torch.inference_mode():
        return _score(model(frames.rows(np.arange(len(batch.images)))), batch, phase)


def _reached(score: float | None, phase: Phase) -> bool:
    return score is not None and phase.stop_score is not None and score >= phase.stop_score


def _keep_what_moved(walk: Descent, before: torch.Tensor, fraction: float) -> masks.Mask:
    """Undo the first step where it was small, and continue with the other coordinates."""
    import torch

    mask = masks.above_percentile((walk.weights - before).cpu().numpy(), fraction)
    walk.weights.copy_(torch.where(torch.from_numpy(mask).to(before.device), walk.weights, before))
    walk.restrict(mask)
    return mask


def _running_order(model: nn.Module, flat: Flat, batch: Batch) -> npt.NDArray[np.intp]:
    """List the coordinates layer by layer in running order."""
    from driftlab.platform.networks.predict import to_input
    from driftlab.platform.networks.vector import running_order

    names = running_order(model, flat.layout, to_input(batch.images[:1]).to(flat.weights.device))
    return np.concatenate([np.arange(flat.layout.size)[flat.layout.spans[name]] for name in names])
