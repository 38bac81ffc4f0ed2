"""Paths through a network of stages: an exit, and one operator for each stage before it. No torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from driftlab.errors import RequestError

BASE = "base"  # the operator that leaves a stage as it is
CRITICAL = ("fire", "svd", BASE)  # operators of a stage where accuracy is lost most
FIVE = ("shuffle", "dwsep", "fire", "svd", BASE)
SPARSE = {"sparse80": 0.8, "sparse60": 0.6, "sparse40": 0.4}  # share of the inner filters that are cut
MERGED = "merged"  # a stage as one block
Path = tuple[int, ...]  # the operator of each stage up to the exit
Operators = tuple[tuple[str, ...], ...]  # of each stage, `base` last

SPACES: dict[str, Operators] = {
    "tiny": (("dwsep", "svd", BASE),) * 4,
    "small": (("dwsep", "fire", "svd", BASE),) * 4,
    "lego": ((*SPARSE, BASE),) * 4,
    "supernet": ((MERGED, "sparse40", BASE),) * 4,
    "paper480": (FIVE, FIVE, CRITICAL, FIVE),
}


@dataclass(frozen=True)
class PathSpace:
    """All paths, numbered in mixed radix: those of the first exit first, the first stage's operator most significant.

    The last operator of a stage is its base, so that path 0 is the cheapest in structure and the last one the whole
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
        """Return the path of a number."""
        if not 0 <= number < len(self):
            raise RequestError(f"variant is {number}, the family has networks 0 to {len(self) - 1}")
        exit_ = next(e for e in range(self.stages) if number < self.offsets[e + 1])
        rest, path = number - self.offsets[exit_], list[int]()
        for count in self.counts[exit_::-1]:
            rest, one = divmod(rest, count)
            path.insert(0, one)
        return tuple(path)

    def walk(self) -> Iterator[Path]:
        """Yield every path once, each directly after its prefixes: a walk over the prefix tree, depth first."""

        def below(path: Path) -> Iterator[Path]:
            for one in range(self.counts[len(path)]):
                yield (*path, one)
                if len(path) + 1 < self.stages:
                    yield from below((*path, one))

        yield from below(())

    def name(self, path: Path) -> str:
        """Name a path by its operators, as in `svd.base`: the exit after the second stage."""
        return ".".join(self.operators[stage][one] for stage, one in enumerate(path))

    def whole(self, exit_: int) -> int:
        """Return the number of the path to an exit (from 0 on) without operators."""
        return self.offsets[exit_ + 1] - 1
