"""The pictures of a labelled set in the order in which domains show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.names import SET_PREFIX, SHARES, shift_of
from driftlab.datasets.domains.orders import Domain, Order
from driftlab.datasets.labelled import class_names, open_test
from driftlab.datasets.labelled_set import Pictures
from driftlab.datasets.slides import Rows, Slides
from driftlab.errors import RequestError

MAX_PICTURES = 5000  # of a set's test part, however long the stream is: a longer stream begins like a shorter one
MAX_DRAWS, LEAST = 50, 10  # of chunks of correlated labels, and pictures that each should hold
ALIASES = {"automobile": "car", "aeroplane": "airplane", "motorcycle": "motorbike"}
Pool = tuple[int, int, int]  # part, number of the set, and severity of the sub-population
_MAX_PASSES = 8  # orders that are kept


@dataclass(frozen=True)
class DomainSlides(Slides):
    """The test pictures of a set, in two parts: those to adapt on, and the others.

    Each part is shown completely before a picture of it returns, in another order every time.
    """

    order: Order
    adapt: range  # places in each stretch to adapt on
    delta: float  # of the Dirichlet distribution by which labels are correlated; 0: they are not

    def rows(self, numbers: Rows) -> Rows:
        """Return the picture that each frame shows; no picture is shown both to adapt on and to judge by."""
        return np.array([self._row(int(number)) for number in numbers], np.int64)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the base set; another set without any of them is refused."""
        own = super().classes
        for name in self._others:
            theirs = class_names(name, size=self.size)
            if not shared_classes(own, theirs):
                raise RequestError(
                    f"Labelled sets '{self.labelled}' and '{name}' share no class: {', '.join(own[:5])}… and "
                    f"{', '.join(theirs[:5])}…; take sets of the same classes."
                )
        return own

    def _row(self, number: int) -> int:
        turn, place = divmod(number, self.order.frames)
        domain = self.order.domains[self.order.domain_at(number)]
        source = self._others.index(_set_of(domain)) + 1 if domain.shift.startswith(SET_PREFIX) else 0
        severity = domain.severity if shift_of(domain.shift).picks and not source else 0
        adapted = len(self.adapt)
        if place in self.adapt:
            return self._nth((0, source, severity), turn * adapted + place - self.adapt.start)
        judged = place - adapted if place >= self.adapt.stop else place
        return self._nth((1, source, severity), turn * (self.order.frames - adapted) + judged)

    def _nth(self, pool: Pool, count: int) -> int:
        turn, place = divmod(count, len(self._pool(pool)))
        return int(self._pass(pool, turn)[place])

    def _pass(self, pool: Pool, turn: int) -> Rows:
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

    def _pool(self, pool: Pool) -> Rows:
        """Return the pictures of a part of a set, or its sub-population of a severity: the darkest of each class."""
        if pool not in self._pools:
            part, source, severity = pool
            own, (images, classes) = self._parts[source][part], self._pictures
            dark = np.lexsort((images[own].mean(axis=(1, 2, 3)), classes[own]))
            ranks, counts = rank_in_class(classes[own][dark])
            self._pools[pool] = own[dark[ranks < np.ceil(SHARES[severity - 1] * counts)]] if severity else own
        return self._pools[pool]

    @cached_property
    def _passes(self) -> dict[tuple[int, ...], Rows]:
        return {}

    @cached_property
    def _pools(self) -> dict[Pool, Rows]:
        return {}

    @cached_property
    def _parts(self) -> list[tuple[Rows, Rows]]:
        """Split the pictures of each set: those to adapt on, and those to judge by."""
        parts = []
        for source in range(len(self._others) + 1):
            own = np.flatnonzero(self._sources == source)
            share = round(len(own) * len(self.adapt) / self.order.frames)
            first = min(max(share, 1), len(own) - 1) if self.adapt else 0
            order = own[np.random.default_rng([self.seed, 45]).permutation(len(own))]
            parts.append((order[:first], order[first:]))
        return parts

    @cached_property
    def _others(self) -> list[str]:
        """List the other sets that are domains."""
        names = (_set_of(domain) for domain in self.order.domains if domain.shift.startswith(SET_PREFIX))
        return list(dict.fromkeys(names))

    @cached_property
    def _sets(self) -> list[Pictures]:
        """Open the test parts of all sets; of other ones, pictures of classes that the base has, by its numbers."""
        found = [open_test(self.labelled, size=self.size, at_most=MAX_PICTURES)]
        for name in self._others:
            other = open_test(name, size=self.size, at_most=MAX_PICTURES)
            numbers = shared_classes(self.classes, class_names(name, size=self.size))
            kept = np.isin(other.classes, list(numbers))
            classes = np.array([numbers[int(kind)] for kind in other.classes[kept]], np.int64)
            found.append(Pictures(other.images[kept], classes))
        return found

    @cached_property
    def _sources(self) -> Rows:
        """Return the number of the set that each picture is of."""
        return np.repeat(np.arange(len(self._sets)), [len(one.classes) for one in self._sets])

    @cached_property
    def _pictures(self) -> Pictures:
        images, classes = zip(*self._sets, strict=True)
        return Pictures(np.concatenate(images), np.concatenate(classes))


def _set_of(domain: Domain) -> str:
    return domain.shift.removeprefix(SET_PREFIX)


def shared_classes(own: Sequence[str], theirs: Sequence[str]) -> dict[int, int]:
    """Map the classes of another set to those of the same name, by number; sets spell some names differently."""
    known = {_spelled(name): number for number, name in enumerate(own)}
    return {number: known[name] for number, name in enumerate(map(_spelled, theirs)) if name in known}


def _spelled(name: str) -> str:
    """Spell a class in one way: MNIST calls a digit '3 - three', and DomainNet writes underscores."""
    plain = name.lower().partition(" - ")[0].replace("_", " ").strip()
    return ALIASES.get(plain, plain)


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
