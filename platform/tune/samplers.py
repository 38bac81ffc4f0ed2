"""The samplers by name: Optuna's own, and others in the form of Optuna's.

`reinforce` is a recurrent controller that learns from rewards (Zoph and Le, ICLR 2017). It chooses the value of one
setting after another; of a range it chooses a part, and the place within it is random. The reward of a trial is the
share of all trials so far that it beats, by rank: it needs no scale, and every objective and bound counts. Differs
from the paper: no settings are tried twice; the controller learns from each trial in turn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler
from optuna.trial import FrozenTrial

from driftlab.errors import unknown_name
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.core.space import Domain, OneOf, SearchProblem, Settings, Space, Trial, key, ranks, room

BATCH = 8  # trials that are proposed before any of them has a result
FIRST_BATCH = {"evolution": 10}  # of samplers that spread their first trials over the space
POPULATION, CROSSOVER, MUTATION = 20, 0.7, 1.2  # parents; share of children with two; settings changed in each
STEP = 0.15  # standard deviation of a change, as a part of an ordered domain
BREEDINGS = 60  # of a child, until it was not tried before; later ones change more
DRAWS = 100  # at random, for settings that were not drawn before
CONTROLLER_DRAWS = 200  # where none of them is new, the controller is sure and the search is over
CONTROLLER_RATE = 0.02  # step size
RANGE_PARTS = 8  # of a range, for the controller


class SpaceExhaustedError(Exception):
    """A sampler has no settings to propose that were not tried."""


class SettingsSampler(BaseSampler):
    """Base of samplers that choose all settings of a trial at once, given the results so far."""

    def __init__(self, problem: SearchProblem, results: Sequence[Trial]) -> None:
        self.problem, self.results = problem, results
        self._params: Mapping[str, Any] = {}

    @abstractmethod
    def propose(self) -> Settings:
        """Choose settings; SpaceExhaustedError where there are none to try."""

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Choose the settings that Optuna then reads one by one."""
        self._params = params_of(self.propose(), self.problem.space)

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, name: str, domain: BaseDistribution) -> Any:
        """Give one of the settings."""
        return self._params[name]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Leave every setting to `sample_independent`."""
        return {}

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, domains: Mapping[str, Any]) -> dict[str, Any]:
        """Choose nothing here, as the relative search space is empty."""
        return {}


class GridSampler(SettingsSampler):
    """Every combination once, in order; Optuna's own visits them in an order that depends on a seed."""

    def __init__(self, problem: SearchProblem, results: Sequence[Trial]) -> None:
        super().__init__(problem, results)
        self._grid = problem.space.grid()

    def propose(self) -> Settings:
        """Give the next combination."""
        settings = next(self._grid, None)
        if settings is None:
            raise SpaceExhaustedError
        return settings


class RandomSampler(SettingsSampler):
    """Draw random settings without repetition, which Optuna's own sampler does not ensure."""

    def __init__(self, problem: SearchProblem, results: Sequence[Trial]) -> None:
        super().__init__(problem, results)
        self._rng, self._drawn = rng_for(problem.seed, "search", "random"), set[Any]()

    def propose(self) -> Settings:
        """Draw settings that were not drawn before."""
        return draw_new(lambda: self.problem.space.draw(self._rng), self._drawn, DRAWS)


class EvolutionSampler(SettingsSampler):
    """Evolution of spaces with several objectives and bounds, made for discrete design spaces.

    Of parents and their children the best `population` are the next parents, by rank and then by the room around them
    (the selection of NSGA-II). A child takes each setting from one of two parents, and some of its settings change: to
    a value nearby where values are ordered, to any other value where they are names. No settings are tried twice.
    Optuna's NSGA-II (`nsga2`) tries some twice and needs more trials: `python benchmarks/tune.py function`.
    """

    def __init__(
        self, problem: SearchProblem, results: Sequence[Trial], population: int = POPULATION, step: float = STEP
    ) -> None:
        super().__init__(problem, results)
        self._rng, self._population, self._step = rng_for(problem.seed, "search", "evolution"), population, step
        self._first = spread_settings(problem, FIRST_BATCH["evolution"], self._rng)
        self._proposed = 0
        self._parents: list[Trial] = []
        self._tried = set[Any]()
        self._received = 0

    def propose(self) -> Settings:
        """Give the first settings, spread over the space, and then children of the best."""
        new = self.results[self._received :]
        self._received = len(self.results)
        self._tried |= {key(trial.settings) for trial in new}  # also the defaults, which were not proposed here
        succeeded = [trial for trial in new if trial.metrics is not None]
        self._parents = best_spread([*self._parents, *succeeded], self.problem, self._population)
        self._proposed += 1
        if self._proposed <= FIRST_BATCH["evolution"]:
            if not self._first:
                raise SpaceExhaustedError
            self._tried.add(key(self._first[0]))
            return self._first.pop(0)
        if self._parents:
            for attempt in range(BREEDINGS):
                child = self._breed(attempt / BREEDINGS)
                if key(child) not in self._tried:
                    self._tried.add(key(child))
                    return child
        return draw_new(lambda: self.problem.space.draw(self._rng), self._tried, BREEDINGS)

    def _breed(self, more: float) -> dict[str, Any]:
        """Cross two parents and change some settings; `more` from 0 to 1 changes more of them."""
        domains, parents, rng = self.problem.space.domains, self._parents, self._rng
        first, second = (parents[int(min(rng.integers(len(parents), size=2)))].settings for _ in range(2))
        crossed = rng.random() < CROSSOVER
        rate = max(MUTATION / len(domains), more)
        child = {}
        for path, domain in domains.items():
            value = second[path] if crossed and rng.random() < 0.5 else first[path]
            child[path] = _mutate(domain, value, self._step * (1 + 3 * more), rng) if rng.random() < rate else value
        return child


def spread_settings(problem: SearchProblem, count: int, rng: np.random.Generator) -> list[Settings]:
    """Draw settings so that each domain is covered evenly (a Latin hypercube), each settings once."""
    columns = [(rng.permutation(count) + rng.random(count)) / count for _ in problem.space.domains]
    points = [problem.space.at(point) for point in zip(*columns, strict=True)]
    return list({key(settings): settings for settings in points}.values())


def best_spread(trials: Sequence[Trial], problem: SearchProblem, count: int) -> list[Trial]:
    """Sort trials by rank and, within a rank, by the room around them; give the first ones."""
    if not trials:
        return []
    rank = np.array(ranks(trials, problem))
    losses = np.array([trial.losses(problem) for trial in trials])
    around = np.zeros(len(trials))
    for value in np.unique(rank):
        around[rank == value] = room(losses[rank == value])
    order = sorted(range(len(trials)), key=lambda i: (rank[i], -around[i], trials[i].number))
    return [trials[i] for i in order[:count]]


def _mutate(domain: Domain, value: Any, step: float, rng: np.random.Generator) -> Any:
    """Change a value: to one nearby where values are ordered, else to any other."""
    if domain.count == 1:
        return value
    if isinstance(domain, OneOf) and not domain.ordered:
        others = [other for other in domain.values if other != value]
        return others[int(rng.integers(len(others)))]
    width = max(step, 1 / domain.count if domain.count else 0.0)
    for _ in range(BREEDINGS):
        moved = domain.position(value) + rng.normal(0.0, width)
        if 0 <= moved <= 1 and (other := domain.at(moved)) != value:
            return other
    return domain.at(float(rng.random()))


class ReinforceSampler(SettingsSampler):
    """A controller that learns from the results which options are good."""

    def __init__(self, problem: SearchProblem, results: Sequence[Trial]) -> None:
        from driftlab.platform.scaling.controller import Controller  # torch, which no other sampler needs

        super().__init__(problem, results)
        self._rng = rng_for(problem.seed, "search", "reinforce")
        self._counts = [_option_count(domain) for domain in problem.space.domains.values()]
        self._controller = Controller(self._counts, int(self._rng.integers(2**31)), CONTROLLER_RATE)
        self._tried = set[Any]()
        self._learned = 0

    def propose(self) -> Settings:
        """Learn from new results, then draw settings that were not tried, the defaults included."""
        new = self.results[self._learned :]
        self._tried |= {key(trial.settings) for trial in new}
        for trial, reward in zip(new, rewards(self.results, self.problem)[self._learned :], strict=True):
            self._controller.learn(self._options(trial.settings), reward)
        self._learned = len(self.results)
        return draw_new(self._draw, self._tried, CONTROLLER_DRAWS)

    def _draw(self) -> Settings:
        places = zip(
            self._controller.draw(self._rng), self._rng.random(len(self._counts)).tolist(), self._counts, strict=True
        )
        return self.problem.space.at([(option + within) / count for option, within, count in places])

    def _options(self, settings: Settings) -> list[int]:
        """Return the options of the controller that settings stand for."""
        places = self.problem.space.positions(settings) or []
        return [min(int(place * count), count - 1) for place, count in zip(places, self._counts, strict=True)]


def _option_count(domain: Domain) -> int:
    """Return of how many options a setting is chosen: its values, or parts of a range."""
    return domain.count if isinstance(domain, OneOf) else min(domain.count or RANGE_PARTS, RANGE_PARTS)


def rewards(trials: Sequence[Trial], problem: SearchProblem) -> list[float]:
    """Return which share of the other trials each one beats, ties by half; one that failed beats none."""
    succeeded = [trial for trial in trials if trial.metrics is not None]
    places = ranks(succeeded, problem) if succeeded else []
    rank = dict(zip((trial.number for trial in succeeded), places, strict=True))
    of_all = np.array([rank.get(trial.number, np.inf) for trial in trials])
    worse = (of_all[None] > of_all[:, None]).sum(axis=1) + 0.5 * ((of_all[None] == of_all[:, None]).sum(axis=1) - 1)
    shares: list[float] = np.where(np.isinf(of_all), 0.0, worse / max(len(trials) - 1, 1)).tolist()
    return shares


def draw_new(draw: Callable[[], Settings], tried: set[Any], draws: int) -> Settings:
    """Draw until settings are new and add them to `tried`; SpaceExhaustedError after `draws` draws."""
    for _ in range(draws):
        settings = draw()
        if key(settings) not in tried:
            tried.add(key(settings))
            return settings
    raise SpaceExhaustedError


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Describe a space to Optuna; a choice by the number of its value, as values may be lists."""
    return {path: _distribution(domain) for path, domain in space.domains.items()}


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, OneOf):
        return CategoricalDistribution(range(domain.count))
    if domain.integer:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def settings_of(params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Read settings from Optuna's parameters."""
    return {
        path: domain.values[params[path]] if isinstance(domain, OneOf) else params[path]
        for path, domain in space.domains.items()
    }


def params_of(settings: Settings, space: Space) -> dict[str, Any]:
    """Write settings as Optuna's parameters."""
    return {
        path: domain.values.index(settings[path]) if isinstance(domain, OneOf) else settings[path]
        for path, domain in space.domains.items()
    }


def _seed(problem: SearchProblem, name: str) -> int:
    return int(rng_for(problem.seed, "search", "optuna", name).integers(2**31))


SAMPLERS: Mapping[str, Callable[[SearchProblem, Sequence[Trial]], BaseSampler]] = {
    "evolution": EvolutionSampler,
    "tpe": lambda problem, results: TPESampler(multivariate=True, n_startup_trials=BATCH, seed=_seed(problem, "tpe")),
    "nsga2": lambda problem, results: NSGAIISampler(population_size=2 * BATCH, seed=_seed(problem, "nsga2")),
    "cmaes": lambda problem, results: CmaEsSampler(seed=_seed(problem, "cmaes")),
    "reinforce": ReinforceSampler,
    "random": RandomSampler,
    "grid": GridSampler,
}


def sampler_faults(name: str, problem: SearchProblem) -> list[str]:
    """List the parts of a problem that a sampler does not support; RequestError for an unknown name."""
    if name not in SAMPLERS:
        raise unknown_name("searcher", name, SAMPLERS)
    if name != "cmaes":
        return []
    choices = [path for path, domain in problem.space.domains.items() if isinstance(domain, OneOf)]
    several = ["it has one objective only"] if len(problem.objectives) > 1 else []
    bounds = ["it keeps no bounds"] if problem.constraints else []
    return [*several, *bounds, *(f"it searches numbers only, and '{path}' is a choice" for path in choices)]
