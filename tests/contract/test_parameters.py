"""The contract of every member of every family: documented parameters with checked values."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest

from driftlab.platform.core.parameters import Parameter, parameters_of
from driftlab.platform.core.registry import (
    BASES,
    FAMILIES,
    Member,
    import_class,
    member_class,
    parameter_faults,
    parameters,
)

MEMBERS = [(family, name) for family, names in FAMILIES.items() for name in names]


def outside(one: Parameter) -> list[float]:
    """Give the numbers next to the bounds of a parameter that it does not allow."""
    interval, found = one.interval, []
    whole = not {float} & {one.hint, *typing.get_args(one.hint)}
    for bound, is_open, step in ((interval.low, interval.low_open, -1), (interval.high, interval.high_open, 1)):
        if bound is not None:
            found.append(bound if is_open else bound + step if whole else math.nextafter(bound, step * math.inf))
    return found


def faults(family: str, name: str, kind: type[Any], value: Any) -> dict[str, list[str]]:
    """List the parameters that do not accept a value of their kind, single or in a list."""
    cls, found = member_class(family, name), {}
    for key, (hint, _) in parameters(cls).items():
        if kind in (hint, *typing.get_args(hint)):
            found[key] = parameter_faults(cls, {key: [value] if typing.get_origin(hint) is tuple else value})
    return found


@pytest.mark.parametrize(("family", "name"), MEMBERS)
class TestEveryMember:
    def test_its_parameters_are_data(self, family, name):
        cls = member_class(family, name)
        assert issubclass(cls, import_class(BASES[family]))
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen
        assert cls() == cls()
        assert hash(cls()) == hash(cls())
        assert pickle.loads(pickle.dumps(cls())) == cls()
        for key, (_, default) in parameters(cls).items():
            assert Member(family, name, ((key, default),)).make() == cls()

    def test_its_defaults_are_valid(self, family, name):
        made = Member(family, name).make()
        assert not hasattr(made, "faults") or made.faults() == []

    def test_its_docstring_starts_with_one_line(self, family, name):
        first, *rest = (member_class(family, name).__doc__ or "").splitlines()
        assert 10 < len(first) <= 120
        assert first.endswith(".")
        assert not rest or rest[0] == ""

    def test_every_parameter_has_a_meaning_a_range_and_a_unit(self, family, name):
        for key, one in parameters_of(member_class(family, name)).items():
            assert len(one.meaning.split()) >= 2, key
            assert one.meaning == one.meaning.strip().rstrip("."), key
            kinds = {one.hint, *typing.get_args(one.hint)}
            assert not kinds & {int, float} or bool(one.range), key
            assert one.unit or not key.endswith(("_s", "_fps")), key

    def test_a_default_is_in_its_range_and_values_outside_are_refused(self, family, name):
        cls = member_class(family, name)
        for key, one in parameters_of(cls).items():
            assert list(one.faults(one.default)) == []
            for wrong in outside(one):
                given = (wrong,) if typing.get_origin(one.hint) is tuple else wrong
                reported = parameter_faults(cls, {key: given})
                assert any(f"'{key}'" in fault and str(wrong) in fault for fault in reported), (key, wrong)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_every_number_must_be_finite(self, family, name, value):
        assert all(reported and str(value) in reported[0] for reported in faults(family, name, float, value).values())

    def test_defaults_fit_together(self, family, name):
        assert Member(family, name).make() == member_class(family, name)()
        assert parameter_faults(member_class(family, name), Member(family, name).defaults()) == []


def test_the_driver_reads_members_without_torch():
    """One process imports the modules in sequence and prints the first that imports torch."""
    modules = [FAMILIES[family][name].partition(":")[0] for family, name in MEMBERS]
    code = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if "torch" in sys.modules:
        sys.exit(module)
"""
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("value", ["nonsense", "jpeg:999", "h264:none"])
@pytest.mark.parametrize("name", FAMILIES["streaming"])
def test_no_codec_is_made_up(name, value):
    assert all(reported and value in reported[0] for reported in faults("streaming", name, str, value).values())
