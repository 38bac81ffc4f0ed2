"""Runs in this process, without Ray; on a GPU with deterministic operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftlab.determinism import make_deterministic, plain_error
from driftlab.errors import DriftlabError
from driftlab.platform.sim.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.sim.session import NodeId

if TYPE_CHECKING:
    from driftlab.platform.lab.grid import Outcome
    from driftlab.platform.lab.progress import Progress
    from driftlab.platform.sim.session import Backend


class PlainSession(InlineSession):
    """Nodes in this process; an operator without a deterministic form is named in plain words."""

    def place(self, node: NodeId, *args: Any) -> None:
        try:
            super().place(node, *args)
        except DriftlabError as error:
            raise plain_error(error) from error

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        try:
            return super().call(node, verb, *args)
        except DriftlabError as error:
            raise plain_error(error) from error


class PlainBackend(InlineBackend):
    """The backend in a process that has chosen its operators."""

    def open(self, session: str) -> InlineSession:
        return PlainSession()


class OneProcess(PlainBackend):
    """The backend in this process, which computes deterministically on a GPU until the backend is closed."""

    def __init__(self, torch_device: str) -> None:
        super().__init__()
        self._undo = make_deterministic(torch_device)

    def close(self) -> None:
        self._undo()


def run(
    experiment: str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    open_backend: Callable[[], Backend] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run an experiment given by name, file or document; the outcome holds the folder of the tables."""
    from driftlab.platform.lab import seal
    from driftlab.platform.lab.read import load, parse

    if open_backend is None:
        spec = load(experiment, overrides) if isinstance(experiment, str) else parse(experiment, overrides)
        open_backend = partial(OneProcess, spec.compute.torch_device)
    return seal.run(experiment, overrides, out=out, open_backend=open_backend, progress=progress)
