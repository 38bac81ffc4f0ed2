"""The contract of every member of every family: parameters are data, and nonsense is refused before anything runs."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest

from driftlab.platform.core.catalogue import (
    BASES,
    FAMILIES,
    Member,
    import_class,
    member_class,
    parameter_faults,
    parameters,
)

MEMBERS = [(family, name) for family, names in FAMILIES.items() for name in names]


def faults(family: str, name: str, kind: type[Any], value: Any) -> dict[str, list[str]]:
    """Give a value to each parameter that takes its kind, alone or in a list; say what is wrong with it."""
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

    def test_it_says_in_one_line_what_it_does(self, family, name):
        first, *rest = (member_class(family, name).__doc__ or "").splitlines()
        assert 10 < len(first) <= 120
        assert first.endswith(".")
        assert not rest or rest[0] == ""

    def test_the_driver_reads_it_without_torch(self, family, name):
        module = FAMILIES[family][name].partition(":")[0]
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_every_number_must_be_finite(family, name, value):
    assert all(said and str(value) in said[0] for said in faults(family, name, float, value).values())


@pytest.mark.parametrize("value", ["nonsense", "jpeg:999", "h264:none"])
@pytest.mark.parametrize("name", FAMILIES["streaming"])
def test_no_codec_is_made_up(name, value):
    assert all(said and value in said[0] for said in faults("streaming", name, str, value).values())
