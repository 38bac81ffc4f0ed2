"""Base of rendered streams: frame k is a pure function of the request, the script of scenes, and k."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from driftlab.datasets.script import Script

Drawn = TypeVar("Drawn")
_CACHED = 2  # values per stream; a process may have a thousand streams


@dataclass(frozen=True)
class ProceduralRequest:
    """The arguments of a stream on which its frames depend; each kind of stream adds parameters."""

    preset: str
    seed: int
    height: int
    width: int
    fps: float
    duration_s: float
    pace: float = 1.0


AnyRequest = TypeVar("AnyRequest", bound=ProceduralRequest)


class Procedural(Generic[AnyRequest]):
    """A rendered stream; subclasses render the frames."""

    family: ClassVar[str]  # first part of the workload's name

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


def draw_cached(cache: OrderedDict[int, Drawn], number: int, draw: Callable[[], Drawn]) -> Drawn:
    """Return a value from the cache, or draw it and drop the oldest one."""
    if number not in cache:
        cache[number] = draw()
        if len(cache) > _CACHED:
            cache.popitem(last=False)
    return cache[number]
