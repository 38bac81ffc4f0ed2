"""Everything that claims measure: each public function of these modules, by its name.

A measure takes the tables of a run and the arguments of a claim; it gives what was measured or why nothing was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from driftlab.platform.results.claims.measures import (
    domains,
    fleets,
    loads,
    networks,
    paths,
    rates,
    scenes,
    scores,
    sharing,
    timing,
    traffic,
)
from driftlab.platform.results.relations.measured import Measured, Untestable

Measure = Callable[..., Measured | Untestable]
MEASURES: Mapping[str, Measure] = {
    name: found
    for module in (domains, fleets, loads, networks, paths, rates, scenes, scores, sharing, timing, traffic)
    for name, found in vars(module).items()
    if getattr(found, "__module__", "") == module.__name__ and not name.startswith("_")
}
