"""The parameters of domains: shifts, severities, order, and the frames for adaptation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from driftlab.datasets.domains.names import SET_PREFIX, SEVERITIES, SHIFTS, THIRTY
from driftlab.datasets.domains.orders import INTERLEAVED, ORDERS
from driftlab.datasets.parameters import AnyParameter, ChoiceParameter, StreamParameter

DOMAIN_PARAMETERS: Mapping[str, AnyParameter] = MappingProxyType(
    {
        "shifts": ChoiceParameter(
            THIRTY,
            tuple(SHIFTS),
            "shifts of the domains (`driftlab list shifts`), or set:NAME for another labelled set",
            prefix=SET_PREFIX,
        ),
        "severities": ChoiceParameter((1, 3, 5), SEVERITIES, "severities; each shift at each severity is a domain"),
        "order": ChoiceParameter((INTERLEAVED,), tuple(ORDERS), "order of the domains", many=False),
        "domain_s": StreamParameter(10.0, 0.1, 1e6, "seconds of a domain before the next one"),
        "delta": StreamParameter(
            0.0,
            0.0,
            1000.0,
            "Dirichlet concentration of correlated labels, for labelled sets: 0.1 is strong, 0 is off",
        ),
        "before_s": StreamParameter(0.0, 0.0, 1e6, "scored seconds of a domain before the adaptation frames"),
        "adapt_s": StreamParameter(0.0, 0.0, 1e6, "seconds of adaptation frames, which are not scored"),
        "rho": StreamParameter(0.9, 0.0, 0.99, "for markov: probability of the domain of the previous frame"),
        "imbalance": StreamParameter(
            1.0, 1.0, 1e6, "for markov: frequency of the first domain divided by that of the last"
        ),
    }
)
