"""Progress of a search: a bar on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from driftlab.cli.output import print_note

if TYPE_CHECKING:
    from driftlab.platform.tune.session import TuneSession
    from driftlab.platform.tune.trial import Assignment, OnTrialEnd, TrialOutcome


@contextmanager
def shown_trials(session: TuneSession) -> Iterator[OnTrialEnd]:
    """Yield the function that displays a finished trial on stderr."""
    lines = _Lines(session)
    if not sys.stderr.isatty():
        yield lines.print
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=session.document.trials, completed=lines.ended)

        def update(assignment: Assignment, outcome: TrialOutcome) -> None:
            bars.update(task, description=lines.line(assignment, outcome), completed=lines.ended)

        yield update


class _Lines:
    """Formats the outcome of a trial, the best trial so far, and the time left."""

    def __init__(self, session: TuneSession) -> None:
        self._session, self._started = session, time.monotonic()
        self._first = self.ended
        if self._first:
            print_note(f"{self._first} of {session.document.trials} trials are already finished")

    @property
    def ended(self) -> int:
        """Return the number of finished trials."""
        return len(self._session.study.history)

    def print(self, assignment: Assignment, outcome: TrialOutcome) -> None:
        """Print the line of a trial."""
        print_note(self.line(assignment, outcome))

    def line(self, assignment: Assignment, outcome: TrialOutcome) -> str:
        """Return the line of a trial."""
        if assignment.stage != "search":
            return f"held-out seeds, {assignment.stage}: {outcome.reason or outcome.status}"
        metrics = [one.metric for one in self._session.problem.objectives]
        values = ", ".join(f"{name} {outcome.metrics[name]:.4g}" for name in metrics if name in outcome.metrics)
        result = f"FAILED: {outcome.reason}" if outcome.reason else f"{outcome.status}, {values}"
        best, of = self._session.best, self._session.document.trials
        so_far = f"; best {metrics[0]} {(best.metrics or {})[metrics[0]]:.4g} (trial {best.number})" if best else ""
        return f"trial {self.ended}/{of} (number {assignment.number}) {result}{so_far}{self._left(of)}"

    def _left(self, of: int) -> str:
        ran = self.ended - self._first
        left_s = (time.monotonic() - self._started) / max(1, ran) * (of - self.ended)
        return f"; about {left_s:.0f} s left" if of > self.ended else ""
