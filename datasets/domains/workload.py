"""Open a workload under domains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from driftlab.datasets.domains.names import SEVERITIES, shift_of
from driftlab.datasets.domains.orders import Domain, Order
from driftlab.datasets.domains.pictures import DomainSlides
from driftlab.datasets.domains.stream import DomainStream
from driftlab.datasets.frames import Stream
from driftlab.datasets.slides import Slides
from driftlab.errors import RequestError

if TYPE_CHECKING:
    from driftlab.datasets.catalogue import StreamRequest


def open_domains(request: StreamRequest, open_base: Callable[[], Stream]) -> DomainStream:
    """Return a workload under the shifts of a request; raise RequestError if no frames are scored."""
    base, params = open_base(), dict[str, Any](request.params)
    segment, first, frames = (round(params[name] * base.fps) for name in ("domain_s", "before_s", "adapt_s"))
    segment, adapt = max(1, segment), range(first, first + frames)
    if adapt.stop > segment or frames == segment:
        raise RequestError(
            f"Workload '{request.name}' has no frames to judge by: before_s and adapt_s are "
            f"{params['before_s'] + params['adapt_s']:g} together, allowed is less than domain_s, which is "
            f"{params['domain_s']:g}."
        )
    domains = domains_of(params["shifts"], params["severities"])
    order = Order(params["order"][0], domains, segment, request.seed, params["rho"], params["imbalance"])
    return DomainStream(
        request.name, _ordered(request.name, base, order, adapt, params["delta"]), order, adapt, request.seed
    )


def _ordered(name: str, base: Stream, order: Order, adapt: range, delta: float) -> Stream:
    """Return a labelled set whose images the domains select; any other stream unchanged."""
    if isinstance(base, Slides):
        plain = {one.name: getattr(base, one.name) for one in fields(base)}
        return DomainSlides(**plain, order=order, adapt=adapt, delta=delta)
    picking = [shift for shift, _ in order.domains if shift_of(shift).picks]
    if picking or delta:
        reason = f"shifts holds {picking[0]}" if picking else f"delta is {delta:g}"
        raise RequestError(
            f"Workload '{name}' cannot choose its images, and {reason}; the pictures of domains:set:… can be chosen."
        )
    return base


def domains_of(shifts: Sequence[str], severities: Sequence[int]) -> tuple[Domain, ...]:
    """Return one domain per shift and severity; one for a shift without severities."""
    return tuple(
        Domain(name, severity)
        for name in shifts
        for severity in (sorted(severities) if shift_of(name).graded else SEVERITIES[:1])
    )
