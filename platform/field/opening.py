"""Set up the simulator for one session: members, state and rows, advanced by the wall clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from driftlab.errors import WireError, first_line
from driftlab.one_process import PlainBackend
from driftlab.platform.core.records import Reply, Weights
from driftlab.platform.field.request import SessionRequest, cell_of, experiment_of
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

FAMILY_SIZE, FAMILY_CLASSES = 32, 100  # more networks and classes than a family has
FAMILY_NAME_BYTES = 4 * 2**20  # of the names of its weights


@dataclass(frozen=True)
class FieldCell:
    """The experiment of a session and its simulator, which has one device with one application."""

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


def open_on_server(asked: SessionRequest, session: Session, torch_device: str = "cpu") -> FieldCell:
    """Return the simulator of a session on the server; train the networks that are not cached."""
    return _opened(experiment_of(asked, torch_device=torch_device), PlainBackend(), session)


@dataclass(frozen=True)
class Fetched:
    """Weights that a device downloads instead of training: its network and the source summary."""

    network: str
    weights: Weights
    pack: Callable[[], Weights]  # called only if the adaptation uses a source summary


def open_on_device(asked: SessionRequest, session: Session, fetched: Fetched, source: str = "") -> FieldCell:
    """Return the simulator of a session on the device; `source` replaces the stream of the request."""
    return _opened(experiment_of(asked, source), _FetchedBackend(fetched), session)


def _opened(experiment: Experiment, backend: InlineBackend, session: Session) -> FieldCell:
    settings = settings_of(experiment, backend, Progress())
    cell = cell_of(experiment)
    setup = settings[setup_key(cell.workload, cell.system.scaling, cell.seed)]
    return FieldCell(experiment, Runner(cell, replace(setup, clock="virtual"), session))  # advanced to wall-clock time


class _FetchedBackend(InlineBackend):
    """A backend whose builder returns downloaded weights instead of training."""

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
        is_student = recipe.network.network == self._fetched.network
        weights = self._fetched.weights if is_student else _initial_weights(recipe)
        return InlineJob(node, verb, built_from(recipe, weights))


def _initial_weights(recipe: FamilyRecipe) -> Weights:
    """Return untrained weights for the teacher: the device uses its size and cost, never its labels."""
    from driftlab.platform.networks.training.pretrain import build_family, pretrain

    return build_family(recipe, pretrain(replace(recipe.network, steps=0)))


def max_weight_bytes(asked: SessionRequest) -> int:
    """Return a size that the weights of a session never exceed."""
    from driftlab.platform.networks.architectures import build

    size = asked.workload.height, asked.workload.width
    state = build(asked.student.network, FAMILY_CLASSES, seed=0, size=size).state_dict()
    size_bytes: int = sum(tensor.nbytes for tensor in state.values())
    return FAMILY_SIZE * size_bytes + FAMILY_NAME_BYTES


def dump_weights(weights: Weights) -> bytes:
    """Return weights as safetensors."""
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in weights.items()})  # asarray keeps 0-d arrays


def load_weights(data: bytes) -> Weights:
    """Return the weights in safetensors bytes; raise WireError for any other bytes."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        weights: Weights = load(data)
    except SafetensorError as error:
        raise WireError(f"{len(data)} bytes are not weights in safetensors format: {first_line(error)}") from error
    if faulty := [name for name, array in weights.items() if not np.isfinite(array).all()]:
        raise WireError(f"the weights of {faulty[0]} are not finite")
    return weights
