"""The images of a labelled set in the order of the domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.names import SET_PREFIX, SHARES, shift_of
from driftlab.datasets.domains.orders import Domain, Order
from driftlab.datasets.labelled import class_names, open_test
from driftlab.datasets.labelled_set import LabelledImages, normalised_class
from driftlab.datasets.slides import Rows, Slides
from driftlab.errors import RequestError

MAX_IMAGES = 5000  # of a set's test part; independent of the length, so a longer stream begins like a shorter one
MAX_SMALL, SMALL_PX = 10_000, 64 * 64  # those of CIFAR-10-C for small images; ImageNet-C is usually tested on 5 000
MAX_DRAWS, MIN_CHUNK = 50, 10  # attempts to draw chunks of correlated labels, and images that each should have
Pool = tuple[int, int, int]  # part (0: adaptation, 1: scored), number of the set, severity of the subpopulation
_MAX_PASSES = 8  # cached orders


@dataclass(frozen=True)
class DomainSlides(Slides):
    """The test images of a set in two parts: adaptation images, and scored images.

    All images of a part appear before one repeats, in a new order for each pass.
    """

    order: Order
    adapt: range  # positions of the adaptation frames in each segment
    delta: float  # Dirichlet concentration of correlated labels; 0: independent labels

    def rows(self, numbers: Rows) -> Rows:
        """Return the index of each frame's image; adaptation frames and scored frames share no image."""
        return np.array([self._row(int(number)) for number in numbers], np.int64)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the class names of the base set; raise RequestError for another set without any of them."""
        base = super().classes
        for name in self._others:
            other = class_names(name, size=self.size)
            if not shared_classes(base, other):
                raise RequestError(
                    f"Labelled sets '{self.labelled}' and '{name}' share no class: {', '.join(base[:5])}… and "
                    f"{', '.join(other[:5])}…; take sets of the same classes."
                )
        return base

    def _row(self, number: int) -> int:
        turn, place = divmod(number, self.order.frames)
        domain = self.order.domains[self.order.domain_at(number)]
        source = self._others.index(_set_of(domain)) + 1 if domain.shift.startswith(SET_PREFIX) else 0
        severity = domain.severity if shift_of(domain.shift).picks and not source else 0
        adapted = len(self.adapt)
        if place in self.adapt:
            return self._nth((0, source, severity), turn * adapted + place - self.adapt.start)
        scored = place - adapted if place >= self.adapt.stop else place
        return self._nth((1, source, severity), turn * (self.order.frames - adapted) + scored)

    def _nth(self, pool: Pool, count: int) -> int:
        turn, place = divmod(count, len(self._pool(pool)))
        return int(self._pass(pool, turn)[place])

    def _pass(self, pool: Pool, turn: int) -> Rows:
        """Return the images of a pool in the order of one pass."""
        key = (*pool, turn)
        if key not in self._passes:
            if len(self._passes) >= _MAX_PASSES:
                self._passes.clear()
            images, rng = self._pool(pool), np.random.default_rng([self.seed, 44, *key])
            classes = self._pictures.classes[images]
            order = correlated(classes, self.delta, rng) if self.delta else rng.permutation(len(images))
            self._passes[key] = images[order]
        return self._passes[key]

    def _pool(self, pool: Pool) -> Rows:
        """Return the images of a part of a set, or only the darkest of each class for a severity above 0."""
        if pool not in self._pools:
            part, source, severity = pool
            rows, (images, classes) = self._parts[source][part], self._pictures
            dark = np.lexsort((images[rows].mean(axis=(1, 2, 3)), classes[rows]))
            ranks, counts = rank_in_class(classes[rows][dark])
            self._pools[pool] = rows[dark[ranks < np.ceil(SHARES[severity - 1] * counts)]] if severity else rows
        return self._pools[pool]

    @cached_property
    def _passes(self) -> dict[tuple[int, ...], Rows]:
        return {}

    @cached_property
    def _pools(self) -> dict[Pool, Rows]:
        return {}

    @cached_property
    def _parts(self) -> list[tuple[Rows, Rows]]:
        """Return the adaptation images and the scored images of each set."""
        parts = []
        for source in range(len(self._others) + 1):
            rows = np.flatnonzero(self._sources == source)
            share = round(len(rows) * len(self.adapt) / self.order.frames)
            first = min(max(share, 1), len(rows) - 1) if self.adapt else 0
            order = rows[np.random.default_rng([self.seed, 45]).permutation(len(rows))]
            parts.append((order[:first], order[first:]))
        return parts

    @cached_property
    def _others(self) -> list[str]:
        """Return the names of the other sets that are domains."""
        names = (_set_of(domain) for domain in self.order.domains if domain.shift.startswith(SET_PREFIX))
        return list(dict.fromkeys(names))

    @cached_property
    def _sets(self) -> list[LabelledImages]:
        """Return the test parts of all sets; of other sets only the shared classes, with the base's numbers."""
        at_most = MAX_SMALL if self.size[0] * self.size[1] <= SMALL_PX else MAX_IMAGES
        sets = [open_test(self.labelled, size=self.size, at_most=at_most)]
        for name in self._others:
            other = open_test(name, size=self.size, at_most=at_most)
            numbers = shared_classes(self.classes, class_names(name, size=self.size))
            shared = np.isin(other.classes, list(numbers))
            classes = np.array([numbers[int(kind)] for kind in other.classes[shared]], np.int64)
            sets.append(LabelledImages(other.images[shared], classes))
        return sets

    @cached_property
    def _sources(self) -> Rows:
        """Return the number of each image's set."""
        return np.repeat(np.arange(len(self._sets)), [len(one.classes) for one in self._sets])

    @cached_property
    def _pictures(self) -> LabelledImages:
        images, classes = zip(*self._sets, strict=True)
        return LabelledImages(np.concatenate(images), np.concatenate(classes))


def _set_of(domain: Domain) -> str:
    return domain.shift.removeprefix(SET_PREFIX)


def shared_classes(base: Sequence[str], other: Sequence[str]) -> dict[int, int]:
    """Return the class numbers of another set with the base's number of the same name in any spelling."""
    numbers = {normalised_class(name): number for number, name in enumerate(base)}
    return {number: numbers[name] for number, name in enumerate(map(normalised_class, other)) if name in numbers}


def rank_in_class(classes: npt.NDArray[np.int64]) -> tuple[Rows, Rows]:
    """Return each item's rank within its class and the size of its class; classes must be sorted."""
    _, first, inverse, counts = np.unique(classes, return_index=True, return_inverse=True, return_counts=True)
    return np.arange(len(classes)) - first[inverse], counts[inverse]


def correlated(classes: npt.NDArray[np.int64], delta: float, rng: np.random.Generator) -> Rows:
    """Return items in as many chunks as classes, over which a Dirichlet distribution splits each class.

    Within a chunk, classes follow one another. A full chunk gets no items of further classes. The result is the first
    of MAX_DRAWS draws whose chunks all have MIN_CHUNK items, else the one with the largest smallest chunk.
    """
    kinds = np.unique(classes)
    minimum, best = min(MIN_CHUNK, len(classes) // (2 * len(kinds))), list[list[Rows]]()
    for _ in range(MAX_DRAWS):
        drawn = _chunks(classes, kinds, delta, rng)
        if not best or _smallest(drawn) > _smallest(best):
            best = drawn
        if _smallest(best) >= minimum:
            break
    parts = [chunk[place] for chunk in best for place in rng.permutation(len(chunk))]
    return np.concatenate([part for part in parts if len(part)])


def _chunks(
    classes: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64], delta: float, rng: np.random.Generator
) -> list[list[Rows]]:
    """Return one random split of all classes over the chunks."""
    chunks: list[list[Rows]] = [[] for _ in kinds]
    for kind in kinds:
        items = rng.permutation(np.flatnonzero(classes == kind))
        full = np.array([_size(chunk) >= len(classes) / len(kinds) for chunk in chunks])
        shares = np.where(full, 0.0, rng.dirichlet(np.full(len(kinds), delta)))
        shares = shares / shares.sum() if shares.sum() > 0 else ~full / (~full).sum()
        cuts = np.rint(np.cumsum(shares)[:-1] * len(items)).astype(int)
        for chunk, part in zip(chunks, np.split(items, cuts), strict=True):
            chunk.append(part)
    return chunks


def _size(chunk: list[Rows]) -> int:
    return sum(map(len, chunk))


def _smallest(chunks: list[list[Rows]]) -> int:
    return min(map(_size, chunks))
