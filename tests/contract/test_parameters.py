"""What parameters of every member of every family promise: nonsense is refused before anything runs."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from driftlab.platform.core.catalogue import FAMILIES, member_class, parameter_faults, parameters

MEMBERS = [(family, name) for family, names in FAMILIES.items() for name in names]


def faults(family: str, name: str, kind: type[Any], value: Any) -> dict[str, list[str]]:
    """Give a value to each parameter that takes its kind, alone or in a list; say what is wrong with it."""
    cls, found = member_class(family, name), {}
    for key, (hint, _) in parameters(cls).items():
        if kind in (hint, *typing.get_args(hint)):
            found[key] = parameter_faults(cls, {key: [value] if typing.get_origin(hint) is tuple else value})
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_every_number_must_be_finite(family, name, value):
    assert all(said and str(value) in said[0] for said in faults(family, name, float, value).values())


@pytest.mark.parametrize("value", ["nonsense", "jpeg:999", "h264:none"])
@pytest.mark.parametrize("name", FAMILIES["streaming"])
def test_no_codec_is_made_up(name, value):
    assert all(said and value in said[0] for said in faults("streaming", name, str, value).values())
