"""The catalogue: members from requests, and every fault of a request named."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Literal

import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameter_faults, parameters


@dataclass(frozen=True)
class Sample:
    rate: float = 1.0
    count: int = 2
    flag: bool = False
    name: str = "x"
    mode: Literal["fast", "slow"] = "fast"
    limit_s: float | None = None
    cap: int | None = None
    shares: tuple[float, ...] = ()

    def faults(self) -> list[str]:
        return [f"'count' is {self.count}, must be above 0"] if self.count <= 0 else []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "1.5"),
        ("rate", True),
        ("rate", None),
        ("count", 3.0),
        ("count", True),
        ("count", "3"),
        ("flag", 1),
        ("flag", "true"),
        ("name", 3),
        ("mode", "middling"),
        ("mode", 1),
        ("limit_s", True),
        ("limit_s", "none"),
        ("cap", 4.0),
        ("cap", [4]),
        ("shares", 0.5),
        ("shares", ["half"]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(key, value):
    (fault,) = parameter_faults(Sample, {key: value})
    assert f"'{key}' is {value!r}, expected " in fault


def test_a_list_is_called_a_list():
    assert parameter_faults(Sample, {"shares": 0.5}) == ["'shares' is 0.5, expected a list of float"]


def test_all_faults_at_once():
    faults = parameter_faults(Sample, {"rat": 1.0, "count": "many", "mode": "fat"})
    assert len(faults) == 3
    assert "did you mean 'rate'?" in faults[0]
    assert "allowed: rate, count, flag, name, mode, limit_s, cap, shares" in faults[0]
    assert "one of 'fast', 'slow'" in faults[2]


def test_a_value_below_its_range_is_refused():
    assert parameter_faults(Sample, {"count": -1}) == ["'count' is -1, must be above 0"]


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (
            Member("streaming", "ams", (("min_fps", 2), ("scale", 0))),
            "'scale' is 0, must be in [1, 4]; 'max_fps' is 1.0, must be at least min_fps = 2.0",
        ),
        (
            Member("streaming", "just_in_time", (("min_interval_s", 9),)),
            "'min_interval_s' is 9.0, must be at most max_interval_s = ",
        ),
        (Member("adaptation", "distill", (("fraction", float("nan")),)), "'fraction' is nan, must be finite"),
        (Member("adaptation", "distill", (("fraction", 1.5),)), "'fraction' is 1.5, must be in (0, 1]"),
        (
            Member("scaling", "nested", (("keep_ratios", [2.0]), ("batch", 1))),
            "'keep_ratios' is (2.0,), must be each in (0, 1]; ",
        ),
        (Member("scaling", "nested", (("keep_ratios", [2.0]), ("batch", 1))), "; 'batch' is 1, must be at least 2"),
        (
            Member("scaling", "nested", (("keep_ratios", [0.5, 0.5]),)),
            "'keep_ratios' is (0.5, 0.5), must be one or more shares",
        ),
        (Member("scaling", "independent", (("epochs", -1),)), "'epochs' is -1, must be at least 0"),
        (Member("scaling", "usnet", (("calibration", 0),)), "'calibration' is 0, must be at least 1"),
        (Member("scheduling", "nestdnn", (("cached_share", 2.0),)), "'cached_share' is 2.0, must be in [0, 1]"),
        (Member("scheduling", "exact", (("alpha", -1), ("units", 0))), "in [0, 1]; 'units' is 0, must be at least 1"),
    ],
    ids=str,
)
def test_members_name_every_parameter_that_is_out_of_range(member, message):
    with pytest.raises(RequestError) as caught:
        member.make()
    assert message in str(caught.value)


def test_parameters_are_names_types_and_defaults():
    assert parameters(Sample)["rate"] == (float, 1.0)
    assert list(parameters(Sample)) == ["rate", "count", "flag", "name", "mode", "limit_s", "cap", "shares"]


def test_a_member_is_printed_with_its_changed_parameters():
    assert str(Member("streaming", "one_time")) == "one_time"
    assert str(Member("streaming", "one_time", (("sample_s", 30), ("codec", "png")))) == (
        "one_time(codec=png, sample_s=30)"
    )


def test_a_member_is_the_same_in_any_order_of_its_parameters():
    params = (("sample_s", 30), ("codec", "png"))
    assert Member("streaming", "one_time", params) == Member("streaming", "one_time", params[::-1])


def test_a_member_is_a_value():
    member = Member("streaming", "one_time", (("sample_s", 30),))
    assert pickle.loads(pickle.dumps(member)) == member
    assert hash(member) == hash(Member("streaming", "one_time", (("sample_s", 30),)))


@pytest.mark.parametrize(
    ("family", "name", "message"),
    [
        ("steaming", "local", "Unknown family 'steaming'. Did you mean 'streaming'?"),
        ("streaming", "locl", "Unknown streaming member 'locl'. Did you mean 'local'?"),
        ("scaling", "", "Known: adadeep, "),
    ],
)
def test_unknown_names(family, name, message):
    with pytest.raises(RequestError) as caught:
        member_class(family, name)
    assert message in str(caught.value)


def test_a_wrong_parameter_names_its_member():
    with pytest.raises(RequestError, match=r"streaming/one_time: 'codec' is 3, expected str; unknown parameter 'x'"):
        Member("streaming", "one_time", (("x", 1), ("codec", 3))).make()


def test_no_member_is_called_twice_within_a_family():
    for family, members in FAMILIES.items():
        assert len(set(members.values())) == len(members), family
