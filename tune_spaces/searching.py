"""A session as Ray Tune's searcher: Tune asks it for trials and tells it what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from ray.tune.search import Searcher

from driftlab.platform.tune.session import SEARCH, TuneSession
from driftlab.platform.tune.trial import FAILED, RUNNING, STOPPED, Assignment, TrialOutcome
from driftlab.tune_spaces.trainable import OUTCOME, outcome_of

ATTEMPTS = 3  # at a trial whose process is killed
LOST = f"its process ended {ATTEMPTS} times: it was killed, memory was short, or a library crashed"


class SessionSearcher(Searcher):
    """Gives out the trials of a session, and records each when it ends."""

    def __init__(self, session: TuneSession, told: Callable[[Assignment, TrialOutcome], None]) -> None:
        super().__init__()
        self._session, self._told = session, told
        self._under_way: dict[str, Assignment] = {}
        self._again: list[Assignment] = []  # trials whose process was lost
        self._lost: Counter[tuple[str, int]] = Counter()  # how often, by stage and number

    def suggest(self, trial_id: str) -> Any:
        """Give a trial its configuration; None while others have to end first."""
        assignment = self._again.pop(0) if self._again else self._session.next()
        if assignment is None:
            return self.FINISHED if self._session.over else None
        self._under_way[trial_id] = assignment
        early = self._session.document.early_stopping and assignment.stage == SEARCH
        return {**asdict(assignment), "every_window": early}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Wait for the end."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Record a trial that has ended; one that was running was stopped by the scheduler."""
        assignment = self._under_way.pop(trial_id, None)
        if assignment is None:
            return
        lost = error or not result or OUTCOME not in result
        if lost and self._try_again(assignment):
            return
        found = TrialOutcome(FAILED, LOST) if lost or not result else outcome_of(result)
        if found.status == RUNNING:
            found = replace(found, status=STOPPED)
        self._session.ended(assignment, found)
        self._told(assignment, found)

    def _try_again(self, assignment: Assignment) -> bool:
        """Take a trial up again whose process was lost, in another one and from its beginning; not for ever.

        Tune would do so for trials that run, but not for one that has just been given to a process.
        """
        name = (assignment.stage, assignment.number)
        self._lost[name] += 1
        if self._lost[name] >= ATTEMPTS:
            return False
        self._again.append(assignment)
        return True

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing here: the tables of the session are its state."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing here: a session goes on from its tables."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session out of what Tune pickles: it lives in this process and is not restored from there."""
        return {}
