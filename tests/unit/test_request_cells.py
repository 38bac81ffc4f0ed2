"""Cells: the order of the grid, and a separate world for every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driftlab.platform.core.seeding import seed_for
from driftlab.platform.core.spec import SystemPart
from driftlab.platform.lab import cells
from driftlab.platform.lab.cells import cells_of, system_of
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.sets import expand_system
from driftlab.platform.sim.setting import Cell

WORKLOADS = [
    {"name": "streets/running", "duration_s": 8, "fps": 2, "height": 32, "width": 48},
    {"name": "streets/dance", "duration_s": 6, "fps": 1, "height": 32, "width": 48, "params": {"pace": 2}},
]
FLEETS = [
    {"name": "one"},
    {
        "name": "mixed",
        "devices": [{"hardware": "laptop", "count": 2}, {"hardware": "phone-lo", "link": "3g", "count": 1}],
    },
]


def part_of(**given: Any) -> SystemPart:
    return SystemPart.model_validate(expand_system(given))


def grid(**changes: Any) -> list[Cell]:
    document = {"name": "test", "systems": ["no_custom", "one_time"], "workloads": WORKLOADS, "bounds": False}
    return cells_of(parse({**document, **changes}))


def test_bounds_are_added_where_no_system_replaces_them():
    names = [cell.system.name for cell in grid(bounds=True, workloads=WORKLOADS[:1])]
    assert names == ["no_custom", "one_time", "best_static", "oracle"]
    assert [cell.system.name for cell in grid(workloads=WORKLOADS[:1])] == ["no_custom", "one_time"]


def test_a_bound_with_other_parameters_is_still_that_bound():
    shorter = {"name": "oracle", "streaming": {"name": "foresight", "span": "window", "iterations": 5}}
    found = [cell.system for cell in grid(bounds=True, workloads=WORKLOADS[:1], systems=[shorter])]
    assert [system.name for system in found] == ["oracle", "no_custom", "best_static"]
    assert dict(found[0].streaming.params)["iterations"] == 5


def test_a_bound_with_other_members_is_none():
    other = part_of(name="mine", base="no_custom", streaming="one_time", adaptation="distill")
    assert system_of(other).bound is None
    assert system_of(part_of(name="mine", base="no_custom")).bound == "no_adaptation"


def test_over_a_zero_delay_link_a_method_is_a_bound_in_the_same_world():
    alone = {"name": "swift", "base": "one_time", "zero_delay_link": True}
    own, swift = grid(systems=["one_time", alone], workloads=WORKLOADS[:1], fleets=FLEETS[1:])
    assert (own.system.bound, swift.system.bound) == (None, "zero_delay_link")
    assert swift.system.members == own.system.members
    assert [device.link.name for device in own.devices] == ["lte", "lte", "3g"]
    assert [device.link.name for device in swift.devices] == ["zero-delay"] * 3
    assert [replace(device, link=None) for device in swift.devices] == [
        replace(device, link=None) for device in own.devices
    ]


def test_a_fleet_lists_its_devices_in_order():
    (cell,) = grid(fleets=FLEETS[1:], systems=["no_custom"], workloads=WORKLOADS[:1])
    assert [device.name for device in cell.devices] == ["device-0000", "device-0001", "device-0002"]
    assert [device.hardware.name for device in cell.devices] == ["laptop", "laptop", "phone-lo"]
    assert [device.link.name for device in cell.devices] == ["lte", "lte", "3g"]


def test_a_fleet_has_the_gpus_of_the_server_unless_it_sets_others():
    fleets = [{"name": "own", "gpus": 3}, {"name": "shared"}]
    found = grid(fleets=fleets, systems=["no_custom"], workloads=WORKLOADS[:1], server={"gpus": 2})
    assert {cell.fleet: cell.gpus for cell in found} == {"own": 3, "shared": 2}


def test_every_device_has_a_separate_world_that_is_equal_for_all_systems():
    found = grid(fleets=FLEETS, seeds=[0, 1])
    worlds: dict[tuple[str, int, int], set[int]] = {}
    for cell in found:
        for index, device in enumerate(cell.devices):
            stream = device.apps[0].stream
            worlds.setdefault((stream.workload, cell.seed, index), set()).add(stream.seed)
    assert all(len(seeds) == 1 for seeds in worlds.values())
    assert len({min(seeds) for seeds in worlds.values()}) == len(worlds) == 2 * 2 * 3
    assert worlds["streets/running", 1, 2] == {seed_for(1, "stream", "streets/running", 2)}


@pytest.mark.slow
def test_a_thousand_devices_open_their_workload_once(monkeypatch: pytest.MonkeyPatch):
    experiment = parse(
        {
            "name": "fleet",
            "systems": ["no_custom"],
            "workloads": WORKLOADS,
            "fleets": [{"devices": [{"count": 1000}]}],
            "bounds": False,
        }
    )
    opened = []
    open_stream = cells.open_stream
    monkeypatch.setattr(cells, "open_stream", lambda name, **more: opened.append(name) or open_stream(name, **more))
    assert len(cells_of(experiment)[0].devices) == 1000
    assert opened == ["streets/running", "streets/dance"]
