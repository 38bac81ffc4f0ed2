"""Open the domains of a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from driftlab.datasets.domains.names import SEVERITIES, SHIFTS
from driftlab.datasets.domains.orders import Domain, Order
from driftlab.datasets.domains.pictures import DomainSlides
from driftlab.datasets.domains.stream import DomainStream
from driftlab.datasets.frames import Stream
from driftlab.datasets.slides import Slides
from driftlab.errors import RequestError

if TYPE_CHECKING:
    from driftlab.datasets.catalogue import StreamRequest


def open_domains(request: StreamRequest, open_base: Callable[[], Stream]) -> DomainStream:
    """Open a workload under the shifts of a request; the pictures of a set are shown in an order of its own."""
    base, params = open_base(), dict[str, Any](request.params)
    stretch, adapt = max(1, round(params["domain_s"] * base.fps)), round(params["adapt_s"] * base.fps)
    if adapt >= stretch:
        raise RequestError(
            f"Workload '{request.name}' has no frames to judge by: adapt_s is {params['adapt_s']:g}, "
            f"allowed is less than domain_s, which is {params['domain_s']:g}."
        )
    if isinstance(base, Slides):
        plain = {one.name: getattr(base, one.name) for one in fields(base)}
        base = DomainSlides(**plain, stretch=stretch, adapt=adapt)
    order = Order(params["order"][0], domains_of(params["shifts"], params["severities"]), stretch, request.seed)
    return DomainStream(request.name, base, order, adapt, request.seed)


def domains_of(shifts: Sequence[str], severities: Sequence[int]) -> tuple[Domain, ...]:
    """Return each shift at each severity; one whose severities do not differ is one domain."""
    return tuple(
        Domain(name, severity)
        for name in shifts
        for severity in (sorted(severities) if SHIFTS[name].graded else SEVERITIES[:1])
    )
