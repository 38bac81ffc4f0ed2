"""The figures in the order of a page: what an experiment varies comes first, what every run has comes last."""

from __future__ import annotations

from driftlab.platform.results.figures import (
    accuracy,
    clients,
    frontier,
    gains,
    horizon,
    rates,
    strategies,
    streets,
    traffic,
)

FIGURES = (
    frontier.FIGURE,
    strategies.FIGURE,
    horizon.FIGURE,
    clients.FIGURE,
    streets.FIGURE,
    accuracy.FIGURE,
    rates.FIGURE,
    gains.FIGURE,
    traffic.FIGURE,
)
