"""What parameters of every member of every family promise: they are explained, and nonsense is refused at once."""

from __future__ import annotations

import math
import typing
from typing import Any

import pytest

from driftlab.platform.core.catalogue import FAMILIES, Member, member_class, parameter_faults, parameters
from driftlab.platform.core.parameters import parameters_of

MEMBERS = [(family, name) for family, names in FAMILIES.items() for name in names]
PARAMETERS = [
    (family, name, parameter) for family, name in MEMBERS for parameter in parameters_of(member_class(family, name))
]


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


@pytest.mark.parametrize(("family", "name", "key"), PARAMETERS)
def test_every_parameter_says_what_it_means_and_where_it_lies(family, name, key):
    one = parameters_of(member_class(family, name))[key]
    assert len(one.meaning.split()) >= 2
    assert one.meaning == one.meaning.strip().rstrip(".")
    kinds = {one.hint, *typing.get_args(one.hint)}
    assert not kinds & {int, float} or bool(one.range)
    assert one.unit or not key.endswith(("_s", "_fps"))


@pytest.mark.parametrize(("family", "name", "key"), PARAMETERS)
def test_a_default_lies_in_its_range_and_what_lies_outside_is_refused(family, name, key):
    cls = member_class(family, name)
    one, interval = parameters_of(cls)[key], parameters_of(cls)[key].interval
    assert list(one.faults(one.default)) == []
    whole = not {float} & {one.hint, *typing.get_args(one.hint)}
    for bound, is_open, step in ((interval.low, interval.low_open, -1), (interval.high, interval.high_open, 1)):
        if bound is None:
            continue
        wrong = bound if is_open else bound + step if whole else math.nextafter(bound, step * math.inf)
        given = (wrong,) if typing.get_origin(one.hint) is tuple else wrong
        assert any(f"'{key}'" in fault and str(wrong) in fault for fault in parameter_faults(cls, {key: given})), wrong


@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_defaults_fit_together(family, name):
    assert Member(family, name).make() == member_class(family, name)()
    assert parameter_faults(member_class(family, name), Member(family, name).defaults()) == []
