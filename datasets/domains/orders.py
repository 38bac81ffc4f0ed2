"""Orders of domains: the domain of each frame of a stream."""

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
LISTED = "listed"
ORDERS = MappingProxyType(
    {
        INTERLEAVED: "all domains in random order without two of one shift in succession; reshuffled each round",
        RECURRING: "all domains in random order; the same order in each round",
        LISTED: "all domains in the order of `shifts`; the same order in each round",
        GRADUAL: "one shift after another, each from its lowest severity to its highest and back",
        MIXED: "an independent random domain for each frame",
        MARKOV: "the domain of the previous frame, or with probability 1 - rho a random one by frequency",
    }
)


class Domain(NamedTuple):
    """A shift at a severity."""

    shift: str
    severity: int


@dataclass(frozen=True)
class Order:
    """The domain of each frame, a pure function of these fields and the number of the frame."""

    kind: str
    domains: tuple[Domain, ...]
    frames: int  # of one segment, which has one domain
    seed: int
    rho: float = 0.0  # `markov`: probability that a frame has the domain of the previous frame
    imbalance: float = 1.0  # `markov`: frequency of the first domain divided by that of the last
    _rounds: list[tuple[int, ...]] = field(default_factory=list, repr=False, compare=False)

    def domain_at(self, frame: int) -> int:
        """Return the number of a frame's domain; a recurring domain has the same number."""
        if self.kind == MIXED:
            return int(self._rng(43, frame).integers(len(self.domains)))
        if self.kind == MARKOV:
            return self._state(frame)
        turn, place = divmod(frame // self.frames, len(self._round(0)))
        return self._round(turn)[place]

    def changes(self, frames: int) -> tuple[int, ...]:
        """Return the frames before a number at which the domain changes; none for a mixed order."""
        every = 1 if self.kind == MARKOV else self.frames
        starts = () if self.kind == MIXED else range(every, frames, every)
        return tuple(start for start in starts if self.domain_at(start) != self.domain_at(start - 1))

    def _state(self, frame: int) -> int:
        """Return the state of the Markov chain: the domain of the newest frame that drew one."""
        while frame and self._rng(46, frame).random() < self.rho:
            frame -= 1
        rng = self._rng(46, frame)
        rng.random()
        return int(np.searchsorted(self._cumulated, rng.random(), side="right"))

    @cached_property
    def _cumulated(self) -> npt.NDArray[np.float64]:
        """Return the cumulative frequencies of the domains, which decrease geometrically, without the last."""
        places = np.arange(len(self.domains)) / max(1, len(self.domains) - 1)
        frequencies = self.imbalance**-places
        sums: npt.NDArray[np.float64] = np.cumsum(frequencies / frequencies.sum())[:-1]
        return sums

    def _round(self, turn: int) -> tuple[int, ...]:
        """Return the domains of a round; draws all previous rounds, as each depends on the one before."""
        while len(self._rounds) <= turn:
            self._rounds.append(self._draw(len(self._rounds)))
        return self._rounds[turn]

    def _draw(self, turn: int) -> tuple[int, ...]:
        if self.kind == LISTED:
            return tuple(range(len(self.domains)))
        if self.kind == RECURRING and turn:
            return self._rounds[0]
        rng = self._rng(42, turn)
        if self.kind == GRADUAL:
            return tuple(number for ramp in rng.permutation(len(self._ramps)) for number in self._ramps[ramp])
        shifts = [domain.shift for domain in self.domains]
        return tuple(spread(shifts, rng, shifts[self._rounds[-1][-1]] if turn else ""))

    @cached_property
    def _ramps(self) -> list[list[int]]:
        """Return the domains of each shift by rising and then falling severity."""
        ramps = []
        for shift in dict.fromkeys(domain.shift for domain in self.domains):
            own = [number for number, domain in enumerate(self.domains) if domain.shift == shift]
            rising = sorted(own, key=lambda number: self.domains[number].severity)
            ramps.append(rising + rising[-2::-1])
        return ramps

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.seed, *key]))


def spread(kinds: Sequence[str], rng: np.random.Generator, last: str) -> list[int]:
    """Return a random order in which neighbours, `last` included, differ in kind as far as possible."""
    left, chosen = [int(number) for number in rng.permutation(len(kinds))], list[int]()
    while left:
        counts = Counter(kinds[number] for number in left)
        majority = max(counts, key=lambda kind: (counts[kind], kind))
        urgent = 2 * counts[majority] > len(left) and majority != last
        allowed = {majority} if urgent else set(counts) - {last} or {last}
        number = next(number for number in left if kinds[number] in allowed)
        left.remove(number)
        chosen.append(number)
        last = kinds[number]
    return chosen
