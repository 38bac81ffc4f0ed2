"""Backends: one protocol for nodes in this process and on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from driftlab.errors import DriftlabError, RunError
from driftlab.platform.core.records import Reply

Kind = Literal["device", "application", "teacher", "learner", "builder", "recorder", "cell"]


@dataclass(frozen=True)
class NodeId:
    """A logical node: its kind and its name within the session."""

    kind: Kind
    name: str


class Job(Protocol):
    """A started call; as an argument of another call it is replaced by its payload."""

    @property
    def node(self) -> NodeId: ...
    @property
    def verb(self) -> str: ...


class Session(Protocol):
    """The nodes of one cell; calls to one node run in the order in which they were made."""

    def place(self, node: NodeId, *args: Any) -> None:
        """Construct the node's class with these arguments; a job among them is replaced by its payload."""
        ...

    def call(self, node: NodeId, verb: str, *args: Any) -> Job:
        """Start a verb at once and return without waiting."""
        ...

    def result(self, job: Job) -> Reply:
        """Wait for a job and return its facts and rows; the payload is not returned (None)."""
        ...

    def ready(self, job: Job) -> bool:
        """Return whether a job is done, without waiting."""
        ...

    def checkpoint(self) -> None:
        """Save every node's state, so that a fault repeats only later calls."""
        ...

    def close(self) -> None:
        """Drop the nodes and their payloads."""
        ...


class Backend(Protocol):
    """A place where sessions run."""

    @property
    def name(self) -> str: ...

    @property
    def concurrency(self) -> int:
        """Return the number of sessions that may usefully run at the same time."""
        ...

    @property
    def whole_cells(self) -> int:
        """Return the number of nodes that compute whole cells at the same time; 0: cells are separate nodes."""
        ...

    def open(self, session: str) -> Session: ...

    def close(self) -> None:
        """Stop every process that this backend started, and nothing else."""
        ...


def run_verb(node: NodeId, verb: str, function: Any, args: Sequence[Any]) -> Any:
    """Run node code; any exception, even `SystemExit`, becomes an error with the node and the verb."""
    try:
        return function(*args)
    except (DriftlabError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RunError(f"{node.kind} {node.name} cannot {verb}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """Return the class and the message of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
