"""The table of systems: valid rows, and the reason for each refused combination."""

from __future__ import annotations

import inspect

import pytest

from driftlab.platform.core.registry import FAMILIES, METHODS, Member, docstring_of, member_class
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.core.systems import System


@pytest.mark.parametrize("name", sorted(SYSTEMS))
class TestEveryRow:
    def test_every_row_is_a_valid_combination(self, name):
        system = SYSTEMS[name]
        assert system.faults() == []
        for member in system.members:
            member.make()

    def test_its_slots_are_of_their_families(self, name):
        families = [member.family for member in SYSTEMS[name].members]
        assert families == ["streaming", "adaptation", "scaling", "scheduling"]

    def test_its_summary_is_one_line(self, name):
        summary = SYSTEMS[name].summary
        assert 20 < len(summary) <= 120
        assert summary.endswith(".")
        assert "\n" not in summary


def test_no_two_rows_are_the_same():
    rows = [system.members for system in SYSTEMS.values()]
    assert len(set(rows)) == len(rows)


def test_each_bound_occurs_once():
    bounds = [system.bound for system in SYSTEMS.values() if system.bound]
    assert sorted(bounds) == ["best_static", "no_adaptation", "oracle", "true_gains", "true_load"]


@pytest.mark.parametrize(
    ("streaming", "adaptation", "named"),
    [
        ("local", "distill", ("'distill'", "'local'", "a streaming member that does")),  # labels that never come
        ("one_time", "frozen", ("'one_time'", "'frozen'", "an adaptation that learns")),
        ("on_device", "frozen", ("'on_device'", "'frozen'", "an adaptation that learns")),
        ("just_in_time", "tent", ("'just_in_time'", "'tent'", "such as distill")),  # it compares with labels
    ],
)
def test_an_invalid_combination_is_refused_with_a_valid_one(streaming, adaptation, named):
    system = System("mine", "", Member("streaming", streaming), Member("adaptation", adaptation))
    (fault,) = system.faults()
    assert all(name in fault for name in ("'mine'", *named))


@pytest.mark.parametrize("streaming", ["one_time", "on_device"])
@pytest.mark.parametrize("adaptation", ["distill", "shot", "tent"])
def test_a_learner_runs_at_either_end_with_or_without_labels(streaming, adaptation):
    system = System("mine", "", Member("streaming", streaming), Member("adaptation", adaptation))
    assert system.faults() == []
    assert system.uses_teacher == (adaptation == "distill")


def test_systems_that_use_a_teacher():
    taught = {name for name in FAMILIES["adaptation"] if member_class("adaptation", name).labels == "teacher"}
    rows = {name for name, system in SYSTEMS.items() if system.adaptation.name in taught}
    assert {name for name, system in SYSTEMS.items() if system.uses_teacher} == rows | {"remote_tracking"}
    assert {"ams", "joint+sizes", "oracle"} <= rows
    assert not rows & {"no_custom", "tent", "elasticdnn+cua", "nestdnn"}


def test_systems_that_train_or_label_at_a_server():
    there = {name for name, system in SYSTEMS.items() if system.needs_server}
    alone = {"ams", "just_in_time", "one_time", "remote_tracking", "best_static", "oracle", "elasticdnn+ams"}
    assert there == alone | {"ams-printed", "ams+joint", "ams+nested", "ams+adascale"}


def test_a_system_is_named_after_one_method_unless_it_has_a_row():
    named = [
        method.system or name
        for methods in METHODS.values()
        for name, method in methods.items()
        if method.others is not None
    ]
    assert len(set(named)) == len(named)
    assert set(named) < SYSTEMS.keys()
    assert SYSTEMS["tent"].members == System("tent", "", adaptation=Member("adaptation", "tent")).members
    assert SYSTEMS["shot"].streaming == Member("streaming", "on_device")


@pytest.mark.parametrize(("family", "name"), [("adaptation", "tent"), ("scheduling", "elasticdnn")])
def test_the_docstring_of_a_method_is_read_without_its_class(family, name):
    assert docstring_of(family, name) == inspect.getdoc(member_class(family, name))


@pytest.mark.parametrize("adaptation", ["lame", "neo", "note"])
def test_members_that_act_on_predictions_are_refused_where_phases_train(adaptation):
    on_device = System("mine", "", Member("streaming", "on_device"), Member("adaptation", adaptation))
    (fault,) = on_device.faults()
    assert "'local'" in fault
    assert System("mine", "", adaptation=Member("adaptation", adaptation)).faults() == []
