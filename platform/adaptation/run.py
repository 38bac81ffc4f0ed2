"""One call of `adapt` while it runs: the operations of training steps and of the transaction.

Every pass that goes through a run is counted there; `backward` counts those that it goes back through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch, Phase
from driftlab.platform.adaptation.batches import Rows, read_losses
from driftlab.platform.core.records import Passes, Weights
from driftlab.platform.networks.features import FeaturePass, features, weighted_modules
from driftlab.platform.networks.module_utils import (
    NormRecord,
    batch_norms,
    coordinates,
    copy_entries,
    is_finite,
    record_layers,
    restore_entries,
)
from driftlab.platform.networks.predict import FramesThere, device_of, to_input
from driftlab.platform.networks.training.descent import StepRule
from driftlab.platform.networks.vector import layout_of

if TYPE_CHECKING:
    from driftlab.platform.adaptation.learn import LearningAdaptation


IN_ONE = 1 << 18  # weights up to which copies into one vector and back take less time than a step for each parameter


class LearningRun:
    """One call of `adapt`: the network, its learning parameters, the member's arrays and the passes."""

    def __init__(self, member: LearningAdaptation, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> None:
        self.member, self.model, self.state, self.batch, self.phase = member, model, state, batch, phase
        self.names: list[str] = []  # of the parameters that learn
        self.parameters: dict[str, nn.Parameter] = {}
        self.rule = member.rule()
        self._moments: list[Tensor] = []  # of the optimiser, each a vector over all that learns
        self._sizes: list[int] = []
        self.steps = self._time = int(getattr(state, "steps", 0))
        self.held: dict[str, Any] = dict(getattr(state, "held", {}))
        self.pack: Weights = getattr(state, "pack", EMPTY_PACK)
        self.notes: dict[str, Any] = {}  # of the member, for this call
        self._read, self._unread = list[float](), list[Tensor]()  # losses of the steps, and those still on a GPU
        self._frames = FramesThere(batch.images, device_of(model))
        self._there: dict[tuple[str, str], Tensor] = {}  # arrays that were copied to the device
        self.planned = self.made = 0  # training batches, and steps of the optimiser
        self.kept_bytes = 0  # besides the state
        self.stopped = self.waits = ""  # why the call is undone, or is kept though nothing was learned yet
        self.moved: Sequence[str] | npt.NDArray[np.bool_] | None = (
            None  # entries that changed, if not all learning parameters
        )
        self.trained: tuple[str, ...] | None = None  # modules, if not all owners of learning parameters
        self.shares: tuple[float, ...] | None = None  # of each of them, whose gradients were computed
        self.forward, self.backward_passes, self._tracked = list[int](), list[int](), list[int]()
        self._judged = self._fit = 0
        self._over = False
        self._shown: Tensor | None = None
        self._shown_by = (1, 0)  # forward and backward passes until then
        self._unseen = True  # no pass of this training step was shown yet
        self._ran: Mapping[str, None] = {}
        self._before: Weights = {}
        self._norms = NormRecord()
        self._weighted: list[tuple[str, nn.Module]] | None = None  # modules, once they are needed
        self._learnable = {name: value for name, value in model.named_parameters() if value.requires_grad}

    # Operations of a training step.

    def outputs(self, rows: Rows) -> Tensor:
        """Run the network on some frames of the batch."""
        return self.outputs_of(self.inputs(rows))

    def outputs_of(self, inputs: Tensor) -> Tensor:
        """Run the network."""
        outputs: Tensor = self.model(inputs)
        self.count(len(inputs))
        if self._unseen and self.member.by_batch():
            self.show(outputs)
        return outputs

    @torch.no_grad()
    def watch(self, rows: Rows) -> Tensor:
        """Run the network on some frames without gradients."""
        return self.outputs(rows)

    def features(self, inputs: Tensor) -> FeaturePass:
        """Run the network and return the input of its head as well."""
        if self._weighted is None:
            self._weighted = weighted_modules(self.model)
        found = features(self.model, inputs, self._weighted)
        self.count(len(inputs))
        return found

    def inputs(self, rows: Rows) -> Tensor:
        """Return some frames of the batch as inputs of the network."""
        return self._frames.rows(rows)

    def inputs_of(self, images: npt.NDArray[Any]) -> Tensor:
        """Return other frames as inputs of the network."""
        return to_input(images).to(self.device)

    def replayed(self, images: npt.NDArray[Any]) -> Tensor:
        """Run frames of a memory; they are counted before those of the training batch, as tables add them up."""
        outputs: Tensor = self.model(self.inputs_of(images))
        self.count(len(images), place=-1)
        return outputs

    def count(self, frames: int, *, place: int | None = None) -> None:
        """Count a pass; `backward` counts those that it goes back through."""
        self.forward.insert(len(self.forward) if place is None else place, frames)
        if torch.is_grad_enabled():
            self._tracked.insert(len(self._tracked) if place is None else place, frames)

    def judge(self, fit: Tensor) -> bool:
        """Count samples and those that are fit; return whether any is."""
        self._judged, self._fit = self._judged + fit.numel(), self._fit + int(fit.sum())
        return bool(fit.any())

    def backward(self, loss: Tensor, *, last: bool = True) -> bool:
        """Compute the gradients of a loss, recorded if `last` of a step; return False if it is not finite.

        On a GPU that is only known after the last step, which then undoes the call.
        """
        if loss.device.type != "cpu":  # to read it would stop both at every step
            self._unread += [loss.detach()] * last
        else:
            value = float(loss.detach())
            self._over = self._over or not math.isfinite(value)
            self._read += [value] * (last or not math.isfinite(value))
            if not math.isfinite(value):
                return False
        for parameter in self.parameters.values():
            parameter.grad = None
        torch.autograd.backward(loss)
        self.backward_passes += self._tracked
        self._tracked = []
        return True

    @property
    def losses(self) -> list[float]:
        """The losses of the training steps so far."""
        self._read, self._unread = self._read + read_losses(self._unread), []
        return self._read

    def gradient(self) -> Tensor:
        """Return the gradients of all learning parameters as one vector, zero where there are none."""
        found = [
            value.grad if value.grad is not None else torch.zeros_like(value) for value in self.parameters.values()
        ]
        return torch.cat([gradient.reshape(-1) for gradient in found])

    def weights(self) -> Tensor:
        """Copy all learning parameters into one vector."""
        return torch.cat([value.data.reshape(-1) for value in self.parameters.values()])

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector by parameter, in its shape."""
        parts = zip(self.parameters.items(), vector.split(self._sizes), strict=True)
        return {name: part.view(value.shape) for (name, value), part in parts}

    def step(self, gradient: Tensor | None = None) -> None:
        """Apply the gradients, or others in their place."""
        assert self.rule is not None
        self.made, self.steps, self._time = self.made + 1, self.steps + 1, self._time + 1
        if gradient is None and sum(self._sizes) > IN_ONE:
            moments = [self.parts(moment) for moment in self._moments]
            for name, value in self.parameters.items():
                slope = torch.zeros_like(value.data) if value.grad is None else value.grad
                self.rule.move(value.data, slope, tuple(moment[name] for moment in moments), self._time)
            return
        weights = self.weights()
        self.rule.move(weights, self.gradient() if gradient is None else gradient, tuple(self._moments), self._time)
        for name, part in self.parts(weights).items():
            self.parameters[name].data.copy_(part)

    def learn(self, loss: Tensor) -> bool:
        """Make a step along a loss; False if it is not finite."""
        if finite := self.backward(loss):
            self.step()
        return finite

    def restart(self, *, empty: bool = True) -> None:
        """Return the network to the source, with an empty optimiser."""
        restore_entries(self.model, self.state.source)
        if empty:
            self.steps = self._time = 0
            self._moments = self._moments_from(())

    def forget_statistics(self) -> None:
        """Reset the statistics of batch norms."""
        for norm in batch_norms(self.model).values():
            norm.reset_running_stats()

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Copy values into entries of the network."""
        entries = self.model.state_dict()
        for name, value in values.items():
            entries[name].copy_(value)

    def source(self, name: str) -> Tensor:
        """Return the source value of an entry on the device, which gets it once in a call."""
        return self._copied("source", name, self.state.source[name])

    def packed(self, name: str) -> Tensor:
        """Return an array of the source's summary on the device, which gets it once in a call."""
        return self._copied("pack", name, self.pack[name])

    def _copied(self, part: str, name: str, value: npt.NDArray[Any]) -> Tensor:
        if (part, name) not in self._there:
            self._there[part, name] = torch.tensor(value, device=self.device)
        return self._there[part, name]

    def array(self, name: str) -> Tensor | None:
        """Return one of the member's arrays as a tensor; None before it has any."""
        value = self.held.get(name)
        return torch.tensor(value, device=self.device) if isinstance(value, np.ndarray) else value

    def show(self, outputs: Tensor) -> None:
        """Take outputs for the batch as its predictions, after the passes so far."""
        self._shown, self._unseen = outputs.detach(), False
        self._shown_by = (len(self.forward), len(self.backward_passes))

    def stop(self, why: str = "") -> None:
        """Make no more steps; with a reason the call is undone."""
        self.stopped, self._over = why, True

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Make batch norms use their stored statistics within this context, without gradients."""
        with self._norms.resting(), torch.no_grad():
            yield

    @contextmanager
    def using(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace the learning parameters by other tensors within this context; nothing is copied."""
        own = {name: value.data for name, value in self.parameters.items()}
        for name, value in self.parameters.items():
            value.data = weights[name]
        try:
            yield
        finally:
            for name, value in self.parameters.items():
                value.data = own[name]

    @contextmanager
    def source_statistics(self) -> Iterator[None]:
        """Make batch norms use the statistics of the source within this context, without gradients."""
        norms = {f"{norm}.{own}" for norm in batch_norms(self.model) for own in ("running_mean", "running_var")}
        entries = self.model.state_dict()
        kept = {name: entries[name].clone() for name in norms & self.state.source.keys()}
        self.load({name: self.source(name) for name in kept})
        with self.resting():
            yield
        self.load(kept)

    @property
    def device(self) -> str:
        return device_of(self.model)

    # Operations of the transaction.

    @contextmanager
    def opened(self) -> Iterator[LearningRun]:
        """Leave gradients, and which parameters may have them, as they were before."""
        try:
            yield self
        finally:
            for parameter in self._learnable.values():
                parameter.requires_grad, parameter.grad = True, None

    def bind(self, names: Sequence[str], rule: StepRule | None = None) -> None:
        """Make these parameters learn, and no others, with the moments that the state has of them."""
        self.names, self.rule = list(names), rule or self.rule
        learning = set(names)
        for name, parameter in self._learnable.items():
            parameter.requires_grad = name in learning
        self.parameters = {name: self._learnable[name] for name in self.names}
        carried = getattr(self.state, "moments", ()) if self.member.carries(self.phase) else ()
        self._time = self.steps if carried else 0
        self._sizes = [value.numel() for value in self.parameters.values()]
        self._moments = self._moments_from(carried)

    def repeat(self, batches: Sequence[Rows]) -> None:
        """Make the training steps until they end, or a loss is not finite."""
        self._before, self.planned = copy_entries(self.model, self.state.source), len(batches)
        norms = batch_norms(self.model)
        by_norms = all(name.rpartition(".")[0] in norms for name in self.names)
        layers = nullcontext() if by_norms else record_layers(self.model)
        with self.member.normalising(self) as self._norms, layers as ran:
            self._ran = self._norms.ran if ran is None else ran
            for rows in batches:
                self._tracked, self._unseen = [], True
                self.member.train_step(self, rows)
                if self._over:
                    break

    def undo(self) -> None:
        """Restore the network from before the call."""
        restore_entries(self.model, self._before)

    def invalid_reason(self) -> str:
        """Return why the result is invalid: starved batch norms, or numbers that are not finite."""
        if self._norms.starved:
            name = next(iter(self._norms.starved))
            return f"batch norm {name} was given one value per channel: more frames are needed"
        if not all(map(math.isfinite, self.losses)):
            return f"not finite after {len(self.losses)} iterations, loss {self.losses[-1]}"
        moments = all(bool(np.isfinite(moment.cpu().numpy()).all()) for moment in self._moments)
        if not moments or not is_finite(self.model, self.state.source):
            return f"not finite after {len(self.forward)} iterations"
        return ""

    def passes(self, memory: Any) -> Passes:
        """Return the passes, with the bytes that a state and the call kept."""
        owners = {name.rpartition(".")[0] for name in self.names}
        trained = tuple(name for name in self._ran if name in owners) if self.trained is None else self.trained
        kept_bytes = memory.kept_bytes + self.kept_bytes
        return Passes(tuple(self.forward), tuple(self.backward_passes), trained, kept_bytes, self.shares)

    def seen(self) -> dict[str, Any]:
        """Return the batch's predictions with their passes, and the share of accepted samples."""
        batch, predictions = self.batch, None
        if self._shown is not None and self.phase.on_stream and self.member.predict_on == "batch":
            predictions = batch.task.predictions(self._shown, *batch.images.shape[1:3])
        accepted = self._fit / self._judged if self._judged else None
        return {"predictions": predictions, "accepted": accepted, "predicted_by": self._shown_by}

    def changed(self) -> npt.NDArray[np.bool_] | None:
        """Mark the changed coordinates in the vector of all weights; None without any."""
        if isinstance(self.moved, np.ndarray):
            return self.moved
        if self.moved is None and not self.names:
            return None
        layout = layout_of(self.model)
        names = self.names if self.moved is None else self.moved
        return coordinates(layout, [name for name in names if name in layout.spans])

    def moments(self) -> tuple[Weights, ...]:
        """Return the optimiser's moments by parameter."""
        if not self.parameters:
            return tuple(getattr(self.state, "moments", ()))
        found = [moment.cpu().numpy() for moment in self._moments]
        return tuple({name: each[span].reshape(shape) for name, span, shape in self._spans()} for each in found)

    def _spans(self) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """Yield the place of each parameter in a vector of all, and its shape."""
        stop = 0
        for name, size in zip(self.names, self._sizes, strict=True):
            stop += size
            yield name, slice(stop - size, stop), tuple(self.parameters[name].shape)

    def _moments_from(self, carried: Sequence[Weights]) -> list[Tensor]:
        """Return moments as vectors; missing ones are zero."""
        if self.rule is None or not self.parameters:
            return []
        dtype = str(next(iter(self.parameters.values())).dtype).removeprefix("torch.")
        vectors = [np.zeros(sum(self._sizes), dtype=dtype) for _ in range(self.rule.moments)]
        for vector, moment in zip(vectors, carried, strict=False):
            for name, span, _ in self._spans():
                if name in moment:
                    vector[span] = moment[name].reshape(-1)
        return [torch.from_numpy(vector).to(self.device) for vector in vectors]
