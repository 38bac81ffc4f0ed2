"""`driftlab run --dry-run`: the cells of an experiment, and the estimated time, memory and disk space."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from driftlab.cli.output import count, format_duration, print_columns, print_json, print_note, print_table, say
from driftlab.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from driftlab.cli.run import BackendChoice
    from driftlab.platform.lab.cells import Point
    from driftlab.platform.lab.placement import Placement
    from driftlab.platform.lab.read import Experiment

MAX_LIST = 200  # characters of a list of names
MIB, GIB = 2**20, 2**30


def print_plan(spec: Experiment, as_json: bool, placement: Placement | None = None) -> None:
    """Print cells and processes, with estimates of time, memory and disk on this computer; render no data."""
    from driftlab.platform.lab.cells import points_of
    from driftlab.platform.lab.fitting import unfit_notes
    from driftlab.platform.lab.own_networks import applicability_in

    if as_json:
        print_json(plan_of(spec, placement))
        return
    points = points_of(spec)
    notes = [("learns nothing", note) for note in unfit_notes(spec)]
    placed = [("placement", f"{placement.kind}: {placement.reason}")] if placement else []
    print_columns([*_grid_rows(spec, points), *placed, *_cost_rows(spec, len(points)), *notes])
    for network, methods in applicability_in(spec).items():
        say()
        print_table((f"method on {network}", "applies", "why not"), [one.row for one in methods])
    say(f"{count(len(points), 'cell')}; nothing was run.")


def print_remaining(path: Path, as_json: bool, place: BackendChoice) -> None:
    """Print the cells that resuming a run would compute; write nothing, not even to the run."""
    from driftlab.platform.lab import paths
    from driftlab.platform.lab.plan import plan_of as plan_in
    from driftlab.platform.lab.read import parse
    from driftlab.platform.results.tables.read import read_request

    spec = parse(read_request(path), source=str(path / paths.SPEC))
    plan = plan_in(spec, path)
    todo, placement = [cell.id for cell in plan.todo], place.placement(spec, path)
    if as_json:
        left = {"experiment": spec.name, "kept": sorted(plan.kept), "cells": todo, "again": dict(plan.again)}
        print_json(left | ({"placement": vars(placement)} if placement else {}))
        return
    for reason, cells in plan.again.items():
        print_note(f"{count(len(cells), 'cell')} would run again, such as {cells[0]}: {reason}")
    for cell in todo:
        say(cell)
    if placement:
        say(f"placement  {placement.kind}: {placement.reason}")
    say(f"{count(len(todo), 'cell')} left, {len(plan.kept)} finished; nothing was run.")


def plan_of(spec: Experiment, placement: Placement | None = None) -> dict[str, Any]:
    """Return the cells, their processes and the complete request of an experiment."""
    from driftlab.platform.lab.cells import points_of
    from driftlab.platform.lab.fitting import unfit_notes
    from driftlab.platform.lab.own_networks import applicability_in

    cells = [point.id for point in points_of(spec)]
    methods = {name: [vars(one) for one in found] for name, found in applicability_in(spec).items()}
    own: dict[str, Any] = {"methods": methods} if methods else {}
    own |= {"placement": vars(placement)} if placement else {}
    request = {"experiment": spec.name, "cells": cells, "spec": spec.model_dump(mode="json")}
    return {**request, "learns_nothing": list(unfit_notes(spec)), **own}


def _grid_rows(spec: Experiment, points: Sequence[Point]) -> Iterator[tuple[str, str]]:
    """Yield the systems, workloads, fleets and seeds that the cells combine."""
    systems = dict.fromkeys(point.system.name for point in points)
    fleets = [f"{part.name} ({count(sum(one.count for one in part.devices), 'device')})" for part in spec.fleets]
    workloads = [f"{part.label} ({_length(part.duration_s)} at {part.fps:g} fps)" for part in spec.workloads]
    for name, values in (
        ("systems", systems),
        ("workloads", workloads),
        ("fleets", fleets),
        ("seeds", [str(seed) for seed in spec.seeds]),
    ):
        listed = shortened(", ".join(values), MAX_LIST)
        yield name, f"{listed}  [{len(values)}]" if len(values) > 1 else listed


def _cost_rows(spec: Experiment, cells: int) -> Iterator[tuple[str, str]]:
    """Yield the estimates of a run on this computer."""
    from driftlab.platform.lab.forecast import forecast
    from driftlab.platform.lab.paths import RUNS
    from driftlab.platform.lab.size import size_of
    from driftlab.platform.sim.host import usable_cores

    size, expected, cores = size_of(spec), forecast(spec), usable_cores()
    folder = next(path for path in (RUNS.absolute(), *RUNS.absolute().parents) if path.exists())
    yield "networks", f"{expected.to_build} to train, {expected.kept} cached"
    yield "frames", f"{expected.frames:,.0f}"
    yield (
        "time",
        f"about {format_duration(expected.on_this_host_s(cores, cells))} on {count(cores, 'core')} of this computer",
    )
    yield "memory", f"{size.memory_bytes / GIB:.1f} GiB"
    yield "disk", f"{size.disk_bytes / MIB:,.0f} MiB; {shutil.disk_usage(folder).free / MIB:,.0f} MiB are free"


def _length(duration_s: float | None) -> str:
    return "full length" if duration_s is None else f"{duration_s:g} s"
