"""Paths through a supernet: an exit, and one operator per stage before it.

Importing this does not import torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from driftlab.errors import RequestError

BASE = "base"  # the stage's own blocks
CRITICAL = ("fire", "svd", BASE)  # operators of a critical stage
FIVE = ("shuffle", "dwsep", "fire", "svd", BASE)
SPARSE = {"sparse80": 0.8, "sparse60": 0.6, "sparse40": 0.4}  # pruned share of the inner filters
MERGED = "merged"  # one block for the stage
LEAVING = "@"  # before the threshold in a path's name
Path = tuple[int, ...]  # operator of each stage up to the exit
Operators = tuple[tuple[str, ...], ...]  # by stage, `base` last


@dataclass(frozen=True)
class PathSpace:
    """All paths, numbered in mixed radix: by exit, then by operators, the first stage most significant.

    The last operator of a stage is its base, so that path 0 has the cheapest structure and the last path is the full
    network.
    """

    operators: Operators

    @property
    def stages(self) -> int:
        return len(self.operators)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Return the number of operators of each stage."""
        return tuple(len(names) for names in self.operators)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the number of the first path of each exit."""
        return tuple(itertools.accumulate((math.prod(self.counts[: e + 1]) for e in range(self.stages)), initial=0))

    def __len__(self) -> int:
        return self.offsets[-1]

    def encode(self, path: Sequence[int]) -> int:
        """Return the number of a path."""
        if not 0 < len(path) <= self.stages or any(
            not 0 <= one < count for one, count in zip(path, self.counts, strict=False)
        ):
            raise RequestError(f"path is {tuple(path)}, stages have {', '.join(map(str, self.counts))} operators")
        number = 0
        for one, count in zip(path, self.counts, strict=False):
            number = number * count + one
        return self.offsets[len(path) - 1] + number

    def decode(self, number: int) -> Path:
        """Return the path with a number."""
        if not 0 <= number < len(self):
            raise RequestError(f"variant is {number}, the family has networks 0 to {len(self) - 1}")
        exit_ = next(e for e in range(self.stages) if number < self.offsets[e + 1])
        rest, path = number - self.offsets[exit_], list[int]()
        for count in self.counts[exit_::-1]:
            rest, one = divmod(rest, count)
            path.insert(0, one)
        return tuple(path)

    def walk(self) -> Iterator[Path]:
        """Yield every path once, depth first over the tree of prefixes: a path directly after its prefix."""

        def below(path: Path) -> Iterator[Path]:
            for one in range(self.counts[len(path)]):
                yield (*path, one)
                if len(path) + 1 < self.stages:
                    yield from below((*path, one))

        yield from below(())

    def name(self, path: Path) -> str:
        """Return the name of a path: its operators, as in `svd.base` for an exit after the second stage."""
        return ".".join(self.operators[stage][one] for stage, one in enumerate(path))

    def whole(self, exit_: int) -> int:
        """Return the number of the path without operators to an exit, counted from 0."""
        return self.offsets[exit_ + 1] - 1


@dataclass(frozen=True)
class PathCatalogue:
    """The numbers of all networks of a supernet: its paths, then those with confidence exits.

    Such a path has several exits. A frame leaves at the first one whose confidence reaches the threshold.
    """

    space: PathSpace
    thresholds: tuple[float, ...] = ()

    @cached_property
    def _first(self) -> int:
        """Return the number of the first path with several exits."""
        return self.space.offsets[1]

    def __len__(self) -> int:
        return len(self.space) + len(self.thresholds) * (len(self.space) - self._first)

    def decode(self, number: int) -> tuple[Path, float | None]:
        """Return the path with a number, and its threshold; None: all frames leave at its last exit."""
        if number < len(self.space) or number >= len(self):
            return self.space.decode(number), None
        place, rest = divmod(number - len(self.space), len(self.space) - self._first)
        return self.space.decode(self._first + rest), self.thresholds[place]

    def name(self, number: int) -> str:
        """Return the name of a path, followed by its threshold in percent, as in `svd.base@90`."""
        path, threshold = self.decode(number)
        return self.space.name(path) + ("" if threshold is None else f"{LEAVING}{100 * threshold:g}")
