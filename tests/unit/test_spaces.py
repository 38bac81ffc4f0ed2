"""Spaces of operators: names, files, and the faults of both."""

from __future__ import annotations

import pytest

from driftlab.errors import RequestError
from driftlab.platform.field.request import experiment_of, parse_session_request
from driftlab.platform.lab.cells import slot_of
from driftlab.platform.networks.operators import OPERATORS
from driftlab.platform.networks.paths import BASE, MERGED, SPARSE, PathSpace
from driftlab.platform.networks.spaces import CLASSES, NAMES, SPACES, find_space, read_space, space_faults


def test_every_operator_is_in_a_space_and_in_a_class_of_the_paper():
    assert {*OPERATORS, *SPARSE, MERGED} == set(NAMES)
    reachable = {name for space in SPACES.values() for names in space for name in names}
    assert reachable == {*NAMES, BASE}
    named = {name for names in SPACES["named480"] for name in names} - {BASE}
    assert named == {name for names in CLASSES.values() for name in names} == set(OPERATORS)
    assert len(PathSpace(SPACES["named480"])) == 480


def test_a_file_is_replaced_by_its_text_where_the_request_is_read(tmp_path):
    file = tmp_path / "my_space.yaml"
    file.write_text("stages:\n  - [dwsep, base, svd]\n  - [dense]\n  - []\n")
    member = slot_of("scaling", {"name": "adascale", "space": str(file), "exits": 3})
    assert dict(member.params)["space"] == "dwsep,svd,base/dense,base/base"
    assert find_space(member.make().space) == (("dwsep", "svd", "base"), ("dense", "base"), ("base",))
    file.unlink()
    assert member.make().exits == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("stages: [[dwsep, dwsepp]]", r"stage 1 of a space has no operator 'dwsepp'.*dwsep.*known: dwsep, fire"),
        ("stages: [[dwsep], [svd, svd]]", "stage 2 of a space lists 'svd' twice"),
        ("stages: [[dwsep], [], [], [], []]", "5 stages, allowed are 4"),
        (
            f"stages: [{', '.join(['[dwsep, svd, fire, dense, share, asym, ghost]'] * 4)}]",
            "4,680 paths, allowed are 2,000",
        ),
        ("stages: dwsep", "stages is 'dwsep'; give a list per stage"),
        ("stages: [dwsep]", "stage 1 is 'dwsep'; give a list of operators"),
        ("stages: []", "give a list per stage"),
        ("paths: 3", "must have the key 'stages' and no other"),
        ("[1", "cannot be read"),
    ],
)
def test_a_fault_of_a_file_is_named_with_its_place(tmp_path, text, fault):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(RequestError, match=rf"mine\.yaml.*{fault}"):
        read_space(file)


def test_a_missing_file_and_an_unknown_name_are_refused(tmp_path):
    with pytest.raises(RequestError, match=r"mine\.yaml' cannot be read"):
        slot_of("scaling", {"name": "adascale", "space": str(tmp_path / "mine.yaml")})
    (fault,) = space_faults("tinny")
    assert "tiny" in fault
    assert "YAML file" in fault
    with pytest.raises(RequestError, match="must end with 'base'"):
        find_space("dwsep/base")


def test_a_server_reads_no_space_from_its_disk(tmp_path):
    file = tmp_path / "secret.yaml"
    file.write_text("stages: [[dwsep]]")
    system = {"name": "mine", "base": "adascale", "scaling": {"name": "adascale", "space": str(file)}}
    asked = {"system": system, "workload": {"name": "signs/depot"}, "student": {"network": "tiny_staged"}}
    with pytest.raises(RequestError, match="over the network cannot name a file"):
        experiment_of(parse_session_request(asked))
