"""The lab's loop for one session: its members, its state and its rows, driven by a wall clock instead of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftlab.errors import WireError, first_line
from driftlab.platform.backend.base import NodeId, Session
from driftlab.platform.backend.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.core.records import Weights
from driftlab.platform.field.request import SessionAsked, TeacherAsked, cell_of, experiment_of
from driftlab.platform.grid.builds import settings_of
from driftlab.platform.grid.progress import Progress
from driftlab.platform.loop.app_run import AppRun
from driftlab.platform.loop.context import context_key
from driftlab.platform.loop.device_run import DeviceRun
from driftlab.platform.loop.loop import Loop
from driftlab.platform.request.experiment import Experiment


@dataclass(frozen=True)
class FieldCell:
    """A session's experiment, and its loop, whose only device has one application."""

    experiment: Experiment
    loop: Loop

    @property
    def device(self) -> DeviceRun:
        (device,) = self.loop.devices.values()
        return device

    @property
    def app(self) -> AppRun:
        (app,) = self.device.apps.values()
        return app


def open_on_server(asked: SessionAsked, session: Session) -> FieldCell:
    """Build or find the networks of a session, and prepare its loop."""
    return _opened(asked, experiment_of(asked), InlineBackend(), session)


def open_on_device(asked: SessionAsked, session: Session, weights: Weights) -> FieldCell:
    """Prepare the loop of a session with the network that the server sent; the device has no teacher."""
    untaught = asked.model_copy(update={"teacher": TeacherAsked()})
    return _opened(asked, experiment_of(untaught), _FetchedBackend(weights), session)


def _opened(asked: SessionAsked, experiment: Experiment, backend: InlineBackend, session: Session) -> FieldCell:
    settings = settings_of(experiment, backend, Progress())
    cell = cell_of(experiment)
    context = settings[context_key(cell.workload, cell.system.scaling, cell.seed)]
    return FieldCell(experiment_of(asked), Loop(cell, context, session))


class _FetchedBackend(InlineBackend):
    """Takes the weights that were fetched where the lab's backend would train them."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._weights = weights

    def open(self, session: str) -> InlineSession:
        return _FetchedSession(self._weights)


class _FetchedSession(InlineSession):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self._weights = weights

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        if node.kind != "builder" or verb != "build":
            return super().call(node, verb, *args)
        from driftlab.platform.nodes.builder import built_from

        return InlineJob(node, verb, built_from(args[0], self._weights))


def dump_weights(weights: Weights) -> bytes:
    """Write weights as safetensors."""
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array) for name, array in weights.items()})


def load_weights(data: bytes) -> Weights:
    """Read weights; refuse bytes that are none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights: Weights = load(data)
    except SafetensorError as error:
        raise WireError(f"{len(data)} bytes are no weights: {first_line(error)}") from error
    return weights
