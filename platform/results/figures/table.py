"""All figures in page order: specific to an experiment first, common to all runs last."""

from __future__ import annotations

import importlib
import pkgutil

from driftlab.platform.results.figures.base import Figure

HELPERS = ("base", "notebook", "plots", "searches", "svg", "table")  # all other files are figures of a run
ORDER = (  # a figure that is not named here comes first
    "parameter_sweep",
    "frontier",
    "strategies",
    "training_horizon",
    "clients",
    "pruning",
    "tradeoff",
    "switching_cost",
    "switching",
    "capacity",
    "paths",
    "domains",
    "utility",
    "compute_shares",
    "load",
    "allocation_timeline",
    "per_workload",
    "accuracy",
    "rates",
    "gains",
    "pareto",
    "traffic",
    "tuned",
)


def _figures() -> tuple[Figure, ...]:
    folder = importlib.import_module(str(__package__))
    names = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.name not in HELPERS]
    found: list[Figure] = [importlib.import_module(f"{__package__}.{name}").FIGURE for name in names]
    return tuple(sorted(found, key=lambda figure: ORDER.index(figure.name) if figure.name in ORDER else -1))


FIGURES = _figures()
