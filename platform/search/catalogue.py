"""The searchers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from driftlab.errors import unknown_name
from driftlab.platform.search.base import Searcher
from driftlab.platform.search.evolution import Evolution
from driftlab.platform.search.optuna import Optuna
from driftlab.platform.search.plain import GridSearch, Random
from driftlab.platform.search.reinforce import Reinforce

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
