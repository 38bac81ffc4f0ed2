"""Search with an Optuna study that proposes settings in batches and receives results batch by batch.

Proposals depend on the seed and on the results of earlier batches, never on which trial ended first. So one worker and
many run the same trials, and a search is continued by giving a new study the results of the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import optuna

from driftlab.errors import RunError
from driftlab.platform.core.space import SearchProblem, Settings, Trial, key
from driftlab.platform.tune.samplers import (
    BATCH,
    DRAWS,
    FIRST_BATCH,
    SAMPLERS,
    SpaceExhaustedError,
    distributions_of,
    params_of,
    settings_of,
)

DIRECTIONS = {"max": optuna.study.StudyDirection.MAXIMIZE, "min": optuna.study.StudyDirection.MINIMIZE}


class Study:
    """Trials that are to do, and the results of the others.

    Trial 0 runs with the defaults and counts for the sampler where they lie in the space. Proposals that `accepts`
    refuses are drawn again, so that none of the trials is spent on them.
    """

    def __init__(
        self,
        problem: SearchProblem,
        sampler: str,
        trials: int,
        defaults: Settings,
        accepts: Callable[[Settings], bool] = lambda settings: True,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.problem, self.trials, self.defaults, self._accepts = problem, trials, defaults, accepts
        self.history: dict[int, Trial] = {}  # by number
        self.over = False
        self.proposed = 0
        self._results: list[Trial] = []  # that the sampler has received
        self._study = optuna.create_study(
            sampler=SAMPLERS[sampler](problem, self._results),
            directions=[DIRECTIONS[objective.better] for objective in problem.objectives],
        )
        self._distributions = distributions_of(problem.space)
        self._waiting: list[tuple[int, Settings]] = []  # proposed, and not given out
        self._batch: dict[int, optuna.Trial | None] = {}  # under way, by number; the defaults are no proposal
        self._past: dict[int, Trial] = {}  # that an earlier search has run
        self._propose(FIRST_BATCH.get(sampler, BATCH))

    def ask(self) -> tuple[int, Settings] | None:
        """Give the next trial to run; None while a batch has trials under way, and when the search is over."""
        self._advance()
        return self._waiting.pop(0) if self._waiting else None

    def tell(self, number: int, settings: Settings, metrics: Mapping[str, float] | None) -> None:
        """Record the result of a trial; without metrics it failed."""
        self.history[number] = Trial(number, settings, metrics)

    def replay(self, past: Iterable[Trial]) -> None:
        """Take over the results of an earlier search, in any order; trials that it lacks are proposed again.

        RunError where this study proposes other settings.
        """
        self._past = {trial.number: trial for trial in past}
        self._advance()

    def _advance(self) -> None:
        """Propose the next batch once the one before has ended, and skip trials that were run before."""
        while True:
            self._waiting = [
                (number, settings) for number, settings in self._waiting if not self._replayed(number, settings)
            ]
            if self._waiting or self.over or not self._batch.keys() <= self.history.keys():
                return
            if self.proposed >= self.trials:
                self.over = True
                return
            self._tell_batch()
            self._propose(BATCH)

    def _replayed(self, number: int, settings: Settings) -> bool:
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

    def _propose(self, count: int) -> None:
        """Number the next batch; without one the search is over."""
        batch: list[tuple[Settings, optuna.Trial | None]] = [] if self.proposed else [(self.defaults, None)]
        for _ in range(count):
            if (proposal := self._draw()) is not None:  # where there is none, a later draw may still be new
                batch.append((settings_of(proposal.params, self.problem.space), proposal))
        numbered = dict(enumerate(batch[: self.trials - self.proposed], self.proposed))
        self.over = not numbered
        self.proposed += len(numbered)
        self._waiting = [(number, settings) for number, (settings, _) in numbered.items()]
        self._batch = {number: proposal for number, (_, proposal) in numbered.items()}

    def _draw(self) -> optuna.Trial | None:
        """Draw a proposal that is accepted; None if the sampler found none."""
        for _ in range(DRAWS):
            try:
                proposal = self._study.ask(self._distributions)
            except SpaceExhaustedError:
                return None
            if self._accepts(settings_of(proposal.params, self.problem.space)):
                return proposal
            self._study.tell(proposal, state=optuna.trial.TrialState.FAIL)
        return None

    def _tell_batch(self) -> None:
        """Give the sampler the results of a batch, in order of number."""
        for number, proposal in self._batch.items():
            trial = self.history[number]
            if self.problem.space.positions(trial.settings) is None:
                continue  # defaults outside the space
            self._results.append(trial)
            if trial.metrics is None:
                if proposal is not None:
                    self._study.tell(proposal, state=optuna.trial.TrialState.FAIL)
                continue
            values = [trial.metrics[objective.metric] for objective in self.problem.objectives]
            constraints = {
                f"{one.metric} {one.relation} {one.bound}": one.violation(trial.metrics)
                for one in self.problem.constraints
            }
            if proposal is not None:
                for name, violation in constraints.items():
                    proposal.set_constraint(name, violation)
                self._study.tell(proposal, values)
                continue
            params = params_of(trial.settings, self.problem.space)
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=self._distributions, values=values, constraints=constraints
                )
            )
