"""Optuna's samplers: TPE, NSGA-II and CMA-ES."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from driftlab.platform.core.seeding import rng_for
from driftlab.platform.core.space import Domain, OneOf, SearchProblem, Trial, key
from driftlab.platform.tune.study import Batches, Searcher

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Optuna(Searcher):
    """A study that is asked for a batch and told of it in order."""

    sampler: Literal["tpe", "nsga2", "cmaes"] = "tpe"
    batch: int = 8

    def faults(self, problem: SearchProblem) -> list[str]:
        """Name what the sampler cannot search."""
        if self.sampler != "cmaes":
            return []
        names = [path for path, domain in problem.space.domains.items() if isinstance(domain, OneOf)]
        several = ["it has one objective only"] if len(problem.objectives) > 1 else []
        bounds = ["it keeps no bounds"] if problem.constraints else []
        return [*several, *bounds, *(f"it searches numbers only, and '{path}' is a choice" for path in names)]

    def batches(self, problem: SearchProblem) -> Batches:
        """Yield what the study's sampler proposes."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        better = {"max": optuna.study.StudyDirection.MAXIMIZE, "min": optuna.study.StudyDirection.MINIMIZE}
        directions = [better[objective.better] for objective in problem.objectives]
        study = optuna.create_study(sampler=self._sampler(problem), directions=directions)
        distributions = {path: _distribution(domain) for path, domain in problem.space.domains.items()}
        while True:
            asked = [study.ask(distributions) for _ in range(self.batch)]
            waiting = [(key(_settings(one.params, problem)), one) for one in asked]
            told = yield [_settings(one.params, problem) for one in asked]
            for trial in told:
                place = next((k for k, (name, _) in enumerate(waiting) if name == key(trial.settings)), None)
                if trial.number == 0 or place is None:  # the defaults, which the study did not propose
                    _add(study, distributions, trial, problem)
                else:
                    _tell(study, waiting.pop(place)[1], trial, problem)

    def _sampler(self, problem: SearchProblem) -> optuna.samplers.BaseSampler:
        import optuna

        seed = int(rng_for(problem.seed, "search", "optuna", self.sampler).integers(2**31))
        if self.sampler == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed)
        if self.sampler == "nsga2":
            return optuna.samplers.NSGAIISampler(population_size=2 * self.batch, seed=seed)
        return optuna.samplers.TPESampler(multivariate=True, n_startup_trials=self.batch, seed=seed)


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, OneOf):
        return CategoricalDistribution(range(domain.count))  # by number: values may be lists
    if domain.integer:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def _settings(params: Mapping[str, Any], problem: SearchProblem) -> dict[str, Any]:
    return {
        path: domain.values[params[path]] if isinstance(domain, OneOf) else params[path]
        for path, domain in problem.space.domains.items()
    }


def _tell(study: optuna.Study, asked: optuna.Trial, trial: Trial, problem: SearchProblem) -> None:
    if trial.metrics is None:
        study.tell(asked, state=_state("FAIL"))
        return
    for name, violation in _violations(trial, problem).items():
        asked.set_constraint(name, violation)
    study.tell(asked, _values(trial, problem))


def _add(study: optuna.Study, distributions: Mapping[str, Any], trial: Trial, problem: SearchProblem) -> None:
    import optuna

    if trial.metrics is None:
        return
    domains = problem.space.domains
    params = {
        path: domain.values.index(trial.settings[path]) if isinstance(domain, OneOf) else trial.settings[path]
        for path, domain in domains.items()
    }
    study.add_trial(
        optuna.trial.create_trial(
            params=params,
            distributions=dict(distributions),
            values=_values(trial, problem),
            constraints=_violations(trial, problem),
        )
    )


def _values(trial: Trial, problem: SearchProblem) -> list[float]:
    return [(trial.metrics or {})[one.metric] for one in problem.objectives]


def _violations(trial: Trial, problem: SearchProblem) -> dict[str, float]:
    """Measure by how much each bound is missed; 0 is kept."""
    metrics = trial.metrics or {}
    return {f"{one.metric} {one.relation} {one.bound}": one.violation(metrics) for one in problem.constraints}


def _state(name: str) -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState[name]
