"""The base of procedural streams: a request, a script, and frame k as a pure function of both and k."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from driftlab.datasets.script import Script

Drawn = TypeVar("Drawn")
_KEPT = 2  # frames; a process may hold a thousand streams


@dataclass(frozen=True)
class ProceduralRequest:
    """The arguments that a frame depends on besides its time; each kind of stream adds parameters of its own."""

    preset: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    pace: float = 1.0


AnyRequest = TypeVar("AnyRequest", bound=ProceduralRequest)


class Procedural(Generic[AnyRequest]):
    """A procedural stream. Subclasses draw a frame; everything else follows from the request and the script."""

    family: ClassVar[str]  # the first part of its name

    def __init__(self, request: AnyRequest, script: Script) -> None:
        self._request = request
        self._script = script

    def __reduce__(self) -> tuple[type[Procedural[AnyRequest]], tuple[AnyRequest]]:
        return type(self), (self._request,)

    @property
    def name(self) -> str:
        return f"{self.family}/{self._request.preset}"

    @property
    def fps(self) -> float:
        return self._request.fps

    @property
    def duration_s(self) -> float:
        return self._request.duration_s

    @property
    def size(self) -> tuple[int, int]:
        return self._request.height, self._request.width

    @property
    def has_truth(self) -> bool:
        return True

    def changes_s(self) -> tuple[float, ...]:
        return self._script.changes_s(self.duration_s)


def draw_cached(kept: OrderedDict[int, Drawn], number: int, draw: Callable[[], Drawn]) -> Drawn:
    """Return the cached frame, or draw it and drop the oldest cached one."""
    if number not in kept:
        kept[number] = draw()
        if len(kept) > _KEPT:
            kept.popitem(last=False)
    return kept[number]
