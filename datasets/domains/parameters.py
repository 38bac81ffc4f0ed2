"""The parameters of domains: shifts, severities, order, and what each stretch is for."""

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
            "what domains do to pictures (`driftlab list shifts`), or set:NAME",
            prefix=SET_PREFIX,
        ),
        "severities": ChoiceParameter((1, 3, 5), SEVERITIES, "how strongly; each shift at each severity is a domain"),
        "order": ChoiceParameter((INTERLEAVED,), tuple(ORDERS), "how domains follow each other", many=False),
        "domain_s": StreamParameter(10.0, 0.1, 1e6, "seconds that a domain is shown at a time"),
        "delta": StreamParameter(
            0.0,
            0.0,
            1000.0,
            "of the Dirichlet distribution of correlated labels: 0.1 is strong, 0 for none; of sets alone",
        ),
        "before_s": StreamParameter(0.0, 0.0, 1e6, "seconds at its beginning that are judged before those to adapt on"),
        "adapt_s": StreamParameter(0.0, 0.0, 1e6, "seconds after these to adapt on, which no score counts"),
        "rho": StreamParameter(
            0.9, 0.0, 0.99, "part of the frames whose domain is that of the frame before; of markov"
        ),
        "imbalance": StreamParameter(
            1.0, 1.0, 1e6, "how many times the first domain is as frequent as the last; of markov"
        ),
    }
)
