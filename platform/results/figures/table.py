"""The figures in the order of a page: what an experiment varies comes first, what every run has comes last."""

from __future__ import annotations

from driftlab.platform.results.figures import (
    accuracy,
    capacity,
    clients,
    frontier,
    gains,
    horizon,
    paging,
    pareto,
    pruning,
    rates,
    strategies,
    streets,
    switching,
    timeline,
    tradeoff,
    traffic,
)

FIGURES = (
    frontier.FIGURE,
    strategies.FIGURE,
    horizon.FIGURE,
    clients.FIGURE,
    pruning.FIGURE,
    tradeoff.FIGURE,
    paging.FIGURE,
    switching.FIGURE,
    capacity.FIGURE,
    timeline.FIGURE,
    streets.FIGURE,
    accuracy.FIGURE,
    rates.FIGURE,
    gains.FIGURE,
    pareto.FIGURE,
    traffic.FIGURE,
)
