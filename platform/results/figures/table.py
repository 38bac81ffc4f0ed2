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
    pruning,
    rates,
    strategies,
    streets,
    switching,
    timeline,
    tradeoff,
    traffic,
    tuned,
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
    traffic.FIGURE,
    tuned.FIGURE,
)
