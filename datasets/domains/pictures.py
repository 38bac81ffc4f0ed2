"""The pictures of a labelled set in the order in which domains show them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.names import SHARES, SHIFTS
from driftlab.datasets.domains.orders import Order
from driftlab.datasets.labelled import Pictures, open_set
from driftlab.datasets.slides import Rows, Slides

MAX_PICTURES = 5000  # of a set's test part, however long the stream is: a longer stream begins like a shorter one
MAX_DRAWS, LEAST = 50, 10  # of chunks of correlated labels, and pictures that each should hold
_MAX_PASSES = 8  # orders that are kept


@dataclass(frozen=True)
class DomainSlides(Slides):
    """The test pictures of a set, in two parts: those to adapt on open each stretch, the others follow.

    Each part is shown completely before a picture of it returns, in another order every time.
    """

    order: Order
    adapt: int  # frames of each stretch to adapt on
    delta: float  # of the Dirichlet distribution by which labels are correlated; 0: they are not

    def rows(self, numbers: Rows) -> Rows:
        """Return the picture that each frame shows; no picture is shown both to adapt on and to judge by."""
        return np.array([self._row(int(number)) for number in numbers], np.int64)

    def _row(self, number: int) -> int:
        turn, place = divmod(number, self.order.frames)
        domain = self.order.domains[self.order.domain_at(number)]
        severity = domain.severity if SHIFTS[domain.shift].picks else 0
        if place < self.adapt:
            return self._nth((0, severity), turn * self.adapt + place)
        return self._nth((1, severity), turn * (self.order.frames - self.adapt) + place - self.adapt)

    def _nth(self, pool: tuple[int, int], count: int) -> int:
        turn, place = divmod(count, len(self._pool(pool)))
        return int(self._pass(pool, turn)[place])

    def _pass(self, pool: tuple[int, int], turn: int) -> Rows:
        """Order the pictures of a pool for one pass over it."""
        key = (*pool, turn)
        if key not in self._passes:
            if len(self._passes) >= _MAX_PASSES:
                self._passes.clear()
            own, rng = self._pool(pool), np.random.default_rng([self.seed, 44, *key])
            classes = self._pictures.classes[own]
            order = correlated(classes, self.delta, rng) if self.delta else rng.permutation(len(own))
            self._passes[key] = own[order]
        return self._passes[key]

    def _pool(self, pool: tuple[int, int]) -> Rows:
        """Return the pictures of a part, or its sub-population of a severity: the darkest ones of each class."""
        if pool not in self._pools:
            part, severity = pool
            own, (images, classes) = self._parts[part], self._pictures
            dark = np.lexsort((images[own].mean(axis=(1, 2, 3)), classes[own]))
            ranks, counts = rank_in_class(classes[own][dark])
            self._pools[pool] = own[dark[ranks < np.ceil(SHARES[severity - 1] * counts)]] if severity else own
        return self._pools[pool]

    @cached_property
    def _passes(self) -> dict[tuple[int, int, int], Rows]:
        return {}

    @cached_property
    def _pools(self) -> dict[tuple[int, int], Rows]:
        return {}

    @cached_property
    def _parts(self) -> tuple[Rows, Rows]:
        count = len(self._pictures.images)
        first = min(max(round(count * self.adapt / self.order.frames), 1), count - 1) if self.adapt else 0
        order = np.random.default_rng([self.seed, 45]).permutation(count)
        return order[:first], order[first:]

    @cached_property
    def _pictures(self) -> Pictures:
        return open_set(self.labelled, size=self.size, counts=MAX_PICTURES).test


def rank_in_class(classes: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """Number the items of each class from 0 in sorted classes, and count the class of each item."""
    _, first, inverse, counts = np.unique(classes, return_index=True, return_inverse=True, return_counts=True)
    return np.arange(len(classes)) - first[inverse], counts[inverse]


def correlated(classes: npt.NDArray[np.int64], delta: float, rng: np.random.Generator) -> Rows:
    """Order items in as many chunks as classes, each class split over the chunks by a Dirichlet distribution.

    Inside a chunk one class follows the other. Chunks that are full take nothing more of the next class. Of at most
    MAX_DRAWS draws, the first whose chunks all hold LEAST items is taken, else the most even one.
    """
    kinds = np.unique(classes)
    least, best = min(LEAST, len(classes) // (2 * len(kinds))), list[list[Rows]]()
    for _ in range(MAX_DRAWS):
        drawn = _chunks(classes, kinds, delta, rng)
        if not best or _smallest(drawn) > _smallest(best):
            best = drawn
        if _smallest(best) >= least:
            break
    parts = [chunk[place] for chunk in best for place in rng.permutation(len(chunk))]
    return np.concatenate([part for part in parts if len(part)])


def _chunks(
    classes: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64], delta: float, rng: np.random.Generator
) -> list[list[Rows]]:
    """Split each class over the chunks."""
    chunks: list[list[Rows]] = [[] for _ in kinds]
    for kind in kinds:
        own = rng.permutation(np.flatnonzero(classes == kind))
        full = np.array([_size(chunk) >= len(classes) / len(kinds) for chunk in chunks])
        shares = np.where(full, 0.0, rng.dirichlet(np.full(len(kinds), delta)))
        shares = shares / shares.sum() if shares.sum() > 0 else ~full / (~full).sum()
        cuts = np.rint(np.cumsum(shares)[:-1] * len(own)).astype(int)
        for chunk, part in zip(chunks, np.split(own, cuts), strict=True):
            chunk.append(part)
    return chunks


def _size(chunk: list[Rows]) -> int:
    return sum(map(len, chunk))


def _smallest(chunks: list[list[Rows]]) -> int:
    return min(map(_size, chunks))
