"""A guarded call of a member's training: a failure leaves the network unchanged and is recorded."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.errors import RunError
from driftlab.platform.adaptation.base import Adaptation, Adapted, Batch, Phase, Predicted
from driftlab.platform.core.limits import TookTooLong, time_limit
from driftlab.platform.core.records import LEARNING_FAILED, NO_END, Passes
from driftlab.platform.networks import state

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger(__name__)
LIMITED_HERE = ("adapt", "predict")  # verbs of an adaptation whose failure is a row and not the end of the cell


def adapt_guarded(
    member: Adaptation, model: nn.Module, memory: Any, batch: Batch, phase: Phase, limit_s: float
) -> Adapted:
    """Train a member; if it fails, restore the model and return the previous state and the reason."""
    before = state.read(model)
    try:
        with time_limit(limit_s):
            done = member.adapt(model, memory, batch, phase)
        fault = _fault(done, model, batch)
    except TookTooLong:
        fault = f"{NO_END} within {limit_s:g} s of this machine's time"
    except Exception as error:  # a user's member may raise anything; the reason is recorded in its row
        log.warning("%s failed while learning", member, exc_info=True)
        fault = f"{LEARNING_FAILED}: {type(error).__name__}: {error}"
    if fault:
        state.write(model, before)
        model.eval()
        return Adapted(memory, skipped=fault, passes=Passes())
    return done


def check_predictions(predicted: Predicted, batch: Batch) -> Predicted:
    """Check that there is one prediction per frame."""
    if len(predicted.predictions) != len(batch.images):
        raise RunError(
            f"it gave {len(predicted.predictions)} predictions for {len(batch.images)} frames; give one for each"
        )
    return predicted


def _fault(done: Any, model: nn.Module, batch: Batch) -> str:
    """Return the fault of a member's result; empty if it is valid."""
    if not isinstance(done, Adapted):
        return f"{LEARNING_FAILED}: it returned {type(done).__name__}, expected Adapted"
    if done.passes is None and not done.skipped:
        return f"{LEARNING_FAILED}: it does not return its passes (passes is None)"
    if done.predictions is not None and len(done.predictions) != len(batch.images):
        return f"{LEARNING_FAILED}: it gave {len(done.predictions)} predictions for {len(batch.images)} frames"
    if not all(math.isfinite(loss) for loss in done.losses):
        return f"{LEARNING_FAILED}: a loss is not finite ({', '.join(f'{loss:g}' for loss in done.losses[-3:])})"
    held = state.read(model)
    arrays = (held.vector, *(array for array in held.buffers.arrays if array.dtype.kind == "f"))
    if not all(np.isfinite(array).all() for array in arrays):
        return f"{LEARNING_FAILED}: it left weights or buffers that are not finite"
    return ""
