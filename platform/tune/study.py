"""A search: a searcher proposes settings in batches, and hears what came of a batch before it proposes the next.

What a searcher proposes depends on its seed and on what the trials before the batch gave, never on which of them ended
first. So one worker and many see the same trials, and a search is continued by telling a new searcher what the old one
was told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from driftlab.errors import RunError
from driftlab.platform.core.space import SearchProblem, Settings, Trial, key

Batches = Generator[Sequence[Settings], Sequence[Trial], None]


class Searcher(ABC):
    """Base of the family; a member is a frozen dataclass."""

    def faults(self, problem: SearchProblem) -> list[str]:
        """Name what this searcher cannot search."""
        return []

    @abstractmethod
    def batches(self, problem: SearchProblem) -> Batches:
        """Yield batches of settings; each `yield` gives the trials of the batch before, in order of their numbers."""


@dataclass
class Search:
    """A search under way: which trials are to do, and what is known of the others.

    Trial 0 runs with the defaults and counts for the searcher where they lie in its space.
    """

    searcher: Searcher
    problem: SearchProblem
    trials: int  # in all
    defaults: Settings = field(default_factory=dict)
    history: dict[int, Trial] = field(default_factory=dict)  # by number
    over: bool = False

    def __post_init__(self) -> None:
        self._batches = self.searcher.batches(self.problem)
        self._waiting: list[tuple[int, Settings]] = []  # proposed, and not given out
        self._batch: list[int] = []  # numbers of the batch that is under way
        self._past: dict[int, Trial] = {}  # that an earlier search has run
        self._next = 0
        self._propose(next(self._batches, []))

    @property
    def asked(self) -> int:
        """How many trials were proposed so far."""
        return self._next

    def ask(self) -> tuple[int, Settings] | None:
        """Give the next trial to run; None while a batch has trials under way, and when the search is over."""
        self._advance()
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, number: int, settings: Settings, metrics: Mapping[str, float] | None) -> None:
        """Take down what came of a trial; without metrics it failed."""
        self.history[number] = Trial(number, settings, metrics)

    def replay(self, past: Iterable[Trial]) -> None:
        """Tell what an earlier search found, in whatever order; trials that it lacks are asked for again.

        RunError where this searcher would have proposed other settings.
        """
        self._past = {trial.number: trial for trial in past}
        self._advance()

    def _advance(self) -> None:
        """Propose the next batch once the one before is known, and pass over trials that were run before."""
        while True:
            self._waiting = [
                (number, settings) for number, settings in self._waiting if not self._knew(number, settings)
            ]
            if self._waiting or self.over or not all(number in self.history for number in self._batch):
                return
            self._propose_next()

    def _knew(self, number: int, settings: Settings) -> bool:
        trial = self._past.pop(number, None)
        if trial is None:
            return False
        if key(trial.settings) != key(settings):
            raise RunError(
                f"Trial {number} was run with {dict(trial.settings)}, and this searcher proposes {dict(settings)}: "
                "the search cannot be continued by this version; start a new one."
            )
        self.tell(number, settings, trial.metrics)
        return True

    def _propose_next(self) -> None:
        """Tell the searcher of its batch and take the next one; a batch that was cut short is the last."""
        if self._next >= self.trials:
            self.over = True
            return
        told = [self.history[number] for number in self._batch]
        inside = [one for one in told if self.problem.space.positions(one.settings) is not None]
        try:
            self._propose(self._batches.send(inside))
        except StopIteration:
            self.over = True

    def _propose(self, batch: Sequence[Settings]) -> None:
        if self._next == 0:
            batch = [self.defaults, *batch]
        numbered = list(enumerate(batch, self._next))[: max(0, self.trials - self._next)]
        self.over = not numbered
        self._next += len(numbered)
        self._waiting, self._batch = numbered, [number for number, _ in numbered]
