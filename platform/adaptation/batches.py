"""Types of parameters, training batches, and reasons to reject a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import cycle, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from driftlab.platform.adaptation.base import MAX_FRAMES, UNFIT, Batch, Phase, Predicted
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.tasks.tasks import Task

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.networks.features import FeaturePass

NO_FRAMES, NO_STEPS, ONE_FRAME = "no frames", "the phase has no steps", "one frame has no distribution"
NO_WEIGHTS = "the network has nothing that learns"
Rows = npt.NDArray[np.int64]
StreamBatch = Annotated[int, Ge(1), Le(MAX_FRAMES), Means("frames of one batch of the stream", "frames")]
PredictOn = Annotated[Literal["frame", "batch"], Means("whether a frame is predicted at once or with its batch")]
PhaseSteps = Annotated[int, Ge(1), Means("steps of a phase")]
NormMomentum = Annotated[float, Ge(0), Le(1), Means("weight of the newest batch in the statistics of batch norms")]
StepSize = Annotated[float, Ge(0), Le(10), Means("step size")]
StepFrames = Annotated[int, Ge(1), Means("frames of a step in a phase", "frames")]
Share = Annotated[float, Ge(0), Le(1)]


def mini_batches(batch: Batch, phase: Phase, size: int, iterations: int) -> list[Rows]:
    """Draw a mini-batch without replacement per step of a phase; on the stream one batch of all frames."""
    frames = len(batch.images)
    count = iterations if phase.iterations is None else phase.iterations
    if phase.on_stream:
        return [np.arange(frames)] * min(count, 1)
    return [batch.rng.choice(frames, size=min(size, frames), replace=False) for _ in range(count)]


def split_groups(frames: int, phase: Phase, size: int) -> list[Rows]:
    """Split frames into consecutive groups; on the stream into one group.

    A last group of a single frame is dropped. A phase with more steps than groups restarts at the first one.
    """
    if phase.on_stream:
        return [np.arange(frames)] * min(1 if phase.iterations is None else phase.iterations, 1)
    cut = in_parts(frames, size)
    if len(cut) > 1 and len(cut[-1]) == 1 < size:
        cut.pop()
    return cut if phase.iterations is None else list(islice(cycle(cut), phase.iterations))


def in_parts(frames: int, size: int) -> list[Rows]:
    """Split frames into consecutive parts of a size; the last one may be smaller."""
    return [np.arange(start, min(start + size, frames)) for start in range(0, frames, size)]


def norms_reject(model: nn.Module, batch: Batch) -> str:
    """Return why a member of batch norms cannot learn from a batch; empty if it can."""
    from driftlab.platform.networks.module_utils import batch_norms

    return NO_FRAMES if not len(batch.images) else "" if batch_norms(model) else UNFIT["batch norms"]


def scales_reject(model: nn.Module, batch: Batch) -> str:
    """Return why a member of scales and shifts cannot learn from a batch; empty if it can."""
    return NO_FRAMES if not len(batch.images) else "" if scales_and_shifts(model) else UNFIT["norms"]


def weights_reject(model: nn.Module, batch: Batch) -> str:
    """Return why a member of all weights cannot learn from a batch; empty if it can."""
    return NO_FRAMES if not len(batch.images) else "" if all_parameters(model) else NO_WEIGHTS


def frames_reject(name: str, batch: Batch) -> str:
    """Return why a classifier's member cannot learn from a batch; empty if it can."""
    if not len(batch.images):
        return NO_FRAMES
    return "" if batch.task.name == "classification" else f"{name} names whole frames, the task is {batch.task.name}"


def without_entropy(task: Task) -> str:
    """Return why a task has no entropy; a detector scores classes and places without a distribution."""
    return "detections are no distribution over classes and have no entropy" if task.name == "detection" else ""


def predict_with_statistics(
    statistics: AbstractContextManager[Any], model: nn.Module, state: Any, batch: Batch, *, alone: bool
) -> Predicted:
    """Predict with batch norms that normalise by the full batch, or by each frame alone."""
    from driftlab.platform.networks.predict import predict

    frames = len(batch.images)
    size = 1 if alone else max(frames, 1)
    with statistics:
        predictions = predict(model, batch.images, task=batch.task, batch=size, device=None)
    return Predicted(predictions, state, Passes((size,) * (frames // size)))


def device_inputs(model: nn.Module, batch: Batch, rows: Rows) -> torch.Tensor:
    """Return frames as inputs on the model's device."""
    from driftlab.platform.networks.predict import device_of, to_input

    return to_input(batch.images[rows]).to(device_of(model))


def read_losses(losses: Sequence[torch.Tensor]) -> list[float]:
    """Read the losses of a phase at once, up to the first that is not finite."""
    import torch

    values: list[float] = torch.stack(list(losses)).tolist() if losses else []
    last = next((number for number, value in enumerate(values) if not math.isfinite(value)), len(values))
    return values[: last + 1]


def source_passes(model: nn.Module, images: npt.NDArray[Any], size: int) -> FeaturePass:
    """Run frames of the source through a network as it is, and return outputs and features of all of them."""
    import torch

    from driftlab.platform.networks.features import FeaturePass, features
    from driftlab.platform.networks.predict import device_of, evaluating, to_input

    device = device_of(model)
    parts = np.array_split(np.arange(len(images)), math.ceil(len(images) / size))
    with evaluating(model), torch.no_grad():
        seen = [features(model, to_input(images[rows]).to(device)) for rows in parts]
    outputs, values = (torch.cat([getattr(each, part) for each in seen]) for part in ("outputs", "features"))
    return FeaturePass(outputs, values, seen[0].head, seen[0].layers)


def all_parameters(model: nn.Module) -> list[str]:
    """Name all trainable parameters."""
    from driftlab.platform.networks.vector import layout_of

    return list(layout_of(model).names)


def norm_entries(model: nn.Module, *, batch_only: bool = True) -> list[str]:
    """Name the entries of batch norms, or of all norms, in the state dict: scales, shifts and statistics."""
    from driftlab.platform.networks.module_utils import all_norms, batch_norms, norm_state

    return norm_state(batch_norms(model) if batch_only else all_norms(model))


def scales_and_shifts(model: nn.Module, *, batch_only: bool = False) -> list[str]:
    """Name the trainable parameters of all norms, or of batch norms."""
    from driftlab.platform.networks.vector import layout_of

    spans = layout_of(model).spans
    return [name for name in norm_entries(model, batch_only=batch_only) if name in spans]
