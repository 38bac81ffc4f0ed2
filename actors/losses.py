"""Distinction between a lost process and an error of the code that ran in it."""

from __future__ import annotations

from collections.abc import Iterator

from ray import exceptions

from driftlab.actors.rack import OutOfStep

LOST_PROCESS = (
    OutOfStep,
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.OutOfMemoryError,
)


def is_loss(error: BaseException) -> bool:
    """Tell whether the same call may succeed when repeated."""
    return any(isinstance(one, LOST_PROCESS) for one in _chain(error))


def is_lost_object(error: BaseException) -> bool:
    """Tell whether a payload was lost with its machine."""
    return any(isinstance(one, exceptions.ObjectLostError) for one in _chain(error))


def reason(error: BaseException) -> str:
    """Return one line on an error; Ray puts the cause last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error of Ray and its causes in other processes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "cause", None)
