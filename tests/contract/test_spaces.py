"""Every member of every family has a search space: from its file, or from its parameters' ranges."""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest

from driftlab.platform.core.parameters import parameters_of
from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.core.space import OneOf
from driftlab.platform.core.system_table import SYSTEMS
from driftlab.platform.lab import read as experiments
from driftlab.platform.tune.document import FIRST_SEED, experiment_of
from driftlab.platform.tune.session import TuneSession
from driftlab.tune_spaces import catalogue
from driftlab.tune_spaces.ranges import BOUND_PARAMETERS, files, names, space_of

NAMES = names()
MEMBERS = [Member(family, name) for family, names in FAMILIES.items() for name in names]


@pytest.fixture(scope="module", autouse=True)
def files_read_once() -> Iterator[None]:
    """Parse the file of each space once: most spaces begin with one of three files."""
    read = cache(experiments.document_of)
    with patch.object(experiments, "document_of", lambda file: copy.deepcopy(read(file))):
        yield


@cache
def space(name):
    """Read a shipped space once: every end of its domains is tried on its experiment."""
    return catalogue.load(name)


@cache
def on_signs(name):
    """Read the space of a system as a search with the streams and trials of all systems."""
    return catalogue.load_equal([name], "tent", ["trials=3"])[name]


def searchable(member):
    """Name the parameters that are numbers with a default, choices, names or switches, and make no bound."""
    found = []
    for name, one in parameters_of(member_class(member.family, member.name)).items():
        plain = isinstance(one.default, bool | int | float) or bool(one.names)
        if name not in BOUND_PARAMETERS and (plain or typing.get_origin(one.hint) is typing.Literal):
            found.append(name)
    return found


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: f"{member.family}/{member.name}")
def test_every_member_has_a_space(member):
    name = f"{member.family}/{member.name}"
    wanted = searchable(member)
    assert (name in NAMES) == bool(wanted), "a member belongs into NO_SPACE if and only if there is nothing to search"
    held = {path.rpartition(".")[2] for path in space_of(member)}
    nothing_around = {
        key for key in wanted if parameters_of(member_class(member.family, member.name))[key].default == 0
    }
    assert set(wanted) - nothing_around <= held <= set(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_space_is_read_with_all_its_ends(name):
    document = space(name)
    assert all(part.why for part in document.space.values())
    assert min(*document.seeds, *document.held_out) >= FIRST_SEED
    assert len(document.held_out) >= 4


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name in NAMES])
def test_the_trials_of_a_system_lie_in_its_space_and_are_accepted(name, tmp_path):
    document = space(name).model_copy(update={"searcher": "random", "trials": 5})
    session = TuneSession(document, tmp_path)
    drawn = [session.next() for _ in range(5)]
    assert drawn[0].settings == document.defaults()
    for assignment in drawn[1:]:
        assert session.problem.space.positions(assignment.settings) is not None
        experiment_of(document.experiment, assignment.settings, document.seeds)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_can_be_tuned_with_the_others(name):
    document, tent = on_signs(name), on_signs("tent")
    assert (document is None) == (name == "no_custom")
    if document is not None:
        assert document.trials == tent.trials == 3
        assert document.experiment["workloads"] == tent.experiment["workloads"]
        assert document.space.keys() == space(name).space.keys()


@pytest.mark.parametrize("name", files())
def test_a_space_with_a_file_has_a_small_size_and_separate_reasons(name):
    small, full = catalogue.load(name, ["size=small"]), space(name)
    assert small.trials <= 12 < full.trials
    assert small.space.keys() == full.space.keys()
    assert all("within what the parameter allows" not in part.why for part in full.space.values())


@pytest.mark.parametrize("name", files())
def test_the_defaults_lie_in_the_space_with_two_known_exceptions(name):
    document = space(name)
    outside = {
        path: value
        for path, value in document.defaults().items()
        if document.problem.space.domains[path].__class__ is not OneOf
        and not document.space[path].low <= value <= document.space[path].high
    }
    assert set(outside) <= {"systems.0.streaming.sample_s", "systems.0.streaming.max_interval_s"}
