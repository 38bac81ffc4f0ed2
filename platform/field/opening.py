"""The lab's runner for one session: its members, its state and its rows, driven by a wall clock instead of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftlab.errors import WireError, first_line
from driftlab.platform.core.records import Reply, Weights
from driftlab.platform.field.request import SessionAsked, cell_of, experiment_of
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.networks.training.artifacts import FamilyRecipe
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.device import DeviceSim
from driftlab.platform.sim.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.session import NodeId, Session
from driftlab.platform.sim.setting import setup_key


@dataclass(frozen=True)
class FieldCell:
    """A session's experiment, and its runner, whose only device has one application."""

    experiment: Experiment
    runner: Runner

    @property
    def device(self) -> DeviceSim:
        (device,) = self.runner.devices.values()
        return device

    @property
    def app(self) -> AppSim:
        (app,) = self.device.apps.values()
        return app


def open_on_server(asked: SessionAsked, session: Session) -> FieldCell:
    """Build or find the networks of a session, and prepare its runner."""
    return _opened(experiment_of(asked), InlineBackend(), session)


@dataclass(frozen=True)
class Fetched:
    """What a device fetches instead of building it: its network, and its adaptation's summary of the source."""

    network: str
    weights: Weights
    pack: Callable[[], Weights]  # asked where the adaptation needs one


def open_on_device(asked: SessionAsked, session: Session, fetched: Fetched, source: str = "") -> FieldCell:
    """Prepare a session's runner with the network that the server sent, on a stream of the device's own if given."""
    return _opened(experiment_of(asked, source), _FetchedBackend(fetched), session)


def _opened(experiment: Experiment, backend: InlineBackend, session: Session) -> FieldCell:
    settings = settings_of(experiment, backend, Progress())
    cell = cell_of(experiment)
    setup = settings[setup_key(cell.workload, cell.system.scaling, cell.seed)]
    return FieldCell(experiment, Runner(cell, replace(setup, clock="virtual"), session))  # which follows the wall's


class _FetchedBackend(InlineBackend):
    """Takes the weights that were fetched where the lab's backend would train them."""

    def __init__(self, fetched: Fetched) -> None:
        super().__init__()
        self._fetched = fetched

    def open(self, session: str) -> InlineSession:
        return _FetchedSession(self._fetched)


class _FetchedSession(InlineSession):
    def __init__(self, fetched: Fetched) -> None:
        super().__init__()
        self._fetched = fetched

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        if node.kind != "builder":
            return super().call(node, verb, *args)
        if verb == "pack":
            return InlineJob(node, verb, Reply(payload=self._fetched.pack()))
        from driftlab.platform.sim.nodes.networks import built_from

        recipe = args[0]
        mine = recipe.network.network == self._fetched.network
        return InlineJob(node, verb, built_from(recipe, self._fetched.weights if mine else _untrained(recipe)))


def _untrained(recipe: FamilyRecipe) -> Weights:
    """Build the teacher without its weights: the device knows its size, and never asks it."""
    from driftlab.platform.networks.training.pretrain import build_family, pretrain

    return build_family(recipe, pretrain(replace(recipe.network, steps=0)))


def dump_weights(weights: Weights) -> bytes:
    """Write weights as safetensors."""
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in weights.items()})  # keeps scalars scalars


def load_weights(data: bytes) -> Weights:
    """Read weights; refuse bytes that are none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights: Weights = load(data)
    except SafetensorError as error:
        raise WireError(f"{len(data)} bytes are no weights: {first_line(error)}") from error
    return weights
