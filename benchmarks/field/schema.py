"""Draw requests by schemathesis from a server's description (`pip install schemathesis`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from benchmarks.field.fuzz import LEFT_OUT, Drawn

BASE = "http://127.0.0.1"


def drawn_by_schema(
    described: Mapping[str, Any], session: Mapping[str, str], token: str, seed: int, count: int
) -> list[Drawn]:
    """Draw `count` requests, as many for each route; most paths with a session have the given one."""
    import schemathesis

    loaded = schemathesis.openapi.from_dict(dict(described))
    routes = [one.ok() for one in loaded.get_all_operations()]
    routes = [route for route in routes if (route.method.lower(), route.path) not in LEFT_OUT]
    dice, found = random.Random(seed), []
    for number, route in enumerate(routes):
        wanted = count * (number + 1) // len(routes) - len(found)
        found += list(_drawn(route, dice, session, token, wanted))
    dice.shuffle(found)
    return found


def _drawn(route: Any, dice: random.Random, session: Mapping[str, str], token: str, count: int) -> Iterator[Drawn]:
    """Draw requests of one route, half of which break its description."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode

    for mode, wanted in ((GenerationMode.POSITIVE, count - count // 2), (GenerationMode.NEGATIVE, count // 2)):
        cases: list[Any] = []
        options = settings(
            max_examples=max(1, wanted),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        draw_cases = given(case=route.as_strategy(generation_mode=mode))(_kept_in(cases))
        try:
            seeded(dice.randrange(2**32))(options(draw_cases))()
        except Unsatisfiable:  # the description of the route cannot be broken
            assert mode is GenerationMode.NEGATIVE
            continue
        for number in range(wanted):
            yield _request(cases[number % len(cases)], dice, session, token)


def _kept_in(cases: list[Any]) -> Any:
    def keep(case: Any) -> None:
        cases.append(case)

    return keep


def _request(case: Any, dice: random.Random, session: Mapping[str, str], token: str) -> Drawn:
    import requests

    if case.path_parameters.get("name") and case.method.upper() != "DELETE" and dice.random() < 0.8:
        case.path_parameters["name"] = session["id"]
    prepared = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
    parts = urlsplit(prepared.url or BASE)
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    if body is not None and not isinstance(body, bytes):  # a file of a form
        body = bytes(body.read()) if hasattr(body, "read") else b"".join(body)
    given = dice.choices([token, session["token"], None, "stranger"], [10, 6, 1, 1])[0]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Drawn(case.method.upper(), path, body, given, prepared.headers.get("Content-Type", "application/json"))
