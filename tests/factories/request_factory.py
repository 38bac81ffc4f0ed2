"""An experiment's document, and the faults that it is refused with."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from driftlab.errors import RequestError
from driftlab.platform.lab.read import Choice, parse

DOCUMENT: dict[str, Any] = {
    "name": "test",
    "systems": [
        "no_custom",
        {"name": "one_time", "base": "one_time", "streaming": {"name": "one_time", "sample_s": 5}},
    ],
    "workloads": [{"name": "streets/running", "duration_s": 8, "fps": 2, "height": 32, "width": 48}],
    "bounds": False,
}


def document(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(DOCUMENT), **changes}


def refusal(changed: Any, overrides: tuple[str, ...] = (), choice: Choice | None = None) -> str:
    with pytest.raises(RequestError) as caught:
        parse(changed, overrides, choice)
    return str(caught.value)
