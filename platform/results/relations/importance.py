"""How much each setting matters: the share of the trials' variance in a metric that the setting alone explains.

Where values are ordered, the metric is fitted by a parabola over the position in the domain; where they are names, by
the mean of each. The share is adjusted for the number of coefficients, so that noise explains nothing on average. What
only two settings together explain is not seen, and a searcher that settles early leaves little variance to explain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from driftlab.platform.core.space import Domain, OneOf, Space, Trial

FEWEST = 10  # trials, before anything can be told
Floats = npt.NDArray[np.float64]


def importance(trials: Sequence[Trial], space: Space, metric: str) -> Mapping[str, float]:
    """Give each setting its share from 0 to 1, the largest first; nothing where there are too few trials."""
    inside = [trial for trial in trials if trial.metrics and space.positions(trial.settings) is not None]
    values = np.array([(trial.metrics or {})[metric] for trial in inside])
    if len(inside) < FEWEST or not np.ptp(values):
        return {}
    points = np.array([space.positions(trial.settings) for trial in inside])
    shares = {path: _explained(points[:, k], domain, values) for k, (path, domain) in enumerate(space.domains.items())}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _explained(positions: Floats, domain: Domain, values: Floats) -> float:
    """Compute the adjusted coefficient of determination, 0 where it is below."""
    terms = _terms(positions, domain)
    count, coefficients = len(values), int(np.linalg.matrix_rank(terms))
    if count <= coefficients:
        return 0.0
    fitted = terms @ np.linalg.lstsq(terms, values, rcond=None)[0]
    left = ((values - fitted) ** 2).sum() / ((values - values.mean()) ** 2).sum()
    return max(0.0, 1.0 - float(left) * (count - 1) / (count - coefficients))


def _terms(positions: Floats, domain: Domain) -> Floats:
    if isinstance(domain, OneOf) and not domain.ordered:
        names: Floats = (positions[:, None] == np.unique(positions)[None]).astype(np.float64)
        return names
    return np.stack([np.ones_like(positions), positions, positions**2], axis=1)
