"""Orders of domains: which domain each frame of a stream is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

INTERLEAVED, RECURRING, GRADUAL, MIXED, MARKOV = "interleaved", "recurring", "gradual", "mixed", "markov"
ORDERS = MappingProxyType(
    {
        INTERLEAVED: "every domain once, shuffled, a shift never twice in a row; then again, shuffled anew",
        RECURRING: "every domain once, shuffled; then again and again in the same order",
        GRADUAL: "shift after shift, each from its lowest severity to its highest and back",
        MIXED: "each frame is of any domain, independently of the frame before",
        MARKOV: "each frame is of the domain of the frame before, or (1 - rho) of any domain, by its frequency",
    }
)


class Domain(NamedTuple):
    """A shift at a severity."""

    shift: str
    severity: int


@dataclass(frozen=True)
class Order:
    """Domains over the frames of a stream, a pure function of its fields and the number of a frame."""

    kind: str
    domains: tuple[Domain, ...]
    frames: int  # of one stretch, which shows one domain
    seed: int
    rho: float = 0.0  # of a Markov chain: chance that a frame does not draw its domain anew
    imbalance: float = 1.0  # of a Markov chain: frequency of the first domain over that of the last
    _rounds: list[tuple[int, ...]] = field(default_factory=list, repr=False, compare=False)

    def domain_at(self, frame: int) -> int:
        """Return the number of the domain that a frame is of, which is the same wherever the domain recurs."""
        if self.kind == MIXED:
            return int(self._rng(43, frame).integers(len(self.domains)))
        if self.kind == MARKOV:
            return self._state(frame)
        turn, place = divmod(frame // self.frames, len(self._round(0)))
        return self._round(turn)[place]

    def changes(self, frames: int) -> tuple[int, ...]:
        """List the frames before a number at which another domain begins; of a mixed order, none."""
        every = 1 if self.kind == MARKOV else self.frames
        starts = () if self.kind == MIXED else range(every, frames, every)
        return tuple(start for start in starts if self.domain_at(start) != self.domain_at(start - 1))

    def _state(self, frame: int) -> int:
        """Return the state of a Markov chain: what the newest frame drew that drew anew."""
        while frame and self._rng(46, frame).random() < self.rho:
            frame -= 1
        rng = self._rng(46, frame)
        rng.random()
        return int(np.searchsorted(self._cumulated, rng.random(), side="right"))

    @cached_property
    def _cumulated(self) -> npt.NDArray[np.float64]:
        """Return the frequencies of the domains, added up to 1, which fall geometrically."""
        places = np.arange(len(self.domains)) / max(1, len(self.domains) - 1)
        frequencies = self.imbalance**-places
        sums: npt.NDArray[np.float64] = np.cumsum(frequencies / frequencies.sum())[:-1]
        return sums

    def _round(self, turn: int) -> tuple[int, ...]:
        """Return the domains of a round; each knows how the one before ended."""
        while len(self._rounds) <= turn:
            self._rounds.append(self._draw(len(self._rounds)))
        return self._rounds[turn]

    def _draw(self, turn: int) -> tuple[int, ...]:
        if self.kind == RECURRING and turn:
            return self._rounds[0]
        rng = self._rng(42, turn)
        if self.kind == GRADUAL:
            return tuple(number for ramp in rng.permutation(len(self._ramps)) for number in self._ramps[ramp])
        shifts = [domain.shift for domain in self.domains]
        return tuple(spread(shifts, rng, shifts[self._rounds[-1][-1]] if turn else ""))

    @cached_property
    def _ramps(self) -> list[list[int]]:
        """List the domains of each shift by severity, up and down again."""
        ramps = []
        for shift in dict.fromkeys(domain.shift for domain in self.domains):
            own = [number for number, domain in enumerate(self.domains) if domain.shift == shift]
            rising = sorted(own, key=lambda number: self.domains[number].severity)
            ramps.append(rising + rising[-2::-1])
        return ramps

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.seed, *key]))


def spread(kinds: Sequence[str], rng: np.random.Generator, last: str) -> list[int]:
    """Shuffle items so that no two of one kind are neighbours, as far as possible; the first avoids the last kind."""
    left, found = [int(number) for number in rng.permutation(len(kinds))], list[int]()
    while left:
        counts = Counter(kinds[number] for number in left)
        most = max(counts, key=lambda kind: (counts[kind], kind))
        urgent = 2 * counts[most] > len(left) and most != last
        wanted = {most} if urgent else set(counts) - {last} or {last}
        chosen = next(number for number in left if kinds[number] in wanted)
        left.remove(chosen)
        found.append(chosen)
        last = kinds[chosen]
    return found
