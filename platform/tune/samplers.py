"""The searchers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from driftlab.errors import unknown_name
from driftlab.platform.tune.evolution import Evolution
from driftlab.platform.tune.optuna import Optuna
from driftlab.platform.tune.plain import GridSearch, Random
from driftlab.platform.tune.reinforce import Reinforce
from driftlab.platform.tune.study import Searcher

SEARCHERS: Mapping[str, Callable[[], Searcher]] = {
    "evolution": Evolution,
    "tpe": lambda: Optuna("tpe"),
    "nsga2": lambda: Optuna("nsga2"),
    "cmaes": lambda: Optuna("cmaes"),
    "reinforce": Reinforce,
    "random": Random,
    "grid": GridSearch,
}


def searcher_of(name: str) -> Searcher:
    """Make a searcher; RequestError for a name that is not known."""
    if name not in SEARCHERS:
        raise unknown_name("searcher", name, SEARCHERS)
    return SEARCHERS[name]()
