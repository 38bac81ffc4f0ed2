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
    order = Order(params["order"][0], domains_of(params["shifts"], params["severities"]), stretch, request.seed)
    return DomainStream(
        request.name, _ordered(request.name, base, order, adapt, params["delta"]), order, adapt, request.seed
    )


def _ordered(name: str, base: Stream, order: Order, adapt: int, delta: float) -> Stream:
    """Let domains choose the pictures of a set; another stream shows what it shows."""
    if isinstance(base, Slides):
        plain = {one.name: getattr(base, one.name) for one in fields(base)}
        return DomainSlides(**plain, order=order, adapt=adapt, delta=delta)
    picking = [shift for shift, _ in order.domains if SHIFTS[shift].picks]
    if picking or delta:
        what = f"shifts holds {picking[0]}" if picking else f"delta is {delta:g}"
        raise RequestError(
            f"Workload '{name}' cannot choose what it shows, and {what}; the pictures of domains:set:… can be chosen."
        )
    return base


def domains_of(shifts: Sequence[str], severities: Sequence[int]) -> tuple[Domain, ...]:
    """Return each shift at each severity; one whose severities do not differ is one domain."""
    return tuple(
        Domain(name, severity)
        for name in shifts
        for severity in (sorted(severities) if SHIFTS[name].graded else SEVERITIES[:1])
    )
