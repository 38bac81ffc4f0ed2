"""The request selects the placement, and whole cells have the rows of separate nodes."""

from __future__ import annotations

import re
import sys

import pytest
from documents_factory import TINY
from whole_cells_factory import RecordingCells, WholeCells

from driftlab.actors import backend
from driftlab.cli.run import BackendChoice
from driftlab.errors import RequestError, RunError
from driftlab.platform.core.plugins import code_digest, find_class, install_finder
from driftlab.platform.lab import paths
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.placement import placement_of, sources_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences
from driftlab.platform.results.tables.read import read_info
from driftlab.platform.sim.nodes.cell import REPORTS, CellNode, report_times

BROKEN = """
from dataclasses import dataclass

from driftlab.platform.streaming.ams import Ams


@dataclass(frozen=True)
class Broken(Ams):
    def plan_uplink(self, *args):
        raise ValueError("no plan")
"""
ALONE = {"systems": ["no_custom"]}


def fleet_of(devices, name="fleet"):
    return {"fleets": [{"name": name, "devices": [{"count": devices}]}]}


THREE = fleet_of(3, "three")


@pytest.mark.parametrize(
    ("changes", "options", "kind", "reason"),
    [
        ({}, {}, "cells", "each of the 4 cells has one device"),
        ({}, {"workers": 4}, "cells", "each of the 4 cells"),
        ({}, {"workers": 5}, "nodes", r"fewer cells \(4\) than workers \(5\)"),
        ({"systems": ["no_custom"]}, {}, "nodes", r"fewer cells \(1\)"),
        (THREE, {}, "nodes", "'one_time' has a server, which the 3 devices of 'three' share"),
        ({**THREE, **ALONE}, {"workers": 1}, "cells", "each of the 1 cells has devices that share no server"),
        ({**fleet_of(201), **ALONE}, {"workers": 3}, "cells", "3 parts of at most 100 devices"),
        ({**fleet_of(201), **ALONE}, {"workers": 4}, "nodes", r"fewer cells \(3\) than workers \(4\)"),
        ({}, {"devices_per_actor": 2}, "nodes", "--devices-per-actor"),
        ({**THREE, "compute": {"placement": "cells"}}, {"workers": 9}, "cells", "compute.placement is cells"),
        ({"compute": {"placement": "nodes"}}, {}, "nodes", "compute.placement is nodes"),
    ],
)
def test_placement_follows_from_the_request(changes, options, kind, reason):
    placement = placement_of(parse({**TINY, **changes}), **options)
    assert placement.kind == kind
    assert re.search(reason, placement.reason)


def test_a_request_without_placement_has_the_spec_of_before():
    assert "placement" not in parse(TINY).model_dump(mode="json")["compute"]
    given = parse({**TINY, "compute": {"placement": "cells"}})
    assert given.model_dump(mode="json")["compute"]["placement"] == "cells"


@pytest.mark.parametrize(("window_s", "count"), [(3.0, 3), (100.0, 1), (0.01, REPORTS)])
def test_a_cell_reports_a_bounded_number_of_times_and_last_at_its_end(window_s, count):
    cell = cells_of(parse(TINY))[0]
    times = list(report_times(cell, window_s))
    assert len(times) == count
    assert times[-1] == cell.duration_s


@pytest.mark.parametrize("fault", [ValueError("no such thing"), SystemExit(3)])
def test_an_error_of_a_member_is_the_reason_that_separate_nodes_give(monkeypatch, fault):
    """The class and message only, without the name of a node."""

    def fail(*args):
        raise fault

    monkeypatch.setattr("driftlab.platform.sim.nodes.cell.Runner", fail)
    node = CellNode(cells_of(parse(TINY))[0], _Setup())
    with pytest.raises(RunError, match=rf"^{type(fault).__name__}: {fault}$"):
        node.advance(1.0)


class _Setup:
    def with_networks(self, jobs):
        return self


def test_a_resumed_run_stays_in_the_processes_in_which_it_began(tmp_path, monkeypatch):
    """Two workers compute whole cells of this grid; forty would not."""
    configs = []
    monkeypatch.setattr(backend, "RayBackend", configs.append)
    spec = parse(TINY)
    for workers, devices_per_actor in ((2, None), (40, None), (40, 1)):
        paths.keep_info(tmp_path, dict)
        BackendChoice("ray", None, workers, devices_per_actor, False).opener(spec, tmp_path)()
    assert placement_of(spec, 40).kind == "nodes"
    assert [(config.workers, config.placement) for config in configs] == [(2, "cells"), (40, "cells"), (40, "nodes")]
    assert read_info(tmp_path) == {"placement": "cells"}
    assert placement_of(parse(TINY, ["compute.placement=nodes"]), 2, begun="cells").kind == "nodes"


def test_the_file_of_a_member_is_carried_to_computers_without_it(tmp_path):
    """The name of its class includes a path of the driver's computer."""
    file = tmp_path / "carried.py"
    file.write_text(BROKEN)
    fails = {"name": "fails", "streaming": {"name": f"{file}:Broken"}, "adaptation": "distill"}
    sources = sources_of(parse({**TINY, "systems": ["no_custom", fails]}))
    assert sources == {str(file): BROKEN.encode()}
    sys.modules.pop(find_class("member", f"{file}:Broken").__module__)
    digest = code_digest(f"{file}:Broken")
    file.unlink()
    with pytest.raises(RequestError, match="there is no file"):
        find_class("member", f"{file}:Broken")
    install_finder(sources)
    assert find_class("member", f"{file}:Broken").__name__ == "Broken"
    assert code_digest(f"{file}:Broken") == digest
    assert sources_of(parse({**TINY, "systems": ["no_custom", fails]})) == sources


@pytest.mark.slow
@pytest.mark.parametrize("open_backend", [WholeCells, RecordingCells])
def test_whole_cells_have_the_tables_of_separate_nodes(tmp_path, open_backend):
    """Also a failed one, and the progress adds up to the same work."""
    (tmp_path / "broken.py").write_text(BROKEN)
    fails = {"name": "fails", "streaming": {"name": f"{tmp_path / 'broken.py'}:Broken"}, "adaptation": "distill"}
    document = {
        **TINY,
        "systems": [TINY["systems"][2], fails],
        "workloads": [{**TINY["workloads"][0], "duration_s": 6}],
    }
    work = Work(), Work()
    separate = run(document, out=tmp_path / "separate", progress=work[0])
    whole = run(document, out=tmp_path / "whole", progress=work[1], open_backend=open_backend)
    assert differences(separate.directory, whole.directory) == []
    assert separate.failed == whole.failed
    assert [reason for _, reason in whole.failed] == ["ValueError: no plan"]
    assert work[0].done_s == pytest.approx(work[1].done_s)


class Work(Progress):
    done_s = 0.0

    def advanced(self, work_s):
        self.done_s += work_s
